package relay

import (
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
	// attempt says that the broker refused the message itself; else nobody can tell yet what failed.
	attempt bool
	// unknown says that a publish got no answer again.
	unknown bool
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
	// outage says why the unit failed; empty while it works.
	outage broker.Confirmation
}

// judge decides what becomes of a batch and of the rows read ahead of it. Of each key the confirmed prefix is
// settled. The first row that was not confirmed closes the key: refused, it and every later row of the key in
// memory are held; without an answer, they are forgotten, read-ahead copies too, and read again in order.
//
// unsure are messages whose last publish got no answer: if that happens again while another key gets through, the
// message may be the cause, and waits by itself.
func judge(b *batch, ahead []shard.Row, unordered bool, unsure map[message.ID]struct{}) verdict {
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
	confirmed := anyConfirmed(b.got)
	for i := range b.rows {
		r, c := &b.rows[i], b.got[i]
		key := keyOf(r, unordered)
		refused, isClosed := closed[key]
		switch {
		case isClosed && refused:
			v.hold = append(v.hold, *r)
		case isClosed:
			v.forget = append(v.forget, *r)
		case c.Outcome == broker.Confirmed:
			v.done, v.places = append(v.done, *r), append(v.places, c.Position)
		default:
			_, again := unsure[r.ID]
			if f, ok := refusalOf(r, c, again && confirmed); ok {
				closed[key] = true
				v.refused = append(v.refused, f)
				continue
			}
			closed[key] = false
			v.forget = append(v.forget, *r)
			v.outage = outageOf(v.outage, c, confirmed)
		}
	}
	v.closeAhead(closed, unordered)
	return v
}

// refusalOf says whether a row that was not confirmed has to wait. suspect is a message that got no answer again.
func refusalOf(r *shard.Row, c broker.Confirmation, suspect bool) (refusal, bool) {
	switch c.Outcome {
	case broker.Rejected:
		return refusal{row: *r, reason: c.Reason, attempt: true}, true
	case broker.Ambiguous:
		return refusal{row: *r, reason: c.Reason}, true
	case broker.Unknown:
		return refusal{row: *r, reason: c.Reason, unknown: true}, suspect
	default:
		return refusal{}, false
	}
}

// outageOf returns why the unit failed, where a row's answer says so: it is not there, or nothing at all got an
// answer. The first reason stays.
func outageOf(known, c broker.Confirmation, confirmed bool) broker.Confirmation {
	if known.Reason != "" || c.Reason == broker.ReasonNotSent || (c.Outcome == broker.Unknown && confirmed) {
		return known
	}
	if c.Reason == "" {
		c.Reason = broker.ReasonNoAnswer
	}
	return c
}

// closeAhead applies closed keys to the rows read ahead. While the unit fails nothing is kept: when it is back, what
// is read then is what is true then.
func (v *verdict) closeAhead(closed map[string]bool, unordered bool) {
	rows := v.ahead
	v.ahead = nil
	for i := range rows {
		refused, isClosed := closed[keyOf(&rows[i], unordered)]
		switch {
		case isClosed && refused:
			v.hold = append(v.hold, rows[i])
		case isClosed, v.outage.Reason != "":
			v.forget = append(v.forget, rows[i])
		default:
			v.ahead = append(v.ahead, rows[i])
		}
	}
}

func allConfirmed(got []broker.Confirmation) bool {
	for i := range got {
		if got[i].Outcome != broker.Confirmed {
			return false
		}
	}
	return true
}

func anyConfirmed(got []broker.Confirmation) bool {
	for i := range got {
		if got[i].Outcome == broker.Confirmed && got[i].Position != placeExpired {
			return true
		}
	}
	return false
}
