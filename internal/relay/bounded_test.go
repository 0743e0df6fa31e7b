package relay_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// counted is a store that knows how many of the payloads that were read are still in memory.
type counted struct {
	*hooks
	read, live atomic.Int64
}

func (c *counted) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	got, err := c.hooks.Claim(ctx, l, w)
	for i := range got.Rows {
		c.read.Add(1)
		c.live.Add(1)
		runtime.AddCleanup(&got.Rows[i].Payload[0], func(live *atomic.Int64) { live.Add(-1) }, &c.live)
	}
	return got, err
}

// gate is a broker that answers when it is opened.
type gate struct{ calls, open chan struct{} }

func (g gate) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	select {
	case g.calls <- struct{}{}:
	default:
	}
	select {
	case <-g.open:
	case <-ctx.Done():
	}
	out := make([]broker.Confirmation, len(batch))
	for i := range out {
		out[i].Outcome = broker.Confirmed
	}
	return out
}

// steps is a watchdog that counts the steps of a lane.
type steps struct{ lane atomic.Int64 }

func (s *steps) Step(loop string, _ time.Duration) {
	if loop == "lane-0" {
		s.lane.Add(1)
	}
}

func (*steps) Done(string) {}

// awaitLooks waits until the lane has had every occasion to do what it must not do.
func (s *steps) awaitLooks(p *process) {
	p.w.t.Helper()
	before := s.lane.Load()
	testkit.Eventually(p.w.t, patience, "the lane has looked around again and again", func() bool {
		p.Refresh()
		return s.lane.Load() >= before+10
	})
}

const (
	largePayload = 10 << 10
	fullBatch    = 10 // large payloads
)

// large writes messages of which ten are all that a batch may carry, and changes a config so.
func (w *world) large(n int) func(*relay.Config) {
	w.t.Helper()
	w.put("k", n)
	w.Exec(`UPDATE message_outbox SET payload = decode(repeat('ab', $1), 'hex')`, largePayload)
	return func(c *relay.Config) {
		c.Batch.MaxBytes = fullBatch * largePayload
		c.Batch.PublishTimeout = 8 * time.Second
		c.LeaseDuration = time.Minute
		c.QueryTimeout = time.Minute
	}
}

// What waits to be settled is known by its id: a database that settles slowly does not fill the memory with payloads.
func TestWhileTheDatabaseSettlesNothingPayloadsAreLetGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	config := w.large(6 * fullBatch)
	release := make(chan struct{})
	store := &counted{hooks: &hooks{settle: func(call func() (shard.Settlement, error)) (shard.Settlement, error) {
		<-release
		return call()
	}}}
	open := make(chan struct{})
	close(open)
	w.start(options{
		config: config, publisher: gate{open: open},
		wrap: func(s relay.Store) relay.Store { store.hooks.wrap(s); return store },
	})
	testkit.Eventually(t, patience, "two batches are sent and a third is read", func() bool {
		return store.read.Load() >= 3*fullBatch
	})
	testkit.Eventually(t, patience, "only what was not sent is in memory", func() bool {
		runtime.GC()
		return store.live.Load() <= fullBatch
	})
	close(release)
	w.awaitEmpty()
}

// A lane does not read ahead while a full batch is on its way: it would hold two of them.
func TestALaneHoldsOneFullBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	config := w.large(6 * fullBatch)
	store, beat := &counted{hooks: &hooks{}}, &steps{}
	broker := gate{calls: make(chan struct{}, 1), open: make(chan struct{})}
	p := w.start(options{
		config: config, publisher: broker, watchdog: beat,
		wrap: func(s relay.Store) relay.Store { store.hooks.wrap(s); return store },
	})
	<-broker.calls
	beat.awaitLooks(p)
	if got := store.read.Load(); got != fullBatch {
		t.Errorf("%d rows were read while the first %d are on their way", got, fullBatch)
	}
	close(broker.open)
	w.awaitEmpty()
	if got := store.read.Load(); got != 6*fullBatch {
		t.Errorf("%d rows were read, want each once: %d", got, 6*fullBatch)
	}
}

// Small batches are read ahead: that hides a round trip each.
func TestALaneReadsAheadOfASmallBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	config := w.large(20)
	store := &counted{hooks: &hooks{}}
	broker := gate{calls: make(chan struct{}, 1), open: make(chan struct{})}
	w.start(options{
		config:    func(c *relay.Config) { config(c); c.Batch.MaxMessages = fullBatch / 2 },
		publisher: broker,
		wrap:      func(s relay.Store) relay.Store { store.hooks.wrap(s); return store },
	})
	<-broker.calls
	testkit.Eventually(t, patience, "the next batch is read while the first is on its way", func() bool {
		return store.read.Load() == fullBatch
	})
	close(broker.open)
	w.awaitEmpty()
}
