package relay

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// ending is how a lane ends.
type ending uint8

// The endings. The zero value is for a lane that goes on.
const (
	goesOn ending = iota
	// drained: everything in flight was finished.
	drained
	// lost: the shard has passed to another holder or term.
	lost
	// cut: the process ends at once.
	cut
)

// lane moves the messages of one shard while it holds the shard's lease in one term.
//
// One goroutine owns a lane's state. Reading, publishing and writing run beside it, one of each at most: batch n+1
// is read while n is published and n-1 is settled. Each hands back a function that applies its outcome.
type lane struct {
	r     *Relay
	name  string
	log   *slog.Logger
	mem   *memory
	batch Batch // as of the last look at the config

	lease   lease.Lease
	renewAt time.Time

	answers chan func(now time.Time)
	wake    chan bool // from idlers: whether the look was from the very start
	nudge   chan struct{}
	drain   chan struct{}
	stop    sync.Once

	reading, publishing, writing bool
	// busyUntil is when the call that is under way the longest must have returned: reads, publishes, writes.
	busyUntil [3]time.Time

	// carried is the sum of the payloads that are being published.
	carried int64
	// ahead are rows that were read and not yet handed to the broker.
	ahead []shard.Row
	// kept says that some of them wait until their unit may be tried.
	kept bool
	// due are keys whose wait is over, until everything about them is written.
	due *dueWork
	// dueNext alternates between keys that waited and the others.
	dueNext bool

	// commits are those that were told of before the last claim began.
	commits uint64

	claimAt, dueAt, rescanAt, readAt time.Time
	claimedAt                        time.Time // when the last claim began
	readFailures                     int
	size                             size
	parked                           bool

	// writes are changes to the database in order; the first is under way or failed and waits until retryAt.
	writes  []*write
	retryAt time.Time

	// tries are the units that the messages on their way try.
	tries    []string
	unsure   map[message.ID]doubt
	draining bool
	end      ending

	inHand atomic.Int64 // for status
	anew   atomic.Bool  // what is known of the database is not true any more
}

// write is one fenced change, repeated until it is done or the lease is lost.
type write struct {
	doing string
	// keys are those whose gate changes: what a claim says of them meanwhile is not to be trusted.
	keys []string
	// do sends the statements; done applies their answer to the lane.
	do       func(ctx context.Context) error
	done     func()
	failures int
}

func newLane(r *Relay, l lease.Lease, now time.Time) *lane {
	shardName := strconv.Itoa(int(l.Shard))
	return &lane{
		r: r, name: "lane-" + shardName, mem: newMemory(r.config().Unordered), lease: l,
		log:     r.log.With("shard", l.Shard, "term", l.Term),
		renewAt: now.Add(r.config().LeaseDuration / 3),
		// One slot for each call that may be under way: none waits for a lane that has ended.
		answers: make(chan func(time.Time), 3),
		wake:    make(chan bool, 1), nudge: make(chan struct{}, 1), drain: make(chan struct{}),
		claimAt: now, dueAt: now,
		rescanAt: now.Add(time.Duration(r.random() * float64(rescanEvery))), // not all lanes at once
		unsure:   make(map[message.ID]doubt),
	}
}

// giveUp lets the lane finish what is in flight and end.
func (l *lane) giveUp() { l.stop.Do(func() { close(l.drain) }) }

// poke makes the lane look at the config and the unit again.
func (l *lane) poke() {
	select {
	case l.nudge <- struct{}{}:
	default:
	}
}

// run moves messages until the lease is lost, the lane is drained, or ctx ends.
func (l *lane) run(ctx context.Context) ending {
	defer l.r.watchdog.Done(l.name)
	defer l.r.health.forget(l.name + " ")
	defer l.r.idle.unpark(l.lease.Shard)
	timer := time.NewTimer(0)
	defer timer.Stop()
	drain := l.drain
	for {
		now := l.r.now()
		l.begin(ctx, now)
		l.inHand.Store(int64(len(l.mem.inHand)))
		if l.draining && !l.publishing && !l.writing && len(l.writes) == 0 {
			l.end = drained
		}
		if l.end != goesOn {
			return l.end
		}
		wait := l.nextLook(now)
		if !l.overdue(now) {
			l.r.step(l.name, wait)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return cut
		case apply := <-l.answers:
			apply(l.r.now())
		case fromStart := <-l.wake:
			l.wakeUp(l.r.now(), fromStart)
		case <-l.nudge:
		case <-drain:
			l.draining, drain = true, nil
		case <-timer.C:
		}
	}
}

// begin starts what may start now: a write, a read, a publish.
func (l *lane) begin(ctx context.Context, now time.Time) {
	cfg := l.r.config()
	l.batch = cfg.Batch
	if l.anew.Swap(false) {
		l.mem.disbelieve()
		l.r.idle.unpark(l.lease.Shard)
		l.wakeUp(now, false)
	}
	if cfg.RunPolicy != Run { // a pause may last: what is read afterwards is what is true then
		l.mem.forget(l.ahead)
		l.ahead = nil
		l.dropDue(now)
	}
	l.beginWrite(ctx, now)
	if l.draining || cfg.RunPolicy != Run || l.stuck() {
		return
	}
	if rest, _ := l.r.rest(now); rest > 0 {
		return
	}
	l.beginRead(ctx, now)
	l.beginPublish(ctx, now)
}

// stuck says that a write fails: until it is done the lane sends nothing new.
func (l *lane) stuck() bool { return len(l.writes) > 0 && l.writes[0].failures > 0 }

// quiet says that nothing is in flight.
func (l *lane) quiet() bool {
	return !l.publishing && len(l.writes) == 0 && len(l.ahead) == 0 && l.due == nil
}

// maxWait bounds the time between two looks at the clock.
const maxWait = 5 * time.Second

// nextLook returns how long nothing happens by itself.
func (l *lane) nextLook(now time.Time) time.Duration {
	wait := maxWait
	soonest := func(at time.Time) {
		if d := at.Sub(now); d > 0 {
			wait = min(wait, d)
		}
	}
	soonest(l.renewAt)
	soonest(l.retryAt)
	if !l.parked {
		soonest(l.claimAt)
		soonest(l.dueAt)
		soonest(l.readAt)
		rest, _ := l.r.rest(now)
		soonest(now.Add(rest))
		if l.kept {
			soonest(now.Add(l.untilTried(now, l.ahead)))
		}
	}
	return wait
}

// overdue says that a call has not returned although its bound is over: then the lane no longer counts as alive.
func (l *lane) overdue(now time.Time) bool {
	for _, until := range l.busyUntil {
		if !until.IsZero() && now.After(until) {
			return true
		}
	}
	return false
}

// The kinds of calls, as indexes of busyUntil.
const (
	callRead = iota
	callPublish
	callWrite
)

// callGrace is what a call may take beyond its own bound until it counts as stuck.
const callGrace = 5 * time.Second

// call runs a blocking call beside the lane. What it returns is applied by the lane itself.
func (l *lane) call(kind int, bound time.Duration, do func() func(now time.Time)) {
	l.busyUntil[kind] = l.r.now().Add(bound + callGrace)
	l.r.calls.Go(func() {
		apply := do()
		l.answers <- func(now time.Time) {
			l.busyUntil[kind] = time.Time{}
			apply(now)
		}
	})
}

// wakeUp ends the wait of an idle lane.
func (l *lane) wakeUp(now time.Time, fromStart bool) {
	l.parked = false
	l.claimAt, l.dueAt = now, now
	if fromStart {
		l.rescanAt = now
	}
}

// park lets the relay's common look find the next work of an idle lane.
func (l *lane) park() {
	l.parked = true
	l.r.idle.park(l.lease.Shard, l.mem.parked(l.wake), l.commits)
}

// beginWrite renews the lease when it is time, or sends the next change.
func (l *lane) beginWrite(ctx context.Context, now time.Time) {
	switch {
	case l.writing:
	case !now.Before(l.renewAt):
		l.renew(ctx, now)
	case len(l.writes) > 0 && !now.Before(l.retryAt):
		l.writing = true
		w := l.writes[0]
		l.call(callWrite, l.writeBound(), func() func(time.Time) {
			err := w.do(ctx)
			return func(now time.Time) { l.wrote(ctx, now, w, err) }
		})
	}
}

// writeBound is how long a write may take: one transaction and a look at the archive.
func (l *lane) writeBound() time.Duration { return 2 * l.r.config().QueryTimeout }

// renew prolongs the lease. It runs between the lane's other writes, which lock the same row.
func (l *lane) renew(ctx context.Context, now time.Time) {
	cfg := l.r.config()
	l.writing = true
	held := l.lease
	l.call(callWrite, cfg.QueryTimeout, func() func(time.Time) {
		err := l.r.store.Renew(ctx, held, cfg.LeaseDuration)
		return func(answered time.Time) {
			l.writing = false
			if err != nil {
				l.renewAt = answered.Add(min(time.Second, cfg.LeaseDuration/10))
				l.failed(ctx, "renew", err)
				return
			}
			l.r.health.succeeded(l.name + " renew")
			l.lease.TrustUntil = now.Add(cfg.LeaseDuration - cfg.LeaseMargin)
			l.renewAt = now.Add(cfg.LeaseDuration / 3)
		}
	})
}

// enqueue adds a change to be written after those before it.
func (l *lane) enqueue(w *write) {
	l.mem.change(w.keys)
	l.writes = append(l.writes, w)
}

// wrote applies the outcome of the first change, or keeps it to be sent again.
func (l *lane) wrote(ctx context.Context, now time.Time, w *write, err error) {
	l.writing = false
	if err != nil {
		w.failures++
		l.retryAt = now.Add(l.pause(w.failures))
		l.mem.distrust() // it may have been done all the same, and then the next try finds nothing to do
		l.failed(ctx, w.doing, err)
		return
	}
	l.r.health.succeeded(l.name + " " + w.doing)
	l.writes = l.writes[1:]
	l.mem.unchange(w.keys)
	w.done()
}

// pause returns the pause after some failures of the environment in a row.
func (l *lane) pause(failures int) time.Duration {
	return l.r.config().Backoff.Pause(failures, l.r.random())
}

// failed notes a failed call. A lease that is lost ends the lane: another process has the shard, and whatever this one
// still knows is old.
func (l *lane) failed(ctx context.Context, doing string, err error) {
	switch {
	case errors.Is(err, lease.ErrLost):
		l.end = lost
		l.r.metrics.zombies.Inc()
	case ctx.Err() != nil:
		l.end = cut
	default:
		l.r.storeFailed(ctx, l.name+" "+doing, err)
	}
}
