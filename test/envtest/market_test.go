//go:build kubernetes

package envtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/controller"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

const (
	// maxPayload is what the market's broker takes of one message.
	maxPayload = 4096
	// marketInterval is the status interval of the market's resources.
	marketInterval = 5 * time.Second
)

// market is the samples on servers of their own, in a cluster of its own: operator, workers, PostgreSQL and NATS are
// real, the kubelet is node.
type market struct {
	*space
	servers  *local.Postgres
	broker   *testkit.Broker
	way      *testkit.Faulty // from the relay to the broker
	orders   *pgxpool.Pool
	billing  *pgxpool.Pool
	relay    *v1alpha1.OutboxRelay
	consumer *v1alpha1.InboxConsumer
	// endOperator and endPlane end what their names say and wait for it.
	endOperator, endPlane func()
}

// newMarket starts everything but the node and the resources.
func newMarket(t *testing.T) *market {
	t.Helper()
	b, endPlane := own(t)
	m := &market{endPlane: endPlane, servers: testkit.PostgresServer(t, local.PostgresConfig{})}
	if err := b.install(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(
		context.Background(),
	) // ends before the plane, whose clean-up was asked for before
	done := make(chan error, 1)
	if err := b.operate(ctx, controller.Options{AllowInsecureTransport: true}, done); err != nil {
		t.Fatal(err)
	}
	var ended bool
	m.endOperator = func() {
		cancel()
		if !ended {
			ended = true
			if err := <-done; err != nil {
				t.Errorf("the operator ended badly: %v", err)
			}
		}
	}
	t.Cleanup(m.endOperator)
	m.space = spaceIn(t, b, "shop")
	m.broker = testkit.NATSServer(t, local.NATSConfig{MaxPayload: maxPayload, Users: m.makeSecrets()})
	m.way = testkit.Proxy(t, m.broker.Addr())
	m.makeDatabases()
	return m
}

// makeSecrets makes the samples' Secrets and the database users that they name. It returns the broker's users.
func (m *market) makeSecrets() []local.NATSUser {
	m.t.Helper()
	raw, err := os.ReadFile(filepath.Join(samples, "secrets.yaml"))
	if err != nil {
		m.t.Fatal(err)
	}
	var users []local.NATSUser
	for document := range bytes.SplitSeq(raw, []byte("\n---\n")) {
		secret := &corev1.Secret{}
		if err := yaml.UnmarshalStrict(document, secret); err != nil {
			m.t.Fatal(err)
		}
		secret.Namespace = m.name
		name, password := secret.StringData["username"], secret.StringData["password"]
		if err := m.admin.Create(m.t.Context(), secret); err != nil {
			m.t.Fatal(err)
		}
		if strings.HasPrefix(secret.Name, "nats-") {
			users = append(users, local.NATSUser{Name: name, Password: password})
			continue
		}
		m.login(name, password)
	}
	return users
}

func (m *market) login(name, password string) {
	m.t.Helper()
	if err := m.servers.EnsureLogin(m.t.Context(), local.Login{Name: name, Password: password}); err != nil {
		m.t.Fatal(err)
	}
}

// makeDatabases makes those that the samples name, with the shop's own tables.
func (m *market) makeDatabases() {
	m.t.Helper()
	for name, into := range map[string]**pgxpool.Pool{"orders": &m.orders, "billing": &m.billing} {
		owner := &local.Login{Name: name + "_owner", Password: "sample-" + name + "-owner"}
		if err := m.servers.EnsureDatabase(m.t.Context(), local.Database{Name: name, Owner: owner}); err != nil {
			m.t.Fatal(err)
		}
		pool, err := pgxpool.New(m.t.Context(), m.servers.URL(name))
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(pool.Close)
		*into = pool
		raw, err := os.ReadFile(filepath.Join("../../internal/shop", name+".sql"))
		if err != nil {
			m.t.Fatal(err)
		}
		m.exec(pool, string(raw))
	}
}

func (m *market) exec(pool *pgxpool.Pool, statement string, args ...any) {
	m.t.Helper()
	if _, err := pool.Exec(m.t.Context(), statement, args...); err != nil {
		m.t.Fatalf("%s: %v", statement, err)
	}
}

// apply makes the sample resources, with the addresses of the market's servers.
func (m *market) apply() {
	m.t.Helper()
	plain := v1alpha1.TLS{Mode: v1alpha1.TLSModeInsecure}
	at := func(p *v1alpha1.Postgres) {
		p.Hosts, p.Port, p.TLS = []v1alpha1.Host{v1alpha1.Host(m.servers.Host())}, int32(m.servers.Port()), plain
	}
	m.relay, m.consumer = &v1alpha1.OutboxRelay{}, &v1alpha1.InboxConsumer{}
	m.sample("orders-relay.yaml", m.relay)
	m.sample("billing-consumer.yaml", m.consumer)
	spec := &m.relay.Spec
	at(&spec.Source.Postgres)
	spec.Destination.NATS.Servers = []v1alpha1.ServerAddress{v1alpha1.ServerAddress(m.way.Addr())}
	spec.Destination.NATS.TLS = plain
	spec.Batch.MaxMessages, spec.Batch.PublishTimeout = 1, "20s"
	spec.StatusInterval = v1alpha1.Duration(marketInterval.String())
	spec.RetryBudget.InitialBackoff, spec.RetryBudget.MaxBackoff, spec.RetryBudget.MaxAttempts = "1s", "5s", 1000
	at(&m.consumer.Spec.Inbox.Postgres)
	m.consumer.Spec.Source.NATS.Servers = []v1alpha1.ServerAddress{v1alpha1.ServerAddress(m.broker.Addr())}
	m.consumer.Spec.Source.NATS.TLS = plain
	m.consumer.Spec.StatusInterval = v1alpha1.Duration(marketInterval.String())
	for _, o := range []interface{ SetNamespace(string) }{m.relay, m.consumer} {
		o.SetNamespace(m.name)
	}
	if err := m.admin.Create(m.t.Context(), m.relay); err != nil {
		m.t.Fatal(err)
	}
	if err := m.admin.Create(m.t.Context(), m.consumer); err != nil {
		m.t.Fatal(err)
	}
}

// write commits so many messages on one key.
func (m *market) write(key string, n int, data string) {
	m.t.Helper()
	m.exec(m.orders, `SELECT message_outbox_write($1, 'order.paid', convert_to($2, 'UTF8'), 'shop')
		FROM generate_series(1, $3)`, key, data, n)
}

// sale is the data of a message that billing can book.
const sale = `{"state": "paid", "amount": 5}`

// effects counts what billing has booked.
func (m *market) effects() int {
	m.t.Helper()
	var n int
	if err := m.billing.QueryRow(m.t.Context(), "SELECT count(*) FROM ledger").Scan(&n); err != nil {
		m.t.Fatal(err)
	}
	return n
}

// shows waits until the statuses are as they should be, and says how long it took.
func (m *market) shows(what string, wrong func(*v1alpha1.OutboxRelayStatus, *v1alpha1.InboxConsumerStatus) string,
) time.Duration {
	m.t.Helper()
	since := time.Now()
	eventually(m.t, what, func() string {
		m.get(m.relay.Name, m.relay)
		m.get(m.consumer.Name, m.consumer)
		if w := wrong(&m.relay.Status, &m.consumer.Status); w != "" {
			return fmt.Sprintf("%s; relay %s; consumer %s", w,
				conditions(m.relay.Status.Conditions), conditions(m.consumer.Status.Conditions))
		}
		return ""
	})
	return time.Since(since)
}

// is says whether a condition is otherwise.
func is(all []metav1.Condition, kind string, status metav1.ConditionStatus, reason string) bool {
	c := meta.FindStatusCondition(all, kind)
	return c != nil && c.Status == status && c.Reason == reason
}
