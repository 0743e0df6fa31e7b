package main

import (
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/test/testkit"
)

func TestUpWaitsForServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{
		"with tables that are only looked at": policyVerify, "with tables that it makes": policyManaged,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMarket(t)
			m.policy = policy
			if policy == policyVerify {
				m.makeTables()
			}
			m.makeStream()
			m.database.Cut()
			m.nats.Cut()
			u := m.up()

			unreachable := "is not ready: Unreachable: no database server answers; " +
				"check hosts, port and network; tried " + m.database.Addr()
			u.says("outboxrelay/orders ", unreachable)
			u.says("inboxconsumer/billing ", unreachable)
			m.database.Resume()
			u.says("outboxrelay/orders ", "is not ready: Unreachable: ", m.nats.Addr())
			u.says("inboxconsumer/billing ", "is not ready: Unreachable: ", m.nats.Addr())
			m.nats.Resume()
			u.isReady()

			u.interrupt(m.password, m.db.Password)
			u.saysOnce("outboxrelay/orders", unreachable)
			u.saysOnce("inboxconsumer/billing", unreachable)
			u.saysOnce("outboxrelay/orders", "InsecureTransport")
		})
	}
}

func TestUpRecoversFromAWrongPassword(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.makeTables()
	m.makeStream()
	m.setPassword("another")
	u := m.up()

	refused := "is not ready: AuthFailed: the server refuses the user or password; check the credentials Secret"
	u.says("outboxrelay/orders ", refused)
	u.says("inboxconsumer/billing ", refused)
	m.setPassword(m.password)
	u.isReady()

	u.interrupt(m.password, m.db.Password)
	u.saysOnce("outboxrelay/orders", refused)
	u.saysOnce("inboxconsumer/billing", refused)
}

func TestUpRecoversFromAWrongPasswordOfTheTablesOwner(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.policy = policyManaged
	m.makeStream()
	owner := m.db.Ordinary()
	m.db.Exec("GRANT CREATE ON SCHEMA " + m.db.Schema + " TO " + owner.User)
	m.owner, m.ownerPassword = owner.User, "canary-owner"
	u := m.up()

	refused := "is not ready: AuthFailed: as their owner, the tables cannot be made: the server refuses the user or password"
	u.says("outboxrelay/orders ", refused)
	u.says("inboxconsumer/billing ", refused)
	m.db.Exec("ALTER ROLE " + owner.User + " PASSWORD '" + m.ownerPassword + "'")
	u.isReady()
	u.interrupt(m.password, m.ownerPassword)
}

func TestUpRecoversFromMissingTables(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.makeStream()
	u := m.up()

	u.says("outboxrelay/orders ", "is not ready: SchemaMissing: ", "run `postrider schema apply`")
	u.says("inboxconsumer/billing ", "is not ready: SchemaMissing: ", "run `postrider schema apply`")
	m.makeTables()
	u.isReady()

	u.interrupt(m.password, m.db.Password)
	u.saysOnce("outboxrelay/orders", "SchemaMissing")
	u.saysOnce("inboxconsumer/billing", "SchemaMissing")
}

func TestUpMakesTheTablesThatItIsToldToManage(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.policy = policyManaged
	m.makeStream()
	u := m.up()
	u.isReady()
	m.db.Exec("SELECT message_outbox_write('order-1', 'order.placed', '{}', 'shop')")
	testkit.Eventually(t, upPatience, "the message is applied", func() bool {
		return testkit.Value[int](m.db, "SELECT count(*) FROM message_inbox") == 1
	})
	u.interrupt(m.password, m.db.Password)
	for _, want := range []string{
		"\noutboxrelay/orders: 1 published\n", "\ninboxconsumer/billing: 1 applied, 0 duplicates without effect\n",
	} {
		if !strings.Contains(u.out.String(), want) {
			t.Errorf("the summary lacks %q", want)
		}
	}
	if held := testkit.Value[int](
		m.db,
		"SELECT count(*) FROM message_outbox_lease WHERE holder IS NOT NULL",
	); held != 0 {
		t.Errorf("%d leases were not given back", held)
	}
	if sessions := testkit.Value[int](m.db,
		"SELECT count(*) FROM pg_stat_activity WHERE usename = $1", m.role); sessions != 0 {
		t.Errorf("%d sessions are left", sessions)
	}
}

func TestUpRunsThroughRabbitMQ(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.makeTables()
	m.rabbit = testkit.RabbitMQ(t)
	u := m.up()

	u.says(
		"outboxrelay/orders ",
		"is not ready: StreamMissing: ",
		"rabbitmqadmin declare exchange name=shop type=topic",
	)
	u.says("inboxconsumer/billing ", "is not ready: StreamMissing: ", "rabbitmqadmin declare queue name=billing ")
	channel := m.rabbit.Channel()
	if err := channel.ExchangeDeclare("shop", amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare("billing", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind("billing", "orders.#", "shop", false, nil); err != nil {
		t.Fatal(err)
	}
	u.isReady()
	m.db.Exec("SELECT message_outbox_write('order-1', 'order.placed', '{}', 'shop')")
	testkit.Eventually(t, upPatience, "the message is applied", func() bool {
		return testkit.Value[int](m.db, "SELECT count(*) FROM message_inbox") == 1
	})
	u.interrupt(m.password, m.db.Password)
	if want := "\ninboxconsumer/billing: 1 applied, 0 duplicates without effect\n"; !strings.Contains(
		u.out.String(),
		want,
	) {
		t.Errorf("the summary lacks %q", want)
	}
}

func TestUpRecoversFromAMissingStream(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.makeTables()
	m.topology = "Verify"
	u := m.up()

	subject := m.stream.Subject("events")
	add := "nats stream add " + m.stream.Name
	u.says("outboxrelay/orders ", "is not ready: StreamMissing: ", add+` --subjects "`+subject+
		`" --storage file --replicas 1 --retention limits --discard new --defaults`)
	u.says("inboxconsumer/billing ", "is not ready: StreamMissing: ", add)
	m.broker.Stream(jetstream.StreamConfig{
		Name: m.stream.Name, Subjects: []string{subject}, Storage: jetstream.FileStorage,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
	})
	u.isReady()

	u.interrupt(m.password, m.db.Password)
	u.saysOnce("outboxrelay/orders", add)
	u.saysOnce("inboxconsumer/billing", add)
}

func TestUpRefusesAPortInUse(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() }) // nobody connects
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for flag, server := range map[string]string{"--postgres-port": "PostgreSQL", "--nats-port": "NATS"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			code, _, errs := call(t, "up", "-f", "../../config/samples", flag, port)
			want := "postrider: port " + port + " for the embedded " + server +
				" is in use: stop what listens on it, or choose another port\n"
			if code != 1 || errs != want {
				t.Errorf("up = %d, %q, want 1 and %q", code, errs, want)
			}
		})
	}
}

func TestUpRefusesWhatItCannotRun(t *testing.T) {
	t.Parallel()
	sql := write(t, "own.sql", "SELECT 1")
	samples := []string{"-f", "../../config/samples"}
	cases := map[string]struct {
		args []string
		want string
	}{
		"servers of its own that it does not start": {
			[]string{"--external", "--data", "/tmp/x"},
			"--external starts no server: leave out --init, --data, --postgres-port, --nats-port and --kafka-port",
		},
		"half an --init":             {[]string{"--init", "orders"}, `--init "orders": want DATABASE=FILE`},
		"a file that is not there":   {[]string{"--init", "orders=no/such.sql"}, "there is no file no/such.sql"},
		"a database that nobody has": {[]string{"--init", "stock=" + sql}, "choose from billing, orders"},
		"a port that cannot be":      {[]string{"--nats-port", "70000"}, "--nats-port 70000: want 1 to 65535"},
		"one port for two servers": {
			[]string{"--nats-port", "4222", "--postgres-port", "4222"}, "are the same: choose two",
		},
		"drops without a pause":       {[]string{"--drop-every", "10ms"}, "--drop-every 10ms: want at least 1s"},
		"a count of drops that never": {[]string{"--drop-count", "2"}, "--drop-every beside it"},
		"a log that cannot be":        {[]string{"--log", t.TempDir()}, "--log: "},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := call(t, append(append([]string{"up"}, samples...), tc.args...)...)
			if code != exitWrong || out != "" || !strings.Contains(errs, tc.want) || strings.Count(errs, "\n") != 1 {
				t.Errorf("up = %d, %q, %q, want %d and one line with %q", code, out, errs, exitWrong, tc.want)
			}
		})
	}
}
