package outboxdb

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/shard"
)

// Overview is what people want to know of an outbox at one look.
type Overview struct {
	// Relay is the namespace and name of the relay that uses the table; empty where none ever has.
	Relay string
	// Shards is the number of shards, Held those with a lease that is not over.
	Shards, Held int
	shard.Backlog
	// Reasons count the open dead letters by reason, the most frequent first.
	Reasons []ReasonCount
	// BlockedBy are keys behind an open dead letter, the oldest first.
	BlockedBy []BlockedKey
}

// ReasonCount is how many dead letters are open for a reason.
type ReasonCount struct {
	Reason string
	Count  int64
}

// BlockedKey is a key that waits for a decision, and what waits behind it.
type BlockedKey struct {
	OrderingKey string
	FailureID   int64
	Reason      string
	// Waiting counts the messages behind it, up to a bound.
	Waiting int64
}

const (
	// maxBlocked bounds the blocked keys of an overview; maxReasons the reasons.
	maxBlocked = 20
	maxReasons = 10
)

const (
	usersSQL = `
SELECT coalesce(w.relay, ''), w.shards, (SELECT count(*)::int FROM {outbox_lease} l
  WHERE l.relay = w.relay AND l.holder IS NOT NULL AND l.held_until > statement_timestamp())
FROM {outbox_owner} w`

	reasonsSQL = `
SELECT reason, count(*) FROM {message_failure} WHERE origin = 'Relay' AND origin_name = $1 AND state = 'Open'
GROUP BY reason ORDER BY count(*) DESC, reason LIMIT $2`

	// blockedSQL lists the keys behind an open dead letter, with what waits behind each.
	blockedSQL = `
SELECT g.ordering_key, g.failure_id, g.reason, (SELECT count(*) FROM (SELECT 1 FROM {behind} LIMIT $3) x)
FROM (SELECT DISTINCT ON (f.ordering_key) f.ordering_key, f.failure_id, f.reason FROM {message_failure} f
  WHERE f.origin = 'Relay' AND f.origin_name = $1 AND f.state = 'Open' AND f.blocks_key
  ORDER BY f.ordering_key, f.position) g
ORDER BY g.failure_id LIMIT $2`

	// queueBehind are the rows that wait behind g.
	queueBehind = `{outbox} o WHERE o.held AND o.ordering_key = g.ordering_key`
)

// Overview counts what waits in the outbox, whoever works on it.
func (d *Desk) Overview(ctx context.Context) (Overview, error) {
	var o Overview
	if err := d.learn(ctx); err != nil {
		return o, err
	}
	err := d.store.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return d.overviewIn(ctx, tx, &o)
	})
	if err != nil {
		return Overview{}, fmt.Errorf("look at the outbox: %w", err)
	}
	return o, nil
}

func (d *Desk) overviewIn(ctx context.Context, tx pgx.Tx, o *Overview) error {
	timeout := strconv.FormatInt(d.store.cfg.QueryTimeout.Milliseconds(), 10)
	if _, err := tx.Exec(ctx, statementTimeoutSQL, timeout); err != nil {
		return err
	}
	var count int16
	if err := tx.QueryRow(ctx, d.names.SQL(usersSQL)).Scan(&o.Relay, &count, &o.Held); err != nil {
		return err
	}
	o.Shards = int(count)
	shards := make([]int16, 0, count)
	for s := range count {
		shards = append(shards, s)
	}
	rows, err := tx.Query(ctx, d.store.sql.backlog, shards, countBound, oldestLook, interval(ambiguousAfter))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := addBacklog(rows, &o.Backlog); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	err = tx.QueryRow(ctx, d.store.sql.failures, o.Relay, countBound).Scan(&o.DeadLetters, &o.OldestDeadLetterAt)
	if err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, d.names.SQL(reasonsSQL), o.Relay, maxReasons); err != nil {
		return err
	}
	if o.Reasons, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ReasonCount]); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, d.names.SQL(d.sql.blocked), o.Relay, maxBlocked, countBound); err != nil {
		return err
	}
	o.BlockedBy, err = pgx.CollectRows(rows, pgx.RowToStructByPos[BlockedKey])
	return err
}
