package relay

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/shard"
)

// lookEvery is how often a process looks whether a shard is free: what another gives back is taken up within two
// seconds.
const lookEvery = time.Second

// members shares the shards among the relay's processes. One goroutine owns it.
type members struct {
	r     *Relay
	lanes map[int16]*lane
	ends  chan ended
	// joined says that the table is ours as far as anybody knows; joinAt is when to say again that we are there.
	joined   bool
	joinAt   time.Time
	failures int
	// resting says that shards were given back: the next round takes none, so that a newcomer gets its share.
	resting bool
}

// ended is a lane that has ended.
type ended struct {
	shard int16
	how   ending
}

func newMembers(r *Relay) *members {
	return &members{r: r, lanes: make(map[int16]*lane), ends: make(chan ended, r.config().Shards)}
}

// run shares shards until ctx ends, then drains. hard ends what is in flight; stop ends hard.
func (m *members) run(ctx, hard context.Context, stop context.CancelCauseFunc) error {
	defer m.r.watchdog.Done(loopMembers)
	period := min(lookEvery, m.r.config().LeaseDuration/4)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		m.r.step(loopMembers, 8*m.r.config().QueryTimeout)
		m.round(ctx, hard)
		select {
		case <-hard.Done():
			m.await(hard)
			return context.Cause(hard)
		case <-ctx.Done():
			return m.drain(hard, stop)
		case e := <-m.ends:
			m.gone(hard, e)
		case <-m.r.changed:
		case <-tick.C:
		}
	}
}

// round says that this process is there, and takes or gives back shards as its share says.
func (m *members) round(ctx, hard context.Context) {
	if ctx.Err() != nil || hard.Err() != nil {
		return
	}
	now := m.r.now()
	m.r.totals.sample(now)
	failing, _ := m.r.failing(now)
	m.r.metrics.failing.Set(float64(len(failing)))
	if !now.Before(m.joinAt) {
		m.join(ctx, now)
	}
	if !m.joined {
		return
	}
	live, takeable, err := m.r.store.Look(ctx)
	if err != nil {
		m.r.storeFailed(ctx, loopMembers+" look", err)
		return
	}
	m.r.health.succeeded(loopMembers + " look")
	m.balance(hard, live, takeable)
}

// join says that this process is there and that the table is its relay's.
func (m *members) join(ctx context.Context, now time.Time) {
	cfg := m.r.config()
	err := error(nil)
	if !m.joined {
		err = m.r.store.Preflight(ctx)
	}
	var joined shard.Joined
	if err == nil {
		joined, err = m.r.store.Join(ctx, cfg.LeaseDuration)
	}
	if err != nil {
		m.failures++
		m.joinAt = now.Add(min(cfg.Backoff.Pause(m.failures, m.r.random()), cfg.LeaseDuration/4))
		m.r.storeFailed(ctx, loopMembers+" join", err)
		return
	}
	m.r.health.succeeded(loopMembers + " join")
	m.joined, m.failures = true, 0
	m.joinAt = now.Add(cfg.LeaseDuration / 3)
	if joined.Source != "" {
		m.r.source.Store(&joined.Source)
	}
	if m.r.clock.joined(now, joined, cfg.LeaseDuration) {
		m.r.log.WarnContext(ctx, "The database shows an earlier state than was written to it: reading all anew")
		m.r.readAnew()
	}
}

// share returns how many of the shards a process has when all have about the same: processes in the order of their
// ids, the first ones one more where it does not come out even.
func share(shards int, live [][16]byte, self [16]byte) int {
	rank, found := slices.BinarySearchFunc(live, self, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	n := len(live)
	if !found {
		n++ // this process is there, whoever has not heard of it yet
	}
	mine := shards / n
	if rank < shards%n {
		mine++
	}
	return mine
}

// balance gives back what is above this process's share, or takes what is free below it.
func (m *members) balance(hard context.Context, live [][16]byte, takeable []int16) {
	cfg := m.r.config()
	target := share(cfg.Shards, live, cfg.Holder)
	if cfg.RunPolicy == Drain {
		target = 0
	}
	if len(m.lanes) > target {
		m.giveBack(len(m.lanes) - target)
		m.resting = true
		return
	}
	if m.resting {
		m.resting = false
		return
	}
	for _, s := range takeable {
		if len(m.lanes) >= target || hard.Err() != nil {
			return
		}
		if m.lanes[s] == nil {
			m.acquire(hard, s)
		}
	}
}

// giveBack lets the highest lanes end after what they have in flight. Lanes that are ending already count.
func (m *members) giveBack(n int) {
	held := make([]int16, 0, len(m.lanes))
	for s := range m.lanes {
		held = append(held, s)
	}
	slices.Sort(held)
	slices.Reverse(held)
	for _, s := range held[:n] {
		m.lanes[s].giveUp()
	}
}

// acquire takes a shard and starts its lane.
func (m *members) acquire(hard context.Context, of int16) {
	cfg := m.r.config()
	asked := m.r.now()
	l, ok, err := m.r.store.Acquire(hard, of, cfg.LeaseDuration)
	if err != nil {
		m.r.storeFailed(hard, loopMembers+" acquire", err)
		return
	}
	m.r.health.succeeded(loopMembers + " acquire")
	if !ok {
		return // somebody else was faster
	}
	l.TrustUntil = asked.Add(cfg.LeaseDuration - cfg.LeaseMargin)
	m.start(hard, l, asked)
}

func (m *members) start(hard context.Context, l lease.Lease, asked time.Time) {
	one := newLane(m.r, l, asked)
	m.lanes[l.Shard] = one
	m.r.mu.Lock()
	m.r.lanes[l.Shard] = one
	m.r.mu.Unlock()
	m.r.metrics.took(l.Shard)
	one.log.InfoContext(hard, "Lease gained")
	m.r.calls.Go(func() {
		how := one.run(hard)
		if how == drained && m.r.crashing() {
			how = cut // the drain was quicker than the end
		}
		if how == drained {
			// The next holder need not wait for the lease's end. If this fails, it has to.
			if err := m.r.store.GiveBack(hard, one.lease); err != nil {
				one.log.DebugContext(hard, "Lease not given back", "err", m.r.explained(err))
			}
		}
		m.ends <- ended{shard: l.Shard, how: how}
	})
}

// gone takes note of a lane that has ended.
func (m *members) gone(ctx context.Context, e ended) {
	one := m.lanes[e.shard]
	delete(m.lanes, e.shard)
	m.r.mu.Lock()
	delete(m.r.lanes, e.shard)
	m.r.mu.Unlock()
	m.r.metrics.gave(e.shard)
	switch e.how {
	case lost:
		one.log.InfoContext(ctx, "Lease lost to another process")
	case drained:
		one.log.InfoContext(ctx, "Lease given back")
	default:
	}
}

// await waits for lanes whose context has ended.
func (m *members) await(hard context.Context) {
	for len(m.lanes) > 0 {
		m.gone(hard, <-m.ends)
	}
}

// drain lets all lanes finish, within the bound, and leaves.
func (m *members) drain(hard context.Context, stop context.CancelCauseFunc) error {
	for _, l := range m.lanes {
		l.giveUp()
	}
	limit := time.NewTimer(m.r.config().DrainTimeout)
	defer limit.Stop()
	for len(m.lanes) > 0 {
		select {
		case e := <-m.ends:
			m.gone(hard, e)
		case <-limit.C:
			stop(ErrDrainTimeout)
			m.await(hard)
			return ErrDrainTimeout
		case <-hard.Done():
			m.await(hard)
			return context.Cause(hard)
		}
	}
	if m.joined {
		if err := m.r.store.Leave(hard); err != nil {
			m.r.log.DebugContext(hard, "Left without saying so", "err", m.r.explained(err))
		}
	}
	return nil
}
