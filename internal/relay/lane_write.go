package relay

import (
	"context"

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

// settle archives confirmed rows.
func (l *lane) settle(rows []shard.Row, places []string) {
	ids, held := idsOf(rows), l.lease
	reach := l.mem.read // read before the settle begins: what the floor may rise to once all writers from before are gone
	var got shard.Settlement
	l.enqueue(&write{
		doing: "settle",
		do: func(ctx context.Context) (err error) {
			got, err = l.r.store.Settle(ctx, held, ids, places)
			return err
		},
		done: func() {
			l.mem.settled(rows, got.Xid, reach)
			l.r.metrics.settled(got)
		},
	})
}

// hold holds rows whose key waits. A row whose gate is gone by then is read again.
func (l *lane) hold(rows []shard.Row) {
	ids, held := idsOf(rows), l.lease
	var got []message.Position
	l.enqueue(&write{
		doing: "hold",
		keys:  l.keysOf(rows),
		do: func(ctx context.Context) (err error) {
			got, err = l.r.store.Hold(ctx, held, ids)
			return err
		},
		done: func() {
			behind := make(map[message.Position]struct{}, len(got))
			for _, p := range got {
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
func (l *lane) refuse(refused []refusal, hold []shard.Row) {
	out, held := l.refusals(refused), l.lease
	rows := make([]shard.Row, 0, len(refused)+len(hold))
	for i := range refused {
		rows = append(rows, refused[i].row)
	}
	rows = append(rows, hold...)
	ids := idsOf(hold)
	l.enqueue(&write{
		doing: "refuse",
		keys:  l.keysOf(rows),
		do:    func(ctx context.Context) error { return l.r.store.Refuse(ctx, held, out, ids) },
		done: func() {
			for i := range rows {
				l.mem.held(&rows[i])
			}
		},
	})
}

// refusals says what is written of refused rows: the new counts, and a pause that grows with them.
func (l *lane) refusals(refused []refusal) []shard.Refusal {
	out := make([]shard.Refusal, len(refused))
	for i, f := range refused {
		r := shard.Refusal{
			ID:       f.row.ID,
			Gate:     l.mem.key(&f.row),
			Attempts: f.row.Attempts,
			Unknowns: f.row.Unknowns,
			Code:     string(f.reason),
		}
		if f.attempt {
			r.Attempts++
		}
		if f.unknown {
			r.Unknowns++
		}
		r.Wait = l.pause(max(r.Attempts+r.Unknowns, 1))
		out[i] = r
	}
	return out
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
func (l *lane) refuseDue(refused []refusal, gates []string) {
	if len(refused) == 0 {
		return
	}
	out, held := l.refusals(refused), l.lease
	for i := range out {
		out[i].Gate = gates[i]
	}
	l.enqueueDue(&write{
		doing: "refuse",
		keys:  gates,
		do:    func(ctx context.Context) error { return l.r.store.Refuse(ctx, held, out, nil) },
		done:  func() {},
	})
}

// postpone lets keys wait longer whose message got no answer.
func (l *lane) postpone(keys []string) {
	if len(keys) == 0 {
		return
	}
	held := l.lease
	delays := make([]shard.Delay, len(keys))
	for i, k := range keys {
		delays[i] = shard.Delay{Gate: k, Wait: l.pause(1)}
	}
	l.enqueueDue(&write{
		doing: "postpone",
		keys:  keys,
		do:    func(ctx context.Context) error { return l.r.store.Postpone(ctx, held, delays) },
		done:  func() {},
	})
}
