package outboxdb

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// spent is a refused row whose budget is spent.
func spent(r shard.Row) shard.Refusal {
	return shard.Refusal{
		ID: r.ID, Gate: r.OrderingKey, Attempts: 10, Counted: true, Code: "TooLarge", Detail: "larger than 1 MiB",
		Spent: true,
	}
}

// bury makes a row a dead letter and holds the others.
func (o *outbox) bury(s *Store, l lease.Lease, dead shard.Row, hold ...shard.Row) {
	o.t.Helper()
	if err := s.Refuse(o.t.Context(), l, []shard.Refusal{spent(dead)}, ids(hold...)); err != nil {
		o.t.Fatalf("Refuse(): %v", err)
	}
}

func (o *outbox) failures() int64 {
	o.t.Helper()
	return testkit.Value[int64](o.DB, `SELECT count(*) FROM message_failure WHERE state = 'Open'`)
}

func skipping(c *Config) { c.SkipDeadLetters = true }

func TestASpentBudgetMakesADeadLetterWithEverythingThatWasThere(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	dead, rest := o.put("k1"), o.put("k1")
	o.Exec(`UPDATE message_outbox SET headers = '{"tenant": "a\u00e4"}', traceparent = 'tp', schema_version = 3,
		destination = 'orders.eu' WHERE event_id = $1`, dead.ID.String())

	for range 2 { // the second time stands for a commit without an answer
		o.bury(s, l, dead, rest)
	}

	digest := message.Digest("order.paid", "k1", []byte(`{"a":1}`))
	got := testkit.Value[string](o.DB, `SELECT concat_ws(' ', origin, origin_name, source, event_id = $1, event_type,
		schema_version, ordering_key, aggregate_version, destination, position = $2,
		convert_from(raw_body, 'UTF8'), convert_from(raw_headers, 'UTF8'), traceparent, source_position = $3,
		payload_digest = $4, reason, error_detail, attempts, generation, state, blocks_key) FROM message_failure`,
		dead.ID.String(), int64(dead.Position), fmt.Sprintf("message_outbox@%d", dead.Position), digest[:])
	want := `Relay shop/orders shop t order.paid 3 k1 1 orders.eu t {"a":1} {"tenant": "aä"} tp t t TooLarge ` +
		`larger than 1 MiB 10 0 Open t`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dead letter (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(numbers(rest), o.heldRows()); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	if o.gate("k1") != "Blocked" || o.rows() != 1 {
		t.Errorf("gate = %s with %d rows, want Blocked with 1", o.gate("k1"), o.rows())
	}
}

func TestWhatIsLeftBehindADeadLetter(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change  func(*Config)
		keyless bool
		gate    string
		marker  int64
		blocks  bool
	}{
		"BlockKey blocks the key":                          {gate: "Blocked", blocks: true},
		"SkipMessage leaves a marker, and the key goes on": {change: skipping, gate: "Retry due", marker: 1},
		"a message without a key blocks nothing":           {keyless: true, gate: "Retry due"},
		"where nothing is ordered nothing is blocked": {
			change: func(c *Config) { c.Unordered = true }, gate: "Retry due",
		},
		"where nothing is ordered nothing is skipped": {
			change: func(c *Config) { c.Unordered, c.SkipDeadLetters = true, true }, gate: "Retry due",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			if tc.change == nil {
				tc.change = func(*Config) {}
			}
			s, l := o.holder(tc.change)
			dead := o.put("k1")
			if tc.keyless {
				o.Exec(`UPDATE message_outbox SET ordering_key = event_id::text, aggregate_version = NULL`)
				dead.OrderingKey = dead.ID.String()
			}
			r := spent(dead)
			if s.cfg.Unordered {
				r.Gate = dead.ID.String()
			}
			if err := s.Refuse(t.Context(), l, []shard.Refusal{r}, nil); err != nil {
				t.Fatal(err)
			}

			if got := o.gate(r.Gate); got != tc.gate {
				t.Errorf("gate = %s, want %s", got, tc.gate)
			}
			markers := testkit.Value[int64](o.DB, `SELECT count(*) FROM message_outbox WHERE held AND position = $1
				AND aggregate_version = 1 AND event_type = 'postrider.skipped' AND event_id <> $2 AND payload = ''`,
				int64(dead.Position), dead.ID.String())
			if markers != tc.marker || o.rows() != tc.marker {
				t.Errorf("%d markers in %d rows, want %d", markers, o.rows(), tc.marker)
			}
			if got := testkit.Value[bool](o.DB, `SELECT blocks_key FROM message_failure`); got != tc.blocks {
				t.Errorf("blocks_key = %v, want %v", got, tc.blocks)
			}
		})
	}
}

func TestAMarkerThatSpendsItsBudgetIsDropped(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder(skipping)
	o.bury(s, l, o.put("k1"))
	marker := o.put("k1")
	marker.ID = message.ID(testkit.Value[[16]byte](o.DB,
		`SELECT event_id FROM message_outbox WHERE event_type = 'postrider.skipped'`))
	rest := o.put("k1")

	o.bury(s, l, marker, rest)

	if o.failures() != 1 || o.gate("k1") != "Retry due" {
		t.Errorf("%d dead letters and gate %s, want the first alone and the key on its way", o.failures(), o.gate("k1"))
	}
}

func TestAGateIsNotBlockedBehindADeadLetterThatIsDecided(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	dead := o.put("k1")
	o.bury(s, l, dead)
	o.Exec(`UPDATE message_failure SET state = 'Discarded'`)
	o.bury(s, l, dead) // the commit had no answer
	if got := o.gate("k1"); got != "Retry due" {
		t.Errorf("gate = %s: nothing would ever open it", got)
	}
}

func TestADeadLetterThatCannotBeWrittenStaysWhereItIs(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	dead := o.put("k1")
	o.Exec(`ALTER TABLE message_failure ADD CONSTRAINT full_up CHECK (false) NOT VALID`)

	err := s.Refuse(t.Context(), l, []shard.Refusal{spent(dead)}, nil)

	if _, ok := errors.AsType[*UnburiedError](err); !ok {
		t.Fatalf("Refuse() = %v, want an UnburiedError", err)
	}
	if condition, reason, _ := s.Explain(err); condition != "DeadLetterUnavailable" || reason == "" {
		t.Errorf("Explain() = %s %s", condition, reason)
	}
	if o.rows() != 1 || o.gate("k1") != "none" {
		t.Errorf("%d rows, gate %s: something was written", o.rows(), o.gate("k1"))
	}
}

func TestPutAsideHoldsRowsAndCountsNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	a, b := o.put("k1"), o.put("k1")
	if _, err := s.PutAside(t.Context(), l, []shard.Delay{{Gate: "k1", Wait: 0}}, ids(a, b)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(numbers(a, b), o.heldRows()); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	rows, err := s.Load(t.Context(), l, ids(a), 1<<20)
	if err != nil || len(rows) != 1 || rows[0].Failed || rows[0].Attempts != 0 || o.gate("k1") != "Retry due" {
		t.Errorf("row = %+v, gate %s, %v: want one that never failed", rows, o.gate("k1"), err)
	}
}
