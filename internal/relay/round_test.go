package relay

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// ring is a shard of a team's own table with a row at each place up to a number, of which some may be sent.
type ring struct {
	places message.Position
	steps  message.Position // of one look at most
	free   map[message.Position]bool
}

// claim looks as a claim of such a table does.
func (r *ring) claim(w shard.Window) shard.Claim {
	c := shard.Claim{}
	for p := w.Read + 1; p <= r.places; p++ {
		c.Look.Reached, c.Look.Long = p, true
		if r.free[p] {
			c.Rows = append(c.Rows, row("k", p))
		}
		if p-w.Read == r.steps {
			c.Look.Stopped, c.Cut = p, true
			return c
		}
	}
	if c.Cut = len(c.Rows) > 0; c.Cut {
		return c
	}
	for n, p := message.Position(1), w.Next; n <= w.Read; n++ {
		if p++; p > w.Read {
			p = 1
		}
		c.Look.Long = true
		if r.free[p] {
			c.Below = append(c.Below, p)
		}
		if n == r.steps {
			c.Look.Stopped, c.Cut = p, true
			break
		}
	}
	return c
}

// claimed lets the memory take a claim, and settles what it takes.
func (r *ring) claimed(m *memory) taken {
	c := r.claim(m.begin(bounds, false))
	var late lateRows
	for _, p := range m.late(c) {
		late.rows = append(late.rows, row("k", p))
	}
	t := m.take(c, late, bounds.MaxMessages)
	for i := range t.ready {
		delete(r.free, t.ready[i].Position)
	}
	m.settled(t.ready, 0, m.read)
	return t
}

func TestALaneGoesRoundAShardThatNoClaimSeesAllOf(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	r := &ring{places: 95, steps: 10, free: map[message.Position]bool{95: true}}
	claims := func(n int) (found int) {
		t.Helper()
		for range n {
			got := r.claimed(m)
			found += len(got.ready)
			if !got.more || got.passed != (len(got.ready) == 0) {
				t.Errorf("take() = %+v, want more", got)
			}
		}
		return found
	}
	if claims(10) != 1 || m.read != 95 {
		t.Errorf("up to the top: read = %d, left %v", m.read, r.free)
	}
	claims(1)
	if m.round.empty {
		t.Error("one claim below is a whole round")
	}
	if claims(10); !m.round.empty {
		t.Error("a whole round found nothing")
	}
	for _, p := range []message.Position{1, 50, 94} {
		r.free = map[message.Position]bool{p: true}
		if claims(10) != 1 {
			t.Errorf("the row at place %d was not found on a round", p)
		}
	}
	if m.round.empty {
		t.Error("the round after something was found is one in vain")
	}
}

// A lane that gives rows back goes on where it is: from the bottom it would never get to the top.
func TestALaneThatGivesRowsBackGoesOnUpARingThatNoClaimSeesAllOf(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	r := &ring{places: 95, steps: 10, free: map[message.Position]bool{5: true}}
	got := m.take(r.claim(m.begin(bounds, false)), lateRows{}, bounds.MaxMessages)
	m.forget(got.ready)
	for range 9 {
		r.claimed(m)
	}
	if m.read != 95 {
		t.Errorf("read = %d, want the top", m.read)
	}
	for range 10 {
		r.claimed(m)
	}
	if len(r.free) != 0 {
		t.Errorf("%v were given back and not found again", r.free)
	}
}

// Of what was found and not taken the next claims begin anywhere, as those of a shard do that is seen as a whole.
func TestAClaimOfWhichNotAllWasTakenIsNotGoneOnFrom(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read = 95
	c := shard.Claim{Cut: true, Look: shard.Look{Stopped: 20, Long: true}}
	m.begin(bounds, false)
	m.take(c, lateRows{}, bounds.MaxMessages)
	if m.round.next != 20 {
		t.Errorf("next = %d, want 20", m.round.next)
	}
	m.begin(bounds, false)
	m.take(c, lateRows{rows: rows(row("a", 12)), cutAt: 12}, bounds.MaxMessages)
	if m.round.next != 0 {
		t.Errorf("next = %d, want anywhere", m.round.next)
	}
}

func TestALaneRestsOnlyAfterAWholeRoundInVain(t *testing.T) {
	t.Parallel()
	const took, poll = 20 * time.Millisecond, 200 * time.Millisecond
	cases := map[string]struct {
		empty, stopped bool
		took           time.Duration
		want           time.Duration
	}{
		"on its first round":            {false, true, took, 0},
		"on its way":                    {true, true, took, 3 * took},
		"after a claim that saw all":    {true, false, took, poll},
		"after a slow one that saw all": {true, false, time.Second, 3 * time.Second},
	}
	for name, tc := range cases {
		r := round{empty: tc.empty}
		if got := r.rest(tc.took, poll, tc.stopped); got != tc.want {
			t.Errorf("%s: rest() = %v, want %v", name, got, tc.want)
		}
	}
}

func TestAWayComesByWhatLiesOnIt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		from, to, place message.Position
		want            bool
	}{
		{10, 20, 10, false},
		{10, 20, 11, true},
		{10, 20, 20, true},
		{10, 20, 21, false},
		{20, 10, 20, false},
		{20, 10, 21, true},
		{20, 10, 10, true},
		{20, 10, 11, false},
		{20, 20, 5, true},
	} {
		if got := comesBy(tc.from, tc.to, tc.place); got != tc.want {
			t.Errorf("comesBy(%d, %d, %d) = %v", tc.from, tc.to, tc.place, got)
		}
	}
}
