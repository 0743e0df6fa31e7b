package verdict_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verdict"
)

// item returns a keyed message with a statement; an id of its own where none is given.
func item(id string, version int64) *verdict.Item {
	return &verdict.Item{
		Envelope: message.Envelope{EventID: id, Source: "shop", AggregateVersion: version},
		Keyed:    true, Key: verdict.Hash{1}, Statement: &verdict.Statement{SQL: "SELECT 1"},
	}
}

func marker(id string, version int64) *verdict.Item {
	it := item(id, version)
	it.Statement = nil
	return it
}

func refused(id string, version int64) *verdict.Item {
	it := item(id, version)
	it.Refusal = &verdict.Refusal{Reason: deadletter.UnstorableText}
	return it
}

func bury(r deadletter.Reason) verdict.Decision {
	return verdict.Decision{Action: verdict.Bury, Reason: r}
}

func TestDecide(t *testing.T) {
	t.Parallel()

	apply, skip := verdict.Decision{Action: verdict.Apply}, verdict.Decision{Action: verdict.Skip}
	park, gap := verdict.Decision{Action: verdict.Park}, verdict.Decision{Action: verdict.Park, Gap: true}
	unkeyed := item("a", 0)
	unkeyed.Keyed = false
	unreadable := refused("a", 0)
	unreadable.Keyed = false

	cases := map[string]struct {
		versions verdict.Versions
		key      verdict.Key
		item     *verdict.Item
		want     verdict.Decision
	}{
		"the first version of a new key applies": {
			verdict.Enforce,
			verdict.Key{State: verdict.Open},
			item("a", 1),
			apply,
		},
		"the next version applies": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			item("a", 5),
			apply,
		},
		"the missing version applies": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Gap},
			item("a", 5),
			apply,
		},
		"a later version waits for the missing one": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			item("a", 7),
			gap,
		},
		"so does a new key's second version": {
			verdict.Enforce,
			verdict.Key{State: verdict.Open},
			item("a", 2),
			gap,
		},
		"a version that was used is a conflict": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			item("a", 4),
			bury(deadletter.VersionConflict),
		},
		"it is one also while the key waits": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Retry},
			item("a", 4),
			bury(deadletter.VersionConflict),
		},
		"no version cannot be placed": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			item("a", 0),
			bury(deadletter.VersionMissing),
		},
		"nor can it be compared": {
			verdict.IgnoreOlder,
			verdict.Key{State: verdict.Open},
			item("a", 0),
			bury(deadletter.VersionMissing),
		},
		"behind a failed message everything parks": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Retry},
			item("a", 5),
			park,
		},
		"behind a dead letter everything parks": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Blocked},
			item("a", 5),
			park,
		},
		"a poison parks before its turn": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			refused("a", 7),
			gap,
		},
		"a poison is buried at its turn": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			refused("a", 5),
			bury(deadletter.UnstorableText),
		},
		"a marker takes its place": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			marker("a", 5),
			skip,
		},
		"a marker waits for its place": {
			verdict.Enforce,
			verdict.Key{Last: 4, State: verdict.Open},
			marker("a", 6),
			gap,
		},
		"a newer version applies over a hole": {
			verdict.IgnoreOlder,
			verdict.Key{Last: 4, State: verdict.Open},
			item("a", 9),
			apply,
		},
		"an older version is skipped": {
			verdict.IgnoreOlder,
			verdict.Key{Last: 9, State: verdict.Open},
			item("a", 4),
			skip,
		},
		"an older one parks while the key waits": {
			verdict.IgnoreOlder,
			verdict.Key{Last: 9, State: verdict.Retry},
			item("a", 4),
			park,
		},
		"without versions arrival is the order": {
			verdict.Off,
			verdict.Key{State: verdict.Open},
			item("a", 0),
			apply,
		},
		"without versions a failure still holds": {
			verdict.Off,
			verdict.Key{State: verdict.Retry},
			item("a", 0),
			park,
		},
		"a message without a key has no place": {
			verdict.Enforce,
			verdict.Key{State: verdict.Blocked},
			unkeyed,
			apply,
		},
		"an unreadable record is buried at once": {
			verdict.Enforce,
			verdict.Key{State: verdict.Blocked},
			unreadable,
			bury(deadletter.UnstorableText),
		},
		"with versions off an old version is no news": {
			verdict.Off,
			verdict.Key{Last: 9, State: verdict.Open},
			item("a", 4),
			apply,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := verdict.Rules{Versions: tc.versions}.Decide(tc.key, tc.item)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("decision differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeyHashTellsQuadruplesApart(t *testing.T) {
	t.Parallel()

	seen := map[verdict.Hash][4]string{}
	for _, q := range [][4]string{
		{"c", "s", "", "k"},
		{"c", "", "s", "k"},
		{"cs", "", "", "k"},
		{"c", "s", "k", ""},
		{"c", "s", "", "kk"},
		{"c2", "s", "", "k"},
	} {
		h := verdict.KeyHash(q[0], q[1], q[2], q[3])
		if other, twice := seen[h]; twice {
			t.Errorf("%q and %q have one hash", q, other)
		}
		seen[h] = q
		if again := verdict.KeyHash(q[0], q[1], q[2], q[3]); again != h {
			t.Errorf("the hash of %q changes", q)
		}
	}
}
