package outboxdb

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// outbox is one test's outbox on a real PostgreSQL.
type outbox struct {
	*testkit.DB
	t     testing.TB
	names postgres.Names
	made  atomic.Int64
}

// isolations are the databases that every interleaving is tried on: ours must not depend on the default.
func isolations(t *testing.T, run func(*testing.T, *outbox)) {
	t.Helper()
	for name, options := range map[string][]testkit.PostgresOption{
		"on a database whose default is READ COMMITTED": nil,
		"on a database whose default is REPEATABLE READ": {
			testkit.OwnDatabase(map[string]string{"default_transaction_isolation": "repeatable read"}),
		},
		"on a database whose default is SERIALIZABLE": {testkit.Serializable()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, newOutbox(t, options...))
		})
	}
}

// newOutbox makes an outbox of one shard, so that every key shares a lane.
func newOutbox(t testing.TB, options ...testkit.PostgresOption) *outbox {
	t.Helper()
	db := testkit.Postgres(t, options...)
	o := &outbox{DB: db, t: t, names: postgres.Names{Schema: db.Schema, Outbox: "message_outbox"}}
	wanted := schema.Options{Components: []schema.Component{schema.Outbox}, Shards: 1}
	if err := schema.Apply(t.Context(), db.Pool(), o.names, wanted); err != nil {
		t.Fatalf("apply the schema: %v", err)
	}
	return o
}

// store returns a store of another process of relay shop/orders.
func (o *outbox) store(change ...func(*Config)) *Store {
	o.t.Helper()
	cfg := Config{
		Names: o.names, Relay: "shop/orders", RelayUID: "uid-1", Holder: uuid.New(), Shards: 1,
		QueryTimeout: patience,
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(o.Pool(), cfg)
	if err != nil {
		o.t.Fatalf("make a store: %v", err)
	}
	return s
}

// holder returns a store that has joined and holds the lease of the only shard.
func (o *outbox) holder(change ...func(*Config)) (*Store, lease.Lease) {
	o.t.Helper()
	s := o.store(change...)
	if _, err := s.Join(o.t.Context(), time.Minute); err != nil {
		o.t.Fatalf("join: %v", err)
	}
	return s, o.acquire(s)
}

func (o *outbox) acquire(s *Store) lease.Lease {
	o.t.Helper()
	l, ok, err := s.Acquire(o.t.Context(), 0, time.Minute)
	if err != nil || !ok {
		o.t.Fatalf("Acquire() = %v, %v, want the lease", ok, err)
	}
	return l
}

// expire makes the lease one that anybody may take.
func (o *outbox) expire() {
	o.t.Helper()
	o.Exec(`UPDATE message_outbox_lease SET held_until = clock_timestamp() - interval '1 s'`)
}

// insertSQL writes one row as a keyed writer does; the position comes from the identity.
const insertSQL = `
INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
VALUES ($1, 'order.paid', 'shop', $2, $3, '{"a":1}', clock_timestamp()) RETURNING position`

// put writes a committed row of a key and returns it.
func (o *outbox) put(key string) shard.Row {
	o.t.Helper()
	return o.putIn(o.Pool(), key)
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, statement string, args ...any) pgx.Row
}

func (o *outbox) putIn(q querier, key string) shard.Row {
	o.t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		o.t.Fatal(err)
	}
	r := shard.Row{Message: message.Message{
		ID: message.ID(id), OrderingKey: key, AggregateVersion: o.made.Add(1), Source: "shop",
	}}
	err = q.QueryRow(o.t.Context(), insertSQL, id, key, r.AggregateVersion).Scan(&r.Position)
	if err != nil {
		o.t.Fatalf("insert a row: %v", err)
	}
	return r
}

// open starts a transaction that stays open until the test commits it.
func (o *outbox) open() pgx.Tx {
	o.t.Helper()
	tx, err := o.Connect().BeginTx(o.t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		o.t.Fatalf("begin: %v", err)
	}
	return tx
}

func (o *outbox) commit(tx pgx.Tx) {
	o.t.Helper()
	if err := tx.Commit(o.t.Context()); err != nil {
		o.t.Fatalf("commit: %v", err)
	}
}

// exec runs a statement of the store in an open transaction and returns the number of rows it answered.
func (o *outbox) exec(tx pgx.Tx, statement string, args ...any) {
	o.t.Helper()
	if _, err := tx.Exec(o.t.Context(), statement, args...); err != nil {
		o.t.Fatalf("run in an open transaction: %v", err)
	}
}

// awaitBlocked waits until a session of this test waits for a lock.
func (o *outbox) awaitBlocked() {
	o.t.Helper()
	testkit.Eventually(o.t, patience, "a session waits for a lock", func() bool { return o.blocked() > 0 })
}

// blocked counts the sessions of this test that wait for a lock.
func (o *outbox) blocked() int64 {
	o.t.Helper()
	return testkit.Value[int64](o.DB, `SELECT count(*) FROM pg_stat_activity
		WHERE application_name = $1 AND wait_event_type = 'Lock'`, o.Schema)
}

// result waits for the answer of a call that runs beside the test.
func result[T any](t *testing.T, answers <-chan T) T {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func (o *outbox) rows() int64 {
	o.t.Helper()
	return testkit.Value[int64](o.DB, `SELECT count(*) FROM message_outbox`)
}

func (o *outbox) archived() int64 {
	o.t.Helper()
	return testkit.Value[int64](o.DB, `SELECT count(*) FROM message_outbox_published`)
}

// orphans counts held rows without a gate: nothing would ever send them.
func (o *outbox) orphans() int64 {
	o.t.Helper()
	return testkit.Value[int64](o.DB, `SELECT count(*) FROM message_outbox o WHERE o.held AND NOT EXISTS (
		SELECT 1 FROM message_outbox_gate g WHERE g.ordering_key IN (o.ordering_key, o.event_id::text))`)
}

// gate returns state and whether a key has a due time, or "none".
func (o *outbox) gate(key string) string {
	o.t.Helper()
	return testkit.Value[string](o.DB, `SELECT coalesce((SELECT state || CASE WHEN due IS NULL THEN '' ELSE ' due' END
		FROM message_outbox_gate WHERE ordering_key = $1), 'none')`, key)
}

func ids(rows ...shard.Row) []message.ID {
	out := make([]message.ID, len(rows))
	for i, r := range rows {
		out[i] = r.ID
	}
	return out
}

func positions(rows ...shard.Row) []message.Position {
	out := make([]message.Position, len(rows))
	for i, r := range rows {
		out[i] = r.Position
	}
	return out
}

// places names a broker position for each row.
func places(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("ORDERS@%d", i+1)
	}
	return out
}

// refusal is a refused row of a keyed message whose key is due at once.
func refusal(r shard.Row, attempts int) shard.Refusal {
	return shard.Refusal{ID: r.ID, Gate: r.OrderingKey, Attempts: attempts, Code: "TooLarge"}
}

func wide() shard.Window {
	return shard.Window{MaxMessages: 100, MaxBytes: 1 << 20, MaxBelow: 100}
}
