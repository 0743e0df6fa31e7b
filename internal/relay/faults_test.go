package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

var errLostAnswer = errors.New("the answer was lost")

// short is a lease that a test can wait for.
func short(c *relay.Config) {
	c.LeaseDuration, c.LeaseMargin = 900*time.Millisecond, 150*time.Millisecond
	c.Batch.PublishTimeout = 400 * time.Millisecond
}

// A2, A3, D01: killed between the confirmation and the settle. The next process sends the same messages again, with
// their ids and in order, and settles them.
func TestACrashBeforeTheSettleRepeatsInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	sent := w.put("k", 5)
	h := &hooks{}
	reached := make(chan struct{}, 1)
	h.settle = func(func() (shard.Settlement, error)) (shard.Settlement, error) {
		select {
		case reached <- struct{}{}:
		default:
		}
		return shard.Settlement{}, errLostAnswer // it never got there
	}
	first := w.start(options{config: short, wrap: h.wrap})
	<-reached
	first.kill()
	if got := w.left(); got != 5 {
		t.Fatalf("%d rows left after the crash, want 5", got)
	}
	w.start(options{config: short})
	w.awaitEmpty()
	versions := w.broker.versions("k")
	if diff := cmp.Diff(upTo(5), once(versions)); diff != "" {
		t.Errorf("first deliveries (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(append(upTo(5), upTo(5)...), versions); diff != "" {
		t.Errorf("all deliveries (-want +got):\n%s", diff)
	}
	ids := map[message.ID]int{}
	w.broker.mu.Lock()
	for _, m := range w.broker.kept {
		ids[m.ID]++
	}
	w.broker.mu.Unlock()
	for _, m := range sent {
		if ids[m.ID] != 2 {
			t.Errorf("message %d arrived %d times under its id, want 2", m.AggregateVersion, ids[m.ID])
		}
	}
}

// P16: the settle was done and its answer lost. The lane repeats only the settle, finds the archive, and goes on.
func TestASettleWithoutAnAnswerIsRepeatedAndNothingIsSentMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("k", 3)
	h := &hooks{}
	var tries atomic.Int64
	var already atomic.Int64
	h.settle = func(call func() (shard.Settlement, error)) (shard.Settlement, error) {
		n := tries.Add(1)
		got, err := call()
		if n <= 3 { // done, but nobody hears of it
			return shard.Settlement{}, errLostAnswer
		}
		already.Add(int64(got.Already))
		return got, err
	}
	w.start(options{wrap: h.wrap})
	testkit.Eventually(t, patience, "the settle is tried again", func() bool { return tries.Load() >= 2 })
	w.put("k", 2)
	w.awaitEmpty()
	w.inOrder("k", 5)
	if got := already.Load(); got != 3 {
		t.Errorf("%d rows were found settled before, want 3", got)
	}
}

func TestNothingNewIsSentWhileASettleFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("a", 1)
	h := &hooks{}
	var tries atomic.Int64
	h.settle = func(func() (shard.Settlement, error)) (shard.Settlement, error) {
		tries.Add(1)
		return shard.Settlement{}, errLostAnswer
	}
	w.start(options{wrap: h.wrap})
	testkit.Eventually(t, patience, "the settle fails", func() bool { return tries.Load() >= 2 })
	seen := w.broker.publishes()
	w.put("b", 5)
	testkit.Eventually(t, patience, "the settle is repeated", func() bool { return tries.Load() >= 8 })
	if got := w.broker.publishes(); got != seen {
		t.Errorf("%d publishes while the settle failed", got-seen)
	}
	h.set(func(h *hooks) { h.settle = nil })
	w.awaitEmpty()
	w.inOrder("a", 1)
	w.inOrder("b", 5)
}

// The commit of a release got no answer: rows were set free somewhere below the floor, and the repeated release finds
// no gate any more. They must be found, in order, all the same.
func TestAReleaseWithoutAnAnswerLosesNoRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	head := w.put("k", 4)[0]
	var refusing atomic.Bool
	refusing.Store(true)
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.ID == head.ID && refusing.Load() {
			return rejected, false
		}
		return confirmed, true
	})
	h := &hooks{}
	var lost atomic.Int64
	h.settleDue = func(call func() error) error {
		err := call()
		if err == nil && lost.Add(1) == 1 {
			w.put("k", 2) // a floor that stayed above the rows set free would let these pass them
			return errLostAnswer
		}
		return err
	}
	w.start(options{wrap: h.wrap})
	w.awaitSQL("the key waits", `count(*) = 4 AND bool_and(held) FROM message_outbox`)
	w.put("other", 50) // lets the floor rise far above the waiting key
	w.awaitSQL("the others are through", `count(*) = 4 FROM message_outbox`)
	refusing.Store(false)
	w.awaitEmpty()
	w.inOrder("k", 6)
	if lost.Load() < 2 {
		t.Error("the release was not repeated: this test shows nothing")
	}
}

// A8, D03: a process stands still until another has its shard. Whatever it still does changes nothing.
func TestAZombieChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	h := &hooks{}
	var held atomic.Bool
	reached, goOn := make(chan struct{}), make(chan struct{})
	outcome := make(chan error, 1)
	h.settle = func(call func() (shard.Settlement, error)) (shard.Settlement, error) {
		if held.Swap(true) {
			return call()
		}
		close(reached)
		<-goOn
		got, err := call()
		outcome <- err
		return got, err
	}
	// The whole process stands still: one that still said that it is there would keep its share of the shards.
	standStill := func(call func() error) error {
		if held.Load() {
			<-goOn
		}
		return call()
	}
	h.renew, h.join = standStill, standStill
	w.put("k", 3)
	zombie := w.start(options{config: short, wrap: h.wrap})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release) // or a test that fails before would wait for the zombie for ever
	<-reached
	next := w.start(options{config: short})
	w.awaitEmpty()
	before := testkit.Value[string](
		w.DB,
		`SELECT string_agg(p::text, ';' ORDER BY position) FROM message_outbox_published p`,
	)
	release()
	if err := <-outcome; !errors.Is(err, lease.ErrLost) {
		t.Errorf("the zombie's settle = %v, want %v", err, lease.ErrLost)
	}
	after := testkit.Value[string](
		w.DB,
		`SELECT string_agg(p::text, ';' ORDER BY position) FROM message_outbox_published p`,
	)
	if before != after {
		t.Error("the zombie changed the archive")
	}
	if diff := cmp.Diff(upTo(3), once(w.broker.versions("k"))); diff != "" {
		t.Errorf("first deliveries (-want +got):\n%s", diff)
	}
	// On a busy machine the new holder's short lease may have ended meanwhile, and the zombie, awake now, may have it.
	testkit.Eventually(t, patience, "one of them holds the shard", func() bool {
		return len(next.held())+len(zombie.held()) == 1
	})
}

// G4, P8: the first batch cannot be sent since the database gives no answer about the table's source. What was read
// ahead of it meanwhile is of the same key.
func TestWhatWasReadAheadWaitsForABatchThatWasNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	log := testkit.NewLog(t)
	h := &hooks{}
	var failed atomic.Bool
	h.adopt = func(call func() error) error {
		if failed.Swap(true) {
			return call()
		}
		testkit.Eventually(t, patience, "the next batch is read", func() bool {
			return strings.Count(log.String(), "Claimed batch") == 2
		})
		return errLostAnswer
	}
	w.put("k", 9)
	w.start(options{wrap: h.wrap, log: log.Logger(), config: func(c *relay.Config) { c.Batch.MaxMessages = 3 }})
	w.awaitEmpty()
	w.inOrder("k", 9)
}

// deadlines remembers until when publishes may run.
type deadlines struct {
	*ledger
	longest atomic.Int64 // how much time was left of one
	latest  atomic.Int64 // until when one may have run, in nanoseconds of the epoch
}

func (d *deadlines) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	if until, ok := ctx.Deadline(); ok {
		d.longest.Store(max(d.longest.Load(), int64(time.Until(until))))
		d.latest.Store(max(d.latest.Load(), until.UnixNano()))
	} else {
		d.longest.Store(int64(time.Hour))
	}
	return d.ledger.Publish(ctx, batch)
}

// R3 and A9: no publish may run longer than its bound or its lease, and none starts when the lease cannot be renewed.
func TestNoPublishOutlivesItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	h := &hooks{}
	watch := &deadlines{ledger: w.broker}
	w.start(options{config: short, wrap: h.wrap, publisher: watch})
	w.put("k", 1)
	w.awaitEmpty()
	if got := time.Duration(watch.longest.Load()); got > 400*time.Millisecond {
		t.Errorf("a publish had %v, want at most the publish timeout", got)
	}
	failed := make(chan struct{}, 100)
	h.set(func(h *hooks) {
		h.renew = func(func() error) error {
			failed <- struct{}{}
			return errLostAnswer
		}
	})
	for range 6 { // renewals come at a third of the duration, then more often: the lease is over after these
		<-failed
	}
	seen := w.broker.count()
	w.put("k", 1)
	for range 3 {
		<-failed
	}
	if got := w.broker.count(); got != seen {
		t.Error("a message was sent without a lease to rely on")
	}
	h.set(func(h *hooks) { h.renew = nil })
	w.awaitEmpty() // nobody took over: the same term goes on
	if got := testkit.Value[int64](w.DB, `SELECT term FROM message_outbox_lease`); got != 1 {
		t.Errorf("term = %d, want 1", got)
	}
}

// A9: a publish is cut when the lease ends that it relies on, where that is before its own bound.
func TestAPublishIsCutWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	h := &hooks{}
	watch := &deadlines{ledger: w.broker}
	var renewed atomic.Int64 // when the last renewal that succeeded was answered
	h.set(func(h *hooks) {
		h.renew = func(call func() error) error {
			err := call()
			renewed.Store(time.Now().UnixNano())
			return err
		}
	})
	w.start(options{config: func(c *relay.Config) {
		short(c)
		c.Batch.PublishTimeout = c.LeaseDuration - c.LeaseMargin - time.Millisecond // the most that is taken
	}, wrap: h.wrap, publisher: watch})
	w.put("k", 1)
	w.awaitEmpty()
	testkit.Eventually(t, patience, "the lease was renewed", func() bool { return renewed.Load() > 0 })
	failed := make(chan struct{}, 100)
	h.set(func(h *hooks) {
		h.renew = func(func() error) error {
			failed <- struct{}{}
			return errLostAnswer
		}
	})
	<-failed
	w.put("k", 1) // sent within what is left of the lease, or not at all
	for range 6 {
		<-failed
	}
	cfg := w.config()
	short(&cfg)
	end := renewed.Load() + int64(cfg.LeaseDuration-cfg.LeaseMargin)
	if over := time.Duration(watch.latest.Load() - end); over > 0 {
		t.Errorf("a publish might have run for %v beyond its lease", over)
	}
	h.set(func(h *hooks) { h.renew = nil })
	w.awaitEmpty()
}

// stuck is a broker client that ignores its context.
type stuck struct {
	entered chan struct{}
	free    chan struct{}
}

func (s stuck) Publish(_ context.Context, batch []message.Message) []broker.Confirmation {
	close(s.entered)
	<-s.free
	return make([]broker.Confirmation, len(batch))
}

// A10 and R13: the lane no longer counts as alive when a call does not come back, and sends nothing beside it.
func TestAStuckClientShows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("k", 1)
	s := stuck{entered: make(chan struct{}), free: make(chan struct{})}
	dog := newDog()
	p := w.process(options{publisher: s, watchdog: dog, config: func(c *relay.Config) {
		short(c)
		c.QueryTimeout = 500 * time.Millisecond
	}})
	p.run(t.Context())
	t.Cleanup(func() { p.kill() })
	<-s.entered
	testkit.Eventually(t, patience, "the lane's next step is overdue", func() bool { return dog.overdue("lane-0") })
	if dog.overdue("members") {
		t.Error("the other loops count as stuck too")
	}
	close(s.free)
	testkit.Eventually(t, patience, "the lane is alive again", func() bool { return !dog.overdue("lane-0") })
	if err := p.stop(); err != nil && !errors.Is(err, relay.ErrDrainTimeout) {
		t.Errorf("Run() = %v", err)
	}
	if left := dog.loops(); len(left) != 0 {
		t.Errorf("loops %v never said that they ended", left)
	}
}

// P2, P16 on the wire: connections break at any time, and the answer to a commit is lost.
func TestABrokenConnectionLosesAndRepeatsNothingInTheArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	wire := testkit.Proxy(t, w.Addr())
	w.start(options{pool: w.poolAt(wire.Host, wire.Port), config: func(c *relay.Config) {
		c.QueryTimeout = time.Second
	}})
	for i := range 20 {
		w.put("a", 3)
		w.put("b", 3)
		switch i % 4 {
		case 1:
			wire.LoseAnswer("COMMIT")
		case 3:
			wire.Reset()
		}
	}
	w.awaitEmpty()
	for _, key := range []string{"a", "b"} {
		if diff := cmp.Diff(upTo(60), once(w.broker.versions(key))); diff != "" {
			t.Errorf("first deliveries of %s (-want +got):\n%s", key, diff)
		}
	}
	if n := testkit.Value[int64](
		w.DB,
		`SELECT count(*) - count(DISTINCT event_id) FROM message_outbox_published`,
	); n != 0 {
		t.Errorf("%d rows archived twice", n)
	}
}

// P10: the table is not there. Status says what to do, nothing spins, and the relay goes on when it is mended.
func TestAMissingTableShowsAndIsRecoveredFrom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.Exec(`ALTER TABLE message_outbox RENAME TO mislaid`)
	p := w.start(options{})
	testkit.Eventually(t, patience, "the missing table shows", func() bool {
		return strings.HasPrefix(p.condition("SchemaReady"), "False SchemaMissing") &&
			strings.Contains(p.condition("SchemaReady"), "schema apply")
	})
	if got := p.condition("DatabaseReachable"); got != "True Working " {
		t.Errorf("DatabaseReachable = %q", got)
	}
	all := p.counted("outbox_database_failures_total") // it grows, so the part of it is read after it
	if n := p.counted("outbox_database_failures_total", "SchemaMissing"); n == 0 || n < all {
		t.Errorf("%v of %v failures counted for the missing table, want all and some", n, all)
	}
	w.Exec(`ALTER TABLE mislaid RENAME TO message_outbox`)
	w.put("k", 2)
	w.awaitEmpty()
	testkit.Eventually(
		t,
		patience,
		"the schema is ready",
		func() bool { return p.condition("SchemaReady") == "True Working " },
	)

	w.Exec(`ALTER TABLE message_outbox_published RENAME TO mislaid`)
	w.put("k", 2)
	testkit.Eventually(t, patience, "the missing archive shows", func() bool {
		return strings.HasPrefix(p.condition("SchemaReady"), "False SchemaMissing")
	})
	w.Exec(`ALTER TABLE mislaid RENAME TO message_outbox_published`)
	w.awaitEmpty()
	w.inOrder("k", 4)
	testkit.Eventually(
		t,
		patience,
		"the schema is ready",
		func() bool { return p.condition("SchemaReady") == "True Working " },
	)
}

// The database goes away and comes back: no restart, no budget, a count that is absent and not 0.
func TestADatabaseThatGoesAwayShowsAndIsRecoveredFrom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	wire := testkit.Proxy(t, w.Addr())
	p := w.start(options{pool: w.poolAt(wire.Host, wire.Port), config: func(c *relay.Config) {
		c.QueryTimeout = time.Second
	}})
	w.put("k", 1)
	w.awaitEmpty()
	wire.Cut()
	testkit.Eventually(t, patience, "the database counts as away", func() bool {
		return strings.HasPrefix(p.condition("DatabaseReachable"), "False ")
	})
	if r, _ := p.Report(t.Context()); r.Backlog != nil {
		t.Errorf("backlog = %+v without a database", r.Backlog)
	}
	if got := p.condition("SchemaReady"); !strings.HasPrefix(got, "Unknown ") {
		t.Errorf("SchemaReady = %q, want Unknown", got)
	}
	w.put("k", 2)
	wire.Resume()
	w.awaitEmpty()
	if diff := cmp.Diff(upTo(3), once(w.broker.versions("k"))); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	testkit.Eventually(t, patience, "the database counts as reachable", func() bool {
		return p.condition("DatabaseReachable") == "True Working "
	})
}
