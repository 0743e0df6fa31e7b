package relay_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// watched is a broker that confirms everything and watches the order.
type watched struct{ judge *orderJudge }

func (w watched) Publish(_ context.Context, batch []message.Message) []broker.Confirmation {
	got := make([]broker.Confirmation, len(batch))
	for i, m := range batch {
		w.judge.arrived(m)
		got[i] = broker.Confirmation{Outcome: broker.Confirmed, Position: "ORDERS@1"}
	}
	return got
}

// stress lets eight writers hold positions for a while before they commit, several keys in one transaction and some of
// them rolled back, beside a relay with small batches, until the judge has seen enough. It returns what arrived out of
// order. A busy machine takes longer for it, and shows the same.
func stress(t *testing.T, wrap func(relay.Store) relay.Store, enough func(*orderJudge) bool) []string {
	t.Helper()
	w := newWorld(t, 8)
	judge := &orderJudge{seen: make(map[string]int64), ids: make(map[message.ID]int), counts: true}
	w.start(options{publisher: watched{judge}, wrap: wrap, config: func(c *relay.Config) {
		c.Batch.MaxMessages, c.Batch.PollInterval = 40, 5*time.Millisecond
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers sync.WaitGroup
	for i := range uint64(8) {
		writers.Go(func() { w.slowWriter(ctx, i) })
	}
	testkit.Eventually(t, time.Minute, "the stress to have shown enough", func() bool { return enough(judge) })
	cancel()
	writers.Wait()
	if len(judge.mistakes()) == 0 { // a relay with a mistake may wait for the next look from the very start
		w.awaitEmpty()
	}
	return judge.mistakes()
}

// slowWriter writes one or two keys a transaction; the first writer stays open for long now and then.
func (w *world) slowWriter(ctx context.Context, index uint64) {
	random := seeded(index)
	for ctx.Err() == nil {
		// What was begun is finished: the time is over between transactions, not within one.
		err := pgx.BeginFunc(context.WithoutCancel(ctx), w.Pool(), func(tx pgx.Tx) error {
			first := random.IntN(40)
			for i := range 1 + random.IntN(4)/3 {
				if _, err := write(context.WithoutCancel(ctx), tx, fmt.Sprintf("k%02d", first+i)); err != nil {
					return err
				}
			}
			switch x := random.Float64(); {
			case index == 0 && x < 0.05:
				rest(ctx, random, 250, 300)
			case x < 0.3:
				rest(ctx, random, 0, 4)
			}
			if random.Float64() < 0.05 {
				return errRolledBack
			}
			return nil
		})
		if err != nil && !errors.Is(err, errRolledBack) {
			w.t.Errorf("writer: %v", err)
			return
		}
	}
}

func TestTheFloorKeepsTheOrderOfLateCommits(t *testing.T) {
	t.Parallel()
	keep := func(s relay.Store) relay.Store { return s }
	for _, mistake := range stress(t, keep, func(j *orderJudge) bool { return j.arrivals() >= 4000 }) {
		t.Error(mistake)
	}
}

func TestMutationAPlainCursorReordersLateCommits(t *testing.T) {
	t.Parallel()
	// Found nothing within the patience of stress: then it would not notice a broken floor either.
	cursor := func(s relay.Store) relay.Store { return plainCursor{s} }
	stress(t, cursor, func(j *orderJudge) bool { return len(j.mistakes()) > 0 })
}

// endless takes each transaction that has ever run for one that still does.
type endless struct {
	relay.Store
	mu   *sync.Mutex
	seen map[uint64]struct{}
}

func (s endless) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	c, err := s.Store.Claim(ctx, l, w)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range c.Running {
		s.seen[id] = struct{}{}
	}
	c.Running = slices.Collect(maps.Keys(s.seen))
	return c, err
}

// lateCommit lets a transaction write version 1 of key "late" and stay open while other messages go, so many that claims
// pass over what is settled beside it. It returns the first version of the key that arrives when there are two.
func lateCommit(t *testing.T, wrap func(relay.Store) relay.Store) int64 {
	t.Helper()
	w := newWorld(t, 1)
	w.start(options{wrap: wrap})
	long, err := w.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := write(t.Context(), long, "late"); err != nil {
		t.Fatal(err)
	}
	for n := range 60 { // each takes a claim of its own, or more
		w.put("other", 1)
		testkit.Eventually(t, patience, "the message is sent", func() bool { return w.broker.count() == n+1 })
	}
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.put("late", 1)
	testkit.Eventually(
		t,
		patience,
		"a message of the key is sent",
		func() bool { return len(w.broker.versions("late")) > 0 },
	)
	return w.broker.versions("late")[0]
}

func TestALateCommitIsSentInItsPlaceThoughClaimsPassOverIt(t *testing.T) {
	t.Parallel()
	if first := lateCommit(t, nil); first != 1 {
		t.Errorf("version %d is sent first", first)
	}
}

func TestMutationTheEndOfALongTransactionThatGoesUnseenReorders(t *testing.T) {
	t.Parallel()
	first := lateCommit(
		t,
		func(s relay.Store) relay.Store { return endless{s, &sync.Mutex{}, make(map[uint64]struct{})} },
	)
	if first != 2 {
		t.Errorf("version %d is sent first: the test before would notice nothing", first)
	}
}

// The next batch is read while one is published and the one before is settled.
func TestReadingPublishingAndSettlingOverlap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("k", 30)
	h := &hooks{}
	settling, settle := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.settle = func(call func() (shard.Settlement, error)) (shard.Settlement, error) {
		once.Do(func() {
			close(settling)
			<-settle
		})
		return call()
	}
	publishing, publish := make(chan struct{}, 10), make(chan struct{})
	p := slowBroker{ledger: w.broker, entered: publishing, free: publish}
	w.start(options{wrap: h.wrap, publisher: p, config: func(c *relay.Config) { c.Batch.MaxMessages = 10 }})
	<-publishing          // the first batch
	publish <- struct{}{} // is confirmed
	<-settling            // and is being settled,
	<-publishing          // while the second is being published,
	testkit.Eventually(t, patience, "and the third is read", func() bool { return h.claims.Load() >= 3 })
	close(settle)
	close(publish)
	w.awaitEmpty()
	w.inOrder("k", 30)
}

// slowBroker lets the test say when a batch is answered.
type slowBroker struct {
	*ledger
	entered chan<- struct{}
	free    <-chan struct{}
}

func (s slowBroker) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	s.entered <- struct{}{}
	<-s.free
	return s.ledger.Publish(ctx, batch)
}
