package inboxdb_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

func kindOf(t *testing.T, err error) verdict.Kind {
	t.Helper()
	var trouble *verdict.Trouble
	if !errors.As(err, &trouble) {
		t.Fatalf("error = %v, want a trouble", err)
	}
	return trouble.Kind
}

// drainAll drains until nothing is due.
func (in *inbox) drainAll(s *inboxdb.Store, rules verdict.Rules) (decisions []string) {
	in.t.Helper()
	for range 1000 {
		d, err := s.Drain(in.t.Context(), job(rules), admit)
		if err != nil {
			in.t.Fatalf("Drain() error = %v", err)
		}
		if !d.Found {
			return decisions
		}
		decisions = append(decisions, actions(d.Decisions)...)
	}
	in.t.Fatal("a key stays due for ever")
	return nil
}

func TestOnlyOneProcessDrainsAKey(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, in *inbox) {
		t.Helper()
		first, second := in.store(), in.store()
		in.apply(first, order("b", "k", 2), order("c", "k", 3), order("a", "k", 1))
		tx := in.begin(`LOCK TABLE effect IN SHARE MODE`)
		done := make(chan error, 1)
		ctx := t.Context()
		go func() {
			_, err := first.Drain(ctx, job(verdict.Rules{}), admit)
			done <- err
		}()
		in.blocked(1)
		d, err := second.Drain(t.Context(), job(verdict.Rules{}), admit)
		if err != nil || d.Found {
			t.Errorf("Drain() of a key that another drains = %+v, %v, want nothing", d, err)
		}
		in.commit(tx)
		if err := <-done; err != nil {
			t.Fatalf("Drain() error = %v", err)
		}
		if diff := cmp.Diff([]string{"k@1", "k@2", "k@3"}, in.effects()); diff != "" {
			t.Errorf("effects differ (-want +got):\n%s", diff)
		}
	})
}

func TestALongQueueIsDrainedInPartsAndNothingPassesIt(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	var late []*verdict.Item
	for v := int64(2); v <= 180; v++ {
		late = append(late, order("e"+time.Duration(v).String(), "k", v))
	}
	in.apply(s, late...)
	in.apply(s, order("first", "k", 1))
	if d, err := s.Drain(
		t.Context(),
		job(verdict.Rules{}),
		admit,
	); err != nil || len(d.Decisions) == 0 ||
		len(d.Decisions) > 50 {
		t.Fatalf("Drain() = %d decisions, %v", len(d.Decisions), err)
	}
	if diff := cmp.Diff([]string{"parked"}, in.apply(s, order("last", "k", 181))); diff != "" {
		t.Errorf("a message that arrives while its key drains (-want +got):\n%s", diff)
	}
	in.drainAll(s, verdict.Rules{})
	got := in.effects()
	if len(got) != 181 || got[180] != "k@181" {
		t.Errorf("%d effects, want 181 in order", len(got))
	}
	if n := testkit.Value[int64](
		in.DB,
		`SELECT count(*) FROM message_inbox_key WHERE state <> 'O' OR due_at IS NOT NULL`,
	); n > 0 {
		t.Error("the key is not open afterwards")
	}
}

func TestAParkedMessageThatWasAppliedBeforeHasNoSecondEffect(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.apply(s, order("b", "k", 2), order("a", "k", 1))
	in.Exec(`UPDATE message_inbox SET outcome = 'A' WHERE event_id = 'b'`)
	if diff := cmp.Diff([]string{"duplicate"}, in.drainAll(s, verdict.Rules{})); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"k@1"}, in.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
}

func TestTwoMessagesOfOneVersionDoNotBothApply(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.apply(s, order("b", "k", 2), order("b2", "k", 2), order("a", "k", 1))
	if diff := cmp.Diff(
		[]string{"applied", "dead_lettered VersionConflict"},
		in.drainAll(s, verdict.Rules{}),
	); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
	outcomes := testkit.Values[string](in.DB, `SELECT event_id || outcome::text FROM message_inbox ORDER BY 1`)
	if diff := cmp.Diff([]string{"aA", "b2D", "bA"}, outcomes); diff != "" {
		t.Errorf("outcomes differ (-want +got):\n%s", diff)
	}
}

func TestThePauseGrowsWithAttemptsAndWithTime(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	in.Exec(`ALTER TABLE effect ADD CONSTRAINT never CHECK (key <> 'bad')`)
	in.apply(s, order("a", "bad", 1))
	in.Exec(`UPDATE message_parked SET attempts = 6, first_failed_at = clock_timestamp() - interval '1 hour'`)
	j := job(verdict.Rules{})
	var attempts int
	var failing time.Duration
	j.Pause = func(n int, since time.Duration) time.Duration {
		attempts, failing = n, since
		return time.Hour
	}
	d, err := s.Drain(t.Context(), j, admit)
	if err != nil || !d.Found || d.Decisions[0].Failure == nil || d.Decisions[0].Failure.Code != "23514" {
		t.Fatalf("Drain() = %+v, %v", d, err)
	}
	if attempts != 7 || failing < time.Hour || failing > time.Hour+time.Minute {
		t.Errorf("the pause was asked for %d attempts and %v, want 7 and an hour", attempts, failing)
	}
	due := testkit.Value[bool](
		in.DB,
		`SELECT due_at BETWEEN now() + interval '59 minutes' AND now() + interval '61 minutes'
		FROM message_inbox_key`,
	)
	if !due {
		t.Error("the key is not due in an hour")
	}
}

func TestTheFinishedSequenceNeverGoesBackWithinAStream(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	owner := verdict.Owner{Resource: "shop/billing", UID: "1", Lease: time.Minute}
	if err := s.Claim(t.Context(), owner); err != nil {
		t.Fatalf("Claim() error = %v", err)
	}
	steps := []struct {
		stream string
		finish uint64
		want   uint64
	}{{"ORDERS", 7, 7}, {"ORDERS", 3, 7}, {"ORDERS", 9, 9}, {"OTHER", 2, 2}}
	for _, step := range steps {
		if err := s.Finish(t.Context(), step.stream, step.finish); err != nil {
			t.Fatalf("Finish() error = %v", err)
		}
		stream, got, err := s.Finished(t.Context())
		if err != nil || stream != step.stream || got != step.want {
			t.Errorf(
				"Finished() after %d of %s = %s, %d, %v, want %d",
				step.finish,
				step.stream,
				stream,
				got,
				err,
				step.want,
			)
		}
	}
}

func TestAConsumerNameHasOneResource(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()
	mine := verdict.Owner{Resource: "shop/billing", UID: "1", Lease: time.Minute}
	again := verdict.Owner{Resource: "shop/billing", UID: "2", Lease: time.Minute}
	other := verdict.Owner{Resource: "shop/copy", UID: "3", Lease: time.Minute}
	for name, owner := range map[string]verdict.Owner{"the first": mine, "the one made again": again} {
		if err := s.Claim(t.Context(), owner); err != nil {
			t.Errorf("Claim() of %s: %v", name, err)
		}
	}
	var inUse *verdict.NameInUseError
	if err := s.Claim(t.Context(), other); !errors.As(err, &inUse) || inUse.Owner != "shop/billing" {
		t.Errorf("Claim() of another = %v, want NameInUseError", err)
	}
	in.Exec(`UPDATE message_inbox_owner SET seen_until = clock_timestamp() - interval '1 second'`)
	if err := s.Claim(t.Context(), other); err != nil {
		t.Errorf("Claim() after the heartbeat has expired: %v", err)
	}
}
