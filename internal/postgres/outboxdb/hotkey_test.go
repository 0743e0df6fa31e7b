package outboxdb

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// pagesOfAClaim counts the pages that one claim of the first rows of the shard looks at: what a read costs, whatever else
// the machine does.
func (o *outbox) pagesOfAClaim(s *Store) int { return o.pagesOf(s, 0, 0) }

// pagesOf counts the pages that a claim of a lane looks at that has read so far and knows all below its floor.
func (o *outbox) pagesOf(s *Store, floor, read int64) int {
	o.t.Helper()
	var plan []byte
	err := pgx.BeginTxFunc(o.t.Context(), o.Pool(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(o.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+s.sql.claim,
			pgx.QueryExecModeExec, int16(0), floor, read, claimed100, int64(1<<20), claimed100, true).Scan(&plan)
	})
	if err != nil {
		o.t.Fatalf("explain a claim: %v", err)
	}
	var out []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(plan, &out); err != nil {
		o.t.Fatal(err)
	}
	return out[0].Plan.Hit + out[0].Plan.Read
}

const (
	claimed100   = 100 // rows a claim
	keysThatFlow = 1000
	rowsBehind   = 20_000 // a million in the benchmark
)

// fill writes rows of many keys that are ready, above everything that is there.
func (o *outbox) fill() {
	o.t.Helper()
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
		SELECT gen_random_uuid(), 't', 'shop', 'flows-' || i, 1, '{}', now() FROM generate_series(1, $1) i`,
		keysThatFlow,
	)
	o.Exec(`ANALYZE message_outbox`)
}

// pagesWithoutRowsBehind is what a claim looks at in an outbox of its own: rows deleted from a shared one would stay in its
// index for as long as any test beside this one has an older snapshot.
func pagesWithoutRowsBehind(t *testing.T) int {
	t.Helper()
	o := newOutbox(t)
	o.fill()
	return o.pagesOfAClaim(o.store())
}

// block writes rows of a key that waits: held already, or not met yet.
func (o *outbox) block(state string, rows int, held bool) {
	o.t.Helper()
	o.Exec(
		`INSERT INTO message_outbox_gate VALUES (0, 'hot', $1, CASE WHEN $1 <> 'Blocked' THEN now() + '1 h'::interval END)`,
		state,
	)
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at,
		held) SELECT gen_random_uuid(), 't', 'shop', 'hot', i, '{}', now(), $2 FROM generate_series(1, $1) i`,
		rows,
		held,
	)
}

// A key with very many rows behind a blocked head costs the others nothing: what waits is not in the index that a claim
// reads (R10, S06 of the known failures).
func TestManyRowsBehindABlockedHeadCostTheOtherKeysNothing(t *testing.T) {
	t.Parallel()
	alone := pagesWithoutRowsBehind(t)
	o := newOutbox(t)
	s := o.store()
	o.block("Blocked", rowsBehind, true)
	o.fill()
	if behind := o.pagesOfAClaim(s); behind > 2*alone {
		t.Errorf("a claim looks at %d pages, %d without the rows that wait", behind, alone)
	}
}

func vacuum(b *testing.B, db *testkit.DB) {
	b.Helper()
	conn := db.Connect()
	if _, err := conn.Exec(context.WithoutCancel(b.Context()), "VACUUM message_outbox"); err != nil {
		b.Fatal(err)
	}
}

// The mutation: the same rows, left in the ready index and told apart by their gate, make every claim walk past them.
func TestMutationRowsThatWaitInTheReadyIndexSlowEveryClaim(t *testing.T) {
	t.Parallel()
	alone := pagesWithoutRowsBehind(t)
	o := newOutbox(t)
	s := o.store()
	o.block("Blocked", rowsBehind, false)
	o.fill()
	s.sql.claim = replace(t, s.sql.claim, "AND NOT held AND position > $3 ORDER",
		"AND NOT held AND position > $3 AND NOT EXISTS (SELECT 1 FROM message_outbox_gate b WHERE b.shard = 0 "+
			"AND b.ordering_key = message_outbox.ordering_key) ORDER")
	if behind := o.pagesOfAClaim(s); behind <= 2*alone {
		t.Errorf("a claim looks at %d pages, %d without: the test above would notice nothing", behind, alone)
	}
}

// While the rows are being held, the index still has what was there, until it is vacuumed. A lane's floor follows what it
// has held (relay/memory.go), so that a claim does not walk past that: with a floor that stayed, it would.
func TestWhileManyRowsAreBeingHeldAClaimLooksAtWhatIsNew(t *testing.T) {
	t.Parallel()
	alone := pagesWithoutRowsBehind(t)
	o := newOutbox(t)
	s := o.store()
	o.block("Retry", rowsBehind, false)
	o.fill()
	first := testkit.Value[int64](o.DB, `SELECT min(position) FROM message_outbox`)
	half := first + rowsBehind/2
	o.Exec(`UPDATE message_outbox SET held = true WHERE position < $1`, half)
	if during := o.pagesOf(s, half-1, half-1); during > 2*alone {
		t.Errorf("a claim looks at %d pages, %d without the rows that are being held", during, alone)
	}
	if stays := o.pagesOf(s, 0, half-1); stays <= 2*alone {
		t.Errorf("a claim from a floor that stayed looks at %d pages, %d without: this test would notice nothing",
			stays, alone)
	}
}

// P15, S04: while a long transaction keeps what was settled from being cleaned away, a lane passes over none of it: its floor
// is above. A read from the start would.
func TestRowsThatCannotBeCleanedAwayCostALaneNothing(t *testing.T) {
	t.Parallel()
	alone := pagesWithoutRowsBehind(t)
	o := newOutbox(t)
	s := o.store()
	long, err := o.Connect().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := long.Exec(t.Context(), `SELECT count(*) FROM message_outbox`); err != nil {
		t.Fatal(err)
	}
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
		SELECT gen_random_uuid(), 't', 'shop', 'gone-' || i, 1, '{}', now() FROM generate_series(1, $1) i`,
		rowsBehind,
	)
	last := testkit.Value[int64](o.DB, `SELECT max(position) FROM message_outbox`)
	o.Exec(`DELETE FROM message_outbox`)
	o.fill()
	if got := o.pagesOf(s, last, last); got > 2*alone {
		t.Errorf("a claim looks at %d pages, %d without the rows that are gone", got, alone)
	}
	if start := o.pagesOf(s, 0, 0); start <= 2*alone {
		t.Errorf("a claim from the start looks at %d pages, %d without: this test would notice nothing", start, alone)
	}
}

// lane reads and holds as a relay's lane does, without anything that a broker would take.
type lane struct {
	s           *Store
	l           lease.Lease
	floor, read message.Position
	noted       message.Position // may become the floor once a snapshot is beyond xid
	xid         uint64
	took        []time.Duration
}

// claim reads the next rows and remembers how long that took.
func (n *lane) claim(b *testing.B) shard.Claim {
	b.Helper()
	w := shard.Window{
		Floor: n.floor, Read: n.read, MaxMessages: claimed100, MaxBytes: 1 << 20, MaxBelow: claimed100,
	}
	began := time.Now()
	c, err := n.s.Claim(b.Context(), n.l, w)
	n.took = append(n.took, time.Since(began))
	if err != nil {
		b.Fatal(err)
	}
	if n.xid != 0 && c.Xmin > n.xid {
		n.floor, n.xid = n.noted, 0
	}
	return c
}

// hold holds the rows of a claim.
func (n *lane) hold(b *testing.B, c shard.Claim) {
	b.Helper()
	if len(c.Rows) == 0 {
		return
	}
	n.read = c.Rows[len(c.Rows)-1].Position
	held, err := n.s.Hold(b.Context(), n.l, ids(c.Rows...))
	if err != nil {
		b.Fatal(err)
	}
	if n.xid == 0 {
		n.noted, n.xid = n.read, held.Xid
	}
}

// pass goes on behind the rows of a claim, and from the first again after the last.
func (n *lane) pass(c shard.Claim) {
	n.floor, n.read = 0, 0
	if len(c.Rows) == claimed100 {
		n.read = c.Rows[claimed100-1].Position
		n.floor = n.read
	}
}

// report tells the quantiles of the claims.
func (n *lane) report(b *testing.B) {
	b.Helper()
	slices.Sort(n.took)
	for name, share := range map[string]int{"p50-µs": 50, "p99-µs": 99} {
		b.ReportMetric(float64(n.took[len(n.took)*share/100].Microseconds()), name)
	}
}

// BenchmarkClaimBesideABlockedKey measures claims of 1,000 keys that flow: alone, with a million rows of another key
// held, and while a million rows are being held.
//
//	go test -run '^$' -bench ClaimBesideABlockedKey -benchtime 2000x ./internal/postgres/outboxdb/
func BenchmarkClaimBesideABlockedKey(b *testing.B) {
	const million = 1_000_000
	for name, prepare := range map[string]func(*outbox){
		"alone":      func(*outbox) {},
		"held":       func(o *outbox) { o.block("Blocked", million, true) },
		"being held": func(o *outbox) { o.block("Retry", million, false) },
	} {
		b.Run(name, func(b *testing.B) {
			o := newOutbox(b)
			s, l := o.holder()
			prepare(o)
			vacuum(b, o.DB)
			o.fill()
			n := &lane{s: s, l: l}
			n.claim(b) // opens the connection
			n.took = nil
			for b.Loop() {
				c := n.claim(b)
				b.StopTimer()
				if name == "being held" {
					n.hold(b, c)
				} else {
					n.pass(c)
				}
				b.StartTimer()
			}
			n.report(b)
		})
	}
}
