package outboxdb

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

func TestSettle(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change  func(*lease.Lease)
		wantErr error
		want    shard.Settlement
		left    int64
	}{
		"the current holder settles what it claimed": {
			change: func(*lease.Lease) {}, want: shard.Settlement{Moved: 2},
		},
		"a relay whose term is over settles nothing": {
			change: func(l *lease.Lease) { l.Term-- }, wantErr: lease.ErrLost, left: 2,
		},
		"another holder with the same term settles nothing": {
			change: func(l *lease.Lease) { l.Holder[0]++ }, wantErr: lease.ErrLost, left: 2,
		},
		"another relay's lease settles nothing": {
			change: func(l *lease.Lease) { l.Relay = "shop/other" }, wantErr: lease.ErrLost, left: 2,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			s, l := o.holder()
			a, b := o.put("k1"), o.put("k2")
			tc.change(&l)

			got, err := s.Settle(t.Context(), l, ids(a, b), places(2))

			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("Settle() error = %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(shard.Settlement{}, "Xid")); diff != "" {
				t.Errorf("settlement (-want +got):\n%s", diff)
			}
			if got := o.rows(); got != tc.left {
				t.Errorf("%d rows left, want %d", got, tc.left)
			}
			if got := o.archived(); got != 2-tc.left {
				t.Errorf("%d rows archived, want %d", got, 2-tc.left)
			}
		})
	}
}

func TestSettleKeepsTheRowAsItWas(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	r := o.put("k1")
	o.Exec(`UPDATE message_outbox SET headers = '{"tenant":"a"}', payload = '\x00ff', destination = 'orders.eu',
		attempts = 3, last_error_code = 'TooLarge', traceparent = '00-a', expires_at = 'infinity'`)
	const columns = `position, shard, event_id, event_type, schema_version, source, ordering_key, aggregate_version,
		destination, content_type, payload, headers, traceparent, occurred_at, expires_at, created_at, attempts,
		unknowns, first_failed_at, last_failed_at, last_error_code, failure_id`
	before := testkit.Value[string](o.DB, `SELECT r::text FROM (SELECT `+columns+` FROM message_outbox) r`)

	if _, err := s.Settle(t.Context(), l, ids(r), []string{"ORDERS@7"}); err != nil {
		t.Fatal(err)
	}

	after := testkit.Value[string](o.DB, `SELECT r::text FROM (SELECT `+columns+` FROM message_outbox_published) r`)
	if before != after {
		t.Errorf("archived row = %s, want %s", after, before)
	}
	if got := testkit.Value[string](o.DB, `SELECT broker_position FROM message_outbox_published`); got != "ORDERS@7" {
		t.Errorf("broker position = %q", got)
	}
}

// A settle whose commit got no answer is sent again: the rows are in the archive, and that is not a loss.
func TestSettleRepeatedAfterAnUnknownCommitFindsTheArchive(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		a, b, gone := o.put("k1"), o.put("k1"), o.put("k2")
		if _, err := s.Settle(t.Context(), l, ids(a), places(1)); err != nil {
			t.Fatal(err)
		}
		o.Exec(`DELETE FROM message_outbox WHERE event_id = $1`, [16]byte(gone.ID))

		got, err := s.Settle(t.Context(), l, ids(a, b, gone), places(3))
		if err != nil {
			t.Fatal(err)
		}

		want := shard.Settlement{Moved: 1, Already: 1, Vanished: 1}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(shard.Settlement{}, "Xid")); diff != "" {
			t.Errorf("settlement (-want +got):\n%s", diff)
		}
		if got := o.archived(); got != 2 {
			t.Errorf("%d rows archived, want each of the two once", got)
		}
	})
}

// The repeated statement meets the first one while that still runs: it waits, and moves nothing twice.
func TestSettleRepeatedWhileTheFirstStillRunsMovesEachRowOnce(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		r := o.put("k1")
		first := o.open()
		o.exec(first, s.sql.settle, l.Relay, l.Shard, l.Holder, l.Term, uuids(ids(r)), places(1))
		second := make(chan shard.Settlement, 1)
		go func() {
			got, err := s.Settle(t.Context(), l, ids(r), places(1))
			if err != nil {
				t.Error(err)
			}
			second <- got
		}()
		o.awaitBlocked()
		o.commit(first)

		if got := result(t, second); got.Moved != 0 || got.Already != 1 {
			t.Errorf("second settle moved %d, already %d; want 0 and 1", got.Moved, got.Already)
		}
		if got := o.archived(); got != 1 {
			t.Errorf("%d rows archived, want 1", got)
		}
	})
}

func TestATakeoverWaitsForARunningSettle(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		r := o.put("k1")
		o.expire()
		settle := o.open()
		o.exec(settle, s.sql.settle, l.Relay, l.Shard, l.Holder, l.Term, uuids(ids(r)), places(1))
		next := o.store()
		took := make(chan lease.Lease, 1)
		go func() {
			got, ok, err := next.Acquire(t.Context(), 0, time.Minute)
			if err != nil || !ok {
				t.Errorf("Acquire() = %v, %v", ok, err)
			}
			took <- got
		}()
		o.awaitBlocked()
		o.commit(settle)

		if got := result(t, took); got.Term != l.Term+1 {
			t.Errorf("term = %d, want %d", got.Term, l.Term+1)
		}
		if got := o.archived(); got != 1 {
			t.Errorf("the settle that ran before the takeover archived %d rows, want 1", got)
		}
	})
}

func TestASettleThatWaitedForATakeoverMovesNothing(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		r := o.put("k1")
		o.expire()
		next := o.store()
		takeover := o.open()
		o.exec(takeover, next.sql.acquire, "shop/orders", int16(0), next.cfg.Holder, interval(time.Minute))
		settled := make(chan error, 1)
		go func() {
			_, err := s.Settle(t.Context(), l, ids(r), places(1))
			settled <- err
		}()
		o.awaitBlocked()
		o.commit(takeover)

		if err := result(t, settled); !errors.Is(err, lease.ErrLost) {
			t.Errorf("Settle() = %v, want %v", err, lease.ErrLost)
		}
		if o.archived() != 0 || o.rows() != 1 {
			t.Errorf("archived %d, left %d; want 0 and 1", o.archived(), o.rows())
		}
	})
}

// A takeover that waits for a settle comes before the next one: with a shared lock, settles would overtake it for as long
// as there is something to settle.
func TestASettleDoesNotOvertakeAWaitingTakeover(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		r := o.put("k1")
		o.expire()
		next := o.store()
		running := o.open()
		o.exec(running, s.sql.settle, l.Relay, l.Shard, l.Holder, l.Term, uuids(nil), []string{})
		taken := make(chan bool, 1)
		go func() {
			_, ok, err := next.Acquire(t.Context(), 0, time.Minute)
			taken <- ok && err == nil
		}()
		o.awaitBlocked()
		settled := make(chan error, 1)
		go func() {
			_, err := s.Settle(t.Context(), l, ids(r), places(1))
			settled <- err
		}()
		testkit.Eventually(t, patience, "the second settle to wait, or to overtake", func() bool {
			return o.blocked() == 2 || len(settled) > 0
		})
		o.commit(running)

		if err := result(t, settled); !errors.Is(err, lease.ErrLost) {
			t.Errorf("Settle() = %v, want %v", err, lease.ErrLost)
		}
		if !result(t, taken) {
			t.Error("the takeover did not get the shard")
		}
	})
}

// Without the fence a zombie's settle goes through. This is what the term is for.
func TestMutationSettleWithoutTheFenceLetsAZombieWrite(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	r := o.put("k1")
	o.expire()
	o.acquire(o.store())
	s.sql.settle = replace(t, s.sql.settle, "AND holder = $3 AND term = $4 FOR NO KEY UPDATE",
		"AND ($3::uuid, $4::bigint) IS NOT NULL FOR NO KEY UPDATE")

	got, err := s.Settle(t.Context(), l, ids(r), places(1))

	if err != nil || got.Moved != 1 {
		t.Fatalf("the mutated settle moved %d, %v; the test above would not notice a missing fence", got.Moved, err)
	}
}

func TestSettleDueMovesTheHeadAndOpensTheGateTogether(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	head, next, other := o.put("k1"), o.put("k1"), o.put("k2")
	if err := s.Refuse(t.Context(), l, []shard.Refusal{refusal(head, 1), refusal(other, 1)}, ids(next)); err != nil {
		t.Fatal(err)
	}

	settled, released, err := s.SettleDue(t.Context(), l, ids(head), places(1), []string{"k1"}, 4)
	if err != nil {
		t.Fatal(err)
	}

	if settled.Moved != 1 {
		t.Errorf("moved %d rows, want 1", settled.Moved)
	}
	want := []shard.Released{{Gate: "k1", Open: true, First: next.Position}}
	if diff := cmp.Diff(want, released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	if o.gate("k1") != "none" || o.gate("k2") != "Retry due" {
		t.Errorf("gates: k1 %s, k2 %s", o.gate("k1"), o.gate("k2"))
	}
	l.Term--
	if _, _, err := s.SettleDue(
		t.Context(),
		l,
		ids(other),
		places(1),
		[]string{"k2"},
		4,
	); !errors.Is(
		err,
		lease.ErrLost,
	) {
		t.Errorf("SettleDue() in a term that is over = %v, want %v", err, lease.ErrLost)
	}
	if o.gate("k2") != "Retry due" || o.rows() != 2 {
		t.Error("a lost lease changed something")
	}
}

func TestAMissingRowIsLookedUpInEverySlot(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	var moved []message.ID
	for range slots {
		r := o.put("k1")
		if _, err := s.Settle(t.Context(), l, ids(r), places(1)); err != nil {
			t.Fatal(err)
		}
		moved = append(moved, r.ID)
		o.Exec(`UPDATE message_outbox_ring SET since = since - interval '1 h', left_at = left_at - interval '2 days'`)
		if _, err := s.TurnRing(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	// The eighth turn emptied the first slot: its row is vanished, as far as anybody can still know.
	got, err := s.Settle(t.Context(), l, moved, places(len(moved)))
	if err != nil {
		t.Fatal(err)
	}
	if got.Already != slots-1 || got.Vanished != 1 {
		t.Errorf("already %d, vanished %d; want %d and 1", got.Already, got.Vanished, slots-1)
	}
}
