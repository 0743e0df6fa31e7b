package relay

import (
	"slices"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// dueWork are keys whose wait is over, from the look to the last write about them.
type dueWork struct {
	// gateOf names the gate that each row to be sent waits behind; draining are the gates whose first message got
	// through before.
	gateOf   map[message.ID]string
	draining map[string]bool
	// rows are to be sent; sending says that they are on their way. They were loaded at loadedAt.
	rows     []shard.Row
	loadedAt time.Time
	sending  bool
	// writes counts the changes that are not done yet.
	writes int
}

// finished says that nothing about the keys is left to do.
func (d *dueWork) finished() bool { return len(d.rows) == 0 && !d.sending && d.writes == 0 }

// drop leaves rows of gates unsent that are not to be sent after all.
func (d *dueWork) drop(gates ...[]string) {
	closed := slices.Concat(gates...)
	d.rows = slices.DeleteFunc(d.rows, func(r shard.Row) bool { return slices.Contains(closed, d.gateOf[r.ID]) })
}

// gates returns the gates of rows, each once.
func (d *dueWork) gates(rows []shard.Row) []string {
	var out []string
	for i := range rows {
		if gate := d.gateOf[rows[i].ID]; !slices.Contains(out, gate) {
			out = append(out, gate)
		}
	}
	return out
}

// failedAt is when a row failed last, on this process's clock; zero for one that never has.
func (d *dueWork) failedAt(r *shard.Row) time.Time {
	if !r.Failed {
		return time.Time{}
	}
	return d.loadedAt.Add(-r.SinceFailed)
}

// duePlan says what to do with keys that are due.
type duePlan struct {
	// release are keys with nothing left to send one by one, send the held rows that are next.
	release []string
	send    []message.ID
	work    dueWork
}

// planDue chooses what to send of the keys that are due: of a key in Retry its first held row alone, of one that
// drains the next few; a key that has fewer than that left is set free instead. A message that got no answer before
// is sent with no other, so that it takes none with it.
func planDue(gates []shard.DueGate, b Batch) duePlan {
	p := duePlan{work: dueWork{gateOf: make(map[message.ID]string), draining: make(map[string]bool)}}
	var bytes int64
	alone := false
	for _, g := range gates {
		if len(g.Heads) == 0 || (g.Draining && len(g.Heads) < b.step()) {
			p.release = append(p.release, g.Gate)
			continue
		}
		for _, h := range g.Heads {
			full := len(p.send) >= b.MaxMessages || bytes >= b.MaxBytes
			if full || alone || (h.Unknowns > 0 && len(p.send) > 0) {
				break
			}
			alone = h.Unknowns > 0
			bytes += int64(h.Size)
			p.send = append(p.send, h.ID)
			p.work.gateOf[h.ID] = g.Gate
			p.work.draining[g.Gate] = g.Draining
		}
	}
	return p
}

// dueVerdict is what the answers for held rows mean for their keys.
type dueVerdict struct {
	done   []shard.Row
	places []string
	// release are the keys in Retry whose first message got through.
	release []string
	refused []refusal
	// gates are those of the refused, side by side.
	gates []string
	// postpone are keys whose message got no answer that says anything about it.
	postpone []string
	outages  outages
}

// witnesses are what a lane knows of units when it judges held rows.
type witnesses interface {
	// works says that nothing is known of a failure of the row's unit.
	works(r *shard.Row) bool
	// otherGotThrough says that a message of another key, sent after the given time, got through the row's unit.
	otherGotThrough(r *shard.Row, after time.Time) bool
}

// judgeDue decides what becomes of held rows that were sent. Of each key the confirmed prefix is settled; the first
// failure closes the key until it is due again.
//
// The witness rule: a failure that tells nothing about whose fault it is counts against the message only if the message
// has failed before and another key has got through the same unit since. A message that gets no answer again from a unit
// that works, as far as anybody knows, is such a failure.
func judgeDue(b *batch, work *dueWork, f facts, w witnesses) dueVerdict {
	var v dueVerdict
	closed := make(map[string]bool)
	confirmed := b.confirmed(f.unit)
	for i := range b.rows {
		r, c := &b.rows[i], b.got[i]
		gate := work.gateOf[r.ID]
		if closed[gate] {
			continue // it is held, and stays so
		}
		if c.Outcome == broker.Confirmed {
			v.done, v.places = append(v.done, *r), append(v.places, c.Position)
			if !work.draining[gate] {
				v.release = append(v.release, gate)
			}
			continue
		}
		closed[gate] = true
		_, again := f.unsure[r.ID]
		suspect := (again || r.Unknowns > 0) && !c.WholeBroker() && (confirmed[f.unit(r)] || w.works(r))
		if one, ok := refusalOf(r, c, suspect); ok {
			one.failedAt = work.failedAt(r)
			one.attempt = one.attempt || (r.Failed && w.otherGotThrough(r, one.failedAt))
			v.refused, v.gates = append(v.refused, one), append(v.gates, gate)
			continue
		}
		v.postpone = append(v.postpone, gate)
		v.outages = v.outages.add(f, r, c, confirmed)
	}
	return v
}
