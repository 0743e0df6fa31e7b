package integration

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/testkit"
)

// The arrows of a message's life, and a kill -9 at each:
//
//	outbox row → read → published → confirmed → settled → delivered → committed → acknowledged
//
// Each test brings a real process to one arrow, kills it there, looks at what is true then, and lets another process
// go on. The oracle has the last word.

// relayBehind returns the relay's config with proxies in front of its servers.
func (b *bank) relayBehind(database, broker *testkit.Faulty) config.Relay {
	cfg, nats := b.relay, *b.relay.NATS
	if database != nil {
		cfg.Source = behind(b.t, cfg.Source, database)
	}
	if broker != nil {
		nats.Servers = []string{"nats://" + broker.Addr()}
	}
	cfg.NATS = &nats
	return cfg
}

func (b *bank) consumerBehind(database, broker *testkit.Faulty) config.Consumer {
	cfg, nats := b.consumer, *b.consumer.NATS
	if database != nil {
		cfg.Inbox.Postgres = behind(b.t, cfg.Inbox.Postgres, database)
	}
	if broker != nil {
		nats.Servers = []string{"nats://" + broker.Addr()}
	}
	cfg.NATS = &nats
	return cfg
}

func behind(t *testing.T, cfg config.Postgres, p *testkit.Faulty) config.Postgres {
	t.Helper()
	host, text, err := net.SplitHostPort(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Hosts, cfg.Port = []string{host}, int32(port)
	return cfg
}

// metric reads a number off a process's /metrics; 0 where it is not there.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	_, body := p.get("/metrics")
	for line := range strings.Lines(body) {
		value, found := strings.CutPrefix(line, name+" ")
		if !found {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			p.t.Fatalf("%s is %q", name, value)
		}
		return n
	}
	return 0
}

// kill9 ends a process without a word, and its sessions in the database with it: the server would notice only at its
// next write, and might still run what it had read.
func (b *bank) kill9(p *process, at *place) {
	b.t.Helper()
	p.signal(syscall.SIGKILL)
	p.exit()
	at.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", at.user)
	testkit.Eventually(b.t, patience, "the sessions of the killed process have ended", func() bool {
		return testkit.Value[int](at.DB, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", at.user) == 0
	})
}

// hold takes a lock in a transaction of its own and returns what gives it back.
func (p *place) hold(t *testing.T, statement string) (release func()) {
	t.Helper()
	conn := p.Connect()
	for _, s := range []string{"BEGIN", statement} {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return func() {
		t.Helper()
		if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatalf("giving the lock back: %v", err)
		}
	}
}

// stopAt makes a trigger that stops who comes by while holdStop holds. It says when it fires, and on which table.
func (p *place) stopAt(trigger string) {
	p.Exec(`CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock(hashtext(TG_TABLE_SCHEMA)); RETURN coalesce(NEW, OLD); END'`)
	p.Exec(`CREATE ` + trigger + ` FOR EACH ROW EXECUTE FUNCTION stop()`)
}

// holdStop has everybody stop who comes by the trigger of stopAt, until it is released.
func (p *place) holdStop(t *testing.T) (release func()) {
	t.Helper()
	return p.hold(t, "SELECT pg_advisory_xact_lock(hashtext('"+p.Schema+"'))")
}

// blocks waits until a session of the worker waits for a lock in a statement like this.
func (p *place) blocks(t *testing.T, statement string) {
	t.Helper()
	testkit.Eventually(t, patience, fmt.Sprintf("a session waits for a lock in %q", statement), func() bool {
		return testkit.Value[bool](p.DB, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE usename = $1 AND wait_event_type = 'Lock' AND query ILIKE '%' || $2 || '%')`, p.user, statement)
	})
}

// underWay starts both workers and waits until a first sale has gone all the way.
func (b *bank) underWay(relayCfg config.Relay, consumerCfg config.Consumer) (relay, consumer *process) {
	b.t.Helper()
	bin := commands.in(b.t)
	relay = launch(b.t, bin, "relay", relayCfg)
	consumer = launch(b.t, bin, "consumer", consumerCfg)
	b.sell(sale{account: "a", amount: 1}, sale{account: "b", amount: 2})
	b.balanced()
	return relay, consumer
}

// duplicates are copies in the stream beyond the first of each message.
func duplicates(r verify.Report) int64 { return r.Fact(verify.FactDuplicates) }

func TestG1ARelayKilledAfterReadingAndBeforePublishingLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	broker := testkit.Proxy(t, b.broker.Addr())
	relay, _ := b.underWay(b.relayBehind(nil, broker), b.consumer)

	broker.Swallow(testkit.ToServer)
	read := relay.metric("postrider_outbox_claimed_messages_total")
	b.sell(sale{account: "a", amount: 3}, sale{account: "a", amount: 4}, sale{account: "b", amount: 5})
	testkit.Eventually(t, patience, "the relay has read rows", func() bool {
		return relay.metric("postrider_outbox_claimed_messages_total") > read
	})
	b.kill9(relay, b.orders)
	if got := b.stored(); got != 2 {
		t.Fatalf("the stream holds %d messages at the kill, want the 2 from before", got)
	}
	b.orders.Uncounted()

	launch(t, commands.in(t), "relay", b.relay)
	if got := duplicates(b.balanced()); got != 0 {
		t.Errorf("%d duplicates of messages that were never published", got)
	}
	b.orders.Uncounted()
}

func TestG2ARelayKilledAfterPublishingAndBeforeTheConfirmationHasPublishedNothing(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	broker := testkit.Proxy(t, b.broker.Addr())
	relay, _ := b.underWay(b.relayBehind(nil, broker), b.consumer)

	broker.Swallow(testkit.ToClient)
	b.sell(sale{account: "a", amount: 3}, sale{account: "a", amount: 4}, sale{account: "b", amount: 5})
	testkit.Eventually(t, patience, "the broker has a message", func() bool { return b.stored() > 2 })
	testkit.Eventually(t, patience, "the relay no longer waits and says so", func() bool {
		state, _ := relay.condition("BrokerReachable")
		return strings.HasPrefix(state, "False ") &&
			relay.metric(`postrider_outbox_publish_results_total{broker="nats",outcome="unknown"}`) > 0
	})
	b.kill9(relay, b.orders)
	if got := b.published(); got != 2 {
		t.Fatalf("%d rows are published at the kill, want the 2 that were confirmed", got)
	}

	launch(t, commands.in(t), "relay", b.relay)
	if got := duplicates(b.balanced()); got == 0 {
		t.Error("no duplicate: the kill did not come between publish and confirmation")
	}
}

// holdSettles stops settles amid their statement, and nothing else: a lock on the lease itself would stop renewals too,
// so that a slow relay lost its lease before it came to settle.
func (b *bank) holdSettles() (release func()) {
	b.t.Helper()
	b.orders.stopAt("TRIGGER stop BEFORE DELETE ON message_outbox")
	return b.orders.holdStop(b.t)
}

func TestG3ARelayKilledAfterTheConfirmationAndBeforeTheSettleRepeatsTheSameBytes(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	relay, _ := b.underWay(b.relay, b.consumer)

	release := b.holdSettles()
	b.sell(sale{account: "a", amount: 3}, sale{account: "a", amount: 4}, sale{account: "b", amount: 5})
	b.orders.blocks(t, "moved AS")
	b.kill9(relay, b.orders)
	release()
	if stored, published := b.stored(), b.published(); stored <= 2 || published != 2 {
		t.Fatalf("at the kill %d messages are stored and %d rows published, want more than 2, and 2", stored, published)
	}

	launch(t, commands.in(t), "relay", b.relay)
	if got := duplicates(b.balanced()); got == 0 {
		t.Error("no duplicate: the kill did not come between confirmation and settle")
	}
}

func TestG1ARelayKilledAfterItsSettleCommittedAndBeforeTheAnswerRepeatsNothing(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	database := testkit.Proxy(t, b.orders.Addr())
	relay, _ := b.underWay(b.relayBehind(database, nil), b.consumer)

	release := b.holdSettles()
	b.sell(sale{account: "a", amount: 3})
	b.orders.blocks(t, "moved AS")
	database.Swallow(testkit.ToClient)
	release()
	testkit.Eventually(t, patience, "the settle has committed", func() bool { return b.published() == 3 })
	b.kill9(relay, b.orders)

	launch(t, commands.in(t), "relay", b.relay)
	b.sell(sale{account: "a", amount: 4})
	if got := duplicates(b.balanced()); got != 0 {
		t.Errorf("%d duplicates of a message that was settled", got)
	}
}

func TestG5AConsumerKilledBeforeItsCommitHasNoEffect(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	_, consumer := b.underWay(b.relay, b.consumer)

	release := b.billing.hold(t, "LOCK TABLE ledger IN SHARE MODE")
	b.sell(sale{account: "a", amount: 3}, sale{account: "a", amount: 4}, sale{account: "b", amount: 5})
	b.billing.blocks(t, "INSERT INTO "+pgx.Identifier{b.billing.Schema, "ledger"}.Sanitize())
	b.kill9(consumer, b.billing)
	release()
	if got := b.entries(); got != 2 {
		t.Fatalf("%d entries at the kill, want the 2 from before", got)
	}
	if got := b.durable().AckFloor.Stream; got != 2 {
		t.Fatalf("acknowledged up to %d at the kill, want 2", got)
	}

	launch(t, commands.in(t), "consumer", b.consumer)
	b.balanced()
}

// A deferred trigger holds the COMMIT itself, so that its answer can be lost and nothing else.
func TestG5AConsumerKilledWhileTheOutcomeOfItsCommitIsUnknownAppliesOnce(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	b.billing.stopAt("CONSTRAINT TRIGGER stop AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED")
	database := testkit.Proxy(t, b.billing.Addr())
	_, consumer := b.underWay(b.relay, b.consumerBehind(database, nil))

	release := b.billing.holdStop(t)
	b.sell(sale{account: "a", amount: 3})
	b.billing.blocks(t, "commit")
	database.Swallow(testkit.ToClient)
	release()
	testkit.Eventually(t, patience, "the commit is done", func() bool { return b.entries() == 3 })
	b.kill9(consumer, b.billing)
	if got := b.durable().AckFloor.Stream; got != 2 {
		t.Fatalf("acknowledged up to %d, want 2: nobody could know of the commit", got)
	}

	launch(t, commands.in(t), "consumer", b.consumer)
	b.sell(sale{account: "a", amount: 4})
	b.balanced()
}

func TestG5AConsumerKilledAfterItsCommitAndBeforeTheAcknowledgementAppliesOnce(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	broker := testkit.Proxy(t, b.broker.Addr())
	_, consumer := b.underWay(b.relay, b.consumerBehind(nil, broker))

	broker.Swallow(testkit.ToServer) // its request for more is there already
	b.sell(sale{account: "a", amount: 3}, sale{account: "b", amount: 4})
	testkit.Eventually(t, patience, "the effects are committed", func() bool { return b.entries() == 4 })
	b.kill9(consumer, b.billing)
	if got := b.durable(); got.AckFloor.Stream != 2 || got.NumAckPending != 2 {
		t.Fatalf("acknowledged up to %d, %d pending, want 2 and 2", got.AckFloor.Stream, got.NumAckPending)
	}

	next := launch(t, commands.in(t), "consumer", b.consumer)
	b.balanced()
	if got := next.metric("postrider_inbox_duplicates_total"); got != 2 {
		t.Errorf("%v duplicates were recognised, want 2", got)
	}
}
