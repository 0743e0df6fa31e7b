package inboxdb_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

const (
	benchLanes = 8
	benchBatch = 200
	benchKeys  = 1000
	benchSQL   = `INSERT INTO invoice (order_id, state, version, n) VALUES (($1::text), ($2::jsonb)->>'state', ($3::int8), 1)
		ON CONFLICT (order_id) DO UPDATE SET state = excluded.state, version = excluded.version, n = invoice.n + 1`
)

// benchInbox makes the tables and n messages for each lane, keys apart.
func benchInbox(b *testing.B) (*inbox, [][]*verdict.Item) {
	b.Helper()
	db := testkit.Postgres(b)
	err := schema.Apply(b.Context(), db.Pool(), postgres.Names{Schema: db.Schema}, schema.Options{
		Components: []schema.Component{schema.Inbox},
	})
	if err != nil {
		b.Fatalf("applying the schema: %v", err)
	}
	db.Exec(
		`CREATE TABLE invoice (order_id text PRIMARY KEY, state text, version bigint, n int NOT NULL) WITH (fillfactor = 70)`,
	)
	pool, err := postgres.Open(b.Context(), db.Ordinary().Config(), postgres.Options{AllowLoopback: true})
	if err != nil {
		b.Fatalf("opening a pool: %v", err)
	}
	b.Cleanup(pool.Close)
	lanes := make([][]*verdict.Item, benchLanes)
	for i := range b.N {
		key := i % benchKeys
		it := order(fmt.Sprintf("018f%08x-0000-7000-8000-%012x", i, i), fmt.Sprint("order-", key), int64(i/benchKeys+1))
		it.Statement = &verdict.Statement{SQL: benchSQL, Args: []any{
			it.OrderingKey, []byte(`{"state":"paid","amount":12}`), it.AggregateVersion,
		}}
		lanes[key%benchLanes] = append(lanes[key%benchLanes], it)
	}
	return &inbox{DB: db, pool: pool.Pool}, lanes
}

// run hands each lane's messages to f in batches.
func run(b *testing.B, lanes [][]*verdict.Item, f func(ctx context.Context, batch []*verdict.Item) error) {
	b.Helper()
	ctx := b.Context()
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	b.ResetTimer()
	for _, items := range lanes {
		all.Go(func() {
			for len(items) > 0 {
				n := min(benchBatch, len(items))
				if err := f(ctx, items[:n]); err != nil {
					failed.Store(&err)
					return
				}
				items = items[n:]
			}
		})
	}
	all.Wait()
	b.StopTimer()
	if err := failed.Load(); err != nil {
		b.Fatalf("applying: %v", *err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkApply is the whole inbox: keys, ids, versions, effects.
func BenchmarkApply(b *testing.B) {
	in, lanes := benchInbox(b)
	s := in.store()
	run(b, lanes, func(ctx context.Context, batch []*verdict.Item) error {
		ds, err := s.Apply(ctx, job(verdict.Rules{}), batch)
		for i := range ds {
			if ds[i].Action != verdict.Apply {
				return fmt.Errorf("message %d is %v", i, ds[i])
			}
		}
		return err
	})
}

// BenchmarkBare is what the database allows: ids and the same effects, no keys and no versions.
func BenchmarkBare(b *testing.B) {
	in, lanes := benchInbox(b)
	run(b, lanes, func(ctx context.Context, batch []*verdict.Item) error {
		return pgx.BeginTxFunc(ctx, in.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			ids, digests := make([]string, len(batch)), make([][]byte, len(batch))
			for i, it := range batch {
				ids[i], digests[i] = it.EventID, it.Digest[:]
			}
			q := &pgx.Batch{}
			q.Queue(`INSERT INTO message_inbox (consumer_name, source, event_id, payload_digest, outcome)
				SELECT 'shop/billing', 'shop', i, d, 'A' FROM unnest($1::text[], $2::bytea[]) u(i, d)
				ON CONFLICT DO NOTHING`, ids, digests)
			for _, it := range batch {
				q.Queue(it.Statement.SQL, it.Statement.Args...)
			}
			return tx.SendBatch(ctx, q).Close()
		})
	})
}
