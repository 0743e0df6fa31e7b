package outboxdb

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/testkit"
)

func TestTheArchiveIsLookedUpByTimeKeyDestinationAndEvent(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	a, b, c := o.put("a"), o.put("b"), o.put("a")
	o.Exec(`UPDATE message_outbox SET destination = 'eu' WHERE event_id = $1`, [16]byte(b.ID))
	at := make([]time.Time, 4)
	for i, id := range ids(a, b, c) {
		if _, err := s.Settle(t.Context(), l, []message.ID{id}, places(1)); err != nil {
			t.Fatal(err)
		}
		at[i+1] = testkit.Value[time.Time](o.DB, `SELECT clock_timestamp()`)
		o.Exec(`UPDATE message_outbox_ring SET since = since - interval '1 h' WHERE current`)
		if turned, err := s.TurnRing(t.Context(), 7*time.Hour); err != nil || !turned { // each is in a slot of its own
			t.Fatalf("TurnRing() = %v, %v", turned, err)
		}
	}
	desk := NewDesk(o.Pool(), o.names, patience)
	cases := map[string]struct {
		selection Selection
		want      []message.ID
		more      bool
	}{
		"all of it, key by key":       {Selection{Limit: 9}, ids(a, c, b), false},
		"from a time on":              {Selection{From: at[1], Limit: 9}, ids(c, b), false},
		"up to a time":                {Selection{To: at[2], Limit: 9}, ids(a, b), false},
		"between times":               {Selection{From: at[1], To: at[2], Limit: 9}, ids(b), false},
		"of a key":                    {Selection{Keys: []string{"a"}, Limit: 9}, ids(a, c), false},
		"of a destination":            {Selection{Destinations: []string{"eu"}, Limit: 9}, ids(b), false},
		"of the default destination":  {Selection{Destinations: []string{""}, Limit: 9}, ids(a, c), false},
		"by their events":             {Selection{Events: ids(c, b), Limit: 9}, ids(c, b), false},
		"no more than so many":        {Selection{Limit: 2}, ids(a, c), true},
		"exactly so many":             {Selection{Limit: 3}, ids(a, c, b), false},
		"nothing of another key":      {Selection{Keys: []string{"c"}, Limit: 9}, nil, false},
		"an event that was not there": {Selection{Events: []message.ID{{1}}, Limit: 9}, nil, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, more, err := desk.Archived(t.Context(), tc.selection)
			if err != nil || more != tc.more {
				t.Fatalf("Archived() = more %v, %v", more, err)
			}
			var got []message.ID
			for i := range found {
				got = append(got, found[i].ID)
				if found[i].BrokerPosition != "ORDERS@1" || found[i].PublishedAt.IsZero() || found[i].Version == nil {
					t.Errorf("found %+v", found[i])
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// A look at the archive reads the slots of its times and no other.
func TestALookAtTheArchiveSparesSlotsOfOtherTimes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	for range slots - 1 {
		o.age("1 h")
		if turned, err := s.TurnRing(t.Context(), 7*time.Hour); err != nil || !turned {
			t.Fatalf("TurnRing() = %v, %v", turned, err)
		}
	}
	from := testkit.Value[time.Time](o.DB, `SELECT clock_timestamp() - interval '90 min'`)
	got := testkit.Values[int16](o.DB, o.names.SQL(slotsSQL), &from, (*time.Time)(nil))
	slices.Sort(got)
	if diff := cmp.Diff([]int16{5, 6, 7}, got); diff != "" {
		t.Errorf("slots of the last 90 minutes (-want +got):\n%s", diff)
	}
	if got := testkit.Values[int16](o.DB, o.names.SQL(slotsSQL), (*time.Time)(nil), &from); len(got) != slots-2 {
		t.Errorf("slots %v of what is older, want all but the last two", got)
	}
}

func TestKeysAreMovedWhole(t *testing.T) {
	t.Parallel()
	of := func(shard int16, keys ...string) []Archived {
		out := make([]Archived, len(keys))
		for i, key := range keys {
			out[i] = Archived{OrderingKey: key, shard: shard}
		}
		return out
	}
	cases := map[string]struct {
		chosen []Archived
		want   int
	}{
		"one message":                            {of(0, "a"), 1},
		"keys that are few":                      {of(0, "a", "b", "b"), 3},
		"as many whole keys as there is room":    {of(0, "a", "a", "b", "c", "c"), 3},
		"a key that is larger than there is":     {of(0, "a", "a", "a", "a", "a", "b"), 5},
		"a large key behind a small one":         {of(0, "a", "b", "b", "b", "b"), 1},
		"only the messages of one shard":         {append(of(0, "a"), of(1, "b")...), 1},
		"a key that is as large as there is":     {of(0, "a", "a", "a"), 3},
		"a key that is as large, and one behind": {of(0, "a", "a", "a", "b"), 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := wholeKeys(tc.chosen, 3); got != tc.want {
				t.Errorf("wholeKeys() = %d, want %d", got, tc.want)
			}
		})
	}
}

// A message that somebody wrote again with its old id stays what it is.
func TestAMessageThatIsInTheOutboxAlreadyIsNotMoved(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	r := o.put("k")
	if _, err := s.Settle(t.Context(), l, ids(r), places(1)); err != nil {
		t.Fatal(err)
	}
	o.Exec(insertSQL, [16]byte(r.ID), "k", 2)
	desk := NewDesk(o.Pool(), o.names, patience)
	chosen, _, err := desk.Archived(t.Context(), Selection{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	got, err := desk.Republish(t.Context(), chosen, Decision{Actor: "ada", Why: "a test"})
	if err != nil || got != (Republished{Gone: 1}) || o.archived() != 1 || o.rows() != 1 || o.orphans() != 0 {
		t.Errorf("Republish() = %+v, %v; %d archived, %d rows", got, err, o.archived(), o.rows())
	}
}

func TestATableWithoutAnArchiveRefusesToRepublish(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	desk := NewDesk(o.Pool(), postgres.Names{Schema: o.Schema, Outbox: "outbox_event"}, patience)
	_, _, err := desk.Archived(t.Context(), Selection{Limit: 10})
	if _, refused := errors.AsType[*RefusedError](err); !refused {
		t.Errorf("Archived() = %v, want a refusal", err)
	}
}
