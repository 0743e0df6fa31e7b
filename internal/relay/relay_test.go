package relay_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/test/testkit"
)

// inOrder checks that the broker has each version of a key once, in order.
func (w *world) inOrder(key string, n int) {
	w.t.Helper()
	if diff := cmp.Diff(upTo(n), w.broker.versions(key)); diff != "" {
		w.t.Errorf("versions of %s (-want +got):\n%s", key, diff)
	}
}

// once keeps the first of each version.
func once(versions []int64) []int64 {
	var out []int64
	for _, v := range versions {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func TestACommittedRowIsPublishedAndArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.put("order-1", 3)
	w.put("order-2", 2)
	p := w.start(options{})
	w.awaitEmpty()
	w.inOrder("order-1", 3)
	w.inOrder("order-2", 2)
	if got := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_outbox_published
		WHERE broker_position LIKE 'ORDERS@%'`); got != 5 {
		t.Errorf("%d rows archived, want 5", got)
	}
	w.put("order-1", 1)
	w.awaitEmpty()
	if err := p.stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// P14, and the row that a plain cursor loses or reorders: A holds a position, B commits after A with a higher one.
func TestALateCommitIsSentInItsPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.start(options{})
	a, err := w.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := write(t.Context(), a, "k"); err != nil {
		t.Fatal(err)
	}
	w.put("other", 3)
	testkit.Eventually(t, patience, "rows above the open one are sent", func() bool { return w.broker.count() == 3 })
	if err := a.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.put("k", 2)
	w.awaitEmpty()
	w.inOrder("k", 3)
}

// G8.
func TestARefusedMessageHoldsOnlyItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	poison := w.put("poison", 5)[1]
	for _, key := range []string{"a", "b", "c"} {
		w.put(key, 30)
	}
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.ID == poison.ID {
			return rejected, false
		}
		return confirmed, true
	})
	w.start(options{})

	w.awaitSQL("the message was refused three times", `(SELECT attempts >= 3 FROM message_outbox WHERE event_id = $1)`,
		[16]byte(poison.ID))
	w.awaitSQL("only its key waits", `count(*) = 4 AND bool_and(held) FROM message_outbox`)
	for _, key := range []string{"a", "b", "c"} {
		w.inOrder(key, 30)
	}
	w.inOrder("poison", 1)
	got := testkit.Value[string](
		w.DB,
		`SELECT concat_ws(' ', last_error_code, first_failed_at < last_failed_at, unknowns)
		FROM message_outbox WHERE event_id = $1`,
		[16]byte(poison.ID),
	)
	if got != "TooLarge t 0" {
		t.Errorf("refused row = %q", got)
	}
	if n := testkit.Value[int64](w.DB, `SELECT sum(attempts)::bigint FROM message_outbox WHERE event_id <> $1`,
		[16]byte(poison.ID)); n != 0 {
		t.Errorf("rows that only wait have %d attempts", n)
	}

	w.put("poison", 2)
	w.broker.script(nil)
	w.awaitEmpty()
	w.inOrder("poison", 7)
}

func TestARefusedMessageHoldsOnlyItselfWhereNothingIsOrdered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	poison := w.put("k", 5)[1]
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.ID == poison.ID {
			return rejected, false
		}
		return confirmed, true
	})
	w.start(options{config: func(c *relay.Config) { c.Unordered = true }})
	w.awaitSQL("only the message itself waits", `count(*) = 1 AND bool_and(held AND attempts > 1) FROM message_outbox`)
	w.broker.script(nil)
	w.awaitEmpty()
	if diff := cmp.Diff([]int64{1, 3, 4, 5, 2}, w.broker.versions("k")); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// A key with more held rows than one step drains in steps, in order, and takes new rows in at its end.
func TestALongWaitDrainsInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	first := w.put("k", 40)[0]
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.ID == first.ID {
			return rejected, false
		}
		return confirmed, true
	})
	w.start(options{config: func(c *relay.Config) { c.Batch.MaxMessages = 12 }})
	w.awaitSQL("the whole key waits", `count(*) = 40 AND bool_and(held) FROM message_outbox`)
	w.broker.script(nil)
	w.put("k", 10)
	w.awaitEmpty()
	w.inOrder("k", 50)
	w.awaitSQL("no gate is left", `NOT EXISTS (SELECT 1 FROM message_outbox_gate)`)
}

// G3 and D01, D02: the answer was lost, the message arrived; it comes again with its own id and nothing passes it.
func TestAMessageWithoutAnAnswerIsSentAgainBeforeItsSuccessors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("k", 4)
	w.put("other", 4)
	left := 2
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.OrderingKey == "k" && m.AggregateVersion == 2 && left > 0 {
			left--
			return unknown, true
		}
		return confirmed, true
	})
	w.start(options{})
	w.awaitEmpty()
	if diff := cmp.Diff([]int64{1, 2, 2, 2, 3, 4}, w.broker.versions("k")); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	w.inOrder("other", 4)
	if n := testkit.Value[int64](w.DB, `SELECT sum(attempts)::bigint FROM message_outbox_published`); n != 0 {
		t.Errorf("a lost answer counted %d attempts", n)
	}
}

// G7: an outage uses up nothing, and everything flows when it is over.
func TestAnOutageCountsAgainstNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.put("a", 10)
	w.put("b", 10)
	w.broker.script(func(message.Message) (broker.Confirmation, bool) { return unavailable, false })
	p := w.start(options{})
	testkit.Eventually(t, patience, "the outage shows", func() bool {
		return p.condition("BrokerReachable") == "False Unreachable no server answers"
	})
	if n := testkit.Value[int64](
		w.DB,
		`SELECT count(*) FROM message_outbox WHERE attempts + unknowns > 0 OR held`,
	); n != 0 {
		t.Errorf("an outage left a mark on %d rows", n)
	}
	w.broker.script(nil)
	w.awaitEmpty()
	w.inOrder("a", 10)
	w.inOrder("b", 10)
	if got := p.condition("BrokerReachable"); got != "True Working " {
		t.Errorf("condition = %q", got)
	}
}

func TestTheUnitPausesLongerAndLonger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.put("a", 1)
	w.put("b", 1)
	w.broker.script(func(message.Message) (broker.Confirmation, bool) { return unavailable, false })
	w.start(options{config: func(c *relay.Config) {
		c.Backoff = retry.Backoff{Initial: 20 * time.Second, Max: time.Minute}
	}})
	testkit.Eventually(t, patience, "the outage was seen", func() bool { return w.broker.publishes() > 0 })
	// Both lanes share the unit: what the first finds out, the second need not; two were on their way at most.
	if n := w.broker.publishes(); n > 2 {
		t.Errorf("%d publishes into an outage", n)
	}
}

// A6 and R6: the payload is not loaded, the row is refused, neighbours flow.
func TestARowAboveTheBoundIsRefusedUnloaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	large := w.put("large", 2)[0]
	w.put("small", 5)
	w.Exec(
		`UPDATE message_outbox SET payload = decode(repeat('00', 5000), 'hex') WHERE event_id = $1`,
		[16]byte(large.ID),
	)
	w.start(options{config: func(c *relay.Config) { c.Batch.MaxBytes = 4000 }})
	w.awaitSQL(
		"only its key waits",
		`count(*) = 2 AND bool_and(held) AND max(last_error_code) = 'TooLarge' FROM message_outbox`,
	)
	w.inOrder("small", 5)
	if got := w.broker.versions("large"); len(got) != 0 {
		t.Errorf("the broker was given %v of the large row's key", got)
	}
}

func TestARowOfAnotherSourceIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("a", 1)
	w.start(options{})
	w.awaitEmpty()
	tx, err := w.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := write(t.Context(), tx, "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `UPDATE message_outbox SET source = 'elsewhere'`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("the row is refused", `count(*) = 1 AND max(last_error_code) = 'SourceMismatch' FROM message_outbox`)
	if got := testkit.Value[string](w.DB, `SELECT source FROM message_outbox_owner`); got != "shop" {
		t.Errorf("source = %q, want that of the first row", got)
	}
	if len(w.broker.versions("b")) != 0 {
		t.Error("a row of another source was sent")
	}
}

func TestAnExpiredMessageIsArchivedUnsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	stale := w.put("stale", 1)[0]
	w.put("k", 2)
	w.Exec(`UPDATE message_outbox SET ordering_key = event_id::text, aggregate_version = NULL,
		expires_at = clock_timestamp() - interval '1 s' WHERE event_id = $1`, [16]byte(stale.ID))
	w.start(options{})
	w.awaitEmpty()
	if got := testkit.Value[string](w.DB, `SELECT broker_position FROM message_outbox_published WHERE event_id = $1`,
		[16]byte(stale.ID)); got != "expired" {
		t.Errorf("broker position = %q, want expired", got)
	}
	if got := w.broker.count(); got != 2 {
		t.Errorf("the broker has %d messages, want the two that are wanted", got)
	}
}

// panicky panics on one message.
type panicky struct {
	*ledger
	on message.ID
}

func (p panicky) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	for _, m := range batch {
		if m.ID == p.on {
			panic("secret " + string(m.Payload))
		}
	}
	return p.ledger.Publish(ctx, batch)
}

func TestAPanicIsTheFailureOfItsMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	bad := w.put("bad", 3)[1]
	w.put("good", 10)
	log := testkit.NewLog(t)
	w.start(options{publisher: panicky{w.broker, bad.ID}, log: log.Logger()})
	w.awaitSQL(
		"only its key waits",
		`count(*) = 2 AND bool_and(held) AND max(last_error_code) = 'Panic' FROM message_outbox`,
	)
	if diff := cmp.Diff(upTo(10), once(w.broker.versions("good"))); diff != "" {
		t.Errorf("versions of the neighbour (-want +got):\n%s", diff)
	}
	if log.Contains("secret") || log.Contains(`{"n":`) {
		t.Error("the log repeats what the panic said, or a payload")
	}
}

func TestPauseKeepsTheShardsAndPublishesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	h := &hooks{}
	var renewals atomic.Int64
	h.renew = func(call func() error) error {
		renewals.Add(1)
		return call()
	}
	p := w.start(options{wrap: h.wrap, config: short})
	w.put("k", 1)
	w.awaitEmpty()
	cfg := p.cfg
	cfg.RunPolicy = relay.Pause
	if err := p.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	seen := w.broker.count()
	w.put("k", 5)
	before := renewals.Load()
	testkit.Eventually(t, patience, "the leases are renewed", func() bool { return renewals.Load() >= before+6 })
	if got := p.held(); len(got) != 2 {
		t.Errorf("held shards = %v, want both", got)
	}
	if w.broker.count() != seen {
		t.Error("a paused relay published")
	}
	cfg.RunPolicy = relay.Run
	if err := p.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	w.awaitEmpty()
	w.inOrder("k", 6)
}

func TestDrainGivesTheShardsBackAndComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	p := w.start(options{})
	testkit.Eventually(t, patience, "all shards are held", func() bool { return len(p.held()) == 3 })
	testkit.Eventually(t, patience, "the shards taken are counted", func() bool {
		return p.counted("outbox_lease_transitions_total") == 3
	})
	cfg := p.cfg
	cfg.RunPolicy = relay.Drain
	if err := p.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("the shards are free", `bool_and(holder IS NULL) FROM message_outbox_lease`)
	testkit.Eventually(t, patience, "the shards given back are counted", func() bool {
		return p.counted("outbox_lease_transitions_total") == 6
	})
	w.put("k", 2)
	cfg.RunPolicy = relay.Run
	if err := p.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	w.awaitEmpty()
	w.inOrder("k", 2)
}

func TestABadReconfigurationChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(options{})
	for name, change := range map[string]func(*relay.Config){
		"an invalid batch":        func(c *relay.Config) { c.Batch.MaxMessages = 0; c.RunPolicy = relay.Pause },
		"another lease duration":  func(c *relay.Config) { c.LeaseDuration *= 2; c.RunPolicy = relay.Pause },
		"another ordering":        func(c *relay.Config) { c.Unordered = true; c.RunPolicy = relay.Pause },
		"another number of lanes": func(c *relay.Config) { c.Shards = 9; c.RunPolicy = relay.Pause },
	} {
		cfg := p.cfg
		change(&cfg)
		if err := p.Reconfigure(cfg); !errors.Is(err, relay.ErrInvalidConfig) {
			t.Errorf("%s: Reconfigure() = %v, want %v", name, err, relay.ErrInvalidConfig)
		}
	}
	p.run(t.Context())
	t.Cleanup(func() { p.kill() })
	w.put("k", 1)
	w.awaitEmpty()
}

func TestAReportBeforeTheStartKnowsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process(options{})
	before, conditions := p.Report(t.Context())
	if before.Backlog != nil || p.ObservedTime() != nil || before.PublishedPerSec != nil {
		t.Errorf("report before the start = %+v: what is not known must be absent", before)
	}
	for _, c := range conditions {
		if c.Status != "Unknown" {
			t.Errorf("condition before the start = %+v, want Unknown", c)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	log := testkit.NewLog(t)
	p := w.process(options{log: log.Logger()})
	poison := w.put("poison", 2)[0]
	w.put("k", 3)
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.ID == poison.ID {
			return rejected, false
		}
		return confirmed, true
	})
	p.run(t.Context())
	t.Cleanup(func() { p.kill() })
	w.awaitSQL("only the refused key waits", `count(*) = 2 AND bool_and(held) FROM message_outbox`)
	if !log.Contains("Messages refused") || !log.Contains(poison.ID.String()) {
		t.Errorf("the log does not say that %s is refused", poison.ID)
	}
	got, conditions := p.Report(t.Context())
	if got.LastPublishedTime == nil || got.Backlog == nil || got.Backlog.OldestMessageTime == nil {
		t.Fatalf("report = %+v, backlog = %+v: times are missing", got, got.Backlog)
	}
	got.LastPublishedTime, got.Backlog.OldestMessageTime, got.PublishedPerSec = nil, nil, nil
	got.Backlog.InFlight = 0
	want := statusz.Relay{
		PublishedTotal: 3, Shards: 2, HeldShards: []int16{0, 1}, Destination: "test/orders",
		Backlog:     &statusz.Backlog{Messages: 2, Retrying: 2, Precision: "Exact"},
		DeadLetters: &statusz.Count{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if p.ObservedTime() == nil {
		t.Error("counts without a time")
	}
	var states bytes.Buffer
	for _, c := range conditions {
		states.WriteString(c.Type + "=" + c.Status + " ")
	}
	if got := strings.TrimSpace(
		states.String(),
	); got != "DatabaseReachable=True SchemaReady=True BrokerReachable=True" {
		t.Errorf("conditions: %s", got)
	}
}

// B10: an idle relay looks once a poll interval for all its shards, and reads nothing else.
func TestAnIdleRelayAsksOneQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	h := &hooks{}
	w.start(options{wrap: h.wrap, config: func(c *relay.Config) { c.Batch.PollInterval = 20 * time.Millisecond }})
	testkit.Eventually(t, patience, "each lane has found nothing to do", func() bool {
		return h.claims.Load() >= 8 && h.looks.Load() > 3
	})
	claims, looks, began := h.claims.Load(), h.looks.Load(), time.Now()
	testkit.Eventually(t, patience, "it looks ten times more", func() bool { return h.looks.Load() >= looks+10 })
	if took := time.Since(began); took < 10*20*time.Millisecond {
		t.Errorf("ten looks took %v, want at least a poll interval each", took)
	}
	if n := h.claims.Load() - claims; n != 0 {
		t.Errorf("an idle relay claimed %d times", n)
	}
}
