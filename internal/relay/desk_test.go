package relay_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/test/testkit"
)

var somebody = outboxdb.Decision{Actor: "somebody", Why: "a test"}

func (w *world) desk() *outboxdb.Desk { return outboxdb.NewDesk(w.Pool(), w.names, patience) }

// dead returns the id of the only open dead letter.
func (w *world) dead() int64 {
	w.t.Helper()
	return testkit.Value[int64](w.DB, `SELECT max(failure_id) FROM message_failure WHERE state = 'Open'`)
}

func (w *world) awaitState(id int64, state string) {
	w.t.Helper()
	w.awaitSQL("the dead letter is "+state, `state = $2 FROM message_failure WHERE failure_id = $1`, id, state)
}

func (w *world) audit() string {
	w.t.Helper()
	return testkit.Value[string](w.DB, `SELECT string_agg(concat_ws(' ', actor, action, why, failure_id), ', '
		ORDER BY audit_id) FROM message_audit`)
}

// blocked starts a relay whose key "k" is blocked by its second message, with many behind it.
func blocked(t *testing.T, bad func(m message.Message) bool) *world {
	t.Helper()
	w := newWorld(t, 1)
	w.broker.poison(bad, rejected)
	w.put("k", 40) // more than are freed at once
	w.start(options{config: threeAttempts})
	w.awaitDead(1)
	w.awaitSQL("the rest waits", `count(*) = 38 AND bool_and(held) FROM message_outbox`)
	return w
}

func second(m message.Message) bool { return m.AggregateVersion == 2 }

func TestAReplayedDeadLetterArrivesAtItsPlaceAndItsKeyFollows(t *testing.T) {
	t.Parallel()
	w := blocked(t, second)
	id := w.dead()
	w.broker.script(nil)

	if err := w.desk().Replay(t.Context(), id, somebody, false); err != nil {
		t.Fatal(err)
	}

	w.awaitEmpty()
	w.awaitState(id, "Replayed")
	w.awaitSQL("no gate stays", `count(*) = 0 FROM message_outbox_gate`)
	if diff := cmp.Diff(upTo(40), w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
	if got := w.audit(); got != "somebody Replay a test 1" {
		t.Errorf("audit = %q", got)
	}
	if err := w.desk().Replay(t.Context(), id, somebody, false); err == nil {
		t.Error("what arrived was replayed again")
	}
}

func TestAReplayThatFailsAgainIsTheSameDeadLetter(t *testing.T) {
	t.Parallel()
	w := blocked(t, second)
	id := w.dead()
	if err := w.desk().Replay(t.Context(), id, somebody, false); err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("it failed again", `state = 'Open' AND generation = 1 AND blocks_key FROM message_failure`)
	w.awaitSQL("the key is blocked", `state = 'Blocked' FROM message_outbox_gate`)
	if w.left() != 38 {
		t.Errorf("%d rows left, want those behind it", w.left())
	}
}

func TestADiscardedDeadLetterLeavesAMarkerAndItsKeyFollows(t *testing.T) {
	t.Parallel()
	w := blocked(t, func(m message.Message) bool { return second(m) && m.Type != message.SkippedType })
	id := w.dead()

	if err := w.desk().Discard(t.Context(), id, somebody); err != nil {
		t.Fatal(err)
	}

	w.awaitEmpty()
	if diff := cmp.Diff(upTo(40), w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
	w.awaitState(id, "Discarded")
	if got := w.audit(); got != "somebody Discard a test 1" {
		t.Errorf("audit = %q", got)
	}
}

func TestOnlyTheLowestDeadLetterOfAKeyIsDecidedAbout(t *testing.T) {
	t.Parallel()
	w := blocked(t, second)
	w.Exec(`INSERT INTO message_failure (origin, origin_name, source, event_id, event_type, ordering_key,
		aggregate_version, destination, position, source_position, payload_digest, reason, attempts, first_failed_at,
		last_failed_at, blocks_key)
		VALUES ('Relay', 'shop/orders', 'shop', gen_random_uuid()::text, 't', 'k', 99, '', 9999, 'message_outbox@9999', '',
		'r', 1, now(), now(), true)`)
	later := w.dead()
	for name, err := range map[string]error{
		"replay":  w.desk().Replay(t.Context(), later, somebody, false),
		"discard": w.desk().Discard(t.Context(), later, somebody),
	} {
		if _, ok := errors.AsType[*outboxdb.RefusedError](err); !ok {
			t.Errorf("%s of the later one = %v, want a refusal", name, err)
		}
	}
}

func TestAMessageThatFailsForEverIsMovedByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.broker.poison(second, broker.Confirmation{Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied})
	ids := w.put("k", 3)
	w.start(options{config: threeAttempts})
	w.awaitSQL("it fails", `count(*) = 1 FROM message_outbox WHERE last_failed_at IS NOT NULL`)

	if _, err := w.desk().Move(t.Context(), ids[2].ID, somebody); err == nil {
		t.Error("a message behind another was moved")
	}
	id, err := w.desk().Move(t.Context(), ids[1].ID, somebody)
	if err != nil {
		t.Fatal(err)
	}
	w.awaitSQL("the key is blocked", `state = 'Blocked' FROM message_outbox_gate`)
	w.broker.script(nil)
	if err := w.desk().Replay(t.Context(), id, somebody, false); err != nil {
		t.Fatal(err)
	}
	w.awaitEmpty()
	if diff := cmp.Diff(upTo(3), w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
}

// A message that was skipped has lost its place: it is sent again only on purpose, and by itself.
func TestASkippedMessageIsReplayedOutOfOrderOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.broker.poison(func(m message.Message) bool { return second(m) && m.Type != message.SkippedType }, rejected)
	w.put("k", 3)
	w.start(options{config: threeAttempts, skip: true})
	w.awaitEmpty()
	w.broker.script(nil)
	id := w.dead()

	if err := w.desk().Replay(t.Context(), id, somebody, false); err == nil {
		t.Fatal("it was replayed without a word about its order")
	}
	if err := w.desk().Replay(t.Context(), id, somebody, true); err != nil {
		t.Fatal(err)
	}
	w.awaitState(id, "Replayed")
	if diff := cmp.Diff([]int64{1, 2, 3, 2}, w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
}

func TestAnOverviewShowsWhatWaitsAndWhy(t *testing.T) {
	t.Parallel()
	w := blocked(t, second)
	w.Exec(`UPDATE message_outbox_lease SET held_until = clock_timestamp() + interval '1 min'`)
	o, err := w.desk().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	type seen struct {
		Relay                             string
		Shards, Held                      int
		Blocked, BlockedKeys, DeadLetters int64
		Reasons                           []outboxdb.ReasonCount
		By                                []outboxdb.BlockedKey
		Dated                             bool
	}
	want := seen{
		Relay: "shop/orders", Shards: 1, Held: 1, Blocked: 38, BlockedKeys: 1, DeadLetters: 1, Dated: true,
		Reasons: []outboxdb.ReasonCount{{Reason: "TooLarge", Count: 1}},
		By:      []outboxdb.BlockedKey{{OrderingKey: "k", FailureID: w.dead(), Reason: "TooLarge", Waiting: 38}},
	}
	got := seen{
		o.Relay, o.Shards, o.Held, o.Backlog.Blocked, o.BlockedKeys, o.DeadLetters, o.Reasons, o.BlockedBy,
		o.OldestDeadLetterAt != nil && time.Since(*o.OldestDeadLetterAt) < time.Hour,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("overview (-want +got):\n%s", diff)
	}
}

// A key that is written to all the time must get out of Draining: what is left is freed as soon as it is little.
func TestABusyKeyLeavesDraining(t *testing.T) {
	t.Parallel()
	w := blocked(t, second)
	w.broker.script(nil)
	if err := w.desk().Replay(t.Context(), w.dead(), somebody, false); err != nil {
		t.Fatal(err)
	}
	written := 40
	testkit.Eventually(t, patience, "the key flows while it is written to", func() bool {
		w.put("k", 2)
		written += 2
		return testkit.Value[int64](w.DB, `SELECT count(*) FROM message_outbox_gate`) == 0
	})
	w.awaitEmpty()
	if diff := cmp.Diff(upTo(written), w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
}
