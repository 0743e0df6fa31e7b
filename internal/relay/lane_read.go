package relay

import (
	"context"
	"time"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// beginRead looks for keys that are due, or reads the next batch ahead.
func (l *lane) beginRead(ctx context.Context, now time.Time) {
	if l.reading || l.parked || now.Before(l.readAt) {
		return
	}
	switch {
	case l.due == nil && !now.Before(l.dueAt):
		l.lookDue(ctx)
	case len(l.ahead) == 0 && l.room() && (l.quiet() || !now.Before(l.claimAt)):
		l.claim(ctx, now)
	}
}

// room says whether the next batch may be read while one is published: not where that one is large. Two full batches in
// each lane would be twice the memory, and reading ahead hides round trips, which are little beside so many bytes.
func (l *lane) room() bool { return l.carried <= l.batch.MaxBytes/2 }

// size is how much is read at once. After a failure it is half as much, since a server that is slow, or its time limit, may not
// get through all of it, and after some successes twice as much again.
type size struct{ halved, good int }

// Halvings at most, and successes until the size is tried that failed.
const (
	mostHalved = 6
	untilTwice = 16
)

func (s *size) failed() { *s = size{halved: min(s.halved+1, mostHalved)} }

func (s *size) succeeded() {
	if s.good++; s.halved > 0 && s.good >= untilTwice {
		*s = size{halved: s.halved - 1}
	}
}

// bounds are those of the next read.
func (l *lane) bounds() Batch {
	b := l.batch
	b.MaxMessages = half(b.MaxMessages, l.size.halved) // not the bytes: they say which payload is too large
	return b
}

// readFailed keeps the lane from reading for a while. What a broken connection has left behind nobody knows.
func (l *lane) readFailed(ctx context.Context, now time.Time, doing string, err error) {
	l.reading = false
	l.size.failed()
	l.restReads(now)
	l.mem.distrust()
	l.failed(ctx, doing, err)
}

// restReads lets the lane read again after a pause that grows with the failures in a row.
func (l *lane) restReads(now time.Time) {
	l.readFailures++
	l.readAt = now.Add(l.pause(l.readFailures))
}

func (l *lane) readDone(doing string) {
	l.reading = false
	l.readFailures = 0
	l.size.succeeded()
	l.r.health.succeeded(l.name + " " + doing)
}

// claim reads the next batch, and then whole the rows that turned up below what was read.
func (l *lane) claim(ctx context.Context, now time.Time) {
	l.reading, l.claimedAt = true, now
	l.commits = l.r.idle.commits.Load()
	w := l.mem.begin(l.bounds(), !now.Before(l.rescanAt))
	held := l.lease
	l.call(callRead, l.r.config().QueryTimeout, func() func(time.Time) {
		c, err := l.r.store.Claim(ctx, held, w)
		return func(answered time.Time) {
			if err != nil {
				l.readFailed(ctx, answered, "claim", err)
				return
			}
			if m := l.mem.moved(c, l.quiet()); m != stays {
				l.meet(ctx, answered, m)
				return
			}
			if !l.mem.complete(c) {
				l.readDone("claim")
				l.claimAt = answered
				return
			}
			if late := l.mem.late(c); len(late) > 0 {
				l.fetch(ctx, c, late)
				return
			}
			l.take(ctx, answered, c, lateRows{})
		}
	})
}

// meet leaves a claim of another server unused.
func (l *lane) meet(ctx context.Context, now time.Time, m move) {
	l.readDone("claim")
	l.claimAt = now
	if m == leaving {
		l.readAt = now.Add(l.batch.PollInterval) // until then nothing of the server before may be left
		return
	}
	l.log.WarnContext(ctx, "The database server is another one than before, was restarted or went back: reads all anew")
}

// fetch reads the late rows of a claim.
func (l *lane) fetch(ctx context.Context, c shard.Claim, late []message.Position) {
	held, bounds := l.lease, l.bounds()
	var out lateRows
	if len(late) > bounds.MaxMessages {
		late = late[:bounds.MaxMessages]
		out.cutAt = late[len(late)-1]
	}
	l.call(callRead, l.r.config().QueryTimeout, func() func(time.Time) {
		rows, cut, err := l.r.store.Fetch(ctx, held, late, bounds.MaxBytes)
		return func(answered time.Time) {
			if err != nil {
				l.readFailed(ctx, answered, "claim", err)
				return
			}
			out.rows = rows
			if cut {
				out.cutAt = rows[len(rows)-1].Position
			}
			l.take(ctx, answered, c, out)
		}
	})
}

// take makes the rows of a claim the lane's.
func (l *lane) take(ctx context.Context, now time.Time, c shard.Claim, late lateRows) {
	l.readDone("claim")
	if l.mem.rescan { // one that fails is repeated
		l.rescanAt = now.Add(rescanEvery)
	}
	t := l.mem.take(c, late, l.batch.MaxMessages)
	l.ahead, l.kept = t.ready, false
	if t.reordered > 0 {
		l.r.metrics.late.Add(float64(t.reordered))
	}
	if len(t.gated) > 0 {
		l.hold(t.gated)
	}
	if n := len(t.ready); n > 0 {
		l.r.metrics.claimed.Add(float64(n))
		l.log.DebugContext(ctx, "Claimed batch", "batchSize", n)
	}
	switch {
	case t.passed: // the common look would not see what comes behind all that: the lane looks by itself
		l.readAt = now.Add(l.mem.round.rest(now.Sub(l.claimedAt), l.batch.PollInterval, c.Look.Stopped != 0))
		l.claimAt = l.readAt
	case t.more:
		l.claimAt = now
	case l.quiet():
		l.park()
	default:
		l.claimAt = now.Add(l.batch.PollInterval)
	}
}

// lookDue looks for keys whose wait is over.
func (l *lane) lookDue(ctx context.Context) {
	l.reading = true
	held, bounds := l.lease, l.bounds()
	l.call(callRead, 2*l.r.config().QueryTimeout, func() func(time.Time) {
		gates, err := l.r.store.Due(ctx, held, dueKeys, bounds.step())
		if err != nil {
			return func(now time.Time) { l.readFailed(ctx, now, "due", err) }
		}
		plan := planDue(gates, bounds)
		if len(plan.send) > 0 {
			plan.work.rows, err = l.r.store.Load(ctx, held, plan.send, bounds.MaxBytes)
		}
		return func(now time.Time) {
			if err != nil {
				l.readFailed(ctx, now, "due", err)
				return
			}
			l.readDone("due")
			plan.work.loadedAt = now // the later it is, the later a message counts as failed, and the less witnesses
			l.takeDue(now, plan)
		}
	})
}

// takeDue sets keys free and makes the others' rows the next to be sent.
func (l *lane) takeDue(now time.Time, p duePlan) {
	if len(p.release) == 0 && len(p.work.rows) == 0 {
		l.dueAt = now.Add(l.batch.PollInterval)
		return
	}
	l.due = &p.work
	if len(p.release) > 0 {
		l.release(p.release)
	}
}

// finishDue lets the lane look for more keys that are due, once everything about these is written.
func (l *lane) finishDue(now time.Time) {
	if l.due != nil && l.due.finished() {
		l.due = nil
		l.dueAt = now
	}
}

// dropDue forgets rows that were to be sent of keys that are due: they stay due.
func (l *lane) dropDue(now time.Time) {
	if l.due != nil {
		l.due.rows = nil
		l.finishDue(now)
	}
}
