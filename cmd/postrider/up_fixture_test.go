package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/testkit"
)

const (
	// upPatience is for a step of a local run: the pause between two tries alone may be 15 s.
	upPatience = 90 * time.Second
	// drainPatience is for the end of a run that Ctrl-C asked for.
	drainPatience = 20 * time.Second
)

// asProgram makes this test binary the program, for tests that need a process of their own.
const asProgram = "POSTRIDER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// output is written by a run and read by its test.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// upRun is `postrider up` in the background.
type upRun struct {
	t      *testing.T
	out    output
	errs   output
	cancel context.CancelFunc
	ended  chan struct{}
	code   int // once ended is closed
}

// startUp runs `postrider up` until the test interrupts it or ends.
func startUp(t *testing.T, args ...string) *upRun {
	t.Helper()
	u := &upRun{t: t, ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	u.cancel = cancel
	go func() {
		defer close(u.ended)
		u.code = run(ctx, append([]string{"up"}, args...), &u.out, &u.errs)
	}()
	t.Cleanup(func() {
		cancel()
		<-u.ended
		if t.Failed() {
			t.Logf("postrider up wrote:\n%s%s", &u.out, &u.errs)
		}
	})
	return u
}

// startProgram runs `postrider up` as a process of its own, with its temporary files in a folder of the test.
func startProgram(t *testing.T, temporary string, args ...string) *upRun {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	u := &upRun{t: t, ended: make(chan struct{})}
	cmd := exec.Command(own, append([]string{"up"}, args...)...) // ends when it is asked to, below
	cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+temporary)
	cmd.Stdout, cmd.Stderr = &u.out, &u.errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	u.cancel = func() { _ = cmd.Process.Signal(os.Interrupt) } // it may have ended
	go func() {
		defer close(u.ended)
		_ = cmd.Wait() // the exit code says it
		u.code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		u.cancel()
		select {
		case <-u.ended:
		case <-time.After(drainPatience):
			t.Error("it had to be killed")
			_ = cmd.Process.Kill() // the next line shows whether that worked
			<-u.ended
		}
		if t.Failed() {
			t.Logf("postrider up wrote:\n%s%s", &u.out, &u.errs)
		}
	})
	return u
}

// says waits until the run has written all of the texts in one line.
func (u *upRun) says(texts ...string) {
	u.t.Helper()
	testkit.Eventually(u.t, upPatience, fmt.Sprintf("`postrider up` says %q", texts), func() bool {
		select {
		case <-u.ended:
			u.t.Fatalf("it ended with exit code %d and did not say %q", u.code, texts)
		default:
		}
		return lineWith(u.out.String(), texts...) != ""
	})
}

// lineWith returns the first line that contains all texts.
func lineWith(text string, all ...string) string {
	for line := range strings.Lines(text) {
		found := true
		for _, s := range all {
			found = found && strings.Contains(line, s)
		}
		if found {
			return line
		}
	}
	return ""
}

// isReady waits until both resources are ready.
func (u *upRun) isReady() {
	u.t.Helper()
	u.says("outboxrelay/orders ", " ready=True ")
	u.says("inboxconsumer/billing ", " ready=True ")
}

// interrupt is Ctrl-C. It checks that the run drains and ends well, and what it must never have written.
func (u *upRun) interrupt(secrets ...string) {
	u.t.Helper()
	u.cancel()
	select {
	case <-u.ended:
	case <-time.After(drainPatience):
		u.t.Fatalf("it did not end within %s of Ctrl-C", drainPatience)
	}
	all := u.out.String() + u.errs.String()
	if u.code != 0 || u.errs.String() != "" {
		u.t.Errorf("exit code %d after Ctrl-C, want 0 and nothing on standard error", u.code)
	}
	if strings.Contains(all, "\x1b") {
		u.t.Error("escape codes where there is no terminal")
	}
	for _, secret := range secrets {
		if strings.Contains(all, secret) {
			u.t.Errorf("the secret %q was printed", secret)
		}
	}
}

// saysOnce checks that a text was written in exactly one line a resource.
func (u *upRun) saysOnce(resource, text string) {
	u.t.Helper()
	n := 0
	for line := range strings.Lines(u.out.String()) {
		if strings.Contains(line, resource) && strings.Contains(line, text) {
			n++
		}
	}
	if n != 1 {
		u.t.Errorf("%s: %q was said %d times, want once", resource, text, n)
	}
}

// market is a place for `postrider up --external`: real servers behind faulty networks, and resources that name them.
type market struct {
	t        *testing.T
	db       *testkit.DB // as the owner of the schema
	role     string      // the workers' user
	password string      // what the Secret says of it
	broker   *testkit.Broker

	owner, ownerPassword string // of the tables, with policyManaged

	stream   testkit.Stream
	database *testkit.Faulty
	nats     *testkit.Faulty
	policy   string                // schemaPolicy and what belongs to it
	topology string                // the consumer's
	rabbit   *testkit.RabbitBroker // in place of NATS, where it is set
	dir      string
}

const marketYAML = `apiVersion: postrider.dev/v1alpha1
kind: OutboxRelay
metadata: {name: orders, namespace: shop}
spec:
  source:
    postgres: {hosts: ["%[1]s"], port: %[2]d, database: %[3]s, schema: %[4]s,
      credentialsSecretRef: {name: worker}, tls: {mode: Insecure}}
  outbox: {%[5]s}
  destination:
    %[6]s
  replicas: 2
---
apiVersion: postrider.dev/v1alpha1
kind: InboxConsumer
metadata: {name: billing, namespace: shop}
spec:
  consumerName: shop/billing
  source:
    %[7]s
  inbox:
    postgres: {hosts: ["%[1]s"], port: %[2]d, database: %[3]s, schema: %[4]s,
      credentialsSecretRef: {name: worker}, tls: {mode: Insecure}}
    %[8]s
  handler:
    sql:
      routes: [{eventTypes: ["order.*"], statement: "SELECT 1"}]
      onUnmatched: DeadLetter
  ordering: {mode: PerKey, versions: Enforce}
  replicas: 1
---
apiVersion: v1
kind: Secret
metadata: {name: worker, namespace: shop}
stringData: {username: "%[9]s", password: "%[10]s"}
---
apiVersion: v1
kind: Secret
metadata: {name: owner, namespace: shop}
stringData: {username: "%[11]s", password: "%[12]s"}
%[13]s`

const (
	policyVerify  = "schemaPolicy: Verify"
	policyManaged = "schemaPolicy: Managed, migrationCredentialsSecretRef: {name: owner}"
)

// newMarket returns a place where nothing is made but the servers and the workers' user.
func newMarket(t *testing.T) *market {
	t.Helper()
	db, broker := testkit.Postgres(t), testkit.NATS(t)
	worker := db.Ordinary()
	m := &market{
		t: t, db: db, role: worker.User, password: "canary-" + rand.Text(), broker: broker, policy: policyVerify,
		topology: "Declare",
		stream:   testkit.Stream{Name: "ORDERS_" + db.Schema, Prefix: db.Schema},
		nats:     testkit.Proxy(t, broker.Addr()), database: testkit.Proxy(t, db.Addr()), dir: t.TempDir(),
	}
	m.owner, m.ownerPassword = db.User, db.Password
	m.setPassword(m.password)
	return m
}

// setPassword changes the workers' password in the database.
func (m *market) setPassword(password string) {
	m.t.Helper()
	m.db.Exec("ALTER ROLE " + pgx.Identifier{m.role}.Sanitize() + " PASSWORD '" + password + "'")
}

// makeTables makes them as a person does who was told to.
func (m *market) makeTables() {
	m.t.Helper()
	if code, _, errs := schemaCall(m.t, m.db, "apply", "outbox", "inbox"); code != 0 {
		m.t.Fatalf("schema apply = %d, %s", code, errs)
	}
	names := postgres.Names{Schema: m.db.Schema, Outbox: "message_outbox"}
	for _, role := range []schema.Role{schema.RoleRelay, schema.RoleConsumer} {
		for _, statement := range schema.Grants(names, role, m.role) {
			m.db.Exec(statement)
		}
	}
}

func (m *market) makeStream() {
	m.t.Helper()
	m.broker.Stream(jetstream.StreamConfig{Name: m.stream.Name, Subjects: []string{m.stream.Subject("events")}})
}

// write writes the resources.
func (m *market) write() {
	m.t.Helper()
	destination, source, secrets := m.brokers()
	inbox := strings.ReplaceAll(m.policy, ", ", "\n    ")
	text := fmt.Sprintf(marketYAML, m.database.Host, m.database.Port, m.db.Database, m.db.Schema, m.policy,
		destination, source, inbox, m.role, m.password, m.owner, m.ownerPassword, secrets)
	if err := os.WriteFile(filepath.Join(m.dir, "shop.yaml"), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// brokers are the destination and the source of the resources, and the Secrets that they need.
func (m *market) brokers() (destination, source, secrets string) {
	m.t.Helper()
	if m.rabbit != nil {
		user, password := m.rabbit.User()
		host := fmt.Sprintf("hosts: [%q], virtualHost: %s, topology: Verify, tls: {mode: Insecure}, "+
			"credentialsSecretRef: {name: rabbit}", m.rabbit.Addr(), m.rabbit.VirtualHost)
		return "rabbitMQ: {" + host + ", exchange: shop, routingKey: orders.events}",
			"rabbitMQ: {" + host + ", queue: billing}",
			fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {name: rabbit, namespace: shop}\n"+
				"stringData: {username: %q, password: %q}\n", user, password)
	}
	stream := fmt.Sprintf("nats: {servers: [%q], stream: %s, tls: {mode: Insecure}",
		net.JoinHostPort(m.nats.Host, fmt.Sprint(m.nats.Port)), m.stream.Name)
	subject := m.stream.Subject("events")
	return stream + ", topology: Verify, subject: " + subject + "}",
		stream + ", topology: " + m.topology + ", filterSubjects: [" + subject + "]}", ""
}

// up writes the resources and runs them.
func (m *market) up() *upRun {
	m.t.Helper()
	m.write()
	return startUp(m.t, "--external", "-f", m.dir)
}
