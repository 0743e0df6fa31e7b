package outboxdb

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// replace changes a statement for a mutation and fails when there is nothing to change.
func replace(t *testing.T, statement, from, to string) string {
	t.Helper()
	if !strings.Contains(statement, from) {
		t.Fatalf("the statement no longer contains %q: adapt the mutation", from)
	}
	return strings.ReplaceAll(statement, from, to)
}

func claimed(t *testing.T, s *Store, w shard.Window) shard.Claim {
	t.Helper()
	c, err := s.Claim(t.Context(), lease.Lease{Shard: 0}, w)
	if err != nil {
		t.Fatalf("Claim(): %v", err)
	}
	return c
}

func TestClaimReadsAWholeRow(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	r := o.put("order-7")
	o.Exec(`UPDATE message_outbox SET schema_version = 3, destination = 'orders.eu', content_type = 'text/plain',
		payload = '\x00ff01', headers = '{"tenant":"a"}', traceparent = '00-ab', attempts = 2, unknowns = 1,
		occurred_at = '2026-01-02 03:04:05.678901+00'`)

	c := claimed(t, s, wide())

	if len(c.Rows) != 1 {
		t.Fatalf("%d rows, want 1", len(c.Rows))
	}
	want := shard.Row{Message: message.Message{
		Position: r.Position, ID: r.ID, Type: "order.paid", SchemaVersion: 3, Source: "shop", OrderingKey: "order-7",
		AggregateVersion: r.AggregateVersion, Destination: "orders.eu", ContentType: "text/plain",
		Payload: []byte{0, 0xff, 1}, Size: 3, Headers: map[string]string{"tenant": "a"}, Traceparent: "00-ab",
		OccurredAt: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC), Attempts: 2, Unknowns: 1,
	}, HeadersSize: 20}
	if diff := cmp.Diff(want, c.Rows[0]); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if c.Cut || c.BelowCut {
		t.Errorf("cut = %v, %v; nothing was cut", c.Cut, c.BelowCut)
	}
}

// L33: no plan that was seen gives the rows in another order, and none promises theirs.
func TestRowsAreInOrderWhateverThePlan(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	for range 5 {
		o.put("k")
	}
	s.sql.claim = replace(t, s.sql.claim, "WHERE y.before < $5) r", "WHERE y.before < $5 ORDER BY y.position DESC) r")
	rows := claimed(t, s, wide()).Rows
	if len(rows) != 5 || !slices.IsSortedFunc(rows, byPosition) {
		t.Errorf("rows %+v, want five in order", rows)
	}
}

func TestClaimGivesPositionsBelowAndRowsAbove(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	var rows []shard.Row
	for range 6 {
		rows = append(rows, o.put("k"))
	}
	w := wide()
	w.Floor, w.Read, w.MaxMessages = rows[0].Position, rows[3].Position, 1

	c := claimed(t, s, w)

	if diff := cmp.Diff(positions(rows[1:4]...), c.Below); diff != "" {
		t.Errorf("below (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(positions(rows[4]), positions(c.Rows...)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if !c.Cut || c.BelowCut {
		t.Errorf("cut = %v, below cut = %v; want rows cut only", c.Cut, c.BelowCut)
	}
	w.MaxBelow = 3
	if c = claimed(t, s, w); !c.BelowCut {
		t.Error("as many positions as allowed must count as cut")
	}
}

func TestClaimStopsAtTheByteBoundAndLoadsNoLargerPayload(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	for range 4 {
		o.put("k")
	}
	o.Exec(`UPDATE message_outbox SET payload = decode(repeat('00', 600), 'hex')`)
	w := wide()
	w.MaxBytes = 1000

	c := claimed(t, s, w)
	if len(c.Rows) != 2 || !c.Cut {
		t.Errorf("%d rows, cut %v; want the two that reach 1000 bytes, cut", len(c.Rows), c.Cut)
	}

	w.MaxBytes = 599
	c = claimed(t, s, w)
	if len(c.Rows) != 1 || c.Rows[0].Payload != nil || c.Rows[0].Size != 600 {
		t.Errorf("rows = %+v, want one row of 600 bytes without its payload", c.Rows)
	}
}

func TestClaimMarksWhatIsNotToBeSent(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	gated, waiting := o.put("gated"), o.put("gated")
	expired, later, ordered := o.put("e"), o.put("l"), o.put("o")
	numbers, array, forever := o.put("n"), o.put("a"), o.put("f")
	if err := s.Refuse(t.Context(), l, []shard.Refusal{refusal(gated, 1)}, nil); err != nil {
		t.Fatal(err)
	}
	byID := func(set string, r shard.Row) {
		o.Exec(`UPDATE message_outbox SET `+set+` WHERE event_id = $1`, [16]byte(r.ID))
	}
	byID(`aggregate_version = NULL, expires_at = clock_timestamp() - interval '1 s'`, expired)
	byID(`aggregate_version = NULL, expires_at = clock_timestamp() + interval '1 h'`, later)
	byID(`expires_at = clock_timestamp() - interval '1 s'`, ordered)
	byID(`headers = '{"n":1}'`, numbers)
	byID(`headers = '["a"]'`, array)
	byID(`occurred_at = 'infinity'`, forever)

	c := claimed(t, s, wide())

	type marks struct {
		gated, expired bool
		defect         string
	}
	got := map[message.ID]marks{}
	for _, r := range c.Rows {
		got[r.ID] = marks{r.Gated, r.Expired, r.Defect}
	}
	want := map[message.ID]marks{
		waiting.ID: {gated: true}, expired.ID: {expired: true}, later.ID: {}, ordered.ID: {},
		numbers.ID: {defect: defectHeaders}, array.ID: {defect: defectHeaders}, forever.ID: {defect: defectHeaders},
	}
	for id, w := range want {
		if got[id] != w {
			t.Errorf("row %v is marked %+v, want %+v", id, got[id], w)
		}
	}
	if _, ok := got[gated.ID]; ok {
		t.Error("a held row was claimed")
	}
}

// The row a plain cursor loses: its position is below what was read, and it commits later.
func TestARowThatCommitsBelowWhatWasReadIsSeenAndFetched(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		writer := o.open()
		late := o.putIn(writer, "k1")
		early := o.put("k2")
		c := claimed(t, s, wide())
		if diff := cmp.Diff(positions(early), positions(c.Rows...)); diff != "" {
			t.Fatalf("first read (-want +got):\n%s", diff)
		}
		o.commit(writer)
		next := o.put("k1")

		w := wide()
		w.Read = early.Position
		c = claimed(t, s, w)
		if diff := cmp.Diff(positions(late, early), c.Below); diff != "" {
			t.Errorf("below (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(positions(next), positions(c.Rows...)); diff != "" {
			t.Errorf("above (-want +got):\n%s", diff)
		}
		rows, cut, err := s.Fetch(t.Context(), l, positions(late), 1<<20)
		if err != nil || cut || len(rows) != 1 || rows[0].ID != late.ID || string(rows[0].Payload) != `{"a":1}` {
			t.Errorf("Fetch() = %+v, %v; want the late row", rows, err)
		}
	})
}

func TestFetchStopsAtTheByteBound(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	rows := []shard.Row{o.put("k"), o.put("k"), o.put("k")}
	o.Exec(`UPDATE message_outbox SET payload = decode(repeat('00', 600), 'hex')`)
	got, cut, err := s.Fetch(t.Context(), l, positions(rows...), 1000)
	if err != nil || len(got) != 2 || !cut {
		t.Errorf("Fetch() = %d rows, cut %v, %v; want the two that reach 1000 bytes, cut", len(got), cut, err)
	}
}

// The floor rests on this: while a writer that may still write below it runs, xmin stays at or below its id. The
// list of running ids would not do: it omits a writer whose id is the newest.
func TestXminStaysBelowEveryWriterThatRuns(t *testing.T) {
	t.Parallel()
	isolations(t, func(t *testing.T, o *outbox) {
		t.Helper()
		s, l := o.holder()
		writer := o.open()
		o.putIn(writer, "k1")
		var xid uint64
		if err := writer.QueryRow(t.Context(), `SELECT pg_current_xact_id()`).Scan(&xid); err != nil {
			t.Fatal(err)
		}
		c := claimed(t, s, wide())
		if c.Xmin > xid {
			t.Errorf("xmin = %d, above the running writer %d", c.Xmin, xid)
		}
		settled, err := s.Settle(t.Context(), l, ids(o.put("k2")), places(1))
		if err != nil {
			t.Fatal(err)
		}
		if c = claimed(t, s, wide()); c.Xmin > settled.Xid {
			t.Errorf("xmin = %d has passed the settle %d although a writer from before it runs", c.Xmin, settled.Xid)
		}
		o.commit(writer)
		testkit.Eventually(t, patience, "xmin passes the settle once the writer has ended", func() bool {
			return claimed(t, s, wide()).Xmin > settled.Xid
		})
	})
}

func TestWaitingFindsReadyRowsAboveTheFloorAndDueKeys(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	waiting := func(floor message.Position) bool {
		t.Helper()
		work, err := s.Waiting(t.Context(), []int16{0, 3}, []message.Position{floor, 0})
		if err != nil {
			t.Fatal(err)
		}
		if c := claimed(t, s, wide()); !c.Server.Equal(work.Server) {
			t.Errorf("Waiting() is of a server started at %v, Claim() of one at %v", work.Server, c.Server)
		}
		return len(work.Shards) == 1 && work.Shards[0] == 0
	}
	if waiting(0) {
		t.Error("an empty table has work")
	}
	r := o.put("k1")
	if !waiting(0) || waiting(r.Position) {
		t.Error("a ready row counts exactly when it is above the floor")
	}
	later := refusal(r, 1)
	later.Wait = time.Hour
	if err := s.Refuse(t.Context(), l, []shard.Refusal{later}, nil); err != nil {
		t.Fatal(err)
	}
	if waiting(0) {
		t.Error("a key that is not due has work")
	}
	o.Exec(`UPDATE message_outbox_gate SET due = clock_timestamp()`)
	if !waiting(r.Position) {
		t.Error("a due key has no work")
	}
}
