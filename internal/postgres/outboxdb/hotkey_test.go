package outboxdb

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
)

// pagesOfAClaim counts the pages that one claim of the first rows of the shard looks at: what a read costs, whatever else
// the machine does.
func (o *outbox) pagesOfAClaim(s *Store) int {
	o.t.Helper()
	var plan []byte
	err := pgx.BeginTxFunc(o.t.Context(), o.Pool(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(o.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+s.sql.claim,
			pgx.QueryExecModeExec, int16(0), int64(0), int64(0), 100, int64(1<<20), 100, true).Scan(&plan)
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
	keysThatFlow = 1000
	rowsBehind   = 20_000 // a million in the bench of the same name
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

// A key with very many rows behind a blocked head costs the others nothing: what waits is not in the index that a claim
// reads (R10, S06 of the known failures).
func TestManyRowsBehindABlockedHeadCostTheOtherKeysNothing(t *testing.T) {
	t.Parallel()
	alone := pagesWithoutRowsBehind(t)
	o := newOutbox(t)
	s := o.store()
	o.Exec(`INSERT INTO message_outbox_gate VALUES (0, 'hot', 'Blocked', NULL)`)
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at,
		held) SELECT gen_random_uuid(), 't', 'shop', 'hot', i, '{}', now(), true FROM generate_series(1, $1) i`,
		rowsBehind,
	)
	o.fill()
	if behind := o.pagesOfAClaim(s); behind > 2*alone {
		t.Errorf("a claim looks at %d pages, %d without the rows that wait", behind, alone)
	}
}

// The mutation: the same rows, left in the ready index and told apart by their gate, make every claim walk past them.
func TestMutationRowsThatWaitInTheReadyIndexSlowEveryClaim(t *testing.T) {
	t.Parallel()
	alone := pagesWithoutRowsBehind(t)
	o := newOutbox(t)
	s := o.store()
	o.Exec(`INSERT INTO message_outbox_gate VALUES (0, 'hot', 'Blocked', NULL)`)
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
		SELECT gen_random_uuid(), 't', 'shop', 'hot', i, '{}', now() FROM generate_series(1, $1) i`,
		rowsBehind,
	)
	o.fill()
	s.sql.claim = replace(t, s.sql.claim, "AND NOT held AND position > $3 ORDER",
		"AND NOT held AND position > $3 AND NOT EXISTS (SELECT 1 FROM message_outbox_gate b WHERE b.shard = 0 "+
			"AND b.ordering_key = message_outbox.ordering_key) ORDER")
	if behind := o.pagesOfAClaim(s); behind <= 2*alone {
		t.Errorf("a claim looks at %d pages, %d without: the test above would notice nothing", behind, alone)
	}
}
