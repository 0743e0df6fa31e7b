package outboxdb

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/shard"
)

// countBound is where counting the rows of a shard stops: an outage may leave millions, and a count that reads
// them all would slow down the relay it reports on.
const countBound = 100_001

// oldestLook is how many of the lowest positions of a shard are looked at for the oldest row: positions are given
// before commit and by several writers, so the lowest need not be the oldest, but it is close.
const oldestLook = 100

// ambiguousAfter is how long nothing may tell whose fault a message's failures are before people should look.
const ambiguousAfter = 5 * time.Minute

// statementTimeoutSQL makes the server stop a count when its reader has given up: closing the connection does not.
const statementTimeoutSQL = `SELECT set_config('statement_timeout', $1, true)`

// backlogSQL counts what is not settled of each shard, ready and held rows apart, both up to $2.
const backlogSQL = `
SELECT statement_timestamp(), ready.n, oldest.at, held.retrying, held.blocked, held.at, held.blocked_at, keys.n,
  ambiguous.n
FROM unnest($1::smallint[]) s(shard)
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
  SELECT 1 FROM {outbox} o WHERE o.shard = s.shard AND NOT o.held LIMIT $2) x) ready
CROSS JOIN LATERAL (SELECT min(x.created_at) AS at FROM (
  SELECT o.created_at FROM {outbox} o WHERE o.shard = s.shard AND NOT o.held ORDER BY o.position LIMIT $3) x) oldest
CROSS JOIN LATERAL (SELECT
    count(*) FILTER (WHERE x.state <> 'Blocked') AS retrying, count(*) FILTER (WHERE x.state = 'Blocked') AS blocked,
    min(x.created_at) FILTER (WHERE x.state <> 'Blocked') AS at,
    min(x.created_at) FILTER (WHERE x.state = 'Blocked') AS blocked_at
  FROM (SELECT g.state, r.created_at FROM {outbox_gate} g CROSS JOIN LATERAL ` + heldSQL + ` r
    WHERE g.shard = s.shard LIMIT $2) x) held
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
  SELECT 1 FROM {outbox_gate} g WHERE g.shard = s.shard AND g.state = 'Blocked' LIMIT $2) x) keys
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
  SELECT 1 FROM {outbox} o WHERE o.shard = s.shard AND o.ambiguous_since < statement_timestamp() - $4::interval
  LIMIT $2) x) ambiguous`

// failuresSQL counts the open dead letters of a relay, up to $2. They have no shard: every worker sees all of them.
const failuresSQL = `
SELECT count(*), min(x.last_failed_at) FROM (
  SELECT last_failed_at FROM {message_failure}
  WHERE origin = 'Relay' AND origin_name = $1 AND state = 'Open' LIMIT $2) x`

// Backlog counts the rows of the shards that are not settled, and the relay's open dead letters.
func (s *Store) Backlog(ctx context.Context, shards []int16) (shard.Backlog, error) {
	var out shard.Backlog
	timeout := strconv.FormatInt(s.cfg.QueryTimeout.Milliseconds(), 10)
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(statementTimeoutSQL, timeout)
		b.Queue(s.sql.backlog, shards, countBound, oldestLook, interval(ambiguousAfter)).
			Query(func(rows pgx.Rows) error {
				for rows.Next() {
					if err := addBacklog(rows, &out); err != nil {
						return err
					}
				}
				return rows.Err()
			})
		b.Queue(s.sql.failures, s.cfg.Relay, countBound).QueryRow(func(row pgx.Row) error {
			return row.Scan(&out.DeadLetters, &out.OldestDeadLetterAt)
		})
	})
	if err != nil {
		return shard.Backlog{}, fmt.Errorf("count the backlog: %w", err)
	}
	return out, nil
}

// addBacklog adds one shard's counts.
func addBacklog(rows pgx.Rows, sum *shard.Backlog) error {
	var ready, retrying, blocked, keys, ambiguous int64
	var oldest, retryingAt, blockedAt *time.Time
	err := rows.Scan(&sum.ObservedAt, &ready, &oldest, &retrying, &blocked, &retryingAt, &blockedAt, &keys,
		&ambiguous)
	if err != nil {
		return err
	}
	sum.Ready += ready
	sum.Retrying += retrying
	sum.Blocked += blocked
	sum.BlockedKeys += keys
	sum.Ambiguous += ambiguous
	sum.AtLeast = sum.AtLeast || ready >= countBound || retrying+blocked >= countBound || keys >= countBound
	sum.OldestAt = earlier(sum.OldestAt, earlier(oldest, retryingAt))
	sum.OldestBlockedAt = earlier(sum.OldestBlockedAt, blockedAt)
	return nil
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || (b != nil && b.Before(*a)) {
		return b
	}
	return a
}
