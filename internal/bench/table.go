package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
)

const (
	shards = 8
	// minPayload is the JSON around the padding of a payload.
	minPayload = 64
	// maxConnections is enough for a reader and a settler of each shard.
	maxConnections = 2*shards + 2
	closeTimeout   = 30 * time.Second
)

// table is an outbox that is filled and drained again and again.
type table struct {
	cfg    DrainConfig
	names  postgres.Names
	shards int
	// notify has the database tell relays of commits.
	notify bool
	// plain is a pool as pgx makes it, product one as the workers have it.
	plain   *pgxpool.Pool
	product *pgxpool.Pool
}

// openTable makes a schema of its own.
func openTable(ctx context.Context, cfg DrainConfig) (*table, error) {
	t := &table{
		cfg:    cfg,
		shards: shards,
		names:  postgres.Names{Schema: "postrider_bench_" + rand.Text()[:8], Outbox: "message_outbox"},
	}
	plain := cfg.Postgres.Copy()
	plain.MaxConns = maxConnections
	product := plain.Copy()
	postgres.KeepStatements(product)
	var err error
	if t.plain, err = pgxpool.NewWithConfig(ctx, plain); err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if t.product, err = pgxpool.NewWithConfig(ctx, product); err != nil {
		t.plain.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if _, err := t.plain.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{t.names.Schema}.Sanitize()); err != nil {
		t.close(ctx)
		return nil, fmt.Errorf("make a schema: %w", err)
	}
	return t, nil
}

// telling is the table with a database that tells relays of commits, once it is filled anew.
func (t *table) telling() *table {
	told := *t
	told.notify = true
	return &told
}

// close drops the schema and disconnects.
func (t *table) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	// Where this fails, the database is gone or the schema's name says whose it is.
	_, _ = t.plain.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{t.names.Schema}.Sanitize()+" CASCADE")
	t.plain.Close()
	t.product.Close()
}

// Version 7 ids as a writer makes them: in the order of writing.
const fillSQL = `
INSERT INTO {outbox} (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
SELECT (lpad(to_hex(1700000000000 + i), 12, '0') || '70008000' || substr(md5(i::text), 1, 12))::uuid,
       'order.paid', 'bench', 'order-' || (i % $2::int), i / $2::int + 1,
       convert_to('{"order":"' || lpad(i::text, 12, '0') || '","note":"' || repeat('x', $3::int - $4::int) || '"}', 'UTF8'),
       clock_timestamp()
FROM generate_series($5::int, $5::int + $1::int - 1) i`

// payloadFrame is the length of a payload without its padding.
const payloadFrame = len(`{"order":"000000000000","note":""}`)

// fill makes the tables anew with all rows in the outbox.
func (t *table) fill(ctx context.Context) error {
	drop := "DROP SCHEMA " + pgx.Identifier{t.names.Schema}.Sanitize() + " CASCADE"
	create := "CREATE SCHEMA " + pgx.Identifier{t.names.Schema}.Sanitize()
	if _, err := t.plain.Exec(ctx, drop+"; "+create); err != nil {
		return fmt.Errorf("empty the schema: %w", err)
	}
	options := schema.Options{
		Components: []schema.Component{schema.Outbox},
		Shards:     int32(t.shards), //nolint:gosec // a few
		Notify:     t.notify,
	}
	if err := schema.Apply(ctx, t.plain, t.names, options); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	// The tables have new identities: forget what was prepared for the old ones.
	t.plain.Reset()
	t.product.Reset()
	if err := t.insert(ctx, 0, t.cfg.Rows); err != nil {
		return err
	}
	if _, err := t.plain.Exec(ctx, t.names.SQL("ANALYZE {outbox}")); err != nil {
		return fmt.Errorf("analyze the outbox: %w", err)
	}
	// So that no contestant pays for the filling. Only superusers may; others compare with more noise.
	_, _ = t.plain.Exec(ctx, "CHECKPOINT")
	return nil
}

// insert writes rows at once, those after the first ones.
func (t *table) insert(ctx context.Context, first, rows int) error {
	_, err := t.plain.Exec(ctx, t.names.SQL(fillSQL), rows, t.cfg.Keys, t.cfg.PayloadBytes, payloadFrame, first)
	if err != nil {
		return fmt.Errorf("fill the outbox: %w", err)
	}
	return nil
}

// errNotDrained says that a contestant claims to be done and is not.
var errNotDrained = errors.New("rows are missing from the archive")

// measure fills the outbox, lets a contestant drain it and checks that it did.
func (t *table) measure(ctx context.Context, c contestant) (drained, error) {
	if d := t.cfg.Destination; d != nil {
		if err := d.Empty(ctx); err != nil {
			return drained{}, fmt.Errorf("empty %s: %w", d.Name, err)
		}
	}
	if !c.noTable {
		if err := t.fill(ctx); err != nil {
			return drained{}, err
		}
	}
	before := readClock()
	took, err := c.drain(ctx, t)
	if err != nil {
		return drained{}, fmt.Errorf("drain: %w", err)
	}
	got := drained{took: took, used: readClock().since(before)}
	if c.noTable {
		return got, nil
	}
	return got, t.checkDrained(ctx)
}

// checkDrained checks that every row is in the archive and none in the outbox.
func (t *table) checkDrained(ctx context.Context) error {
	var left, archived int
	const countSQL = `SELECT (SELECT count(*) FROM {outbox}), (SELECT count(DISTINCT event_id) FROM {outbox_published})`
	if err := t.plain.QueryRow(ctx, t.names.SQL(countSQL)).Scan(&left, &archived); err != nil {
		return fmt.Errorf("count the rows: %w", err)
	}
	if left != 0 || archived != t.cfg.Rows {
		return fmt.Errorf(
			"%w: %d of %d are there, %d are left in the outbox",
			errNotDrained,
			archived,
			t.cfg.Rows,
			left,
		)
	}
	return nil
}
