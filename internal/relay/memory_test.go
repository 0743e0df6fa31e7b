package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// bounds are those of every claim of these tests.
var bounds = Batch{MaxMessages: 10, MaxBytes: 1000}

// row is a row of a key; its id is made of its position.
func row(key string, at message.Position) shard.Row {
	return shard.Row{Message: message.Message{
		Position: at, ID: message.ID{15: byte(at)}, OrderingKey: key, AggregateVersion: int64(at), Source: "shop",
		Payload: []byte("{}"), Size: 2,
	}}
}

func rows(of ...shard.Row) []shard.Row { return of }

func at(of []shard.Row) []message.Position {
	var out []message.Position
	for _, r := range of {
		out = append(out, r.Position)
	}
	return out
}

// read lets the memory claim rows at once, as if nothing else happened meanwhile.
func (m *memory) read1(t *testing.T, xmin uint64, of ...shard.Row) taken {
	t.Helper()
	w := m.begin(bounds, false)
	return m.take(shard.Claim{Xmin: xmin, Below: m.below(w), Rows: of}, lateRows{}, bounds.MaxMessages)
}

// below returns the rows in hand inside of the window, as a claim shows them.
func (m *memory) below(w shard.Window) []message.Position {
	var out []message.Position
	for p := range m.inHand {
		if p > w.Floor && p <= w.Read {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

func TestTheFloorRisesOnlyWhenNothingCanAppearBelowIt(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		claim shard.Claim
		want  message.Position
	}{
		"every writer from before the settle has ended": {shard.Claim{Xmin: 101}, 3},
		"a writer from before the settle may still run": {shard.Claim{Xmin: 100}, 0},
		"the claim stopped below what had been read": {
			shard.Claim{Xmin: 101, Below: []message.Position{3}, BelowCut: true}, 3,
		},
		"the claim stopped at what had been read": {
			shard.Claim{Xmin: 101, Below: []message.Position{2}, BelowCut: true}, 0,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemory(false)
			m.read1(t, 90, row("a", 1), row("b", 2), row("c", 3))
			m.settled(rows(row("a", 1)), 100, 3)
			m.begin(bounds, false)
			m.take(tc.claim, lateRows{}, bounds.MaxMessages)
			if m.floor != tc.want {
				t.Errorf("floor = %d, want %d", m.floor, tc.want)
			}
		})
	}
}

// A claim that was sent before the settle ended may have a snapshot from before whatever the note stands for.
func TestOnlyAClaimSentAfterTheNoteRaisesTheFloor(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, 90, row("a", 1), row("b", 2))
	m.begin(bounds, false)
	m.settled(rows(row("a", 1)), 100, 2)
	m.take(shard.Claim{Xmin: 200}, lateRows{}, bounds.MaxMessages)
	if m.floor != 0 {
		t.Fatalf("floor = %d after a claim from before the note", m.floor)
	}
	m.read1(t, 200)
	if m.floor != 2 {
		t.Errorf("floor = %d after a claim from after the note, want 2", m.floor)
	}
}

// P17, R13: a server that was restored, or promoted without the last of what was committed, gives out positions again.
func TestNothingThatAnotherServerShowedIsBelieved(t *testing.T) {
	t.Parallel()
	before, after := time.Unix(1, 0), time.Unix(2, 0)
	m := newMemory(false)
	m.read1(t, 90, row("a", 1), row("b", 2), row("c", 3))
	m.settled(rows(row("a", 1)), 100, 3)
	m.read1(t, 200)
	for range 2 {
		if got := m.moved(shard.Claim{Server: before}, true); got != stays || m.floor == 0 {
			t.Fatalf("moved() = %v of the same server, and the floor is %d", got, m.floor)
		}
	}
	if got := m.moved(shard.Claim{Server: after}, true); got != leaving || m.floor != 0 {
		t.Errorf("moved() = %v and floor %d while rows of the one before are in hand", got, m.floor)
	}
	m.settled(rows(row("b", 2), row("c", 3)), 110, 3)
	if got := m.moved(shard.Claim{Server: after}, false); got != leaving || m.note != (note{}) {
		t.Errorf("moved() = %v and note %v while something is being written", got, m.note)
	}
	m.wrote(120, 3)
	if got := m.moved(shard.Claim{Server: after}, true); got != arrived || m.read != 0 || m.note != (note{}) {
		t.Errorf("moved() = %v, read = %d, note %v, want all from the bottom", got, m.read, m.note)
	}
	if got := m.moved(shard.Claim{Server: after}, true); got != stays {
		t.Errorf("moved() = %v of a server that is believed", got)
	}
}

func TestOneNoteAtATime(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, 90, row("a", 1), row("b", 2), row("c", 3))
	m.settled(rows(row("a", 1)), 100, 2)
	m.settled(rows(row("b", 2)), 110, 3)
	m.read1(t, 105)
	if m.floor != 2 {
		t.Errorf("floor = %d, want that of the first note: one that is replaced all the time never serves", m.floor)
	}
}

// A lane may hold a whole backlog before it settles anything: a floor that stayed would let each claim look at all of it.
func TestTheFloorFollowsALaneThatOnlyHoldsRows(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	for batch := range message.Position(50) {
		first := row("a", 2*batch+1)
		second := row("a", 2*batch+2)
		m.read1(t, 100+uint64(batch), first, second)
		if behind := m.read - m.floor; behind > 6 {
			t.Fatalf("a claim looks at %d positions below batch %d, want those of the last batches", behind, batch)
		}
		m.wrote(100+uint64(batch), m.read)
		m.held(&first)
		m.held(&second)
	}
}

func TestARowThatIsGivenBackPutsTheFloorBelowItself(t *testing.T) {
	t.Parallel()

	cases := map[string]func(*memory){
		"a forgotten row":              func(m *memory) { m.forget(rows(row("c", 3))) },
		"a row that was set free":      func(m *memory) { m.opened("c", 3) },
		"a statement nobody knows of":  func(m *memory) { m.distrust() },
		"a row of a key that changed":  func(m *memory) { m.claimOf(row("c", 3)) },
		"a row of a key that changes":  func(m *memory) { m.change([]string{"c"}); m.claimOf(row("c", 3)) },
		"a key that changed back then": func(m *memory) { m.change([]string{"c"}); m.unchange([]string{"c"}); m.claimLate(row("c", 3)) },
	}
	for name, giveBack := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemory(false)
			m.read1(t, 90, row("a", 1), row("b", 2), row("c", 3), row("d", 4), row("e", 5))
			m.settled(rows(row("a", 1), row("b", 2)), 100, 5)
			m.read1(t, 101)
			if m.floor != 5 {
				t.Fatalf("floor = %d, want 5", m.floor)
			}
			m.settled(rows(row("d", 4)), 110, 5)
			giveBack(m)
			if m.floor > 2 {
				t.Errorf("floor = %d, want it below 3", m.floor)
			}
			if m.note.reach >= 3 {
				t.Errorf("the note would raise the floor over the row to %d", m.note.reach)
			}
		})
	}
}

// claimOf lets a key change while a claim is under way that shows a row of it.
func (m *memory) claimOf(r shard.Row) {
	delete(m.inHand, r.Position)
	m.begin(bounds, false)
	m.changed[r.OrderingKey] = struct{}{}
	m.take(shard.Claim{Xmin: 1}, lateRows{rows: rows(r)}, bounds.MaxMessages)
}

// claimLate is a claim that was sent before its key changed.
func (m *memory) claimLate(r shard.Row) {
	delete(m.inHand, r.Position)
	m.claimNote = m.note
	m.take(shard.Claim{Xmin: 1}, lateRows{rows: rows(r)}, bounds.MaxMessages)
}

func TestANoteMadeBeforeARowWasGivenBackNeverRaisesTheFloorOverIt(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, 90, row("a", 1), row("b", 2), row("c", 3))
	m.settled(rows(row("a", 1)), 100, 3)
	m.begin(bounds, false) // holds the note
	m.forget(rows(row("b", 2)))
	got := m.take(
		shard.Claim{Xmin: 101, Below: []message.Position{3}},
		lateRows{rows: rows(row("b", 2))},
		bounds.MaxMessages,
	)
	if m.floor >= 2 {
		t.Errorf("floor = %d, above the forgotten row", m.floor)
	}
	if len(got.ready) != 0 || !got.more {
		t.Errorf("took %v, more %v; a key that changed is read again", at(got.ready), got.more)
	}
	if got = m.take(
		shard.Claim{Xmin: 1, Below: m.below(m.begin(bounds, false))},
		lateRows{rows: rows(row("b", 2))},
		10,
	); !slices.Equal(
		at(got.ready),
		[]message.Position{2},
	) {
		t.Errorf("took %v next, want the forgotten row", at(got.ready))
	}
}

func TestLateRowsAreThoseTheLaneDoesNotKnow(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, 90, row("a", 2), row("b", 4), row("c", 6), row("d", 8))
	m.settled(rows(row("a", 2)), 100, 8)
	m.begin(bounds, false)
	m.settled(rows(row("b", 4)), 110, 8) // while the claim is under way: it may show the row or not
	m.held(&shard.Row{Message: message.Message{Position: 6}})
	m.forget(rows(row("d", 8)))
	got := m.late(shard.Claim{Below: []message.Position{1, 4, 5, 6, 8}})
	if diff := cmp.Diff([]message.Position{1, 5, 8}, got); diff != "" {
		t.Errorf("late (-want +got):\n%s", diff)
	}
	m.begin(bounds, false)
	if diff := cmp.Diff([]message.Position{4, 6}, m.late(shard.Claim{Below: []message.Position{4, 6}})); diff != "" {
		t.Errorf("a row that appears in a claim sent after it left is back (-want +got):\n%s", diff)
	}
}

func TestAClaimIsTakenAsAPrefix(t *testing.T) {
	t.Parallel()
	late := lateRows{rows: rows(row("a", 3), row("b", 5))}
	above := rows(row("a", 11), row("c", 12))

	cases := map[string]struct {
		claim shard.Claim
		late  lateRows
		most  int
		want  []message.Position
		more  bool
	}{
		"everything is taken": {
			claim: shard.Claim{Rows: above}, late: late, most: 10, want: []message.Position{3, 5, 11, 12},
		},
		"more rows above than the batch holds": {
			claim: shard.Claim{
				Rows: above,
				Cut:  true,
			},
			late: late,
			most: 10,
			want: []message.Position{3, 5, 11, 12},
			more: true,
		},
		"late rows that were not all fetched keep what is above out": {
			claim: shard.Claim{Rows: above}, late: lateRows{rows: late.rows, cutAt: 5}, most: 10,
			want: []message.Position{3, 5}, more: true,
		},
		"positions that were not all told keep what is above out": {
			claim: shard.Claim{Rows: above, Below: []message.Position{3, 5, 7}, BelowCut: true}, late: late, most: 10,
			want: []message.Position{3, 5}, more: true,
		},
		"the batch bound counts late rows": {
			claim: shard.Claim{Rows: above}, late: late, most: 3, want: []message.Position{3, 5, 11}, more: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemory(false)
			m.read1(t, 90, row("z", 10))
			m.begin(bounds, false)
			// What a claim holds is the memory's from then on, and the cases share their rows.
			tc.claim.Rows, tc.late.rows = slices.Clone(tc.claim.Rows), slices.Clone(tc.late.rows)
			got := m.take(tc.claim, tc.late, tc.most)
			if diff := cmp.Diff(tc.want, at(got.ready)); diff != "" {
				t.Errorf("ready (-want +got):\n%s", diff)
			}
			if got.more != tc.more {
				t.Errorf("more = %v, want %v", got.more, tc.more)
			}
		})
	}
}

func TestRowsOfGatedKeysAreSetApart(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	gated := row("a", 1)
	gated.Gated = true
	got := m.read1(t, 90, gated, row("b", 2))
	if !slices.Equal(at(got.gated), []message.Position{1}) || !slices.Equal(at(got.ready), []message.Position{2}) {
		t.Errorf("gated %v, ready %v", at(got.gated), at(got.ready))
	}
}

func TestAGateWriteUnderWayKeepsItsKeyOutOfEveryClaim(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.change([]string{"a"})
	if got := m.read1(t, 90, row("a", 1), row("b", 2)); !slices.Equal(at(got.ready), []message.Position{2}) {
		t.Errorf("ready = %v, want only the other key", at(got.ready))
	}
	m.unchange([]string{"a"})
	w := m.begin(bounds, false)
	if w.Floor >= 1 {
		t.Errorf("floor = %d, above the row that was left out", w.Floor)
	}
}

func TestUnorderedRowsStandForThemselves(t *testing.T) {
	t.Parallel()
	m := newMemory(true)
	a, b := row("same", 1), row("same", 2)
	m.change([]string{a.ID.String()})
	if got := m.read1(t, 90, a, b); !slices.Equal(at(got.ready), []message.Position{2}) {
		t.Errorf("ready = %v, want the neighbour of the row that changes", at(got.ready))
	}
}

func TestWhatWasReadIsForgottenWithTheLastRowInHand(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, 90, row("a", 1), row("b", 2))
	m.forget(rows(row("a", 1)))
	if m.read != 2 {
		t.Errorf("read = %d while a row is in hand, want 2", m.read)
	}
	m.forget(rows(row("b", 2)))
	if m.read != m.floor {
		t.Errorf("read = %d, floor = %d: after an outage whole rows are read, not one by one", m.read, m.floor)
	}
}

func TestARescanStartsAtTheVeryStart(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, 90, row("a", 1))
	m.settled(rows(row("a", 1)), 100, 1)
	m.read1(t, 101)
	if w := m.begin(bounds, true); w.Floor != 0 || w.Read != 1 {
		t.Errorf("window = %+v, want one from 0", w)
	}
}

// A rescan costs one claim: the ones after it begin at the floor again, unless it left something out below.
func TestTheFloorIsWhereItWasAfterARescan(t *testing.T) {
	t.Parallel()
	late := func(at ...message.Position) lateRows {
		var l lateRows
		for _, p := range at {
			l.rows = append(l.rows, row("late", p))
		}
		return l
	}
	cut := late(2, 3)
	cut.cutAt = 3
	for name, tc := range map[string]struct {
		claim shard.Claim
		late  lateRows
		most  int
		want  message.Position
	}{
		"nothing is below it":                {shard.Claim{}, lateRows{}, 10, 5},
		"a row is below it":                  {shard.Claim{Below: []message.Position{2}}, late(2), 10, 5},
		"not all rows below were read":       {shard.Claim{Below: []message.Position{2, 3, 4}}, cut, 10, 3},
		"not all below was looked at":        {shard.Claim{Below: []message.Position{2, 3}, BelowCut: true}, late(2, 3), 10, 3},
		"more is below than a lane may hold": {shard.Claim{Below: []message.Position{2, 3}}, late(2, 3), 1, 2},
		"only rows above were left out":      {shard.Claim{Rows: rows(row("b", 6)), Cut: true}, lateRows{}, 10, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemory(false)
			m.read1(t, 90, row("a", 5))
			m.settled(rows(row("a", 5)), 100, 5)
			m.read1(t, 101)
			if m.floor != 5 {
				t.Fatalf("floor = %d before the rescan, want 5", m.floor)
			}
			m.begin(bounds, true)
			m.take(tc.claim, tc.late, tc.most)
			if w := m.begin(bounds, false); w.Floor != tc.want {
				t.Errorf("the next window is from %d, want from %d", w.Floor, tc.want)
			}
		})
	}
}

func TestAReadThatFailsIsHalfAsLargeForAWhile(t *testing.T) {
	t.Parallel()
	var s size
	for range 2 * mostHalved {
		s.failed()
	}
	if s.halved != mostHalved {
		t.Errorf("halved %d times, want %d at most", s.halved, mostHalved)
	}
	s = size{halved: 2}
	for range untilTwice - 1 {
		s.succeeded()
	}
	if s.halved != 2 {
		t.Errorf("halved %d times, want still 2: what has failed is not tried again at once", s.halved)
	}
	for range untilTwice + 1 {
		s.succeeded()
	}
	if s.halved != 0 {
		t.Errorf("halved %d times after so many successes, want 0", s.halved)
	}
	for times, want := range []int{500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1} {
		if got := half(500, times); got != want {
			t.Errorf("half(500, %d) = %d, want %d", times, got, want)
		}
	}
}

func TestRowsBelowWhatWasSentOfTheirKeyAreCounted(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, 90, row("a", 5), row("b", 6))
	m.settled(rows(row("a", 5), row("b", 6)), 100, 6)
	m.begin(bounds, false)
	unordered := row("b", 3)
	unordered.AggregateVersion = 0
	got := m.take(shard.Claim{}, lateRows{rows: rows(row("a", 2), unordered, row("c", 4))}, 10)
	if got.reordered != 1 {
		t.Errorf("reordered = %d, want 1: the ordered row below a sent one of its key", got.reordered)
	}
	for i := range 3 * maxSentKeys {
		m.sent.add(
			&shard.Row{Message: message.Message{OrderingKey: string(rune(i + 1000)), Position: 9, AggregateVersion: 1}},
		)
	}
	if n := len(m.sent.young) + len(m.sent.old); n > 2*maxSentKeys {
		t.Errorf("%d keys are remembered, want at most %d", n, 2*maxSentKeys)
	}
}

// Transactions of the tests below: two that were there before the first settle, and the settle.
const long, short, settle = 50, 60, 100

// stalled returns a memory whose floor stays at 0 while the long and the short transaction run, and whose claims begin at 5.
func stalled(t *testing.T) *memory {
	t.Helper()
	m := newMemory(false)
	m.read1(t, long, row("a", 5))
	m.settled(rows(row("a", 5)), settle, 5)
	for claim := 0; m.low() == 0; claim++ {
		if claim > stallAfter {
			t.Fatal("claims begin at the floor for ever")
		}
		m.begin(bounds, false)
		c := running(long, short, settle+1)
		if !m.complete(c) {
			t.Fatal("a claim from the floor is not good")
		}
		m.take(c, lateRows{}, 10)
	}
	if m.floor != 0 || m.low() != 5 {
		t.Fatalf("floor %d, claims from %d; want 0 and 5", m.floor, m.low())
	}
	return m
}

// running is a claim that finds nothing while these transactions run.
func running(ids ...uint64) shard.Claim { return shard.Claim{Xmin: ids[0], Running: ids} }

// P15: while somebody's long transaction that writes holds the floor back, claims pass over what is dead once and not each
// time; the first one after its end looks below again.
func TestALongTransactionThatWritesHoldsClaimsUpOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fromStart bool
		before    func(*memory)
		claim     shard.Claim
		good      bool
		from      message.Position // of the claim
		next      message.Position // of the one after it
	}{
		"both run":                            {claim: running(long, short, settle+7), good: true, from: 5, next: 5},
		"one has ended":                       {claim: running(long, settle+7), from: 5, next: 0},
		"all have ended":                      {claim: running(settle + 7), from: 5, next: 0},
		"one has ended while all was read":    {fromStart: true, claim: running(long, settle+7), good: true, from: 0, next: 0},
		"a row was set free below":            {before: func(m *memory) { m.opened("k", 3) }, claim: running(long, short), good: true, from: 2, next: 2},
		"a row was set free above":            {before: func(m *memory) { m.opened("k", 7) }, claim: running(long, short), good: true, from: 5, next: 5},
		"nobody knows what a settle has done": {before: (*memory).distrust, claim: running(settle + 7), good: true, from: 0, next: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := stalled(t)
			if tc.before != nil {
				tc.before(m)
			}
			if w := m.begin(bounds, tc.fromStart); w.Floor != tc.from {
				t.Errorf("a claim from %d, want from %d", w.Floor, tc.from)
			}
			if good := m.complete(tc.claim); good != tc.good {
				t.Errorf("the claim is good: %v, want %v", good, tc.good)
			} else if good {
				m.take(tc.claim, lateRows{}, 10)
			}
			if w := m.begin(bounds, false); w.Floor != tc.next {
				t.Errorf("the next claim is from %d, want from %d", w.Floor, tc.next)
			}
		})
	}
}

// A write whose outcome nobody knows, while a claim is under way that began above the floor, makes nothing of that claim good.
func TestAClaimAboveTheFloorIsJudgedByThoseThatRanWhenItBegan(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(*memory){
		"nothing happens":                     func(*memory) {},
		"nobody knows what a settle has done": (*memory).distrust,
		"a row is set free below":             func(m *memory) { m.opened("k", 3) },
		"a row is set free above":             func(m *memory) { m.opened("k", 9) },
		"another write ends":                  func(m *memory) { m.wrote(settle+3, 5) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := stalled(t)
			m.begin(bounds, false)
			between(m)
			if m.complete(running(settle + 7)) {
				t.Error("a claim from above the floor is good although a long transaction has ended")
			}
			if w := m.begin(bounds, false); w.Floor != 0 {
				t.Errorf("the next claim is from %d, want from the floor, 0", w.Floor)
			}
		})
	}
}

func TestALongTransactionThatIsKnownHoldsClaimsUpNoMoreWhenAnotherEnds(t *testing.T) {
	t.Parallel()
	m := stalled(t)
	m.begin(bounds, false)
	if m.complete(running(long, settle+7)) {
		t.Fatal("a claim from above the floor is good although a long transaction has ended")
	}
	m.begin(bounds, false)
	if c := running(long, settle+8); m.complete(c) {
		m.take(c, lateRows{}, 10)
	}
	if m.floor != 0 || m.low() != 5 {
		t.Errorf("floor %d, claims from %d; want 0 and 5: the one that still runs is known", m.floor, m.low())
	}
}

// Keys whose gates open take the floor back, and may do so oftener than any note serves.
func TestALaneThatGivesRowsBackAllTheTimeIsHeldUpOnceToo(t *testing.T) {
	t.Parallel()
	m := newMemory(false)
	m.read1(t, long, row("a", 5))
	for claim := range message.Position(2 * stallAfter) {
		m.wrote(settle+uint64(claim), 5)
		m.begin(bounds, false)
		m.take(running(long, settle+100), lateRows{}, 10)
		if m.low() == 5 {
			return
		}
		if claim%3 == 0 {
			m.opened("k", 4)
		}
	}
	t.Error("claims begin at the floor for ever")
}

func TestTheFloorRisesWhenTheLongTransactionHasEnded(t *testing.T) {
	t.Parallel()
	m := stalled(t)
	m.begin(bounds, false)
	m.complete(running(settle + 7))
	m.begin(bounds, false)
	if c := running(settle + 7); m.complete(c) {
		m.take(c, lateRows{}, 10)
	}
	if m.floor != 5 || m.low() != 5 {
		t.Errorf("floor %d, claims from %d; want 5", m.floor, m.low())
	}
}

// What is settled while the long transactions are known is passed over as soon as nobody else may write below it.
func TestWhatIsSettledBesideALongTransactionIsPassedOverOnceToo(t *testing.T) {
	t.Parallel()
	m := stalled(t)
	m.read1(t, long, row("a", 6))
	m.settled(rows(row("a", 6)), settle+10, 6)
	m.begin(bounds, false)
	m.take(running(long, short, settle+5), lateRows{}, 10)
	if m.low() != 5 {
		t.Errorf("claims from %d while a new transaction may write below, want 5", m.low())
	}
	m.begin(bounds, false)
	m.take(running(long, short, settle+20), lateRows{}, 10)
	if m.low() != 6 {
		t.Errorf("claims from %d, want 6: all that may write below are known", m.low())
	}
}
