package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// Canaries stand for what must never be printed. They are part of each password and payload of these tests.
const (
	passwordCanary = "canary-password"
	payloadCanary  = "canary-payload"
)

// place is a database with tables and a role that has the least rights.
type place struct {
	*testkit.DB
	cfg      config.Postgres
	user     string
	password string
}

// shop is two services with a broker between them.
type shop struct {
	t        *testing.T
	bin      string // where the commands are
	orders   *place // with an outbox
	billing  *place // with an inbox and effects
	broker   *testkit.Broker
	stream   testkit.Stream
	writer   *outbox.Writer
	relay    config.Relay
	consumer config.Consumer
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, broker: testkit.NATS(t)}
	s.orders = newPlace(t, schema.Outbox, schema.RoleRelay)
	s.billing = newPlace(t, schema.Inbox, schema.RoleConsumer)
	s.billing.Exec(`CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY, event_id text NOT NULL,
		key text NOT NULL, version bigint NOT NULL)`)
	s.billing.Exec("GRANT INSERT ON effect TO " + pgx.Identifier{s.billing.user}.Sanitize())
	s.stream = s.broker.Stream(jetstream.StreamConfig{})
	var err error
	if s.writer, err = outbox.New(outbox.Config{Source: "shop", Schema: s.orders.Schema}); err != nil {
		t.Fatal(err)
	}
	s.relay = s.relayConfig()
	s.consumer = s.consumerConfig()
	return s
}

// newPlace makes the tables and a role that may do its part and nothing else.
func newPlace(
	t *testing.T, component schema.Component, role schema.Role, options ...testkit.PostgresOption,
) *place {
	t.Helper()
	p := &place{DB: testkit.Postgres(t, options...), password: passwordCanary + "-1"}
	names := postgres.Names{Schema: p.Schema, Outbox: "message_outbox"}
	parts := schema.Options{Components: []schema.Component{component}, Shards: 4}
	if err := schema.Apply(t.Context(), p.Pool(), names, parts); err != nil {
		t.Fatal(err)
	}
	p.user = string(role) + "_" + p.Schema
	quoted := pgx.Identifier{p.user}.Sanitize()
	p.Exec(fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", quoted, p.password))
	t.Cleanup(func() { p.dropRole(quoted) })
	for _, grant := range schema.Grants(names, role, p.user) {
		p.Exec(grant)
	}
	p.cfg = p.Config()
	p.cfg.MaxConnections = 8
	p.credentials(p.user, p.password)
	return p
}

// dropRole connects anew: the server may have been restarted.
func (p *place) dropRole(quoted string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return // a server of the test's own, which has ended
	}
	_, _ = conn.Exec(ctx, "DROP OWNED BY "+quoted) // what remains goes with the server
	_, _ = conn.Exec(ctx, "DROP ROLE "+quoted)
	_ = conn.Close(ctx)
}

// credentials writes the Secret's files anew.
func (p *place) credentials(user, password string) {
	for name, content := range map[string]string{"username": user, "password": password} {
		next := filepath.Join(p.cfg.CredentialsDir, "."+name)
		if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
			panic(err) // a temporary directory of this test
		}
		if err := os.Rename(next, filepath.Join(p.cfg.CredentialsDir, name)); err != nil {
			panic(err)
		}
	}
}

func (s *shop) relayConfig() config.Relay {
	nats := s.broker.Config(s.stream)
	return config.Relay{
		Version:   config.Version,
		Resource:  config.Resource{Namespace: "shop", Name: "orders", UID: "uid-orders", Generation: 1},
		RunPolicy: config.RunPolicyRun, Source: s.orders.cfg, NATS: &nats, Ordering: config.OrderingPerKey,
		OnDeadLetter: config.BlockKey,
		Budget: config.Budget{
			MaxAttempts: 10, MaxElapsed: config.Duration(time.Hour), RetryPercent: 20, MinRetriesPerSecond: 10,
		},
		Outbox: config.Outbox{Table: "message_outbox", Shards: 4, PublishedRetention: config.Duration(time.Hour)},
		Lease:  config.Duration(7 * time.Second),
		Batch: config.Batch{
			MaxMessages: 100, MaxBytes: 1 << 20, PollInterval: config.Duration(20 * time.Millisecond),
			PublishTimeout: config.Duration(time.Second),
		},
		Backoff:    config.Backoff{Initial: config.Duration(50 * time.Millisecond), Max: config.Duration(time.Second)},
		StatusTick: config.Duration(time.Second),
	}
}

func (s *shop) consumerConfig() config.Consumer {
	nats := s.broker.Config(s.stream)
	nats.Subject, nats.Durable = "", "billing"
	effect := "INSERT INTO " + pgx.Identifier{s.billing.Schema, "effect"}.Sanitize() +
		" (event_id, key, version) VALUES (@event_id, @ordering_key, @aggregate_version)"
	return config.Consumer{
		Version:   config.Version,
		Resource:  config.Resource{Namespace: "shop", Name: "billing", UID: "uid-billing", Generation: 1},
		RunPolicy: config.RunPolicyRun, ConsumerName: "shop/billing", NATS: &nats,
		Inbox: config.Inbox{
			Postgres: s.billing.cfg, Retention: config.Duration(time.Hour), ReplayHorizon: config.Duration(time.Hour),
		},
		SQL: &config.SQLHandler{
			OnUnmatched: config.UnmatchedIgnore,
			Routes:      []config.SQLRoute{{EventTypes: []string{"order.*"}, Statement: effect}},
		},
		Ordering: config.Ordering{
			Mode: config.OrderingPerKey, Versions: config.VersionsEnforce, Delivery: config.DeliveryShared,
			GapTimeout: config.Duration(time.Minute), OnGapTimeout: config.GapHold,
		},
		Validation: config.Validation{MaxBytes: 1 << 20, MaxDepth: 64},
		Concurrency: config.Concurrency{
			Lanes: 4, Prefetch: 200, MaxBatchMessages: 50, HandlerTimeout: config.Duration(10 * time.Second),
		},
		Backoff:    config.Backoff{Initial: config.Duration(50 * time.Millisecond), Max: config.Duration(time.Second)},
		StatusTick: config.Duration(time.Second),
	}
}

// write commits so many orders, each a message on one of twenty keys.
func (s *shop) write(n int) {
	s.t.Helper()
	body, err := json.Marshal(map[string]string{"card": payloadCanary})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range n {
		err := pgx.BeginFunc(s.t.Context(), s.orders.Pool(), func(tx pgx.Tx) error {
			_, err := s.writer.Write(s.t.Context(), tx, outbox.Message{
				Type: "order.paid", OrderingKey: fmt.Sprintf("order-%d", i%20), Payload: body,
			})
			return err
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// effects counts what was applied.
func (s *shop) effects() int {
	s.t.Helper()
	return testkit.Value[int](s.billing.DB, "SELECT count(*) FROM effect")
}

// arrives waits until so many effects are there, and proves that each event came once and each key in order.
func (s *shop) arrives(n int) {
	s.t.Helper()
	testkit.Eventually(s.t, 2*patience, fmt.Sprintf("%d effects are there", n), func() bool { return s.effects() >= n })
	testkit.Eventually(s.t, patience, "the outbox is empty", func() bool {
		return testkit.Value[int](s.orders.DB, "SELECT count(*) FROM message_outbox") == 0
	})
	twice := testkit.Value[int](s.billing.DB, "SELECT count(*) - count(DISTINCT event_id) FROM effect")
	disorder := testkit.Value[int](s.billing.DB, `SELECT count(*) FROM (
		SELECT version, row_number() OVER (PARTITION BY key ORDER BY n) AS wanted FROM effect) x WHERE version <> wanted`)
	if got := s.effects(); got != n || twice != 0 || disorder != 0 {
		s.t.Errorf("%d effects instead of %d, %d twice, %d out of order", got, n, twice, disorder)
	}
}

// silent fails where something was printed that never may be.
func silent(t *testing.T, where, text string) {
	t.Helper()
	for _, canary := range []string{passwordCanary, payloadCanary} {
		if i := strings.Index(text, canary); i >= 0 {
			t.Errorf("%s holds a canary: …%s", where, text[max(0, i-200):min(len(text), i+80)])
		}
	}
}
