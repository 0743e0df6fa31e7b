package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
)

// OffsetReset says what becomes of a partition whose next message is gone.
type OffsetReset string

// The resets. A group that has read nothing of a partition begins at its oldest message in any case.
const (
	// ResetFail stops at the partition and says so: a person decides.
	ResetFail OffsetReset = "Fail"
	// ResetEarliest goes on with the oldest message that is left.
	ResetEarliest OffsetReset = "Earliest"
)

// ReceiverConfig says what a Receiver reads and how much at once.
type ReceiverConfig struct {
	// Topics are what is read.
	Topics []string
	// Group is the consumer group: processes with one name share the partitions.
	Group string
	// OffsetReset is what to do when the next message of a partition is gone. Defaults to ResetFail.
	OffsetReset OffsetReset
	// Prefetch bounds the deliveries that are handed out or ready to be, and not settled. Defaults to 1000.
	Prefetch int
	// PrefetchBytes bounds their size; a single larger message still comes, alone. What the library has fetched from each
	// broker beside it is at most as much again. Defaults to 16 MiB.
	PrefetchBytes int
	// SessionTimeout is after how long the broker gives the partitions of a dead process to others. Defaults to 30s.
	SessionTimeout time.Duration
}

const (
	defaultPrefetch       = 1000
	defaultPrefetchBytes  = 16 << 20
	defaultSessionTimeout = 30 * time.Second

	maxGroupBytes = 255
	// stretch is how many times Prefetch the first unfinished record of a partition may be behind the last that came.
	stretch = 10
)

func (c ReceiverConfig) withDefaults() ReceiverConfig {
	if c.OffsetReset == "" {
		c.OffsetReset = ResetFail
	}
	if c.Prefetch <= 0 {
		c.Prefetch = defaultPrefetch
	}
	if c.PrefetchBytes <= 0 {
		c.PrefetchBytes = defaultPrefetchBytes
	}
	if c.SessionTimeout <= 0 {
		c.SessionTimeout = defaultSessionTimeout
	}
	return c
}

// Validate says what is wrong with the configuration, naming the field.
func (c ReceiverConfig) Validate() error {
	if len(c.Topics) == 0 {
		return errors.New("kafka.topics is empty")
	}
	for i, name := range c.Topics {
		if !validTopic(name) {
			return fmt.Errorf(
				"kafka.topics[%d] is not a topic's name: letters, digits, dots, dashes and underscores", i)
		}
	}
	if c.Group == "" || len(c.Group) > maxGroupBytes || strings.ContainsFunc(c.Group, unprintable) {
		return fmt.Errorf("kafka.group is not a group's name: 1 to %d bytes of printable ASCII", maxGroupBytes)
	}
	switch c.OffsetReset {
	case "", ResetFail, ResetEarliest:
		return nil
	default:
		return fmt.Errorf("kafka.offsetReset is none of %s, %s", ResetFail, ResetEarliest)
	}
}

func unprintable(c rune) bool { return c < ' ' || c > '~' }

// Receiver is a broker.Receiver on a consumer group. Goroutines of its own fetch, commit and look at the topics, so that
// neither Receive nor Ack waits for a socket.
//
// The group keeps the offset below which everything of a partition is acknowledged. What is lost of that, by a crash or by
// a rebalance that would not wait, only brings messages again, which the inbox recognises.
type Receiver struct {
	client *client
	cfg    ReceiverConfig
	log    *slog.Logger
	now    func() time.Time

	ctx    context.Context //nolint:containedctx // the life of the goroutines, which the library's callbacks share
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	room   chan struct{} // holds one: something was settled
	done   chan struct{} // holds one: something may be committed

	commits sync.Mutex // held while offsets are on their way: one of a partition that was given away must not come late

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when Receive or a callback may go on
	closed  bool
	killed  bool
	parts   map[place]*partition
	turn    int // spreads what is handed out over the partitions
	health  health
	notes   broker.Notes
}

var errClosed = errors.New("receiver is closed")

// NewReceiver returns a receiver that connects and fetches in the background until Close. The context gives values only.
func NewReceiver(ctx context.Context, cfg Config, receive ReceiverConfig) (*Receiver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := receive.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = discard()
	}
	r := &Receiver{
		cfg: receive.withDefaults(), log: cfg.Log, now: time.Now,
		room: make(chan struct{}, 1), done: make(chan struct{}, 1), changed: make(chan struct{}),
		parts: make(map[place]*partition),
	}
	r.health.topics, r.health.renew = make(map[string]*broker.Error), make(map[string]bool)
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if r.client, err = newClient(cfg, r.options()...); err != nil {
		r.cancel()
		return nil, err
	}
	r.tasks.Go(r.fetch)
	r.tasks.Go(r.keepCommitting)
	r.tasks.Go(r.watch)
	return r, nil
}

// Receive implements broker.Receiver.
func (r *Receiver) Receive(ctx context.Context) ([]broker.Delivery, error) {
	for {
		r.mu.Lock()
		got, due := r.take()
		err, changed := r.state(), r.changed
		if r.closed {
			err = errClosed
		}
		r.mu.Unlock()
		switch {
		case len(got) > 0:
			return got, nil
		case err != nil:
			return nil, err
		}
		if waitAtMost(ctx, changed, due); ctx.Err() != nil {
			return nil, ctx.Err() //nolint:wrapcheck // the caller's own
		}
	}
}

// waitAtMost waits for the channel, the context's end, or the time where it is above 0.
func waitAtMost(ctx context.Context, changed <-chan struct{}, most time.Duration) {
	var expired <-chan time.Time
	if most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-changed:
	case <-expired:
	case <-ctx.Done():
	}
}

// take hands out what is ready, the partitions in turn and each in its order. Where records wait for the end of a pause, it
// says how long. The lock is held.
func (r *Receiver) take() (got []broker.Delivery, due time.Duration) {
	if r.closed {
		return nil, 0
	}
	now := r.now()
	free := r.cfg.Prefetch
	for _, p := range r.parts {
		free -= p.out
		if p.blocked(now) && (due == 0 || p.due.Sub(now) < due) {
			due = p.due.Sub(now)
		}
	}
	parts := r.inTurn()
	for _, p := range parts {
		if p.leaving || p.blocked(now) {
			continue
		}
		n := min(max(free, 0), len(p.ready))
		for _, d := range p.ready[:n] {
			got = append(got, d.handOut())
		}
		p.ready = slices.Delete(p.ready, 0, n)
		free -= n
	}
	return got, due
}

// inTurn returns the partitions, another one first each time. The lock is held.
func (r *Receiver) inTurn() []*partition {
	parts := make([]*partition, 0, len(r.parts))
	for _, p := range r.parts {
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b *partition) int {
		if by := strings.Compare(a.topic, b.topic); by != 0 {
			return by
		}
		return int(a.partition - b.partition)
	})
	if len(parts) > 1 {
		r.turn = (r.turn + 1) % len(parts)
		parts = append(parts[r.turn:], parts[:r.turn]...)
	}
	return parts
}

// settle changes a delivery that is handed out and whose partition is still ours, once.
func (r *Receiver) settle(d *delivery, change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.stage != handedOut || r.parts[d.of.place] != d.of {
		return
	}
	change()
	r.wake()
	nudge(r.room)
	nudge(r.done)
}

// wake lets Receive and the callbacks look again. The lock is held.
func (r *Receiver) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// nudge fills a channel that holds one.
func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Close stops fetching, commits what is acknowledged and leaves the group, so that others get the partitions at once. It
// waits for no delivery that is handed out. With a context that has ended it cuts the connections, as a crash would.
func (r *Receiver) Close(ctx context.Context) error {
	r.mu.Lock()
	again := r.closed
	r.closed = true
	r.killed = r.killed || ctx.Err() != nil
	r.wake()
	r.mu.Unlock()
	r.cancel()
	if ctx.Err() != nil {
		r.client.close()
		return nil
	}
	if again {
		return nil
	}
	defer r.client.close()
	if err := r.client.LeaveGroupContext(ctx); err != nil {
		return fmt.Errorf("leave the Kafka group: %w", err)
	}
	r.tasks.Wait()
	return nil
}

// note keeps an event as a warning for a while.
func (r *Receiver) note(reason broker.WarningReason, detail string) {
	r.notes.Add(reason, detail, r.now())
}

// options are the group's, for the library.
func (r *Receiver) options() []kgo.Opt {
	reset := kgo.NoResetOffset()
	if r.cfg.OffsetReset == ResetEarliest {
		reset = kgo.NewOffset().AtStart()
	}
	bytes := int32(min(max(r.cfg.PrefetchBytes, leastFetch), mostFetch))
	return []kgo.Opt{
		kgo.ConsumerGroup(r.cfg.Group), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(r.cfg.SessionTimeout), kgo.HeartbeatInterval(r.cfg.SessionTimeout / heartbeats),
		kgo.RebalanceTimeout(max(r.cfg.SessionTimeout, rebalanceTimeout)),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(r.assigned), kgo.OnPartitionsRevoked(r.revoked), kgo.OnPartitionsLost(r.lost),
		kgo.OnOffsetsFetched(r.offsetsFetched),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(reset),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(bytes), kgo.FetchMaxPartitionBytes(min(bytes, mostPartitionFetch)),
		kgo.FetchMaxWait(fetchWait),
	}
}
