package relay

import (
	"time"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// round is the way of a lane through a shard in which claims stop before they have seen all, for the many rows that may
// not be sent yet (shard.Look). Each claim goes on where the one before stopped, and at the end again from the beginning,
// so that every row is looked at once a round. While rounds find something the lane does not rest; after one that found
// nothing it rests in between, or a backlog that is due tomorrow would keep a processor of the database busy until then.
type round struct {
	// next is where the next claim goes on below what was read; 0: anywhere.
	next message.Position
	// mark is where the claims began that found nothing; 0: there is none.
	mark message.Position
	// long says that the last claim passed over much: the lane does not begin at the bottom again for rows that it gives
	// back, or it would never get to the top.
	long bool
	// empty says that a whole round found nothing.
	empty bool
}

// look notes how far a claim went of which all rows were taken, with what had been read before it.
func (r *round) look(l shard.Look, read message.Position, found bool) {
	from := r.next
	r.next, r.long = 0, l.Long
	if l.Stopped <= read {
		r.next = l.Stopped
	}
	switch {
	case found || !l.Long:
		r.mark, r.empty = 0, false
	case l.Stopped == 0:
		r.empty = true
	case r.next == 0: // above what was read: what is below comes after it
	case r.mark == 0:
		r.mark = r.next
	default:
		r.empty = r.empty || comesBy(from, r.next, r.mark)
	}
}

// comesBy says whether a way from behind one place up to another, through the top to the bottom where that is not above,
// comes by a third.
func comesBy(from, to, place message.Position) bool {
	if from < to {
		return from < place && place <= to
	}
	return place > from || place <= to
}

// whole says whether all rows that a claim found were taken.
func whole(c shard.Claim, late lateRows, maxMessages int) bool {
	return late.cutAt == 0 && !c.BelowCut && len(late.rows)+len(c.Rows) <= maxMessages
}

// restFactor is how much longer than a claim that passed over rows in vain a lane rests before the next, once a whole
// round was in vain: a fourth of the time it looks.
const restFactor = 3

// rest is the pause after a claim that took so long and found nothing. It does not stand for a poll interval where the
// claim stopped on its way: a round of thousands of claims would take hours.
func (r *round) rest(took, pollInterval time.Duration, stopped bool) time.Duration {
	switch {
	case !r.empty:
		return 0
	case stopped:
		return restFactor * took
	default:
		return max(restFactor*took, pollInterval)
	}
}
