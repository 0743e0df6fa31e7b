package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// writeSQL writes any number of messages in one statement.
//
// x gives the transaction an id before any position is taken. The rows of the sequence are locked in the order of
// their keys, so that two writers of several keys wait for each other instead of deadlocking; the sort in i reads
// all of them before the first position is taken. Positions follow the order of the arguments. Nothing is read from the
// outbox table: its writers need no right to.
const writeSQL = `/* postrider outbox.Write */
WITH x AS MATERIALIZED (SELECT pg_current_xact_id() AS xid),
m AS MATERIALIZED (
  SELECT u.*,
    row_number() OVER (PARTITION BY u.destination COLLATE "C", u.ordering_key COLLATE "C" ORDER BY u.ord) AS i,
    count(*) OVER (PARTITION BY u.destination COLLATE "C", u.ordering_key COLLATE "C") AS n
  FROM unnest($2::text[]::uuid[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::text[], $8::text[], $9::bytea[],
    $10::text[]::jsonb[], $11::text[], $12::timestamptz[], $13::timestamptz[]) WITH ORDINALITY
    AS u (event_id, ordering_key, given, event_type, schema_version, destination, content_type, payload,
      headers, traceparent, occurred_at, expires_at, ord)
),
{numbered},
v AS MATERIALIZED (
  SELECT m.*, coalesce(m.given, s.last - m.n + m.i) AS version
  FROM m CROSS JOIN x LEFT JOIN s ON s.destination = m.destination AND s.ordering_key = m.ordering_key
  WHERE x.xid IS NOT NULL AND (m.ordering_key IS NULL OR s.last IS NOT NULL)
),
i AS (
  INSERT INTO {outbox} (event_id, event_type, schema_version, source, ordering_key, aggregate_version, destination,
    content_type, payload, headers, traceparent, occurred_at, expires_at)
  SELECT event_id, event_type, schema_version, $1::text, coalesce(ordering_key, event_id::text), version, destination,
    content_type, payload, headers, traceparent, coalesce(occurred_at, clock_timestamp()), expires_at
  FROM v ORDER BY ord
)
SELECT ord, coalesce(version, 0) FROM v ORDER BY ord`

// numberedSQL takes as many versions of each key as there are messages.
const numberedSQL = `s AS (
  INSERT INTO {sequence} AS q (source, destination, ordering_key, last)
  SELECT $1::text, destination, ordering_key, max(n) FROM m WHERE ordering_key IS NOT NULL
  GROUP BY destination, ordering_key ORDER BY destination COLLATE "C", ordering_key COLLATE "C"
  ON CONFLICT (source, destination, ordering_key) DO UPDATE SET last = q.last + excluded.last
  RETURNING q.destination, q.ordering_key, q.last
)`

// givenSQL does the same where some keys bring versions of their own: those only move the key forward. A key that they
// would not move comes back without a row. It looks up each key among those of the call, so it is not for all calls.
const givenSQL = `k AS MATERIALIZED (
  SELECT destination, ordering_key, max(n) AS n, min(given) AS lowest, max(given) AS highest
  FROM m WHERE ordering_key IS NOT NULL GROUP BY destination, ordering_key
),
s AS (
  INSERT INTO {sequence} AS q (source, destination, ordering_key, last)
  SELECT $1::text, destination, ordering_key, coalesce(highest, n) FROM k
  ORDER BY destination COLLATE "C", ordering_key COLLATE "C"
  ON CONFLICT (source, destination, ordering_key) DO UPDATE SET last =
    (SELECT coalesce(k.highest, q.last + k.n) FROM k WHERE k.destination = q.destination AND k.ordering_key = q.ordering_key)
  WHERE (SELECT k.lowest IS NULL OR q.last < k.lowest FROM k
    WHERE k.destination = q.destination AND k.ordering_key = q.ordering_key)
  RETURNING q.destination, q.ordering_key, q.last
)`

// A savepoint undoes a call whose versions were refused, so that not even its other keys have moved.
const (
	savepointSQL = "SAVEPOINT postrider_outbox_write"
	rollbackSQL  = "ROLLBACK TO SAVEPOINT postrider_outbox_write"
	releaseSQL   = "RELEASE SAVEPOINT postrider_outbox_write"
)

// Tx is a transaction of pgx, or what wraps one.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQLTx is a transaction of database/sql, or what wraps one.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Write writes messages in the transaction, in one statement, and returns what each became, in their order.
// It refuses invalid messages before anything is sent. After any other error the transaction must be rolled back.
func (w *Writer) Write(ctx context.Context, tx Tx, msgs ...Message) ([]Written, error) {
	if !inTransaction(tx) {
		return nil, ErrNoTransaction
	}
	return w.write(ctx, pgxRunner{tx}, msgs)
}

// WriteSQL does what Write does in a transaction of database/sql, over any driver for PostgreSQL.
func (w *Writer) WriteSQL(ctx context.Context, tx SQLTx, msgs ...Message) ([]Written, error) {
	switch tx.(type) {
	case *sql.DB, *sql.Conn:
		return nil, ErrNoTransaction
	}
	return w.write(ctx, sqlRunner{tx}, msgs)
}

// inTransaction refuses what surely writes outside of a transaction.
func inTransaction(tx Tx) bool {
	const idle = 'I'
	switch c := tx.(type) {
	case *pgxpool.Pool:
		return false
	case *pgxpool.Conn:
		return c.Conn().PgConn().TxStatus() != idle
	case *pgx.Conn:
		return c.PgConn().TxStatus() != idle
	default:
		return true
	}
}

// runner is the difference between pgx and database/sql.
type runner interface {
	exec(ctx context.Context, statement string) error
	// versions runs a write and returns the version of each message that was written, by its place.
	versions(ctx context.Context, statement string, source string, b *batch) (map[int64]int64, error)
}

func (w *Writer) write(ctx context.Context, run runner, msgs []Message) ([]Written, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	msgs, err := w.prepare(msgs)
	if err != nil {
		return nil, err
	}
	b, err := newBatch(msgs)
	if err != nil {
		return nil, err
	}
	if b.ownVersions {
		if len(msgs) > MaxOwnVersions {
			return nil, tooMany(len(msgs), MaxOwnVersions)
		}
		return w.writeGiven(ctx, run, b, msgs)
	}
	versions, err := run.versions(ctx, w.plain, w.source, b)
	if err != nil {
		return nil, writeError(err)
	}
	return result(msgs, versions)
}

// prepare returns completed and checked copies of the messages.
func (w *Writer) prepare(msgs []Message) ([]Message, error) {
	if len(msgs) > MaxMessages {
		return nil, tooMany(len(msgs), MaxMessages)
	}
	prepared := make([]Message, len(msgs))
	copy(prepared, msgs)
	all := newTogether()
	for i := range prepared {
		if err := w.check(i, &prepared[i], all); err != nil {
			return nil, err
		}
	}
	return prepared, nil
}

// check completes one message and refuses it where it is not right, alone or beside the others.
func (w *Writer) check(index int, m *Message, others *together) error {
	if err := w.complete(m); err != nil {
		return err
	}
	if err := w.validate(index, m); err != nil {
		return err
	}
	return others.add(index, m)
}

func tooMany(n, limit int) error {
	return fmt.Errorf("outbox: %d messages in one call, at most %d: %w", n, limit, ErrTooLarge)
}

func (w *Writer) writeGiven(ctx context.Context, run runner, b *batch, msgs []Message) ([]Written, error) {
	if err := run.exec(ctx, savepointSQL); err != nil {
		return nil, writeError(err)
	}
	versions, err := run.versions(ctx, w.given, w.source, b)
	if err != nil {
		return nil, writeError(err)
	}
	written, err := result(msgs, versions)
	if err != nil {
		return nil, errors.Join(err, run.exec(ctx, rollbackSQL))
	}
	if err := run.exec(ctx, releaseSQL); err != nil {
		return nil, writeError(err)
	}
	return written, nil
}

// result pairs messages with their versions. One that is missing had a version of its own that was refused.
func result(msgs []Message, versions map[int64]int64) ([]Written, error) {
	written := make([]Written, len(msgs))
	for i := range msgs {
		version, ok := versions[int64(i)+1]
		if !ok {
			return nil, &FieldError{
				Index: i, Field: "aggregate_version", kind: ErrVersion,
				Problem: "is not above the last one of this ordering_key",
			}
		}
		written[i] = Written{EventID: msgs[i].ID, Version: version}
	}
	return written, nil
}

// headersText returns the headers as JSON, nil where there are none.
func headersText(headers map[string]string) (*string, error) {
	if len(headers) == 0 {
		return nil, nil //nolint:nilnil // no headers are a NULL
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return nil, fmt.Errorf("write headers: %w", err)
	}
	s := string(text)
	return &s, nil
}
