package inboxdb_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

func (in *inbox) apply(s *inboxdb.Store, items ...*verdict.Item) []string {
	in.t.Helper()
	ds, err := s.Apply(in.t.Context(), job(verdict.Rules{}), items)
	if err != nil {
		in.t.Fatalf("Apply() error = %v", err)
	}
	return actions(ds)
}

// answer is what a call in the background returned.
type answer struct {
	actions []string
	err     error
}

// background applies in a goroutine of its own.
func (in *inbox) background(s *inboxdb.Store, j verdict.Job, items ...*verdict.Item) <-chan answer {
	done := make(chan answer, 1)
	ctx := in.t.Context()
	go func() {
		ds, err := s.Apply(ctx, j, items)
		done <- answer{actions(ds), err}
	}()
	return done
}

// expect waits for a call in the background.
func (in *inbox) expect(done <-chan answer, want ...string) {
	in.t.Helper()
	select {
	case got := <-done:
		if got.err != nil {
			in.t.Fatalf("Apply() error = %v", got.err)
		}
		if diff := cmp.Diff(want, got.actions); diff != "" {
			in.t.Errorf("decisions differ (-want +got):\n%s", diff)
		}
	case <-time.After(patience):
		in.t.Fatal("Apply() does not return")
	}
}

// begin starts a transaction of another process.
func (in *inbox) begin(statement string, args ...any) pgx.Tx {
	in.t.Helper()
	tx, err := in.Connect().Begin(in.t.Context())
	if err != nil {
		in.t.Fatalf("beginning: %v", err)
	}
	if _, err := tx.Exec(in.t.Context(), statement, args...); err != nil {
		in.t.Fatalf("%s: %v", statement, err)
	}
	return tx
}

func (in *inbox) commit(tx pgx.Tx) {
	in.t.Helper()
	if err := tx.Commit(in.t.Context()); err != nil {
		in.t.Fatalf("committing: %v", err)
	}
}

// blocked waits until so many of the store's sessions wait for a lock.
func (in *inbox) blocked(n int64) {
	in.t.Helper()
	testkit.Eventually(in.t, patience, fmt.Sprintf("%d sessions wait for a lock", n), func() bool {
		return testkit.Value[int64](in.DB, `SELECT count(*) FROM pg_stat_activity WHERE usename = $1
			AND wait_event_type = 'Lock'`, in.own.User) >= n
	})
}

// both runs a test on the usual database and on one whose default is SERIALIZABLE.
func both(t *testing.T, test func(t *testing.T, in *inbox)) {
	t.Helper()
	t.Run("with the usual isolation", func(t *testing.T) {
		t.Parallel()
		test(t, newInbox(t))
	})
	t.Run("with a database default of SERIALIZABLE", func(t *testing.T) {
		t.Parallel()
		test(t, newInbox(t, testkit.Serializable()))
	})
}

func TestABatchCommitsEffectsInboxAndKeysTogether(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()

	got := in.apply(s, order("a", "k", 1), order("b", "l", 1), order("c", "k", 2), order("a", "k", 1))

	if diff := cmp.Diff([]string{"applied", "applied", "applied", "duplicate"}, got); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"k@1", "l@1", "k@2"}, in.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	again := in.apply(s, order("c", "k", 2), order("d", "k", 3))
	if diff := cmp.Diff([]string{"duplicate", "applied"}, again); diff != "" {
		t.Errorf("decisions of a redelivery differ (-want +got):\n%s", diff)
	}
}

// The digest of a duplicate whose first copy commits while we wait for it is invisible to the statement that waited.
func TestADuplicateThatCommitsMeanwhileIsComparedToo(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, in *inbox) {
		t.Helper()
		same, forged := order("same", "k", 1), order("forged", "l", 1)
		tx := in.begin(`INSERT INTO message_inbox (consumer_name, source, event_id, payload_digest, outcome)
			VALUES ($1, 'shop', 'same', $2, 'A'), ($1, 'shop', 'forged', '\x00', 'A')`, consumerName, same.Digest[:])
		done := in.background(in.store(), job(verdict.Rules{}), same, forged)
		in.blocked(1)
		in.commit(tx)

		in.expect(done, "duplicate", "dead_lettered DuplicateIdDifferentPayload")
		if got := in.effects(); len(got) > 0 {
			t.Errorf("effects = %v, want none", got)
		}
	})
}

// Without the key's lock the second process would park version 2 behind a key that the first has just moved on.
func TestAKeyInAnotherProcesssTransactionIsLeftOut(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, in *inbox) {
		t.Helper()
		first, second := in.store(), in.store()
		in.apply(first, order("a", "k", 1), order("x", "l", 1))
		tx := in.begin(`LOCK TABLE effect IN SHARE MODE`)
		done := in.background(first, job(verdict.Rules{}), order("b", "k", 2))
		in.blocked(1)

		marker := order("y", "l", 2)
		marker.Statement = nil // so that it does not wait for the table
		if diff := cmp.Diff(
			[]string{"undecided", "skipped"},
			in.apply(second, order("c", "k", 3), marker),
		); diff != "" {
			t.Errorf("decisions while the key is held differ (-want +got):\n%s", diff)
		}
		in.commit(tx)
		in.expect(done, "applied")
		if diff := cmp.Diff([]string{"applied"}, in.apply(second, order("c", "k", 3))); diff != "" {
			t.Errorf("decisions afterwards differ (-want +got):\n%s", diff)
		}
		if n := testkit.Value[int64](in.DB, `SELECT count(*) FROM message_parked`); n != 0 {
			t.Errorf("%d messages are parked, want none", n)
		}
	})
}

// One process parks behind a gap while another, which has the key, fills it: whoever commits second must see the first.
func TestAGapThatIsFilledWhileAMessageParksIsNotForgotten(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, in *inbox) {
		t.Helper()
		first, second := in.store(), in.store()
		in.apply(first, order("a", "k", 1))
		tx := in.begin(`LOCK TABLE message_parked IN SHARE MODE`)
		done := in.background(first, job(verdict.Rules{}), order("c", "k", 3)) // parks: waits for the table
		in.blocked(1)
		if diff := cmp.Diff([]string{"undecided"}, in.apply(second, order("b", "k", 2))); diff != "" {
			t.Errorf("decisions while the key is held differ (-want +got):\n%s", diff)
		}
		in.commit(tx)
		in.expect(done, "parked")
		in.apply(second, order("b", "k", 2))
		in.drainAll(second, verdict.Rules{})
		if diff := cmp.Diff([]string{"k@1", "k@2", "k@3"}, in.effects()); diff != "" {
			t.Errorf("effects differ (-want +got):\n%s", diff)
		}
	})
}

// Two batches that hold the same ids in opposite order deadlock if they insert as they came. A third transaction keeps
// both in the middle of their insert.
func TestBatchesWithTheSameIDsInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, in *inbox) {
		t.Helper()
		unkeyed := func(ids ...string) []*verdict.Item {
			var items []*verdict.Item
			for _, id := range ids {
				it := order(id, id, 1)
				it.Keyed = false
				items = append(items, it)
			}
			return items
		}
		tx := in.begin(`INSERT INTO message_inbox (consumer_name, source, event_id, payload_digest, outcome)
			VALUES ($1, 'shop', 'm', '\x00', 'A')`, consumerName)
		a := in.background(in.store(), job(verdict.Rules{}), unkeyed("a", "m", "z")...)
		in.blocked(1)
		b := in.background(in.store(), job(verdict.Rules{}), unkeyed("z", "m", "a")...)
		in.blocked(2)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatalf("rolling back: %v", err)
		}

		in.expect(a, "applied", "applied", "applied")
		in.expect(b, "duplicate", "duplicate", "duplicate")
	})
}

// A key of which a message was left out stays left out for the rest of the call, also when it becomes free meanwhile.
func TestNothingOfAKeyPassesAMessageThatWasLeftOut(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.apply(s, order("seed", "held", 1), order("bad-seed", "bad", 1))
	in.Exec(`ALTER TABLE effect ADD CHECK (key <> 'bad') NOT VALID`)
	key := in.begin(`SELECT FROM message_inbox_key WHERE key_hash = $1 FOR UPDATE`, [16]byte(order("", "held", 0).Key))
	gate := in.begin(`SELECT pg_advisory_xact_lock(hashtext($1))`, in.Schema)

	off := job(verdict.Rules{Versions: verdict.Off})
	wait := order("wait", "wait", 1)
	wait.Statement.SQL = `WITH x AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(hashtext('` + in.Schema + `')) l) ` +
		`INSERT INTO effect (event_id, key, version, data) SELECT ($1::text), ($2::text), ($3::int8), ($4::jsonb) FROM x`
	items := []*verdict.Item{order("poison", "bad", 2), order("v2", "held", 2), wait}
	for i := range 70 { // so many that the next of the held key comes in a later transaction
		items = append(items, order(fmt.Sprint("f", i), fmt.Sprint("f", i), 1))
	}
	items = append(items, order("v3", "held", 3))
	done := in.background(s, off, items...)
	in.blocked(1) // the batch waits within its first statements, the key not being its own
	in.commit(key)
	in.commit(gate)

	got := <-done
	if got.err != nil {
		t.Fatalf("Apply() error = %v", got.err)
	}
	for i, it := range items {
		if it.EventID == "v3" && got.actions[i] == "applied" && got.actions[1] != "applied" {
			t.Errorf("version 3 of the key was applied before version 2: %v", got.actions)
		}
	}
	if got.actions[0] != "parked" || got.actions[2] != "applied" {
		t.Errorf("decisions = %v, want the poison parked and the others applied", got.actions[:3])
	}
}

func TestAWaitForAKeyEndsSoonAndTakesItWhenItIsFree(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.apply(s, order("a", "k", 1))
	tx := in.begin(`SELECT FROM message_inbox_key FOR UPDATE`)
	wait := job(verdict.Rules{})
	wait.Wait = true
	ds, err := s.Apply(t.Context(), wait, []*verdict.Item{order("b", "k", 2)})
	if err == nil && ds[0].Action != verdict.Undecided {
		t.Fatalf("Apply() = %v while the key is held", ds)
	}
	done := in.background(s, wait, order("b", "k", 2))
	in.blocked(1)
	in.commit(tx)
	in.expect(done, "applied")
}

func TestAKeyThatWasAddedInATransactionThatRolledBackIsAddedAgain(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.apply(s, order("a", "k", 1))
	in.Exec(`DELETE FROM message_inbox_key`) // as after a failover that lost it: the store still thinks it is there
	if diff := cmp.Diff([]string{"undecided"}, in.apply(s, order("b", "k", 1))); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"applied"}, in.apply(s, order("b", "k", 1))); diff != "" {
		t.Errorf("decisions of the next try differ (-want +got):\n%s", diff)
	}
}

func TestTheCallersEndIsNoTrouble(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.apply(s, order("a", "k", 1))
	tx := in.begin(`LOCK TABLE effect IN SHARE MODE`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Apply(ctx, job(verdict.Rules{}), []*verdict.Item{order("b", "k", 2)})
		done <- err
	}()
	in.blocked(1)
	cancel()
	if got := kindOf(t, <-done); got != verdict.Stopping {
		t.Errorf("kind = %v, want stopping", got)
	}
	in.commit(tx)
	in.applyFree(s, order("b", "k", 2))
}

// applyFree applies messages once their keys are free, which a session that was dropped may hold for a moment longer.
func (in *inbox) applyFree(s *inboxdb.Store, items ...*verdict.Item) {
	in.t.Helper()
	var got []string
	testkit.Eventually(in.t, patience, "the keys to be free", func() bool {
		got = in.apply(s, items...)
		return !slices.Contains(got, "undecided")
	})
	if diff := cmp.Diff(slices.Repeat([]string{"applied"}, len(items)), got); diff != "" {
		in.t.Errorf("decisions of the next try differ (-want +got):\n%s", diff)
	}
}

// Of several messages a smaller batch may still fit; of one it cannot be the size.
func TestATransactionThatTakesTooLongIsCutOff(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.apply(s, order("a", "k", 1))
	tx := in.begin(`LOCK TABLE message_inbox IN SHARE MODE`)
	short := job(verdict.Rules{})
	short.HandlerTimeout = 10 * time.Millisecond
	several := in.background(s, short, order("b", "k", 2), order("c", "k", 3))
	if got := kindOf(t, (<-several).err); got != verdict.Slow {
		t.Errorf("kind of a slow batch = %v, want slow", got)
	}
	var cut error
	testkit.Eventually(t, time.Minute, "the key is free of the batch that was cut off", func() bool {
		cut = (<-in.background(s, short, order("b", "k", 2))).err
		return cut != nil
	})
	if got := kindOf(t, cut); got != verdict.Environment {
		t.Errorf("kind of a slow message = %v, want environment", got)
	}
	in.commit(tx)
	in.applyFree(s, order("b", "k", 2), order("c", "k", 3))
}
