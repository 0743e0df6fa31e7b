package outboxdb

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/shard"
)

// stateDraining is the state of a gate whose key's first message got through; the others are Retry and Blocked.
const stateDraining = "Draining"

// heldSQL are the held rows behind a gate g: those of its ordering key, or the one row whose event id stands for
// the key because it was refused while nothing was ordered. Both are looked for whatever the mode is now, so that
// gates of the mode before open like any other.
const heldSQL = `(
    SELECT o.position, o.event_id, octet_length(o.payload) AS size, o.headers, o.unknowns, o.created_at FROM {outbox} o
    WHERE o.held AND o.shard = g.shard AND o.ordering_key = g.ordering_key
    UNION ALL
    SELECT o.position, o.event_id, octet_length(o.payload), o.headers, o.unknowns, o.created_at FROM {outbox} o
    WHERE o.held AND o.shard = g.shard AND o.ordering_key <> g.ordering_key AND o.event_id = CASE
      WHEN g.ordering_key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN g.ordering_key::uuid END)`

// holdGatedSQL holds rows whose key waits. It returns also those that were held before, so that it may be
// repeated after a commit without an answer.
const holdGatedSQL = `
UPDATE {outbox} o SET held = true FROM {outbox_gate} g
WHERE o.event_id = ANY($2::uuid[]) AND o.shard = $1 AND g.shard = $1 AND g.ordering_key = o.ordering_key
RETURNING o.position`

// Hold holds the rows whose gate still exists. The others are ready, and the caller's to read again.
func (s *Store) Hold(ctx context.Context, l lease.Lease, ids []message.ID) (held shard.Held, err error) {
	held.Xid, err = s.fenced(ctx, l, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, s.sql.holdGated, l.Shard, uuids(ids))
		if err != nil {
			return err
		}
		held.Positions, err = pgx.CollectRows(rows, pgx.RowTo[message.Position])
		return err
	})
	if err != nil {
		return shard.Held{}, fmt.Errorf("hold %d messages: %w", len(ids), err)
	}
	held.Xid = s.floors(held.Xid)
	return held, nil
}

// holdRowsSQL holds rows whatever their gate; the caller makes it in the same transaction.
const holdRowsSQL = `UPDATE {outbox} SET held = true WHERE shard = $1 AND event_id = ANY($2::uuid[])`

// refuseSQL writes what is known of failed rows and holds them, found as in settleSQL. The counts are values and only grow: a
// transaction that committed without an answer may be repeated and counts nothing twice.
const refuseSQL = `
UPDATE {outbox} o SET held = true,
  attempts = greatest(o.attempts, u.attempts), unknowns = greatest(o.unknowns, u.unknowns),
  first_failed_at = coalesce(o.first_failed_at, clock_timestamp()), last_failed_at = clock_timestamp(),
  last_error_code = u.code, failing_for = greatest(o.failing_for, u.failing_for),
  ambiguous_since = CASE WHEN NOT u.counted THEN coalesce(o.ambiguous_since, clock_timestamp()) END
FROM unnest($2::uuid[], $3::smallint[], $4::smallint[], $5::text[], $6::interval[], $7::boolean[])
  u(id, attempts, unknowns, code, failing_for, counted)
WHERE o.shard = $1 AND o.event_id = ANY(ARRAY[u.id])`

// gateSQL makes keys wait in Retry. A key behind an open dead letter stays Blocked.
const gateSQL = `
INSERT INTO {outbox_gate} AS g (shard, ordering_key, state, due)
SELECT $1, u.key, 'Retry', clock_timestamp() + u.wait FROM unnest($2::text[], $3::interval[]) u(key, wait)
ORDER BY u.key
ON CONFLICT (shard, ordering_key) DO UPDATE SET
  state = CASE g.state WHEN 'Blocked' THEN g.state ELSE excluded.state END,
  due = CASE g.state WHEN 'Blocked' THEN NULL ELSE excluded.due END`

// Refuse holds each refused row together with the later rows of its key, and makes the key wait; one whose budget is
// spent becomes a dead letter instead. Hold must name every row of these keys that the caller has in memory and the
// broker has not confirmed: a later message must not pass the refused one.
func (s *Store) Refuse(ctx context.Context, l lease.Lease, refused []shard.Refusal, hold []message.ID) error {
	var waiting, spent []shard.Refusal
	for i := range refused {
		if refused[i].Spent {
			spent = append(spent, refused[i])
		} else {
			waiting = append(waiting, refused[i])
		}
	}
	_, err := s.fenced(ctx, l, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		if s.sql.holdRows != "" {
			b.Queue(s.sql.holdRows, l.Shard, uuids(hold))
		}
		s.queueWaiting(b, l.Shard, waiting)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return s.bury(ctx, tx, l, spent)
	})
	if err != nil {
		return fmt.Errorf("hold %d refused messages: %w", len(refused), err)
	}
	return nil
}

// queueWaiting writes what is known of rows that are tried again.
func (s *Store) queueWaiting(b *pgx.Batch, on int16, refused []shard.Refusal) {
	n := len(refused)
	if n == 0 {
		return
	}
	ids, attempts, unknowns := make([][16]byte, n), make([]int16, n), make([]int16, n)
	codes, failing, counted := make([]string, n), make([]pgInterval, n), make([]bool, n)
	delays := make([]shard.Delay, n)
	for i := range refused {
		r := &refused[i]
		ids[i], attempts[i], unknowns[i], codes[i] = r.ID, small(r.Attempts), small(r.Unknowns), r.Code
		failing[i], counted[i] = interval(r.FailingFor), r.Counted
		delays[i] = shard.Delay{Gate: r.Gate, Wait: r.Wait}
	}
	keys, waits := columns(delays)
	b.Queue(s.sql.refuse, on, ids, attempts, unknowns, codes, failing, counted)
	b.Queue(s.sql.gate, on, keys, waits)
}

// PutAside holds rows whose unit of the broker takes none and makes their keys wait, without counting anything. Hold must
// name every row of the keys that the caller has in memory and the broker has not confirmed. It returns the id of its
// transaction.
func (s *Store) PutAside(
	ctx context.Context, l lease.Lease, delays []shard.Delay, hold []message.ID,
) (xid uint64, err error) {
	keys, waits := columns(delays)
	xid, err = s.fenced(ctx, l, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		if s.sql.holdRows != "" {
			b.Queue(s.sql.holdRows, l.Shard, uuids(hold))
		}
		b.Queue(s.sql.gate, l.Shard, keys, waits)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("put %d messages aside: %w", len(hold), err)
	}
	return s.floors(xid), nil
}

// floors is the id of a transaction as far as the floor of a lane may rise with it. In a team's own table none does: rows
// may appear at any place at any time.
func (s *Store) floors(xid uint64) uint64 {
	if s.cfg.Columns != nil {
		return 0
	}
	return xid
}

// maxSmall is the largest smallint. A message that got no answer may be asked about for years.
const maxSmall = 1<<15 - 1

func small(n int) int16 { return int16(min(max(n, 0), maxSmall)) }

// columns gives pgx the delays as two arrays.
func columns(delays []shard.Delay) (keys []string, waits []pgInterval) {
	keys, waits = make([]string, len(delays)), make([]pgInterval, len(delays))
	for i, d := range delays {
		keys[i], waits[i] = d.Gate, interval(d.Wait)
	}
	return keys, waits
}

// dueSQL finds up to $2 keys of a shard that may be tried again, the longest due first, each with its first held
// rows: one in Retry, up to $3 in Draining.
//
// Time is the database's: relays' clocks may differ. clock_timestamp() would be volatile and could not use the
// index on (shard, due).
var dueSQL = `
SELECT g.ordering_key, g.state, h.ids, h.sizes, h.unknowns
FROM (
  SELECT shard, ordering_key, state, due FROM {outbox_gate}
  WHERE shard = $1 AND due <= statement_timestamp() ORDER BY due LIMIT $2) g
CROSS JOIN LATERAL (
  SELECT array_agg(x.event_id ORDER BY x.position) AS ids,
    array_agg(x.size + ` + mapped.HeadersSize("x.headers") + ` ORDER BY x.position) AS sizes,
    array_agg(x.unknowns ORDER BY x.position) AS unknowns
  FROM (SELECT r.* FROM ` + heldSQL + ` r ORDER BY r.position
    LIMIT CASE g.state WHEN 'Draining' THEN $3::int ELSE 1 END) x) h
ORDER BY g.due`

// Due returns up to limit keys of the lease's shard that may be tried again, with up to most heads each.
func (s *Store) Due(ctx context.Context, l lease.Lease, limit, most int) ([]shard.DueGate, error) {
	var out []shard.DueGate
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.due, l.Shard, limit, most).Query(func(rows pgx.Rows) (err error) {
			out, err = pgx.CollectRows(rows, dueGate)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("find due keys: %w", err)
	}
	return out, nil
}

func dueGate(row pgx.CollectableRow) (shard.DueGate, error) {
	var g shard.DueGate
	var state string
	var ids [][16]byte
	var sizes []int32
	var unknowns []int16
	if err := row.Scan(&g.Gate, &state, &ids, &sizes, &unknowns); err != nil {
		return shard.DueGate{}, err
	}
	g.Draining = state == stateDraining
	for i, id := range ids {
		g.Heads = append(g.Heads, shard.Head{ID: id, Size: int(sizes[i]), Unknowns: int(unknowns[i])})
	}
	return g, nil
}

// releaseSQL opens the gates of some keys. A key with an open dead letter is Blocked until a person decides. One
// with at most $3 held rows is free: its rows are ready again and the gate is gone. One with more drains in steps
// of that size, or a long wait would be followed by one huge transaction.
const releaseSQL = `
WITH k AS MATERIALIZED (
  SELECT g.ordering_key, h.n, h.ids, h.first, EXISTS (
    SELECT 1 FROM {message_failure} f
    WHERE f.origin = 'Relay' AND f.origin_name = $4 AND f.ordering_key = g.ordering_key
      AND f.state = 'Open' AND f.blocks_key) AS open
  FROM {outbox_gate} g
  CROSS JOIN LATERAL (
    SELECT count(*) AS n, array_agg(x.event_id) AS ids, min(x.position) AS first
    FROM (SELECT r.position, r.event_id FROM ` + heldSQL + ` r ORDER BY r.position LIMIT $3::int + 1) x) h
  WHERE g.shard = $1 AND g.ordering_key = ANY($2::text[])
), freed AS (
  UPDATE {outbox} o SET held = false FROM k
  WHERE NOT k.open AND k.n <= $3 AND o.shard = $1 AND o.event_id = ANY(k.ids)
), gone AS (
  DELETE FROM {outbox_gate} g USING k
  WHERE NOT k.open AND k.n <= $3 AND g.shard = $1 AND g.ordering_key = k.ordering_key
), stays AS (
  UPDATE {outbox_gate} g SET state = CASE WHEN k.open THEN 'Blocked' ELSE 'Draining' END,
    due = CASE WHEN k.open THEN NULL ELSE clock_timestamp() END
  FROM k WHERE (k.open OR k.n > $3) AND g.shard = $1 AND g.ordering_key = k.ordering_key
)
SELECT ordering_key, NOT open AND n <= $3, CASE WHEN NOT open AND n <= $3 THEN first END FROM k`

// Release opens the gates of the keys; a key with more than most held rows starts to drain instead. A key without
// a gate is not in the answer.
func (s *Store) Release(ctx context.Context, l lease.Lease, keys []string, most int) ([]shard.Released, error) {
	var out []shard.Released
	_, err := s.fenced(ctx, l, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = s.releaseIn(ctx, tx, l, keys, most)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// releaseIn runs in a transaction that has locked the lease row.
func (s *Store) releaseIn(
	ctx context.Context, tx pgx.Tx, l lease.Lease, keys []string, most int,
) ([]shard.Released, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, s.sql.release, l.Shard, keys, most, l.Relay)
	if err != nil {
		return nil, fmt.Errorf("release %d keys: %w", len(keys), err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (shard.Released, error) {
		var r shard.Released
		var first *int64
		err := row.Scan(&r.Gate, &r.Open, &first)
		if first != nil {
			r.First = message.Position(*first)
		}
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("release %d keys: %w", len(keys), err)
	}
	return out, nil
}

// postponeSQL lets keys wait longer without counting anything.
const postponeSQL = `
UPDATE {outbox_gate} g SET due = clock_timestamp() + u.wait FROM unnest($2::text[], $3::interval[]) u(key, wait)
WHERE g.shard = $1 AND g.ordering_key = u.key AND g.state <> 'Blocked'`

// Postpone lets keys wait longer, where the broker gave no answer for their messages.
func (s *Store) Postpone(ctx context.Context, l lease.Lease, delays []shard.Delay) error {
	keys, waits := columns(delays)
	_, err := s.fenced(ctx, l, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql.postpone, l.Shard, keys, waits)
		return err
	})
	if err != nil {
		return fmt.Errorf("postpone %d keys: %w", len(delays), err)
	}
	return nil
}
