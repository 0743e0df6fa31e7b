package bench

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/shard"
)

// relayDrain lets the product run until everything is settled.
func relayDrain(ctx context.Context, t *table) (time.Duration, error) {
	inner, holder, err := t.store()
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var publisher broker.Publisher = nullPublisher{}
	if d := t.cfg.Destination; d != nil {
		publisher = d.Publisher
	}
	store := &timedStore{Store: inner, want: int64(t.cfg.Rows), done: stop}
	r, err := relay.New(relay.Config{
		Holder: holder, Shards: shards, Broker: "null", Destination: "null", Unit: "null",
		LeaseDuration: leaseDuration, LeaseMargin: time.Second, QueryTimeout: queryTimeout,
		Retention: leaseDuration, DrainTimeout: queryTimeout, RunPolicy: relay.Run,
		Batch: relay.Batch{
			MaxMessages:    t.cfg.Batch,
			MaxBytes:       maxBytes,
			PollInterval:   pollInterval,
			PublishTimeout: time.Minute,
		},
		Backoff: retry.Backoff{Initial: time.Second, Max: time.Minute},
		Budget:  retry.Budget{MaxAttempts: 1, MaxElapsed: time.Minute}, Share: retry.Share{MinPerSecond: 1},
	}, store, publisher, relay.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return 0, err
	}
	if err := r.Run(ctx); err != nil {
		return 0, err
	}
	return store.took(), nil
}

// nullPublisher confirms everything at once.
type nullPublisher struct{}

// Publish implements broker.Publisher.
func (nullPublisher) Publish(_ context.Context, batch []message.Message) []broker.Confirmation {
	out := make([]broker.Confirmation, len(batch))
	for i := range batch {
		out[i] = broker.Confirmation{Outcome: broker.Confirmed, Position: nullPosition(&batch[i])}
	}
	return out
}

// timedStore notes when the first row was asked for and when the last one was settled, as the other contestants are
// timed: joining and leaving is not draining.
type timedStore struct {
	*outboxdb.Store
	want    int64
	done    func()
	settled atomic.Int64

	mu          sync.Mutex
	first, last time.Time
}

// Claim implements relay.Claimer.
func (s *timedStore) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	s.mu.Lock()
	if s.first.IsZero() {
		s.first = time.Now()
	}
	s.mu.Unlock()
	return s.Store.Claim(ctx, l, w)
}

// Settle implements relay.Settler.
func (s *timedStore) Settle(
	ctx context.Context, l lease.Lease, ids []message.ID, brokerPositions []string,
) (shard.Settlement, error) {
	settlement, err := s.Store.Settle(ctx, l, ids, brokerPositions)
	if err == nil && s.settled.Add(int64(settlement.Moved)) == s.want {
		s.mu.Lock()
		s.last = time.Now()
		s.mu.Unlock()
		s.done()
	}
	return settlement, err
}

func (s *timedStore) took() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Sub(s.first)
}
