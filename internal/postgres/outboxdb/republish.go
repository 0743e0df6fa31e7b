package outboxdb

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/message"
)

// Selection chooses messages of the archive; what is empty or zero chooses all.
type Selection struct {
	// From and To bound when they were published: from From on, before To.
	From, To time.Time
	// Keys, Destinations and Events are those of the messages. A destination is the row's own: empty stands for the
	// relay's default.
	Keys, Destinations []string
	Events             []message.ID
	// Limit bounds the answer.
	Limit int
}

// Archived is a message of the archive, without its payload.
type Archived struct {
	ID                             message.ID
	Type, OrderingKey, Destination string
	Version                        *int64
	// PublishedAt is when it was settled, BrokerPosition where the broker said that it keeps it.
	PublishedAt    time.Time
	BrokerPosition string

	shard int16
}

// slotsSQL lists the slots that can hold what was published between two times: a slot holds what was published while it
// was the current one. A settle that began before a turn may end a little after it.
const slotsSQL = `
SELECT r.slot FROM {outbox_ring} r
WHERE (r.since IS NULL OR $2::timestamptz IS NULL OR r.since < $2)
  AND (r.current OR $1::timestamptz IS NULL OR r.left_at >= $1::timestamptz - interval '1 min')`

// archiveSQL looks slots of the archive up, key by key in order. The slots are an argument, so that the planner leaves
// the others out.
//
// What was archived unsent is no message that could be sent again, nor is one that nobody wants any more.
const archiveSQL = `
SELECT p.event_id, p.event_type, p.ordering_key, p.destination, p.aggregate_version, p.published_at, p.broker_position,
  p.shard
FROM {outbox_published} p
WHERE p.slot = ANY($9::smallint[])
  AND ($1::timestamptz IS NULL OR p.published_at >= $1) AND ($2::timestamptz IS NULL OR p.published_at < $2)
  AND ($3::text[] IS NULL OR p.ordering_key = ANY($3)) AND ($4::text[] IS NULL OR p.destination = ANY($4))
  AND ($5::uuid[] IS NULL OR (p.event_id >= $6 AND p.event_id <= $7 AND p.event_id = ANY($5)))
  AND p.broker_position <> 'expired' AND (p.expires_at IS NULL OR p.expires_at > statement_timestamp())
ORDER BY p.shard, p.ordering_key, p.position, p.event_id LIMIT $8`

// Archived returns messages of the archive, those of a key together and in their order. more says that the limit cut
// the answer off.
func (d *Desk) Archived(ctx context.Context, s Selection) (found []Archived, more bool, err error) {
	// nil chooses all: an empty list would choose nothing.
	var keys, destinations []string
	var ids [][16]byte
	var lowest, highest *[16]byte
	if len(s.Keys) > 0 {
		keys = s.Keys
	}
	if len(s.Destinations) > 0 {
		destinations = s.Destinations
	}
	if len(s.Events) > 0 {
		low, high := slices.MinFunc(s.Events, compareIDs), slices.MaxFunc(s.Events, compareIDs)
		ids, lowest, highest = uuids(s.Events), (*[16]byte)(&low), (*[16]byte)(&high)
	}
	err = d.store.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := d.ownTable(ctx, tx); err != nil {
			return err
		}
		from, to := atOrNil(s.From), atOrNil(s.To)
		rows, err := tx.Query(ctx, d.names.SQL(slotsSQL), from, to)
		if err != nil {
			return err
		}
		slots, err := pgx.CollectRows(rows, pgx.RowTo[int16])
		if err != nil {
			return err
		}
		rows, err = tx.Query(
			ctx,
			d.names.SQL(archiveSQL),
			from,
			to,
			keys,
			destinations,
			ids,
			lowest,
			highest,
			s.Limit+1,
			slots,
		)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Archived, err error) {
			err = row.Scan((*[16]byte)(&a.ID), &a.Type, &a.OrderingKey, &a.Destination, &a.Version, &a.PublishedAt,
				&a.BrokerPosition, &a.shard)
			return a, err
		})
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("look at the archive: %w", err)
	}
	if len(found) > s.Limit {
		return found[:s.Limit], true, nil
	}
	return found, false, nil
}

func atOrNil(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// archiveThereSQL says whether there is an archive, and lets the statements after it take as long as their transaction.
const archiveThereSQL = `
SELECT to_regclass($1) IS NOT NULL, set_config('statement_timeout', $2, true)`

// ownTable refuses an outbox that has no archive.
func (d *Desk) ownTable(ctx context.Context, tx pgx.Tx) error {
	var there bool
	timeout := strconv.FormatInt(d.store.cfg.QueryTimeout.Milliseconds(), 10)
	err := tx.QueryRow(ctx, archiveThereSQL, d.names.SQL("{outbox_published}"), timeout).Scan(&there, nil)
	switch {
	case err != nil:
		return err
	case !there:
		return refuse(
			"table %s has no archive: published rows of a table that the team already has (layout StatusColumns) "+
				"stay in it, and are sent again when their status is set back",
			d.names.Outbox,
		)
	default:
		return nil
	}
}

// Republished is what became of archived messages that were to be sent again.
type Republished struct {
	// Moved counts those on their way again, Blocked those left in the archive because an open dead letter blocks their
	// key, and Gone those that were not in the archive any more, or are on their way already.
	Moved, Blocked, Gone int
}

// republishRows is how many messages are moved in a transaction, as far as those of a key are not more.
const republishRows = 500

// Republish sends archived messages again, with the same event ids. They leave the archive: run again with the same
// times, it goes on with what is left.
//
// Those of a key are moved at once, to their own places before everything of the key that still waits, and are sent in
// order; what is written to the key meanwhile follows. Unordered ones are sent as if they were new.
func (d *Desk) Republish(ctx context.Context, chosen []Archived, by Decision) (Republished, error) {
	var done Republished
	for len(chosen) > 0 {
		n := wholeKeys(chosen, republishRows)
		one, err := d.republishSome(ctx, chosen[:n], by)
		if err != nil {
			return done, fmt.Errorf("republish after %d messages: %w", done.Moved, err)
		}
		done.Moved, done.Blocked, done.Gone = done.Moved+one.Moved, done.Blocked+one.Blocked, done.Gone+one.Gone
		chosen = chosen[n:]
	}
	return done, nil
}

// wholeKeys returns how many of the first messages make up whole keys of one shard: at most so many, but one key at
// least.
func wholeKeys(chosen []Archived, most int) int {
	n := 0
	for end := 1; end <= len(chosen); end++ {
		if end < len(chosen) && chosen[end].OrderingKey == chosen[end-1].OrderingKey {
			continue
		}
		if n > 0 && (end > most || chosen[end-1].shard != chosen[0].shard) {
			break
		}
		n = end
	}
	return n
}

const (
	// blockedKeysSQL finds the keys that wait for a decision.
	blockedKeysSQL = `
SELECT g.ordering_key FROM {outbox_gate} g
WHERE g.shard = $1 AND g.ordering_key = ANY($2::text[]) AND g.state = 'Blocked'`

	// dueGatesSQL lets keys have their next look at once.
	dueGatesSQL = `
INSERT INTO {outbox_gate} (shard, ordering_key, state, due)
SELECT $1, u.key, 'Retry', clock_timestamp() FROM unnest($2::text[]) u(key) ORDER BY u.key
ON CONFLICT (shard, ordering_key) DO UPDATE SET state = excluded.state, due = excluded.due`

	// republishSQL moves rows of the archive back, each with an entry in the audit, whose id tells this sending from those
	// before. $2 and $3 are the lowest and highest of the ids $1. What is in the outbox already stays where it is.
	//
	// An ordered row is held at its place, behind the gate of its key. An unordered one takes a new place, where relays
	// look for new rows.
	republishSQL = `
WITH taken AS (
  DELETE FROM {outbox_published} p
  WHERE p.event_id >= $2 AND p.event_id <= $3 AND p.event_id = ANY($1::uuid[]) AND p.broker_position <> 'expired'
    AND NOT EXISTS (SELECT FROM {outbox} o WHERE o.event_id = p.event_id)
  RETURNING p.*
), o AS (
  SELECT DISTINCT ON (event_id) t.*, t.ordering_key <> t.event_id::text AS ordered
  FROM taken t ORDER BY t.event_id, t.published_at DESC
), noted AS (
  INSERT INTO {message_audit} (actor, action, origin, origin_name, event_id, why, digest_before, digest_after)
  SELECT $4, 'Republish', 'Relay', coalesce((SELECT w.relay FROM {outbox_owner} w), ''), d.event_id::text, $5,
    d.digest, d.digest
  FROM (SELECT o.event_id, o.position, ` + digestSQL + ` AS digest FROM o) d ORDER BY d.position
  RETURNING audit_id, event_id
), ordered AS (
  INSERT INTO {outbox} (position, held, ` + republishColumns + `)
  SELECT o.position, true, ` + republishValues + ` WHERE o.ordered RETURNING 1
), unordered AS (
  INSERT INTO {outbox} (` + republishColumns + `)
  SELECT ` + republishValues + ` WHERE NOT o.ordered RETURNING 1
)
SELECT (SELECT count(*) FROM ordered) + (SELECT count(*) FROM unordered)`

	republishColumns = `event_id, event_type, schema_version, source, ordering_key, aggregate_version, destination,
    content_type, payload, headers, traceparent, occurred_at, expires_at, republish_id`
	republishValues = `o.event_id, o.event_type, o.schema_version, o.source, o.ordering_key, o.aggregate_version,
    o.destination, o.content_type, o.payload, o.headers, o.traceparent, o.occurred_at, o.expires_at, n.audit_id
  FROM o JOIN noted n ON n.event_id = o.event_id::text`
)

// republishSome moves whole keys of one shard.
func (d *Desk) republishSome(ctx context.Context, chosen []Archived, by Decision) (out Republished, err error) {
	err = d.store.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		shard, err := d.lock(ctx, tx, chosen[0].OrderingKey)
		if err != nil {
			return err
		}
		if err := d.ownTable(ctx, tx); err != nil {
			return err
		}
		free, keys, err := d.free(ctx, tx, shard, chosen)
		if err != nil {
			return err
		}
		out = Republished{Blocked: len(chosen) - len(free)}
		if len(free) == 0 {
			return nil
		}
		if err := d.run(ctx, tx, query{dueGatesSQL, []any{shard, keys}}); err != nil {
			return err
		}
		low, high := slices.MinFunc(free, compareIDs), slices.MaxFunc(free, compareIDs)
		err = tx.QueryRow(ctx, d.names.SQL(republishSQL), uuids(free), [16]byte(low), [16]byte(high), by.Actor, by.Why).
			Scan(&out.Moved)
		out.Gone = len(free) - out.Moved
		return err
	})
	if err != nil {
		return Republished{}, err
	}
	return out, nil
}

// free leaves out the messages of blocked keys. keys are those of the others that are ordered, each once.
func (d *Desk) free(
	ctx context.Context, tx pgx.Tx, shard int16, chosen []Archived,
) (ids []message.ID, keys []string, err error) {
	for i := range chosen {
		if a := &chosen[i]; a.OrderingKey != a.ID.String() && (i == 0 || a.OrderingKey != chosen[i-1].OrderingKey) {
			keys = append(keys, a.OrderingKey)
		}
	}
	rows, err := tx.Query(ctx, d.names.SQL(blockedKeysSQL), shard, keys)
	if err != nil {
		return nil, nil, err
	}
	blocked, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, nil, err
	}
	closed := make(map[string]bool, len(blocked))
	for _, key := range blocked {
		closed[key] = true
	}
	for i := range chosen {
		if !closed[chosen[i].OrderingKey] {
			ids = append(ids, chosen[i].ID)
		}
	}
	return ids, slices.DeleteFunc(keys, func(key string) bool { return closed[key] }), nil
}
