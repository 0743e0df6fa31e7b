package relay

import (
	"context"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

func idsOf(rows []shard.Row) []message.ID {
	out := make([]message.ID, len(rows))
	for i := range rows {
		out[i] = rows[i].ID
	}
	return out
}

// lighten lets go of what rows carry. A change of the database needs only to know which rows they are, and it may wait:
// for the change before it, for a database that does not answer.
func lighten(rows []shard.Row) {
	for i := range rows {
		rows[i].Payload, rows[i].Headers = nil, nil
	}
}

// settle archives confirmed rows.
func (l *lane) settle(rows []shard.Row, places []string) {
	lighten(rows)
	l.enqueue(l.settling(rows, places, 0))
}

// settling archives confirmed rows, so many of them at once as are left after some halvings and one for each failure: what is
// too much for a server that is slow, or for its time limit, would be too much for ever.
func (l *lane) settling(rows []shard.Row, places []string, halved int) *write {
	ids, held := idsOf(rows), l.lease
	reach := l.mem.read // read before the settle begins: what the floor may rise to once all writers from before are gone
	var got shard.Settlement
	var n int
	w := &write{doing: "settle"}
	w.do = func(ctx context.Context) (err error) {
		n = half(len(ids), halved+w.failures)
		got, err = l.r.store.Settle(ctx, held, ids[:n], places[:n])
		return err
	}
	w.done = func() {
		l.mem.settled(rows[:n], got.Xid, reach)
		l.r.metrics.settled(got)
		if n < len(rows) {
			rest := l.settling(rows[n:], places[n:], max(halved+w.failures-1, 0))
			l.writes = slices.Insert(l.writes, 0, rest)
		}
	}
	return w
}

// half returns what is left of n after some halvings, one at least.
func half(n, times int) int { return max(1, n>>min(times, 30)) }

// hold holds rows whose key waits. A row whose gate is gone by then is read again.
func (l *lane) hold(rows []shard.Row) {
	lighten(rows)
	ids, held := idsOf(rows), l.lease
	reach := l.mem.read
	var got shard.Held
	l.enqueue(&write{
		doing: "hold",
		keys:  l.keysOf(rows),
		do: func(ctx context.Context) (err error) {
			got, err = l.r.store.Hold(ctx, held, ids)
			return err
		},
		done: func() {
			l.mem.wrote(got.Xid, reach)
			behind := make(map[message.Position]struct{}, len(got.Positions))
			for _, p := range got.Positions {
				behind[p] = struct{}{}
			}
			var free []shard.Row
			for i := range rows {
				if _, ok := behind[rows[i].Position]; ok {
					l.mem.held(&rows[i])
				} else {
					free = append(free, rows[i])
				}
			}
			l.mem.forget(free)
		},
	})
}

// refuse makes the keys of refused rows wait, with every later row of them.
func (l *lane) refuse(now time.Time, refused []refusal, hold []shard.Row) {
	out, held := l.refusals(now, refused), l.lease
	rows := make([]shard.Row, 0, len(refused)+len(hold))
	for i := range refused {
		rows = append(rows, refused[i].row)
	}
	rows = append(rows, hold...)
	lighten(rows)
	ids := idsOf(hold)
	l.enqueue(&write{
		doing: "refuse",
		keys:  l.keysOf(rows),
		do:    func(ctx context.Context) error { return l.r.store.Refuse(ctx, held, out, ids) },
		done: func() {
			for i := range rows {
				l.mem.held(&rows[i])
			}
			l.buried(refused, out)
		},
	})
}

// refusals says what is written of refused rows: the new counts, and a pause that grows with them, unless the message's
// budget is spent.
func (l *lane) refusals(now time.Time, refused []refusal) []shard.Refusal {
	cfg := l.r.config()
	out := make([]shard.Refusal, len(refused))
	for i := range refused {
		f := &refused[i]
		r := shard.Refusal{
			ID: f.row.ID, Gate: l.mem.key(&f.row), Attempts: f.row.Attempts, Unknowns: f.row.Unknowns,
			Counted: f.attempt, FailingFor: f.row.FailingFor, Code: string(f.reason), Detail: f.detail,
		}
		if f.attempt {
			r.Attempts++
			r.FailingFor += l.failing(now, f)
			r.Spent = !cfg.NoDeadLetters && cfg.Budget.Spent(r.Attempts, r.FailingFor)
		}
		if f.unknown {
			r.Unknowns++
		}
		r.Wait = l.pause(max(r.Attempts+r.Unknowns, 1))
		out[i] = r
	}
	return out
}

// failing returns how long a message has been failing since the time before, as far as its budget is concerned: not
// while its unit was down, nor any longer than it had to wait for this try. What took longer was no fault of its own: a
// pause, a process that was gone, retries of others.
func (l *lane) failing(now time.Time, f *refusal) time.Duration {
	if f.failedAt.IsZero() {
		return 0
	}
	cfg := l.r.config()
	return min(l.r.units.working(l.r.unit(&f.row), f.failedAt, now), cfg.Backoff.Max+cfg.Batch.PublishTimeout)
}

// buried counts and names the messages that became dead letters. Their keys have something to do: to wait, or to go on.
func (l *lane) buried(refused []refusal, written []shard.Refusal) {
	for i := range written {
		if !written[i].Spent {
			continue
		}
		l.dueAt = l.r.now()
		row := &refused[i].row
		l.r.metrics.buried(row, written[i].Code)
		l.log.Warn("Message dead-lettered", "eventID", row.ID.String(), "reason", written[i].Code,
			"attempt", written[i].Attempts)
	}
}

func (l *lane) keysOf(rows []shard.Row) []string {
	out := make([]string, 0, len(rows))
	seen := make(map[string]struct{}, len(rows))
	for i := range rows {
		key := l.mem.key(&rows[i])
		if _, ok := seen[key]; !ok {
			seen[key] = struct{}{}
			out = append(out, key)
		}
	}
	return out
}

// enqueueDue adds a change about keys that are due.
func (l *lane) enqueueDue(w *write) {
	work, done := l.due, w.done
	work.writes++
	w.done = func() {
		done()
		work.writes--
		l.finishDue(l.r.now())
	}
	l.enqueue(w)
}

// release opens the gates of keys that have little or nothing left behind them.
func (l *lane) release(keys []string) {
	held, most := l.lease, l.batch.step()
	var got []shard.Released
	l.enqueueDue(&write{
		doing: "release",
		keys:  keys,
		do: func(ctx context.Context) (err error) {
			got, err = l.r.store.Release(ctx, held, keys, most)
			return err
		},
		done: func() { l.released(got) },
	})
}

// released puts the floor below the rows that were set free.
func (l *lane) released(got []shard.Released) {
	for _, g := range got {
		if g.Open {
			l.mem.opened(g.Gate, g.First)
			l.claimAt = l.r.now()
		}
	}
}

// settleDue archives confirmed rows of waiting keys and opens the gates of those whose first message got through.
func (l *lane) settleDue(v dueVerdict) {
	if len(v.done) == 0 {
		return
	}
	lighten(v.done)
	ids, held, most := idsOf(v.done), l.lease, l.batch.step()
	reach := l.mem.read
	var settled shard.Settlement
	var got []shard.Released
	l.enqueueDue(&write{
		doing: "settle",
		keys:  v.release,
		do: func(ctx context.Context) (err error) {
			settled, got, err = l.r.store.SettleDue(ctx, held, ids, v.places, v.release, most)
			return err
		},
		done: func() {
			l.mem.settled(nil, settled.Xid, reach)
			l.released(got)
			l.r.metrics.settled(settled)
		},
	})
}

// refuseDue lets keys wait again whose message was refused again. Its later rows are held already.
func (l *lane) refuseDue(now time.Time, refused []refusal, gates []string) {
	if len(refused) == 0 {
		return
	}
	out, held := l.refusals(now, refused), l.lease
	for i := range out {
		out[i].Gate = gates[i]
	}
	l.enqueueDue(&write{
		doing: "refuse",
		keys:  gates,
		do:    func(ctx context.Context) error { return l.r.store.Refuse(ctx, held, out, nil) },
		done:  func() { l.buried(refused, out) },
	})
}

// delays lets each key wait as after a first failure, and before that for some time in any case.
func (l *lane) delays(keys []string, least time.Duration) []shard.Delay {
	out := make([]shard.Delay, len(keys))
	for i, k := range keys {
		out[i] = shard.Delay{Gate: k, Wait: least + l.pause(1)}
	}
	return out
}

// postpone lets keys wait longer.
func (l *lane) postpone(delays []shard.Delay) {
	if len(delays) == 0 {
		return
	}
	held := l.lease
	keys := make([]string, len(delays))
	for i := range delays {
		keys[i] = delays[i].Gate
	}
	l.enqueueDue(&write{
		doing: "postpone",
		keys:  keys,
		do:    func(ctx context.Context) error { return l.r.store.Postpone(ctx, held, delays) },
		done:  func() {},
	})
}

// putAside lets rows wait behind gates whose unit takes none, so that those of other units are not read behind them. Nothing
// is counted.
func (l *lane) putAside(now time.Time, rows []shard.Row) {
	if len(rows) == 0 {
		return
	}
	lighten(rows)
	held, ids, keys := l.lease, idsOf(rows), l.keysOf(rows)
	reach := l.mem.read
	var xid uint64
	delays := l.delays(keys, l.unitWait(now, rows))
	l.enqueue(&write{
		doing: "put aside",
		keys:  keys,
		do: func(ctx context.Context) (err error) {
			xid, err = l.r.store.PutAside(ctx, held, delays, ids)
			return err
		},
		done: func() {
			l.mem.wrote(xid, reach)
			for i := range rows {
				l.mem.held(&rows[i])
			}
		},
	})
}

// untilTried returns how long it takes until one of the units of these rows may be tried.
func (l *lane) untilTried(now time.Time, rows []shard.Row) time.Duration {
	var wait time.Duration
	for i := range rows {
		if w := l.r.units.wait(l.r.unit(&rows[i]), now); i == 0 || w < wait {
			wait = w
		}
	}
	return wait
}

// unitWait returns how long the unit that takes messages last of all of these rows takes none.
func (l *lane) unitWait(now time.Time, rows []shard.Row) time.Duration {
	var wait time.Duration
	for i := range rows {
		wait = max(wait, l.r.units.wait(l.r.unit(&rows[i]), now))
	}
	return wait
}
