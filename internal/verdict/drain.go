package verdict

import "time"

// Parked is a parked message whose key is due.
type Parked struct {
	*Item
	// Attempts counts the refusals so far.
	Attempts int
	// Waited is how long the message has been parked, by the database's clock.
	Waited time.Duration
	// Failing is how long ago its statement failed first; 0 where it never did.
	Failing time.Duration
}

// Skipped is a range of versions that is given up.
type Skipped struct{ From, To int64 }

// DecideParked says what becomes of a parked message, the first of its key that is left. Undecided means that its turn
// has not come. A range is skipped before the message where a gap has lasted for too long.
//
// The gap before the first parked message has lasted at least since that message was parked, whatever happened to
// earlier gaps of the key: so no clock of the gap needs to be kept.
func (r Rules) DecideParked(k Key, p Parked) (Decision, *Skipped) {
	k.State = Open // this message is what the key waits for
	d := r.Decide(k, p.Item)
	if d.Action != Park {
		return d, nil
	}
	if !d.Gap || !r.ApplyAfterGap || p.Waited < r.GapTimeout {
		return Decision{}, nil
	}
	gap := &Skipped{From: k.Last + 1, To: p.AggregateVersion - 1}
	k.Last = gap.To
	return r.Decide(k, p.Item), gap
}

// Left is the first message of a key that is still parked.
type Left struct {
	Version int64
	Waited  time.Duration
}

// AfterDrain returns what is to be written of a key once some of its parked messages were handled. failed is how the
// last one failed; left is nil where none is parked any more.
func (r Rules) AfterDrain(h Hash, k Key, failed *Failure, left *Left) Change {
	c := Change{Hash: h, Key: k}
	switch {
	case k.State == Blocked:
		c.Due = Due{Kind: DueNever}
	case failed != nil:
		c.State, c.Due = Retry, Due{Kind: DueAfter, After: failed.Pause}
	case left == nil:
		c.State, c.Due = Open, Due{Kind: DueNever}
	case r.Versions == Enforce && left.Version > k.Last+1:
		c.State, c.Due = Gap, r.gapDue(left.Waited)
	default: // more than one transaction takes: everything that arrives goes behind it
		c.State, c.Due = Retry, Due{Kind: DueAfter}
	}
	return c
}
