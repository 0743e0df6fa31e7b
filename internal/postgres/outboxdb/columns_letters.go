package outboxdb

import (
	"strings"

	"github.com/postrider/postrider/internal/postgres/mapped"
)

// The statements about dead letters of a table that the team already has. The row stays where it is, with the status
// that says so: a dead letter is the copy in message_failure, and the gate that holds its key. What the row has for an
// order is its version, so that stands for the position there. No marker can take its place.

// columnsBury turns rows whose budget is spent into dead letters, as burySQL does.
func columnsBury(t *mapped.Table) string {
	return `
WITH u AS (
  SELECT * FROM unnest($2::uuid[], $3::smallint[], $4::text[], $5::text[]) u(id, attempts, code, detail)
), gone AS (
  UPDATE {outbox} o SET ` + t.Buried() + ` FROM u LEFT JOIN {outbox_failing} f ON f.event_id = u.id
  WHERE {id} = u.id AND {unsettled} AND $1::smallint >= 0
  RETURNING ` + t.Row("2147483647", "false") + `, f.first_failed_at, f.failure_id, u.attempts AS tried, u.code, u.detail
), fate AS (
  SELECT o.*, ` + digestSQL + ` AS digest, l.failure_id IS NOT NULL AS again,
    $7 AND o.ordering_key <> o.event_id::text AND coalesce(l.blocks_key, true) AND NOT $8 AS blocks
  FROM gone o LEFT JOIN {message_failure} l ON l.failure_id = o.failure_id
), reopened AS (
  UPDATE {message_failure} l SET state = 'Open', generation = l.generation + 1, blocks_key = r.blocks,
    reason = r.code, error_detail = r.detail, attempts = r.tried, last_failed_at = clock_timestamp()
  FROM fate r WHERE r.again AND l.failure_id = r.failure_id
), kept AS (
  INSERT INTO {message_failure} (origin, origin_name, source, event_id, event_type, schema_version, ordering_key,
    aggregate_version, destination, position, raw_key, raw_body, raw_headers, content_type, traceparent, occurred_at,
    source_position, payload_digest, reason, error_detail, attempts, first_failed_at, last_failed_at, blocks_key)
  SELECT 'Relay', $6, r.source, r.event_id::text, r.event_type, r.schema_version, r.ordering_key,
    r.aggregate_version, r.destination, r.aggregate_version, convert_to(r.ordering_key, 'UTF8'), r.payload,
    r.headers, r.content_type, r.traceparent, r.occurred_at, $9 || '@' || r.event_id,
    r.digest, r.code, r.detail, r.tried, coalesce(r.first_failed_at, clock_timestamp()), clock_timestamp(), r.blocks
  FROM fate r WHERE NOT r.again
  ON CONFLICT (origin, origin_name, source, event_id, payload_digest) WHERE state IN ('Open', 'Replaying') DO NOTHING
)
DELETE FROM {outbox_failing} f USING gone g WHERE f.event_id = g.event_id`
}

// columnsReplay makes the row of dead letter $1 pending again, and notes where it comes from.
func columnsReplay(t *mapped.Table) string {
	return `
WITH back AS (
  UPDATE {outbox} o SET ` + t.Pending() + ` FROM {message_failure} l
  WHERE l.failure_id = $1 AND {id} = l.event_id::uuid AND ` + t.IsBuried() + `
  RETURNING {id} AS id, {scope} AS scope
)
INSERT INTO {outbox_failing} (event_id, ordering_key, failure_id) SELECT b.id, b.scope, $1 FROM back b
ON CONFLICT (event_id) DO UPDATE SET ordering_key = excluded.ordering_key, failure_id = excluded.failure_id,
  attempts = 0, unknowns = 0, first_failed_at = NULL, last_failed_at = NULL, last_error_code = NULL, failing_for = '0',
  ambiguous_since = NULL`
}

// columnsMoved finds a message that fails, as the head of what waits with it, as headSQL does.
func columnsMoved(t *mapped.Table) string {
	keyed := "true"
	if t.Unordered {
		keyed = "false"
	}
	return `
SELECT g.ordering_key, ` + keyed + `, w.relay, f.attempts, coalesce(f.last_error_code, 'Moved')
FROM {outbox} o
JOIN {outbox_failing} f ON f.event_id = {id} AND f.last_failed_at IS NOT NULL
JOIN {outbox_gate} g ON g.shard = {shard} AND g.ordering_key = {scope}
CROSS JOIN {outbox_owner} w
CROSS JOIN LATERAL ` + columnsHead(t) + ` h
WHERE {id} = $1 AND {unsettled} AND w.relay IS NOT NULL AND h.event_id = $1`
}

const (
	columnsKey = `SELECT {scope} FROM {outbox} o WHERE {id} = $1 AND {unsettled}`

	// columnsShardLock locks the leases of the shard of a key, as shardLockSQL does.
	columnsShardLock = `
SELECT l.shard FROM {outbox_lease} l CROSS JOIN (SELECT $1::text AS ordering_key) g
WHERE l.shard = (({place of g.ordering_key} - 1) / {arc})::smallint
ORDER BY l.relay FOR NO KEY UPDATE OF l`
)

// blockedBy counts what waits behind blocked keys, as rows says it.
func blockedBy(rows string) string { return strings.ReplaceAll(blockedSQL, "{behind}", rows) }

// columnsBehind are the rows that wait behind g.
const columnsBehind = `{outbox} o WHERE {ready} AND {place} = {place of g.ordering_key} AND {scope} = g.ordering_key`

// deskStatements are those of a Desk that differ by the layout.
type deskStatements struct {
	lock, key, moved, replay, discard, blocked string
}

func queueDesk() deskStatements {
	return deskStatements{
		lock: shardLockSQL, key: keySQL, moved: headSQL, replay: replaySQL, discard: discardSQL,
		blocked: blockedBy(queueBehind),
	}
}

func columnsDesk(t *mapped.Table) deskStatements {
	return deskStatements{
		lock: t.SQL(columnsShardLock), key: t.SQL(columnsKey), moved: t.SQL(columnsMoved(t)),
		replay:  t.SQL(columnsReplay(t)),
		blocked: t.SQL(blockedBy(columnsBehind)),
	}
}
