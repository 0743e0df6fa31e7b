package verdict_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/verdict"
)

const minute = time.Minute

// fails decides the item and then reports that its statement failed.
type fails struct{ *verdict.Item }

// known stands for an item whose id is in the inbox with the same digest.
type known struct{ *verdict.Item }

func actions(ds []verdict.Decision) []string {
	names := make([]string, len(ds))
	for i, d := range ds {
		names[i] = d.Action.String()
	}
	return names
}

func TestBatch(t *testing.T) {
	t.Parallel()

	open := func(last int64) verdict.Key { return verdict.Key{Last: last, State: verdict.Open} }
	in := func(last int64, s verdict.State) verdict.Key { return verdict.Key{Last: last, State: s} }
	keep, never := verdict.Due{}, verdict.Due{Kind: verdict.DueNever}
	after := func(d time.Duration) verdict.Due { return verdict.Due{Kind: verdict.DueAfter, After: d} }

	cases := map[string]struct {
		rules   verdict.Rules
		key     verdict.Key
		items   []any
		want    []string
		wantKey *verdict.Change
	}{
		"versions in order move the key on": {
			key: open(0), items: []any{item("a", 1), item("b", 2)},
			want: []string{"applied", "applied"}, wantKey: &verdict.Change{Key: open(2), Due: keep},
		},
		"a hole opens a gap that is held for as long as it takes": {
			key: open(1), items: []any{item("a", 3), item("b", 4)},
			want: []string{"parked", "parked"}, wantKey: &verdict.Change{Key: in(1, verdict.Gap), Due: never},
		},
		"a hole opens a gap with an end": {
			rules: verdict.Rules{ApplyAfterGap: true, GapTimeout: minute},
			key:   open(1), items: []any{item("a", 3)},
			want: []string{"parked"}, wantKey: &verdict.Change{Key: in(1, verdict.Gap), Due: after(minute)},
		},
		"a further hole does not give a gap more time": {
			rules: verdict.Rules{ApplyAfterGap: true, GapTimeout: minute},
			key:   in(1, verdict.Gap), items: []any{item("a", 4)},
			want: []string{"parked"},
		},
		"the missing version makes what is parked due": {
			key: in(1, verdict.Gap), items: []any{item("a", 2)},
			want: []string{"applied"}, wantKey: &verdict.Change{Key: in(2, verdict.Gap), Due: after(0)},
		},
		"a hole that is filled in the same batch makes what is parked due": {
			key: open(0), items: []any{item("b", 2), item("a", 1)},
			want: []string{"parked", "applied"}, wantKey: &verdict.Change{Key: in(1, verdict.Gap), Due: after(0)},
		},
		"an advance before the hole does not make it due": {
			key: open(0), items: []any{item("a", 1), item("b", 3)},
			want: []string{"applied", "parked"}, wantKey: &verdict.Change{Key: in(1, verdict.Gap), Due: never},
		},
		"a failed statement parks its message and all that follows": {
			key:   open(0),
			items: []any{item("a", 1), fails{item("b", 2)}, item("c", 3)},
			want: []string{
				"applied",
				"parked",
				"parked",
			},
			wantKey: &verdict.Change{Key: in(1, verdict.Retry), Due: after(minute)},
		},
		"a failure inside a gap is a retry": {
			key: in(0, verdict.Gap), items: []any{fails{item("a", 1)}},
			want: []string{"parked"}, wantKey: &verdict.Change{Key: in(0, verdict.Retry), Due: after(minute)},
		},
		"a poison at its turn blocks its key": {
			key:   open(0),
			items: []any{item("a", 1), refused("b", 2), item("c", 3)},
			want: []string{
				"applied",
				"dead_lettered",
				"parked",
			},
			wantKey: &verdict.Change{Key: in(1, verdict.Blocked), Due: never},
		},
		"a conflict blocks nothing": {
			key: open(4), items: []any{item("a", 3), item("b", 5)},
			want: []string{"dead_lettered", "applied"}, wantKey: &verdict.Change{Key: open(5), Due: keep},
		},
		"a known id is a duplicate and moves nothing": {
			key: open(4), items: []any{known{item("a", 4)}, known{item("b", 9)}},
			want: []string{"duplicate", "duplicate"},
		},
		"an id repeated in the batch follows the first": {
			key: open(0), items: []any{item("a", 1), item("a", 1), item("b", 2)},
			want: []string{"applied", "duplicate", "applied"}, wantKey: &verdict.Change{Key: open(2), Due: keep},
		},
		"behind a failure the key stays as it is": {
			key: in(4, verdict.Retry), items: []any{item("a", 5)},
			want: []string{"parked"},
		},
		"arrival order does not move the version": {
			rules: verdict.Rules{Versions: verdict.Off},
			key:   open(0), items: []any{item("a", 7), item("b", 3)},
			want: []string{"applied", "applied"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			items := make([]*verdict.Item, len(tc.items))
			for i, x := range tc.items {
				switch x := x.(type) {
				case fails:
					items[i] = x.Item
				case known:
					items[i] = x.Item
				case *verdict.Item:
					items[i] = x
				}
			}
			b := verdict.NewBatch(tc.rules, items)
			b.Got(verdict.Hash{1}, tc.key)
			for _, i := range b.Candidates() {
				if _, dup := tc.items[i].(known); dup {
					b.Known(i, items[i].Digest[:])
				} else {
					b.Fresh(i)
				}
			}
			for i := range items {
				b.Decide(i)
				if _, fail := tc.items[i].(fails); fail {
					b.Fail(i, verdict.Failure{Class: deadletter.Message, Code: "23505", Pause: minute})
				}
			}
			b.Finish()

			if diff := cmp.Diff(tc.want, actions(b.Decisions())); diff != "" {
				t.Errorf("decisions differ (-want +got):\n%s", diff)
			}
			var want []verdict.Change
			if tc.wantKey != nil {
				tc.wantKey.Hash = verdict.Hash{1}
				want = []verdict.Change{*tc.wantKey}
			}
			if diff := cmp.Diff(want, b.Changes()); diff != "" {
				t.Errorf("changes differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnotherDigestUnderAKnownIDIsBuried(t *testing.T) {
	t.Parallel()

	forged := item("a", 1)
	forged.Digest = [32]byte{9}
	b := verdict.NewBatch(verdict.Rules{}, []*verdict.Item{item("a", 1), forged, item("b", 2)})
	b.Got(verdict.Hash{1}, verdict.Key{State: verdict.Open})
	b.Fresh(0)
	b.Known(2, []byte("something else"))
	for i := range 3 {
		b.Decide(i)
	}
	b.Finish()

	want := []verdict.Decision{
		{
			Action: verdict.Apply,
		},
		bury(deadletter.DuplicateIDDifferentPayload),
		bury(deadletter.DuplicateIDDifferentPayload),
	}
	if diff := cmp.Diff(want, b.Decisions()); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
}

func TestMessagesOfAKeyThatIsNotLockedStayUndecided(t *testing.T) {
	t.Parallel()

	other := item("b", 1)
	other.Key = verdict.Hash{2}
	b := verdict.NewBatch(verdict.Rules{}, []*verdict.Item{item("a", 1), other, item("a", 1)})
	if diff := cmp.Diff([]verdict.Hash{{1}, {2}}, b.Hashes()); diff != "" {
		t.Errorf("hashes differ (-want +got):\n%s", diff)
	}
	b.Got(verdict.Hash{2}, verdict.Key{State: verdict.Open})
	if diff := cmp.Diff([]int{1}, b.Candidates()); diff != "" {
		t.Errorf("candidates differ (-want +got):\n%s", diff)
	}
	b.Fresh(1)
	for i := range 3 {
		b.Decide(i)
	}
	b.Finish()
	if diff := cmp.Diff([]string{"undecided", "applied", "undecided"}, actions(b.Decisions())); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
}

func TestDecideParked(t *testing.T) {
	t.Parallel()

	timed := verdict.Rules{ApplyAfterGap: true, GapTimeout: minute}
	in := func(last int64, s verdict.State) verdict.Key { return verdict.Key{Last: last, State: s} }
	cases := map[string]struct {
		rules   verdict.Rules
		key     verdict.Key
		item    *verdict.Item
		waited  time.Duration
		want    verdict.Action
		skipped *verdict.Skipped
	}{
		"the message that failed is tried again": {
			verdict.Rules{},
			in(4, verdict.Retry),
			item("a", 5),
			0,
			verdict.Apply,
			nil,
		},
		"the version behind a filled gap applies": {
			verdict.Rules{},
			in(4, verdict.Gap),
			item("a", 5),
			0,
			verdict.Apply,
			nil,
		},
		"a gap that is held lasts": {
			verdict.Rules{},
			in(4, verdict.Gap),
			item("a", 7),
			2 * minute,
			verdict.Undecided,
			nil,
		},
		"a gap lasts until its time is over": {
			timed,
			in(4, verdict.Gap),
			item("a", 7),
			minute - 1,
			verdict.Undecided,
			nil,
		},
		"then the missing versions are skipped": {
			timed,
			in(4, verdict.Gap),
			item("a", 7),
			minute,
			verdict.Apply,
			&verdict.Skipped{From: 5, To: 6},
		},
		"a poison behind a gap is buried at its turn": {
			timed,
			in(4, verdict.Gap),
			refused("a", 7),
			minute,
			verdict.Bury,
			&verdict.Skipped{From: 5, To: 6},
		},
		"two messages of one version cannot both apply": {
			verdict.Rules{},
			in(5, verdict.Gap),
			item("a", 5),
			0,
			verdict.Bury,
			nil,
		},
		"what is older by now is skipped": {
			verdict.Rules{Versions: verdict.IgnoreOlder},
			in(5, verdict.Retry),
			item("a", 5),
			0,
			verdict.Skip,
			nil,
		},
		"without versions the first parked message is next": {
			verdict.Rules{Versions: verdict.Off},
			in(0, verdict.Retry),
			item("a", 0),
			0,
			verdict.Apply,
			nil,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, skipped := tc.rules.DecideParked(tc.key, verdict.Parked{Item: tc.item, Waited: tc.waited})
			if got.Action != tc.want {
				t.Errorf("action = %v, want %v", got.Action, tc.want)
			}
			if diff := cmp.Diff(tc.skipped, skipped); diff != "" {
				t.Errorf("skipped range differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAfterDrain(t *testing.T) {
	t.Parallel()

	timed := verdict.Rules{ApplyAfterGap: true, GapTimeout: minute}
	never := verdict.Due{Kind: verdict.DueNever}
	after := func(d time.Duration) verdict.Due { return verdict.Due{Kind: verdict.DueAfter, After: d} }
	cases := map[string]struct {
		rules  verdict.Rules
		state  verdict.State
		failed *verdict.Failure
		left   *verdict.Left
		want   verdict.State
		due    verdict.Due
	}{
		"with nothing parked the key is open": {
			verdict.Rules{},
			verdict.Retry,
			nil,
			nil,
			verdict.Open,
			never,
		},
		"a failure waits for its pause": {
			verdict.Rules{},
			verdict.Gap,
			&verdict.Failure{Pause: minute},
			&verdict.Left{Version: 5},
			verdict.Retry,
			after(minute),
		},
		"a dead letter holds what is left": {
			verdict.Rules{},
			verdict.Blocked,
			nil,
			&verdict.Left{Version: 6},
			verdict.Blocked,
			never,
		},
		"a dead letter holds also with nothing left": {
			verdict.Rules{},
			verdict.Blocked,
			nil,
			nil,
			verdict.Blocked,
			never,
		},
		"a further gap is held": {
			verdict.Rules{},
			verdict.Retry,
			nil,
			&verdict.Left{Version: 7, Waited: minute},
			verdict.Gap,
			never,
		},
		"a further gap has the time that is left of it": {
			timed,
			verdict.Gap,
			nil,
			&verdict.Left{Version: 7, Waited: 20 * time.Second},
			verdict.Gap,
			after(40 * time.Second),
		},
		"a gap whose time is over is due": {
			timed,
			verdict.Gap,
			nil,
			&verdict.Left{Version: 7, Waited: 2 * minute},
			verdict.Gap,
			after(0),
		},
		"the rest of a long queue is due at once": {
			verdict.Rules{},
			verdict.Gap,
			nil,
			&verdict.Left{Version: 5},
			verdict.Retry,
			after(0),
		},
		"so it is without versions": {
			verdict.Rules{Versions: verdict.Off},
			verdict.Retry,
			nil,
			&verdict.Left{},
			verdict.Retry,
			after(0),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := verdict.Key{Last: 4, State: tc.state}
			got := tc.rules.AfterDrain(verdict.Hash{1}, k, tc.failed, tc.left)
			want := verdict.Change{Hash: verdict.Hash{1}, Key: verdict.Key{Last: 4, State: tc.want}, Due: tc.due}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("change differs (-want +got):\n%s", diff)
			}
		})
	}
}
