package relay_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/test/testkit"
)

// blockedTeam starts a relay on a team's own table whose key "k" is blocked by its second message.
func blockedTeam(t *testing.T) *world {
	t.Helper()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	w.broker.poison(func(m message.Message) bool { return m.OrderingKey == "k" && second(m) }, rejected)
	w.put("k", 5)
	w.put("other", 3)
	w.start(options{config: threeAttempts})
	w.awaitDead(1)
	w.awaitSQL("the rest waits", `count(*) FILTER (WHERE status = 'pending') = 3
		AND count(*) FILTER (WHERE status = 'published') = 4 FROM outbox_event`)
	return w
}

// counted sums a counter of the process up; of labels only those with these values, in order of the labels' names.
func (p *process) counted(name string, labels ...string) (sum float64) {
	p.w.t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		p.w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "postrider_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			got := make([]string, 0, len(labels))
			for _, pair := range m.GetLabel() {
				got = append(got, pair.GetValue())
			}
			if len(labels) == 0 || slices.Equal(got, labels) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// refused says that somebody's decision was refused.
func refused(err error) bool {
	_, ok := errors.AsType[*outboxdb.RefusedError](err)
	return ok
}

func TestADeadLetterOfATeamsTableIsMarkedAndBlocksItsKey(t *testing.T) {
	t.Parallel()
	w := blockedTeam(t)
	if got := testkit.Value[string](w.DB, `SELECT concat_ws(' ', aggregate_version, attempts, last_error)
		FROM outbox_event WHERE status = 'failed'`); got != "2 3 TooLarge" {
		t.Errorf("the failed row = %q", got)
	}
	o, err := w.desk().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []outboxdb.BlockedKey{{OrderingKey: "k", FailureID: w.dead(), Reason: "TooLarge", Waiting: 3}}
	diff := cmp.Diff(want, o.BlockedBy)
	if diff != "" || o.DeadLetters != 1 || o.Backlog.Blocked != 3 || o.BlockedKeys != 1 {
		t.Errorf("overview = %+v (-want +got):\n%s", o, diff)
	}
	l, err := w.desk().Get(t.Context(), w.dead(), true)
	if err != nil || string(l.Payload) != `{"n": 2}` || *l.Version != 2 || l.Destination != "orders" || !l.BlocksKey {
		t.Errorf("dead letter = %+v, %v", l, err)
	}
}

func TestADeadLetterOfATeamsTableIsReplayedAtItsPlace(t *testing.T) {
	t.Parallel()
	w := blockedTeam(t)
	id := w.dead()
	if err := w.desk().Replay(t.Context(), id, somebody, false); err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("it failed again", `state = 'Open' AND generation = 1 AND blocks_key FROM message_failure`)
	w.awaitSQL("its row says so", `count(*) = 1 FROM outbox_event WHERE status = 'failed'`)
	w.broker.script(nil)
	if err := w.desk().Replay(t.Context(), id, somebody, false); err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("every row is published", `bool_and(status = 'published') FROM outbox_event`)
	w.awaitState(id, "Replayed")
	w.inOrder("k", 5)
	w.awaitSQL("nothing is left beside it", `(SELECT count(*) FROM outbox_event_gate) + (SELECT count(*)
		FROM outbox_event_failing) = 0`)
	if got := w.audit(); got != "somebody Replay a test 1, somebody Replay a test 1" {
		t.Errorf("audit = %q", got)
	}
}

func TestAKeyOfATeamsTableGoesOnWithoutADiscardedMessage(t *testing.T) {
	t.Parallel()
	w := blockedTeam(t)
	if err := w.desk().Discard(t.Context(), w.dead(), somebody); err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("the others are published", `count(*) FILTER (WHERE status = 'published') = 7
		AND count(*) FILTER (WHERE status = 'failed') = 1 FROM outbox_event`)
	if diff := cmp.Diff([]int64{1, 3, 4, 5}, w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
}

func TestARowThatTheTeamChangedIsNotReplayed(t *testing.T) {
	t.Parallel()
	w := blockedTeam(t)
	w.Exec(`UPDATE outbox_event SET status = 'published' WHERE status = 'failed'`)
	if err := w.desk().Replay(t.Context(), w.dead(), somebody, false); !refused(err) {
		t.Errorf("Replay() = %v, want a refusal", err)
	}
	if err := w.desk().Discard(t.Context(), w.dead(), somebody); err != nil {
		t.Error(err)
	}
	w.awaitEmpty()
}

func TestAMessageOfATeamsTableIsSkippedAndReplayedOutOfOrder(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	w.broker.poison(second, rejected)
	w.put("k", 3)
	w.start(options{config: threeAttempts, skip: true})
	w.awaitDead(1)
	w.awaitSQL("the others are published", `count(*) FILTER (WHERE status = 'published') = 2 FROM outbox_event`)
	w.broker.script(nil)
	id := w.dead()
	if err := w.desk().Replay(t.Context(), id, somebody, false); !refused(err) {
		t.Errorf("Replay() = %v, want a word about its order", err)
	}
	if err := w.desk().Replay(t.Context(), id, somebody, true); err != nil {
		t.Fatal(err)
	}
	w.awaitState(id, "Replayed")
	if diff := cmp.Diff([]int64{1, 3, 2}, w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
	w.awaitSQL("no gate stays", `count(*) = 0 FROM outbox_event_gate`)
}

func TestADeadLetterWhereATeamsTableHasNoOrderHoldsUpNothing(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.OpenOutboxTable(), 2)
	bad := w.put("k", 3)[1].ID
	w.broker.poison(func(m message.Message) bool { return m.ID == bad }, rejected)
	w.start(options{config: threeAttempts})
	w.awaitDead(1)
	w.awaitSQL("the others are published", `count(*) FILTER (WHERE status = 'DELIVERED') = 2
		AND count(*) FILTER (WHERE status = 'DEAD') = 1 FROM openoutbox_events`)
	w.awaitSQL("no gate stays", `count(*) = 0 FROM openoutbox_events_gate`)
	w.broker.script(nil)
	id := w.dead()
	if err := w.desk().Replay(t.Context(), id, somebody, true); err != nil {
		t.Fatal(err)
	}
	w.awaitState(id, "Replayed")
	w.awaitEmpty()
}

func TestAMessageOfATeamsTableIsMovedByHand(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	w.broker.poison(second, broker.Confirmation{Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied})
	ids := w.put("k", 3)
	w.start(options{config: threeAttempts})
	w.awaitSQL("it fails", `count(*) = 1 FROM outbox_event_failing`)
	if _, err := w.desk().Move(t.Context(), ids[2].ID, somebody); !refused(err) {
		t.Errorf("a message behind another was moved: %v", err)
	}
	id, err := w.desk().Move(t.Context(), ids[1].ID, somebody)
	if err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("the key is blocked", `state = 'Blocked' FROM outbox_event_gate`)
	w.broker.script(nil)
	if err := w.desk().Replay(t.Context(), id, somebody, false); err != nil {
		t.Fatal(err)
	}
	w.awaitEmpty()
	w.inOrder("k", 3)
}

// Where no status stands for dead letters there are none: a message that spent its budget is tried on, and is not
// counted as what it is not.
func TestWhatSpentItsBudgetIsTriedOnWhereNoStatusSaysOtherwise(t *testing.T) {
	t.Parallel()
	table := testkit.ClassicTable()
	table.Change = func(c *config.Columns) { c.Values.Failed = "" }
	w := newTeamWorld(t, table, 1)
	w.broker.poison(second, rejected)
	w.put("k", 3)
	p := w.start(options{config: threeAttempts})
	w.awaitSQL("it was tried beyond its budget", `attempts > 5 AND status = 'pending' FROM outbox_event
		WHERE aggregate_version = 2`)
	if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	if n := p.counted("outbox_dead_lettered_messages_total"); n != 0 {
		t.Errorf("%v messages are counted as dead letters", n)
	}
	if _, err := w.desk().Move(t.Context(), message.ID{1}, somebody); !refused(err) {
		t.Errorf("Move() = %v, want a refusal", err)
	}
	w.broker.script(nil)
	w.awaitEmpty()
	w.inOrder("k", 3)
}

// A refused row has the status that says so while it waits, and only then.
func TestARefusedRowIsMarkedWhileItWaits(t *testing.T) {
	t.Parallel()
	table := testkit.ClassicTable()
	table.Change = func(c *config.Columns) { c.Values.Waiting = "publishing" }
	w := newTeamWorld(t, table, 1)
	w.broker.poison(func(m message.Message) bool { return m.OrderingKey == "k" && second(m) }, rejected)
	w.put("k", 4)
	w.put("other", 3)
	w.start(options{})
	w.awaitSQL("it is marked, and the rest of its key is not",
		`string_agg(concat_ws(' ', aggregate_version, status), ',' ORDER BY aggregate_version) =
			'1 published,2 publishing,3 pending,4 pending' FROM outbox_event WHERE aggregate_id = 'k'`)
	w.awaitSQL("the other key is done", `bool_and(status = 'published') FROM outbox_event WHERE aggregate_id = 'other'`)
	o, err := w.desk().Overview(t.Context())
	if err != nil || o.Backlog.Retrying != 3 || o.Backlog.Ready != 0 {
		t.Errorf("backlog = %+v, %v, want all three behind the gate", o.Backlog, err)
	}
	w.broker.script(nil)
	w.awaitSQL("every row is published", `bool_and(status = 'published') FROM outbox_event`)
	w.inOrder("k", 4)
	w.inOrder("other", 3)
}
