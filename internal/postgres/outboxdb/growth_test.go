package outboxdb

import (
	"testing"

	"github.com/google/uuid"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/shard"
)

// asAWorker returns a store on a session like a relay's, which plans a statement once.
func (o *outbox) asAWorker() (*postgres.Pool, *Store) {
	o.t.Helper()
	cfg := o.Config()
	cfg.MaxConnections = 1
	pool, err := postgres.Open(o.t.Context(), cfg, postgres.Options{AllowLoopback: true, KeepStatements: true})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(pool.Close)
	s, err := New(pool, Config{
		Names: o.names, Relay: "shop/orders", RelayUID: "uid-1", Holder: uuid.New(), Shards: 1, QueryTimeout: patience,
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return pool, s
}

// moveOn does what a lane does all day, with a hundred rows at most.
func (o *outbox) moveOn(s *Store, l lease.Lease) {
	o.t.Helper()
	claim, err := s.Claim(o.t.Context(), l, shard.Window{MaxMessages: 100, MaxBytes: 1 << 20, MaxBelow: 100})
	if err != nil {
		o.t.Fatal(err)
	}
	ids, at := make([]message.ID, len(claim.Rows)), make([]string, len(claim.Rows))
	for i := range claim.Rows {
		ids[i], at[i] = claim.Rows[i].ID, "x"
	}
	if _, err := s.Settle(o.t.Context(), l, ids, at); err != nil {
		o.t.Fatal(err)
	}
	if _, _, err := s.Waiting(o.t.Context(), []int16{0}, []message.Position{0}); err != nil {
		o.t.Fatal(err)
	}
}

// scanned is how many rows of the outbox this session has read without an index.
func (o *outbox) scanned(pool *postgres.Pool) (rows int) {
	o.t.Helper()
	if _, err := pool.Exec(o.t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
		o.t.Fatal(err)
	}
	err := pool.QueryRow(o.t.Context(), `SELECT seq_tup_read FROM pg_stat_user_tables
		WHERE schemaname = $1 AND relname = 'message_outbox'`, o.Schema).Scan(&rows)
	if err != nil {
		o.t.Fatal(err)
	}
	return rows
}

// A relay plans its statements while its outbox is empty. The broker is away for a night: the same plans must serve a table
// that has grown without anybody having counted its rows.
func TestAPlanMadeOnAnEmptyOutboxServesAFullOne(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.Exec(`ALTER TABLE message_outbox SET (autovacuum_enabled = off)`)
	pool, s := o.asAWorker()
	if _, err := s.Join(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	l := o.acquire(s)
	for range 10 {
		o.put("a")
		o.moveOn(s, l)
	}
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
		SELECT gen_random_uuid(), 't', 'shop', 'flows-' || i, 1, '{}', now() FROM generate_series(1, $1) i`,
		rowsBehind,
	)
	before := o.scanned(pool)
	o.moveOn(s, l)
	if got := o.scanned(pool) - before; got > 0 {
		t.Errorf("%d rows were read without an index", got)
	}
}
