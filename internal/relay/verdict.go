package relay

import (
	"slices"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// placeExpired is the broker position of a row that was archived unsent.
const placeExpired = "expired"

// batch is some rows on their way to the broker, with the answer for each.
type batch struct {
	rows []shard.Row
	got  []broker.Confirmation
	// send are the messages that go to the broker, at their index in rows; at is nil when it is all of them.
	send []message.Message
	at   []int
	// began is when it was handed to the broker's client.
	began time.Time
}

// screen prepares rows for the broker and answers for those that are never sent: expired ones, and ones that can be
// no message of this relay. Nothing of a key is sent after its first refused row, or it would pass it.
func screen(rows []shard.Row, source string, unordered bool) *batch {
	b := &batch{rows: rows, got: make([]broker.Confirmation, len(rows)), send: make([]message.Message, 0, len(rows))}
	var closed map[string]struct{}
	for i := range rows {
		r := &rows[i]
		if _, ok := closed[keyIf(closed != nil, r, unordered)]; ok {
			b.got[i] = broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonNotSent}
			b.skip(i)
			continue
		}
		if r.Expired {
			b.got[i] = broker.Confirmation{Outcome: broker.Confirmed, Position: placeExpired}
			b.skip(i)
			continue
		}
		if reason := defect(r, source); reason != "" {
			b.got[i] = broker.Confirmation{Outcome: broker.Rejected, Reason: reason}
			b.skip(i)
			if closed == nil {
				closed = make(map[string]struct{})
			}
			closed[keyOf(r, unordered)] = struct{}{}
			continue
		}
		if b.at != nil {
			b.at = append(b.at, i)
		}
		b.send = append(b.send, r.Message)
	}
	return b
}

// keyIf spares the making of a key that nobody looks up.
func keyIf(wanted bool, r *shard.Row, unordered bool) string {
	if !wanted {
		return ""
	}
	return keyOf(r, unordered)
}

// skip leaves row i out of what is sent.
func (b *batch) skip(i int) {
	if b.at != nil {
		return
	}
	b.at = make([]int, i, len(b.rows))
	for j := range b.at {
		b.at[j] = j
	}
}

// answer takes the broker's word on what was sent. A message without an answer was perhaps sent.
func (b *batch) answer(got []broker.Confirmation) {
	for i := range b.send {
		c := broker.Confirmation{Outcome: broker.Unknown, Reason: broker.ReasonNoAnswer}
		if i < len(got) {
			c = got[i]
		}
		at := i
		if b.at != nil {
			at = b.at[i]
		}
		b.got[at] = c
	}
}

// defect says why a row can be no message of this relay; empty for a sound one.
func defect(r *shard.Row, source string) broker.Reason {
	switch {
	case r.Defect != "":
		return broker.Reason(r.Defect)
	case r.Payload == nil:
		return broker.ReasonTooLarge
	case r.Source != source:
		return broker.ReasonSourceMismatch
	default:
		return ""
	}
}

// refusal is a row whose key has to wait.
type refusal struct {
	row    shard.Row
	reason broker.Reason
	detail string
	// attempt says that the failure is the message's own: the broker refused the message itself, or it failed again while
	// others got through. Else nobody can tell yet what failed.
	attempt bool
	// unknown says that a publish got no answer again.
	unknown bool
	// failedAt is when the row failed the time before, on this process's clock; zero where it had not.
	failedAt time.Time
}

// doubt is what is known of a message whose last publish got no answer: when that was known, and how often that was so.
type doubt struct {
	at    time.Time
	times int
}

// lonely is how often a message that tries whether its unit works gets no answer until another is to try.
const lonely = 3

// facts are what a lane knows when it judges the answers to a batch.
type facts struct {
	unordered bool
	// unsure are messages whose last publish got no answer.
	unsure map[message.ID]doubt
	// unit names what of the broker a row goes to, and broker all of it.
	unit   func(*shard.Row) string
	broker string
}

// verdict is what a batch's answers mean for each row a lane has in memory.
type verdict struct {
	// done are to be settled, at places.
	done   []shard.Row
	places []string
	// refused are to wait; hold are the later rows of their keys, which must not pass them.
	refused []refusal
	hold    []shard.Row
	// forget are to be read again.
	forget []shard.Row
	// ahead is what remains of the rows that were read ahead.
	ahead []shard.Row
	// outages says why units failed.
	outages outages
}

// outages are the units that failed, with the first reason of each.
type outages map[string]broker.Confirmation

// judge decides what becomes of a batch and of the rows read ahead of it. Of each key the confirmed prefix is
// settled. The first row that was not confirmed closes the key: refused, it and every later row of the key in
// memory are held; without an answer, they are forgotten, read-ahead copies too, and read again in order.
//
// A message that gets no answer for the second time while another key gets through its unit, or has since the first time,
// may be the cause, and waits by itself. So does one that has tried time and again whether the unit works: nothing bears
// witness then, but where its key is longer than a batch no other would ever be read.
func judge(b *batch, ahead []shard.Row, f facts, w witnesses) verdict {
	v := verdict{ahead: ahead}
	if allConfirmed(b.got) {
		v.done = b.rows
		v.places = make([]string, len(b.got))
		for i := range b.got {
			v.places[i] = b.got[i].Position
		}
		return v
	}
	closed := make(map[string]bool) // by key; true: refused
	confirmed := b.confirmed(f.unit)
	for i := range b.rows {
		r, c := &b.rows[i], b.got[i]
		key := keyOf(r, f.unordered)
		refused, isClosed := closed[key]
		switch {
		case isClosed && refused:
			v.hold = append(v.hold, *r)
		case isClosed:
			v.forget = append(v.forget, *r)
		case c.Outcome == broker.Confirmed:
			v.done, v.places = append(v.done, *r), append(v.places, c.Position)
		default:
			before := f.unsure[r.ID]
			suspect := before.times > 0 && (confirmed[f.unit(r)] || w.otherGotThrough(r, before.at))
			alone := len(b.rows) == 1 && before.times >= lonely
			closed[key] = v.failed(r, c, suspect, alone)
			if !closed[key] || (c.Outcome == broker.Unknown && !suspect) {
				v.outages = v.outages.add(f, r, c, confirmed)
			}
		}
	}
	v.closeAhead(closed, f)
	return v
}

// failed lets a row that was not confirmed wait, or be read again, and says whether it waits.
func (v *verdict) failed(r *shard.Row, c broker.Confirmation, suspect, alone bool) (waits bool) {
	one, waits := refusalOf(r, c, (suspect || alone) && !c.WholeBroker())
	if waits {
		v.refused = append(v.refused, one)
	} else {
		v.forget = append(v.forget, *r)
	}
	return waits
}

// refusalOf says whether a row that was not confirmed has to wait. suspect is a message that got no answer again.
func refusalOf(r *shard.Row, c broker.Confirmation, suspect bool) (refusal, bool) {
	f := refusal{row: *r, reason: c.Reason, detail: c.Detail}
	f.row.Payload, f.row.Headers = nil, nil // as lighten does
	switch c.Outcome {
	case broker.Rejected:
		f.attempt = true
		return f, true
	case broker.Ambiguous:
		return f, true
	case broker.Unknown:
		f.unknown = true
		return f, suspect
	default:
		return refusal{}, false
	}
}

// add notes why a unit failed, where a row's answer says so: it is not there, or nothing at all got an answer. What
// concerns the connection concerns every unit.
func (o outages) add(f facts, r *shard.Row, c broker.Confirmation, confirmed map[string]bool) outages {
	unit := f.unit(r)
	switch {
	case c.WholeBroker():
		unit = f.broker
	case c.Reason == broker.ReasonNotSent, c.Outcome == broker.Unknown && confirmed[unit]:
		return o
	}
	if _, known := o[unit]; known {
		return o
	}
	if c.Reason == "" {
		c.Reason = broker.ReasonNoAnswer
	}
	if o == nil {
		o = make(outages)
	}
	o[unit] = c
	return o
}

// concern says whether one of the outages keeps a row from being sent.
func (o outages) concern(r *shard.Row, f facts) bool {
	if len(o) == 0 {
		return false
	}
	_, all := o[f.broker]
	_, one := o[f.unit(r)]
	return all || one
}

// closeAhead applies closed keys to the rows read ahead. While a unit fails nothing of it is kept: when it is back, what
// is read then is what is true then.
func (v *verdict) closeAhead(closed map[string]bool, f facts) {
	rows := v.ahead
	v.ahead = nil
	for i := range rows {
		key := keyOf(&rows[i], f.unordered)
		refused, isClosed := closed[key]
		switch {
		case isClosed && refused:
			v.hold = append(v.hold, rows[i])
		case isClosed:
			v.forget = append(v.forget, rows[i])
		case v.outages.concern(&rows[i], f):
			closed[key] = false
			v.forget = append(v.forget, rows[i])
		default:
			v.ahead = append(v.ahead, rows[i])
		}
	}
}

// confirmed returns the units of which a message of the batch was confirmed.
func (b *batch) confirmed(unit func(*shard.Row) string) map[string]bool {
	out := make(map[string]bool)
	for i := range b.rows {
		if b.took(i) {
			out[unit(&b.rows[i])] = true
		}
	}
	return out
}

// through is a message that got through a unit.
type through struct{ unit, key string }

// successes returns, in order, the last messages of each unit that were confirmed: two at most, of different keys.
func (b *batch) successes(f facts) []through {
	var out []through
	last := make(map[string]string, 1) // by unit, a key
	full := make(map[string]bool, 1)
	for i := range slices.Backward(b.rows) {
		r := &b.rows[i]
		unit := f.unit(r)
		if !b.took(i) || full[unit] {
			continue
		}
		key := keyOf(r, f.unordered)
		known, again := last[unit]
		switch {
		case !again:
			last[unit] = key
		case known == key:
			continue
		default:
			full[unit] = true
		}
		out = append(out, through{unit, key})
	}
	slices.Reverse(out)
	return out
}

// took says whether the broker took row i.
func (b *batch) took(i int) bool {
	return b.got[i].Outcome == broker.Confirmed && b.got[i].Position != placeExpired
}

func allConfirmed(got []broker.Confirmation) bool {
	for i := range got {
		if got[i].Outcome != broker.Confirmed {
			return false
		}
	}
	return true
}
