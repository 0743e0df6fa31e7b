package pipeline_test

import (
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// renewed waits, a minute at most on a busy machine.
const renewed = 2 * patience

// rotation is a relay whose broker's credentials change while messages flow.
type rotation struct {
	*orders

	life    *life
	written int
}

// rotate starts the relay and has it publish something with the first credentials.
func (o *orders) rotate(cfg config.Relay) *rotation {
	o.t.Helper()
	_, life := o.start(cfg)
	r := &rotation{orders: o, life: life}
	r.flow("messages are published", func() bool {
		return testkit.Value[int](o.db, "SELECT count(*) FROM message_outbox_published") > 0
	})
	return r
}

// flow commits messages until the condition is met.
func (r *rotation) flow(what string, is func() bool) {
	r.t.Helper()
	testkit.Eventually(r.t, renewed, what, func() bool {
		r.write(3)
		r.written += 3
		return is()
	})
}

// says waits until the relay has logged each line once more than before the change.
func (r *rotation) says(change func(), lines ...string) {
	r.t.Helper()
	before := r.log.String()
	change()
	for _, line := range lines {
		r.flow("the log says: "+line, func() bool {
			return strings.Count(r.log.String(), line) > strings.Count(before, line)
		})
	}
}

// refuses makes a change of files with which the broker does not let the relay in: everything goes on as before.
func (r *rotation) refuses(change func()) {
	r.t.Helper()
	r.says(change, "New credentials of the broker do not work")
	before := testkit.Value[int](r.db, "SELECT count(*) FROM message_outbox_published")
	r.flow("messages go on", func() bool {
		return testkit.Value[int](r.db, "SELECT count(*) FROM message_outbox_published") > before+30
	})
}

// takes makes a change after which the relay has to make its connections anew.
func (r *rotation) takes(change func()) {
	r.t.Helper()
	r.says(change, "Replacing the part for changed credentials", "msg=Running")
}

// everything waits until all that was committed is published, and ends the relay.
func (r *rotation) everything() int {
	r.t.Helper()
	r.published(r.written)
	r.life.becomes("BrokerReachable", "True Reachable")
	if err := r.life.drain(); err != nil {
		r.t.Errorf("Run() = %v", err)
	}
	if n := testkit.Value[int](r.db, "SELECT count(*) FROM message_failure"); n != 0 {
		r.t.Errorf("%d dead letters", n)
	}
	if r.log.Contains("canary") {
		r.t.Error("the log holds a password")
	}
	return r.written
}

// Two users, as where each password has a name of its own. The pair between two written files logs in nobody.
func TestARelayTakesNewCredentialsOfNATSWithoutALoss(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	o.broker = testkit.NATSServer(t, local.NATSConfig{Users: []local.NATSUser{
		{Name: "one", Password: "canary-1"}, {Name: "two", Password: "canary-2"},
	}})
	login := nats.UserInfo("two", "canary-2")
	stream := o.broker.Stream(jetstream.StreamConfig{}, login)
	to := o.broker.Config(stream)
	to.CredentialsDir = testkit.SecretDir(t, "one", "canary-1")
	cfg := o.cfg
	cfg.NATS = &to
	r := o.rotate(cfg)
	r.refuses(func() { write(t, filepath.Join(to.CredentialsDir, "username"), "two") })
	r.takes(func() { write(t, filepath.Join(to.CredentialsDir, "password"), "canary-2") })
	total := r.everything()
	held, err := o.broker.JetStream(login).Stream(t.Context(), stream.Name)
	if err != nil {
		t.Fatal(err)
	}
	if n := held.CachedInfo().State.Msgs; n != uint64(total) {
		t.Errorf("the stream holds %d messages, want %d", n, total)
	}
}

// authority writes the certificate of an authority that no server here has anything to do with.
func authority(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// A password in both orders, and a CA.
func TestARelayTakesNewCredentialsOfRabbitMQWithoutALoss(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	server := testkit.RabbitMQ(t)
	channel := exchange(t, server)
	if _, err := channel.QueueDeclare("orders", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind("orders", "orders.#", "shop", false, nil); err != nil {
		t.Fatal(err)
	}
	user := server.VirtualHost
	server.MustEval(fmt.Sprintf(`rabbit_auth_backend_internal:add_user(<<"%[1]s">>, <<"canary-1">>, <<"test">>), `+
		`rabbit_auth_backend_internal:set_permissions(<<"%[1]s">>, <<"%[1]s">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>)`,
		user))
	t.Cleanup(func() {
		server.MustEval(fmt.Sprintf(`rabbit_auth_backend_internal:delete_user(<<"%s">>, <<"test">>)`, user))
	})
	trusted, err := os.ReadFile(server.PKI().CA)
	if err != nil {
		t.Fatal(err)
	}
	to := rabbit(t, server)
	to.CredentialsDir, to.TLS.CAFile = testkit.SecretDir(t, user, "canary-1"), filepath.Join(t.TempDir(), "ca.crt")
	to.Exchange, to.RoutingKey = "shop", "orders.events"
	write(t, to.TLS.CAFile, string(trusted))
	cfg := o.cfg
	cfg.NATS, cfg.RabbitMQ, cfg.Lease, cfg.Batch.PublishTimeout = nil, &to, config.Duration(30*time.Second), slow

	file := func(password string) func() {
		return func() { write(t, filepath.Join(to.CredentialsDir, "password"), password) }
	}
	broker := func(password string) func() {
		return func() {
			server.MustEval(fmt.Sprintf(`rabbit_auth_backend_internal:change_password(<<"%s">>, <<"%s">>, <<"test">>)`,
				user, password))
		}
	}
	// sessions names the connections of the relay.
	sessions := func() []string {
		listed := server.MustEval(fmt.Sprintf(`[pid_to_list(proplists:get_value(pid, C)) || `+
			`C <- rabbit_networking:connection_info_all([pid, user]), proplists:get_value(user, C) =:= <<"%s">>]`, user))
		return regexp.MustCompile(`<[0-9.]+>`).FindAllString(listed, -1)
	}
	r := o.rotate(cfg)
	r.refuses(file("canary-2"))
	before := sessions()
	if len(before) == 0 {
		t.Error("the relay has no session: this test sees none")
	}
	r.takes(broker("canary-2"))
	testkit.Eventually(t, renewed, "the sessions from before are closed", func() bool {
		return !slices.ContainsFunc(sessions(), func(s string) bool { return slices.Contains(before, s) })
	})
	broker("canary-3")()
	r.takes(file("canary-3"))
	other := authority(t)
	r.refuses(func() { write(t, to.TLS.CAFile, string(other)) })
	r.takes(func() { write(t, to.TLS.CAFile, string(other)+string(trusted)) })
	r.everything()
	o.arrived(inQueue(t, channel, "orders"))
}

// A password in both orders.
func TestARelayTakesNewCredentialsOfKafkaWithoutALoss(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	server := testkit.Kafka(t)
	topic := server.Topic(3, nil)
	user := topic
	broker := func(password string) func() {
		return func() {
			made, err := server.Admin().AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{
				{User: user, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: password},
			})
			if err != nil || made.Error() != nil {
				t.Fatalf("set a password: %v, %v", err, made.Error())
			}
		}
	}
	broker("canary-1")()
	dir := testkit.SecretDir(t, user, "canary-1")
	file := func(password string) func() {
		return func() { write(t, filepath.Join(dir, "password"), password) }
	}
	cfg := o.cfg
	cfg.NATS, cfg.Lease, cfg.Batch.PublishTimeout = nil, config.Duration(30*time.Second), slow
	cfg.Kafka = &config.Kafka{
		BootstrapServers: []string{server.SASLAddr()}, Mechanism: "ScramSHA512", CredentialsDir: dir,
		TLS: config.TLS{Mode: config.TLSVerifyFull, CAFile: server.PKI().CA}, Topic: topic, Compression: "None",
	}
	r := o.rotate(cfg)
	r.refuses(file("canary-2"))
	r.takes(broker("canary-2"))
	broker("canary-3")()
	r.takes(file("canary-3"))
	r.everything()
	o.arrived(inTopic(server, topic))
}
