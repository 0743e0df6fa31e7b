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
	m, err := t.newMember(t.publisher(), relay.Run)
	if err != nil {
		return 0, err
	}
	return m.drain(ctx, t.cfg.Rows)
}

// publisher is that of the destination, or a null one.
func (t *table) publisher() broker.Publisher {
	if d := t.cfg.Destination; d != nil {
		return d.Publisher
	}
	return nullPublisher{}
}

// member is a process of the product on the table, in this one.
type member struct {
	*relay.Relay
	cfg   relay.Config
	store *timedStore
}

// newMember makes a process that is ready to Run.
func (t *table) newMember(publisher broker.Publisher, policy relay.RunPolicy) (*member, error) {
	inner, holder, err := t.store()
	if err != nil {
		return nil, err
	}
	m := &member{cfg: t.relayConfig(holder), store: &timedStore{Store: inner}}
	m.cfg.RunPolicy = policy
	m.Relay, err = relay.New(m.cfg, m.store, publisher, relay.NewMetrics(prometheus.NewRegistry()), &relay.Clock{},
		slog.New(slog.DiscardHandler), nil)
	return m, err
}

// drain runs until so many rows are settled, and returns how long that took.
func (m *member) drain(ctx context.Context, rows int) (time.Duration, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m.store.want, m.store.done = int64(rows), stop
	if err := m.Run(ctx); err != nil {
		return 0, err
	}
	return m.store.took(), nil
}

// obey changes the run policy.
func (m *member) obey(policy relay.RunPolicy) error {
	m.cfg.RunPolicy = policy
	return m.Reconfigure(m.cfg)
}

// settled is how many rows were settled so far.
func (m *member) settled() int { return int(m.store.settled.Load()) }

func (t *table) relayConfig(holder [16]byte) relay.Config {
	return relay.Config{
		Holder: holder, Shards: t.shards, Broker: "null", Destination: "null", Unit: "null",
		LeaseDuration: leaseDuration, LeaseMargin: time.Second, QueryTimeout: queryTimeout,
		Retention: leaseDuration, DrainTimeout: queryTimeout,
		Batch: relay.Batch{
			MaxMessages:    t.cfg.Batch,
			MaxBytes:       maxBytes,
			PollInterval:   pollInterval,
			PublishTimeout: time.Minute,
		},
		Backoff: retry.Backoff{Initial: time.Second, Max: time.Minute},
		Budget:  retry.Budget{MaxAttempts: 1, MaxElapsed: time.Minute}, Share: retry.Share{MinPerSecond: 1},
	}
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
// timed: joining and leaving is not draining. It also notes how long each read took.
type timedStore struct {
	*outboxdb.Store
	// want is how many rows there are to settle until done is called; 0 means that nobody waits for that.
	want    int64
	done    func()
	settled atomic.Int64

	mu          sync.Mutex
	first, last time.Time
	reads       []time.Duration
}

// Claim implements relay.Claimer.
func (s *timedStore) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	began := time.Now()
	claim, err := s.Store.Claim(ctx, l, w)
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first.IsZero() || began.Before(s.first) {
		s.first = began
	}
	s.reads = append(s.reads, took)
	return claim, err
}

// Settle implements relay.Settler.
func (s *timedStore) Settle(
	ctx context.Context, l lease.Lease, ids []message.ID, brokerPositions []string,
) (shard.Settlement, error) {
	settlement, err := s.Store.Settle(ctx, l, ids, brokerPositions)
	if err != nil {
		return settlement, err
	}
	now, moved := s.settled.Add(int64(settlement.Moved)), int64(settlement.Moved)
	if s.want > 0 && now >= s.want && now-moved < s.want {
		s.mu.Lock()
		s.last = time.Now()
		s.mu.Unlock()
		s.done()
	}
	return settlement, nil
}

// took is the time from the first read to the settle of the last row that was wanted.
func (s *timedStore) took() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Sub(s.first)
}

// forget forgets the reads so far, and returns them.
func (s *timedStore) forget() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	reads := s.reads
	s.reads = nil
	return reads
}
