package outboxdb

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// refuse refuses a row of each key given and holds the others.
func (o *outbox) refuse(s *Store, l lease.Lease, refused shard.Row, hold ...shard.Row) {
	o.t.Helper()
	if err := s.Refuse(o.t.Context(), l, []shard.Refusal{refusal(refused, 1)}, ids(hold...)); err != nil {
		o.t.Fatalf("Refuse(): %v", err)
	}
}

func (o *outbox) heldRows() []int64 {
	o.t.Helper()
	return testkit.Values[int64](o.DB, `SELECT position FROM message_outbox WHERE held ORDER BY position`)
}

func numbers(rows ...shard.Row) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = int64(r.Position)
	}
	return out
}

func TestHoldHoldsOnlyRowsWhoseGateExists(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	head, gated, free := o.put("k1"), o.put("k1"), o.put("k2")
	o.refuse(s, l, head)

	for _, attempt := range []string{"the first time", "repeated after a commit without an answer"} {
		held, err := s.Hold(t.Context(), l, ids(gated, free))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(positions(gated), held.Positions); diff != "" {
			t.Errorf("held %s (-want +got):\n%s", attempt, diff)
		}
	}
	if diff := cmp.Diff(numbers(head, gated), o.heldRows()); diff != "" {
		t.Errorf("held rows (-want +got):\n%s", diff)
	}
}

// A release and a hold meet. The hold waits for the release and must then see that the gate is gone; one whose
// snapshot is older than its wait leaves a held row without a gate, which nothing would ever send.
func holdMeetsRelease(t *testing.T, o *outbox, s *Store, l lease.Lease) {
	t.Helper()
	head, row := o.put("k1"), o.put("k1")
	o.refuse(s, l, head)
	release := o.open()
	o.exec(release, s.sql.lock, l.Relay, l.Shard, l.Holder, l.Term)
	o.exec(release, s.sql.release, l.Shard, []string{"k1"}, 4, l.Relay)
	done := make(chan error, 1)
	go func() {
		_, err := s.Hold(t.Context(), l, ids(row))
		done <- err
	}()
	testkit.Eventually(t, patience, "the hold has finished or waits", func() bool {
		return len(done) == 1 || testkit.Value[bool](o.DB, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
			WHERE application_name = $1 AND wait_event_type = 'Lock')`, o.Schema)
	})
	o.commit(release)
	if err := result(t, done); err != nil {
		t.Fatalf("Hold(): %v", err)
	}
}

func TestAHoldThatMeetsAReleaseLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		holdMeetsRelease(t, o, s, l)
		if got := o.orphans(); got != 0 {
			t.Errorf("%d held rows without a gate", got)
		}
	})
}

func TestMutationHoldWithoutTheLeaseLockLeavesAnOrphan(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	s.sql.lock = replace(t, s.sql.lock, "FOR NO KEY UPDATE", "")
	holdMeetsRelease(t, o, s, l)
	if got := o.orphans(); got != 1 {
		t.Errorf("%d orphans; the test above would not notice a missing lock", got)
	}
}

func TestMutationHoldThatWaitsInItsOwnStatementLeavesAnOrphan(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	s.sql.lock = replace(t, s.sql.lock, "FOR NO KEY UPDATE", "")
	s.sql.holdGated = `WITH l AS MATERIALIZED (SELECT 1 FROM message_outbox_lease FOR NO KEY UPDATE)` +
		replace(t, s.sql.holdGated, "WHERE o.event_id", "WHERE EXISTS (SELECT 1 FROM l) AND o.event_id")
	holdMeetsRelease(t, o, s, l)
	if got := o.orphans(); got != 1 {
		t.Errorf("%d orphans; the lock must be a statement of its own", got)
	}
}

// defaultIsolation begins transactions as the database's default says.
type defaultIsolation struct{ DB }

func (d defaultIsolation) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	return d.DB.BeginTx(ctx, pgx.TxOptions{})
}

func TestMutationHoldWithTheDefaultIsolationLeavesAnOrphan(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testkit.OwnDatabase(map[string]string{"default_transaction_isolation": "repeatable read"}))
	s, l := o.holder()
	s.db = defaultIsolation{s.db}
	holdMeetsRelease(t, o, s, l)
	if got := o.orphans(); got != 1 {
		t.Errorf("%d orphans; the test above would not notice a BEGIN without its isolation level", got)
	}
}

func TestRefuseHoldsTheRestOfTheKeyAndCountsOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	head, rest := o.put("k1"), o.put("k1")
	o.put("k2")
	r := shard.Refusal{ID: head.ID, Gate: "k1", Attempts: 3, Unknowns: 1, Code: "TooLarge", Wait: time.Hour}

	for range 2 { // the second time stands for a commit without an answer
		if err := s.Refuse(t.Context(), l, []shard.Refusal{r}, ids(rest)); err != nil {
			t.Fatal(err)
		}
	}

	if diff := cmp.Diff(numbers(head, rest), o.heldRows()); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	got := testkit.Value[string](o.DB, `SELECT concat_ws(' ', attempts, unknowns, last_error_code,
		first_failed_at <= last_failed_at, last_failed_at > created_at) FROM message_outbox WHERE position = $1`,
		int64(head.Position))
	if got != "3 1 TooLarge t t" {
		t.Errorf("refused row = %q", got)
	}
	if got := testkit.Value[int16](o.DB, `SELECT max(attempts) FROM message_outbox WHERE position <> $1`,
		int64(head.Position)); got != 0 {
		t.Errorf("a row that was only held has %d attempts", got)
	}
	if o.gate("k1") != "Retry due" || o.gate("k2") != "none" {
		t.Errorf("gates: k1 %s, k2 %s", o.gate("k1"), o.gate("k2"))
	}
	if !testkit.Value[bool](o.DB, `SELECT due BETWEEN clock_timestamp() + interval '59 min'
		AND clock_timestamp() + interval '61 min' FROM message_outbox_gate`) {
		t.Error("the key is not due in an hour")
	}
}

func TestRefuseKeepsABlockedKeyBlocked(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	r := o.put("k1")
	o.Exec(`INSERT INTO message_outbox_gate VALUES (0, 'k1', 'Blocked', NULL)`)
	o.refuse(s, l, r)
	if got := o.gate("k1"); got != "Blocked" {
		t.Errorf("gate = %s, want Blocked without a due time", got)
	}
}

func TestAttemptsBeyondTheColumnStayAtItsBound(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	r := refusal(o.put("k1"), 1<<20)
	if err := s.Refuse(t.Context(), l, []shard.Refusal{r}, nil); err != nil {
		t.Fatal(err)
	}
	if got := testkit.Value[int16](o.DB, `SELECT attempts FROM message_outbox`); got != maxSmall {
		t.Errorf("attempts = %d", got)
	}
}

func TestGateWritesOfALostLeaseChangeNothing(t *testing.T) {
	t.Parallel()
	writes := map[string]func(*Store, context.Context, lease.Lease, shard.Row) error{
		"hold": func(s *Store, ctx context.Context, l lease.Lease, r shard.Row) error {
			_, err := s.Hold(ctx, l, ids(r))
			return err
		},
		"refuse": func(s *Store, ctx context.Context, l lease.Lease, r shard.Row) error {
			return s.Refuse(ctx, l, []shard.Refusal{refusal(r, 2)}, ids(r))
		},
		"release": func(s *Store, ctx context.Context, l lease.Lease, _ shard.Row) error {
			_, err := s.Release(ctx, l, []string{"k1"}, 4)
			return err
		},
		"postpone": func(s *Store, ctx context.Context, l lease.Lease, _ shard.Row) error {
			return s.Postpone(ctx, l, []shard.Delay{{Gate: "k1", Wait: time.Hour}})
		},
	}
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			s, l := o.holder()
			head, row := o.put("k1"), o.put("k1")
			o.refuse(s, l, head)
			state := func() string {
				return testkit.Value[string](
					o.DB,
					`SELECT (SELECT string_agg(o::text, ';' ORDER BY position) FROM message_outbox o)
					|| (SELECT coalesce(string_agg(g::text, ';'), '') FROM message_outbox_gate g)`,
				)
			}
			before := state()
			zombie := l
			zombie.Term--
			if err := write(s, t.Context(), zombie, row); !errors.Is(err, lease.ErrLost) {
				t.Errorf("error = %v, want %v", err, lease.ErrLost)
			}
			if after := state(); after != before {
				t.Errorf("state = %s, want %s", after, before)
			}
			if err := write(s, t.Context(), l, row); err != nil {
				t.Errorf("with the lease: %v", err)
			}
			if state() == before {
				t.Error("the holder's write changed nothing: this test shows nothing")
			}
		})
	}
}

func TestDueGivesTheHeadInRetryAndSeveralWhileDraining(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	var a, b []shard.Row
	for range 3 {
		a, b = append(a, o.put("a")), append(b, o.put("b"))
	}
	later, alone := o.put("later"), o.put("alone")
	o.refuse(s, l, a[0], a[1], a[2])
	o.refuse(s, l, b[0], b[1], b[2])
	o.refuse(s, l, alone)
	o.refuse(s, l, later)
	o.Exec(`UPDATE message_outbox_gate SET due = clock_timestamp() + CASE ordering_key
		WHEN 'later' THEN interval '1 h' WHEN 'b' THEN interval '-3 s' WHEN 'a' THEN interval '-2 s' ELSE interval '-1 s' END,
		state = CASE ordering_key WHEN 'b' THEN 'Draining' ELSE state END`)
	o.Exec(`DELETE FROM message_outbox WHERE ordering_key = 'alone'`)
	o.Exec(`UPDATE message_outbox SET unknowns = 2 WHERE position = $1`, int64(a[0].Position))

	got, err := s.Due(t.Context(), l, 10, 2)
	if err != nil {
		t.Fatal(err)
	}

	size := len(`{"a":1}`)
	want := []shard.DueGate{
		{Gate: "b", Draining: true, Heads: []shard.Head{{ID: b[0].ID, Size: size}, {ID: b[1].ID, Size: size}}},
		{Gate: "a", Heads: []shard.Head{{ID: a[0].ID, Size: size, Unknowns: 2}}},
		{Gate: "alone"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
	if got, err = s.Due(t.Context(), l, 1, 2); err != nil || len(got) != 1 || got[0].Gate != "b" {
		t.Errorf("Due() of one = %+v, %v; want the longest due", got, err)
	}
	rows, err := s.Load(t.Context(), l, ids(b[1], a[0]), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(positions(a[0], b[1]), positions(rows...)); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		rows      int
		failure   string // the state of a failure of the key
		wantOpen  bool
		wantGate  string
		wantReady int64
	}{
		"a key with few held rows is free again": {
			rows:      3,
			wantOpen:  true,
			wantGate:  "none",
			wantReady: 3,
		},
		"a key whose rows were deleted is free again": {wantOpen: true, wantGate: "none"},
		"a key with more rows than a step drains":     {rows: 4, wantGate: "Draining due"},
		"a key with an open dead letter is blocked":   {rows: 1, failure: "Open", wantGate: "Blocked"},
		"a dead letter that was dealt with blocks nothing": {
			rows:      1,
			failure:   "Discarded",
			wantOpen:  true,
			wantGate:  "none",
			wantReady: 1,
		},
		"a dead letter behind many rows blocks without draining": {rows: 5, failure: "Open", wantGate: "Blocked"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			s, l := o.holder()
			o.put("other")
			var rows []shard.Row
			for range tc.rows {
				rows = append(rows, o.put("k1"))
			}
			o.Exec(`UPDATE message_outbox SET held = true WHERE ordering_key = 'k1'`)
			o.Exec(`INSERT INTO message_outbox_gate VALUES (0, 'k1', 'Retry', clock_timestamp())`)
			if tc.failure != "" {
				o.Exec(`INSERT INTO message_failure (origin, origin_name, source, event_id, event_type, ordering_key,
					destination, source_position, payload_digest, reason, attempts, first_failed_at, last_failed_at, state,
					blocks_key)
					VALUES ('Relay', 'shop/orders', 'shop', 'e', 't', 'k1', '', '', '', 'r', 1, now(), now(), $1, true)`, tc.failure)
			}

			got, err := s.Release(t.Context(), l, []string{"k1", "absent"}, 3)
			if err != nil {
				t.Fatal(err)
			}

			want := []shard.Released{{Gate: "k1", Open: tc.wantOpen}}
			if tc.wantOpen && tc.rows > 0 {
				want[0].First = rows[0].Position
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("released (-want +got):\n%s", diff)
			}
			if got := o.gate("k1"); got != tc.wantGate {
				t.Errorf("gate = %s, want %s", got, tc.wantGate)
			}
			if got := testkit.Value[int64](
				o.DB,
				`SELECT count(*) FROM message_outbox WHERE NOT held AND ordering_key = 'k1'`,
			); got != tc.wantReady {
				t.Errorf("%d rows ready, want %d", got, tc.wantReady)
			}
			if o.orphans() != 0 {
				t.Error("a held row without a gate")
			}
		})
	}
}

// Ordering mode None, and a change of the mode while keys wait.
func TestAGateThatIsAnEventIDHoldsOneRow(t *testing.T) {
	t.Parallel()
	modes := map[string]bool{"in ordering mode None": true, "after a change to PerKey": false}
	for name, unordered := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			s, l := o.holder(func(c *Config) { c.Unordered = unordered })
			row, free := o.put("k1"), o.put("k1")
			r := shard.Refusal{ID: row.ID, Gate: row.ID.String(), Attempts: 1, Code: "TooLarge"}
			if err := s.Refuse(t.Context(), l, []shard.Refusal{r}, nil); err != nil {
				t.Fatal(err)
			}

			c := claimed(t, s, wide())
			if len(c.Rows) != 1 || c.Rows[0].ID != free.ID || c.Rows[0].Gated {
				t.Errorf("claimed %+v, want the neighbour, not gated", c.Rows)
			}
			due, err := s.Due(t.Context(), l, 10, 4)
			if err != nil || len(due) != 1 || len(due[0].Heads) != 1 || due[0].Heads[0].ID != row.ID {
				t.Fatalf("Due() = %+v, %v; want the row", due, err)
			}
			released, err := s.Release(t.Context(), l, []string{due[0].Gate}, 4)
			if err != nil || len(released) != 1 || released[0].First != row.Position {
				t.Errorf("Release() = %+v, %v; want the row at %d", released, err, row.Position)
			}
			if len(o.heldRows()) != 0 || o.gate(row.ID.String()) != "none" {
				t.Error("the row still waits")
			}
		})
	}
}

func TestARowOfAnUnorderedMessageIsCountedOnceBehindItsGate(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	row := o.put("k1")
	o.Exec(`UPDATE message_outbox SET ordering_key = event_id::text, aggregate_version = NULL`)
	r := shard.Refusal{ID: row.ID, Gate: row.ID.String(), Attempts: 1, Code: "TooLarge"}
	if err := s.Refuse(t.Context(), l, []shard.Refusal{r}, nil); err != nil {
		t.Fatal(err)
	}
	due, err := s.Due(t.Context(), l, 10, 4)
	if err != nil || len(due) != 1 || len(due[0].Heads) != 1 {
		t.Errorf("Due() = %+v, %v; want one key with one row", due, err)
	}
}

func TestPostponeMovesTheDueTimeOfWaitingKeysOnly(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	o.Exec(`INSERT INTO message_outbox_gate VALUES (0, 'r', 'Retry', clock_timestamp()),
		(0, 'd', 'Draining', clock_timestamp()), (0, 'b', 'Blocked', NULL), (0, 'x', 'Retry', clock_timestamp())`)
	err := s.Postpone(
		t.Context(),
		l,
		[]shard.Delay{{Gate: "r", Wait: time.Hour}, {Gate: "d", Wait: time.Hour}, {Gate: "b", Wait: time.Hour}},
	)
	if err != nil {
		t.Fatal(err)
	}
	got := testkit.Values[string](o.DB, `SELECT ordering_key || ' ' || state || ' ' ||
		coalesce((due > clock_timestamp())::text, 'never') FROM message_outbox_gate ORDER BY 1`)
	want := []string{"b Blocked never", "d Draining true", "r Retry true", "x Retry false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("gates (-want +got):\n%s", diff)
	}
}

// The index on (shard, due) serves only a stable time: with clock_timestamp() every gate of the shard is read.
func TestDueKeysComeFromTheIndex(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	o.Exec(`INSERT INTO message_outbox_gate SELECT 0, 'k' || i, 'Retry', clock_timestamp() + interval '1 h'
		FROM generate_series(1, 5000) i`)
	o.Exec(`ANALYZE message_outbox_gate`)
	plan := func(statement string) string {
		rows := testkit.Values[string](o.DB, `EXPLAIN `+replace(t, replace(t, replace(t, statement,
			"$1", "0"), "$2", "10"), "$3", "4"))
		var text string
		for _, r := range rows {
			text += r + "\n"
		}
		return text
	}
	const indexed = `Index Cond: ((shard = 0) AND (due <= statement_timestamp()))`
	if got := plan(s.sql.due); !strings.Contains(got, indexed) {
		t.Errorf("plan:\n%s\nwant %s", got, indexed)
	}
}
