package relay

import (
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
	// rows are to be sent; sending says that they are on their way.
	rows    []shard.Row
	sending bool
	// writes counts the changes that are not done yet.
	writes int
}

// finished says that nothing about the keys is left to do.
func (d *dueWork) finished() bool { return len(d.rows) == 0 && !d.sending && d.writes == 0 }

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
	outage   broker.Confirmation
}

// judgeDue decides what becomes of held rows that were sent. Of each key the confirmed prefix is settled; the first
// failure closes the key until it is due again. works says that the unit works as far as anybody knows: then a
// message that gets no answer time and again is what fails.
func judgeDue(b *batch, work *dueWork, unsure map[message.ID]struct{}, works bool) dueVerdict {
	var v dueVerdict
	closed := make(map[string]bool)
	confirmed := anyConfirmed(b.got)
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
		_, again := unsure[r.ID]
		suspect := (again || r.Unknowns > 0) && (confirmed || works)
		if f, ok := refusalOf(r, c, suspect); ok {
			v.refused, v.gates = append(v.refused, f), append(v.gates, gate)
			continue
		}
		v.postpone = append(v.postpone, gate)
		v.outage = outageOf(v.outage, c, confirmed)
	}
	return v
}
