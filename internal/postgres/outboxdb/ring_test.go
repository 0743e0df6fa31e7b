package outboxdb

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

func (o *outbox) currentSlot() int {
	o.t.Helper()
	return int(testkit.Value[int16](o.DB, `SELECT slot FROM message_outbox_ring WHERE current`))
}

// age makes the current slot, and the times at which others were left, older.
func (o *outbox) age(by string) {
	o.t.Helper()
	o.Exec(`UPDATE message_outbox_ring SET since = since - $1::interval, left_at = left_at - $1::interval`, by)
}

func TestTheRingTurnsByASeventhOfTheRetention(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	turn := func(want bool) {
		t.Helper()
		if got, err := s.TurnRing(t.Context(), 7*time.Hour); err != nil || got != want {
			t.Fatalf("TurnRing() = %v, %v; want %v", got, err, want)
		}
	}
	settle := func() {
		t.Helper()
		if _, err := s.Settle(t.Context(), l, ids(o.put("k")), places(1)); err != nil {
			t.Fatal(err)
		}
	}
	turn(false)
	for slot := range slots {
		if got := o.currentSlot(); got != slot {
			t.Fatalf("current slot = %d, want %d", got, slot)
		}
		settle()
		o.age("59 min")
		turn(false)
		o.age("2 min")
		turn(true)
	}
	if got := o.currentSlot(); got != 0 {
		t.Fatalf("current slot = %d after a whole round, want 0", got)
	}
	if got := o.archived(); got != slots-1 {
		t.Errorf("%d rows archived, want those of the seven slots that were not emptied", got)
	}
}

// A row lives at least the retention: a slot left too recently delays the turn.
func TestASlotIsNotEmptiedBeforeItsRowsAreOldEnough(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	o.Exec(`UPDATE message_outbox_ring SET left_at = clock_timestamp() - interval '6 h' WHERE slot = 1`)
	o.Exec(`UPDATE message_outbox_ring SET since = clock_timestamp() - interval '1 day' WHERE current`)
	if turned, err := s.TurnRing(t.Context(), 7*time.Hour); err != nil || turned {
		t.Errorf("TurnRing() = %v, %v; the next slot was left 6 of 7 hours ago", turned, err)
	}
	o.Exec(`UPDATE message_outbox_ring SET left_at = clock_timestamp() - interval '8 h' WHERE slot = 1`)
	if turned, err := s.TurnRing(t.Context(), 7*time.Hour); err != nil || !turned {
		t.Errorf("TurnRing() = %v, %v; the next slot is old enough", turned, err)
	}
}

func TestTwoProcessesTurnTheRingOnce(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, _ := o.holder()
		o.age("1 day")
		first := o.open()
		o.exec(first, s.sql.ringCurrent, interval(time.Hour))
		turned := make(chan bool, 1)
		go func() {
			got, err := s.TurnRing(t.Context(), time.Hour)
			if err != nil {
				t.Error(err)
			}
			turned <- got
		}()
		o.awaitBlocked()
		o.exec(first, s.sql.ringLeave, 0)
		o.exec(first, s.sql.ringEnter, 1)
		o.commit(first)
		if result(t, turned) {
			t.Error("the second process turned the ring too")
		}
		if got := o.currentSlot(); got != 1 {
			t.Errorf("current slot = %d, want 1", got)
		}
	})
}

// A reader in the next slot delays the turn by lock_timeout and nothing else: settles go on.
func TestAReaderInTheNextSlotOnlyDelaysTheTurn(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	o.age("1 day")
	reader := o.open()
	o.exec(reader, `SELECT count(*) FROM message_outbox_published_1`)
	failed := make(chan error, 1)
	go func() {
		_, err := s.TurnRing(t.Context(), time.Hour)
		failed <- err
	}()
	o.awaitBlocked()
	if _, err := s.Settle(t.Context(), l, ids(o.put("k")), places(1)); err != nil {
		t.Errorf("a settle beside a waiting turn: %v", err)
	}
	if err := result(t, failed); err == nil {
		t.Error("TurnRing() passed a reader")
	}
	o.commit(reader)
	if turned, err := s.TurnRing(t.Context(), time.Hour); err != nil || !turned {
		t.Errorf("TurnRing() after the reader = %v, %v", turned, err)
	}
}

func day(n int) *time.Time {
	d := time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC)
	return &d
}

func TestBacklog(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	empty, err := s.Backlog(t.Context(), []int16{0})
	if err != nil || empty.Ready != 0 || empty.OldestAt != nil || empty.AtLeast || empty.ObservedAt.IsZero() {
		t.Fatalf("Backlog() of an empty table = %+v, %v", empty, err)
	}
	oldest, _, retrying := o.put("a"), o.put("b"), o.put("c")
	blocked, behind := o.put("d"), o.put("d")
	o.refuse(s, l, retrying)
	o.refuse(s, l, blocked, behind)
	o.Exec(`UPDATE message_outbox_gate SET state = 'Blocked', due = NULL WHERE ordering_key = 'd'`)
	set := func(r shard.Row, at string) {
		o.Exec(`UPDATE message_outbox SET created_at = $2::timestamptz WHERE event_id = $1`, [16]byte(r.ID), at)
	}
	set(oldest, "2026-01-03T00:00:00Z")
	set(retrying, "2026-01-02T00:00:00Z")
	set(behind, "2026-01-01T00:00:00Z")
	o.Exec(`INSERT INTO message_failure (origin, origin_name, source, event_id, event_type, ordering_key,
		destination, source_position, payload_digest, reason, attempts, first_failed_at, last_failed_at, state)
		SELECT 'Relay', name, 'shop', 'e' || n, 't', 'd', '', '', '', 'r', 1, at, at, state FROM (VALUES
			(1, 'shop/orders', '2026-01-04T00:00:00Z'::timestamptz, 'Open'),
			(2, 'shop/orders', '2026-01-05T00:00:00Z', 'Open'),
			(3, 'shop/orders', '2026-01-01T00:00:00Z', 'Discarded'),
			(4, 'shop/others', '2026-01-01T00:00:00Z', 'Open')) f(n, name, at, state)`)

	got, err := s.Backlog(t.Context(), []int16{0, 5})
	if err != nil {
		t.Fatal(err)
	}
	want := shard.Backlog{
		Ready: 2, Retrying: 1, Blocked: 2, BlockedKeys: 1,
		OldestAt: day(2), OldestBlockedAt: day(1), DeadLetters: 2, OldestDeadLetterAt: day(4),
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(shard.Backlog{}, "ObservedAt")); diff != "" {
		t.Errorf("backlog (-want +got):\n%s", diff)
	}
}

func TestBacklogStopsCountingAndSaysSo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
		SELECT gen_random_uuid(), 't', 'shop', 'k', i, '', now() FROM generate_series(1, 100500) i`,
	)
	got, err := s.Backlog(t.Context(), []int16{0})
	if err != nil || got.Ready != countBound || !got.AtLeast {
		t.Errorf("backlog = %+v, %v; want at least %d", got, err, countBound)
	}
}
