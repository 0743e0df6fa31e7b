package inboxdb_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

// blamelessStates are those that say nothing of the message whose statement meets them. One more, 25006, has a test of its
// own: it costs the connection.
var blamelessStates = map[string]string{
	"a serialization failure":       "40001",
	"a deadlock":                    "40P01",
	"a connection failure":          "08006",
	"a refused password":            "28000",
	"a full disk":                   "53100",
	"a server that stops":           "57P01",
	"a foreign server's bad answer": "58030",
	"an internal error":             "XX000",
}

// failing makes the handler's statements of keys fail, until it is called again.
func (in *inbox) failing(state, keys string) {
	in.t.Helper()
	in.Exec(`CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.key LIKE '` + keys + `' THEN RAISE EXCEPTION 'x' USING ERRCODE = '` + state + `'; END IF;
			RETURN NEW;
		END $$`)
	in.Exec(`CREATE OR REPLACE TRIGGER fail BEFORE INSERT ON effect FOR EACH ROW EXECUTE FUNCTION fail()`)
}

func apart(rules verdict.Rules) verdict.Job {
	j := job(rules)
	j.Apart = true
	return j
}

// drainApart drains until nothing is due, with a second try where the first one fails.
func (in *inbox) drainApart(s *inboxdb.Store) (decisions []string) {
	in.t.Helper()
	for range 100 {
		d, err := s.Drain(in.t.Context(), apart(verdict.Rules{}), admit)
		if err != nil {
			in.t.Fatalf("Drain() error = %v", err)
		}
		if !d.Found {
			return decisions
		}
		decisions = append(decisions, actions(d.Decisions)...)
		bad := verdict.KeyHash(consumerName, "shop", "", "bad") // the pause of these tests is none
		in.Exec(`UPDATE message_inbox_key SET due_at = NULL WHERE key_hash = $1`, [16]byte(bad))
	}
	in.t.Fatal("a key stays due for ever")
	return nil
}

func TestAMessageThatAloneMeetsABlamelessErrorWaitsByItself(t *testing.T) {
	t.Parallel()
	for name, state := range blamelessStates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInbox(t)
			s := in.store()
			in.failing(state, "bad")
			items := []*verdict.Item{
				order("a", "k", 1), order("b", "bad", 1), order("c", "k", 2), order("d", "bad", 2), order("e", "l", 1),
			}

			ds, err := s.Apply(t.Context(), job(verdict.Rules{}), items)
			kindOf(t, err)
			none := []string{"undecided", "undecided", "undecided", "undecided", "undecided"}
			if diff := cmp.Diff(none, actions(ds)); diff != "" {
				t.Errorf("decisions before it is found out differ (-want +got):\n%s", diff)
			}

			ds, err = s.Apply(t.Context(), apart(verdict.Rules{}), items)
			if err != nil {
				t.Fatalf("Apply() error = %v", err)
			}
			want := []string{"applied", "parked", "applied", "undecided", "applied"}
			if diff := cmp.Diff(want, actions(ds)); diff != "" {
				t.Errorf("decisions differ (-want +got):\n%s", diff)
			}
			if n := testkit.Value[int64](in.DB, `SELECT sum(attempts)::bigint FROM message_parked`); n != 0 {
				t.Errorf("%d attempts count, want none: nobody knows what failed", n)
			}

			in.failing(state, "nobody")
			in.apply(s, items[3])
			in.drainAll(s, verdict.Rules{})
			if diff := cmp.Diff([]string{"k@1", "k@2", "l@1", "bad@1", "bad@2"}, in.effects()); diff != "" {
				t.Errorf("effects differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestABlamelessErrorOfAllMessagesIsTheEnvironments(t *testing.T) {
	t.Parallel()
	for name, state := range blamelessStates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInbox(t)
			s := in.store()
			in.failing(state, "%")
			items := []*verdict.Item{order("a", "k", 1), order("b", "l", 1)}

			ds, err := s.Apply(t.Context(), apart(verdict.Rules{}), items)
			kindOf(t, err)
			if diff := cmp.Diff([]string{"undecided", "undecided"}, actions(ds)); diff != "" {
				t.Errorf("decisions differ (-want +got):\n%s", diff)
			}
			if n := testkit.Value[int64](in.DB, `SELECT count(*) FROM message_parked`); n != 0 {
				t.Errorf("%d messages are parked, want none", n)
			}
			in.failing(state, "nobody")
			in.apply(s, items...)
			if diff := cmp.Diff([]string{"k@1", "l@1"}, in.effects()); diff != "" {
				t.Errorf("effects differ (-want +got):\n%s", diff)
			}
		})
	}
}

// A read-only answer drops the connection, since another host may accept writes; until the server has noticed, the dropped
// session holds its keys, and they are left out as if another process had them.
func TestAReadOnlyAnswerIsTheEnvironments(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.failing("25006", "%")
	items := []*verdict.Item{order("a", "k", 1), order("b", "l", 1)}
	testkit.Eventually(t, patience, "the answer to be told", func() bool {
		ds, err := s.Apply(t.Context(), apart(verdict.Rules{}), items)
		if diff := cmp.Diff([]string{"undecided", "undecided"}, actions(ds)); diff != "" {
			t.Errorf("decisions differ (-want +got):\n%s", diff)
		}
		return err != nil
	})
	in.failing("25006", "nobody")
	testkit.Eventually(t, patience, "both effects", func() bool {
		if _, err := s.Apply(t.Context(), apart(verdict.Rules{}), items); err != nil {
			t.Errorf("Apply() error = %v", err)
		}
		return cmp.Equal([]string{"k@1", "l@1"}, in.effects())
	})
}

func TestABlamelessErrorBehindARefusedMessageIsFoundOutToo(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.failing("XX000", "bad")
	in.Exec(`ALTER TABLE effect ADD CHECK (key <> 'refused')`)
	items := []*verdict.Item{order("a", "refused", 1), order("b", "bad", 1), order("c", "k", 1)}

	ds, err := s.Apply(t.Context(), apart(verdict.Rules{}), items)
	if err != nil {
		t.Fatalf("Apply() error = %v", err)
	}
	if diff := cmp.Diff([]string{"parked", "parked", "applied"}, actions(ds)); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
	attempts := testkit.Values[string](in.DB, `SELECT ordering_key || ' ' || attempts FROM message_parked ORDER BY 1`)
	if diff := cmp.Diff([]string{"bad 0", "refused 1"}, attempts); diff != "" {
		t.Errorf("attempts differ (-want +got):\n%s", diff)
	}
}

// The key that is due for the longest time comes first: one that always fails must not stay there.
func TestAParkedMessageThatMeetsABlamelessErrorLetsOthersBeDrained(t *testing.T) {
	t.Parallel()
	for name, state := range blamelessStates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInbox(t)
			s := in.store()
			in.failing("23514", "%")
			in.apply(s, order("a", "bad", 1))
			in.apply(s, order("b", "k", 1), order("c", "bad", 2))
			in.failing(state, "bad")

			_, err := s.Drain(t.Context(), job(verdict.Rules{}), admit)
			kindOf(t, err)
			if diff := cmp.Diff([]string{"parked", "applied"}, in.drainApart(s)); diff != "" {
				t.Errorf("decisions differ (-want +got):\n%s", diff)
			}
			in.failing(state, "nobody")
			in.Exec(`UPDATE message_inbox_key SET due_at = now() WHERE state = 'R'`)
			in.drainAll(s, verdict.Rules{})
			if diff := cmp.Diff([]string{"k@1", "bad@1", "bad@2"}, in.effects()); diff != "" {
				t.Errorf("effects differ (-want +got):\n%s", diff)
			}
		})
	}
}
