package outboxdb

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/shard"
)

// digestSQL is message.Digest of a row o, made where the payload is. What is too large to be put together with its key
// is digested alone: the digest only tells dead letters of one event apart.
const digestSQL = `CASE WHEN octet_length(o.payload) <= 268435456 THEN sha256(
      int8send(octet_length(convert_to(o.event_type, 'UTF8'))) || convert_to(o.event_type, 'UTF8') ||
      int8send(octet_length(convert_to(o.ordering_key, 'UTF8'))) || convert_to(o.ordering_key, 'UTF8') ||
      int8send(octet_length(o.payload)) || o.payload)
    ELSE sha256(o.payload) END`

// burySQL turns rows whose budget is spent into dead letters. The payload never leaves the server, whatever its size.
//
// A row that has a place in its key's order either blocks the key or, where $8 says that keys go on, leaves a marker at
// its place: consumers that compare versions would wait for the version for ever. A dead letter that was replayed and
// failed again is the same dead letter. A marker that fails is dropped. Of a source that is too long for the index only
// the beginning is kept.
var burySQL = `
WITH gone AS (
  DELETE FROM {outbox} o
  USING unnest($2::uuid[], $3::smallint[], $4::text[], $5::text[]) u(id, attempts, code, detail)
  WHERE o.shard = $1 AND o.event_id = ANY(ARRAY[u.id])
  RETURNING o.position, o.event_id, o.event_type, o.schema_version, o.source, o.ordering_key, o.aggregate_version,
    o.destination, o.content_type, o.payload, o.headers, o.traceparent, o.occurred_at, o.expires_at,
    o.first_failed_at, o.failure_id, u.attempts, u.code, u.detail, ` + digestSQL + ` AS digest,
    o.event_type = 'postrider.skipped' AS marker
), fate AS (
  SELECT g.*, f.failure_id IS NOT NULL AS again,
    $7 AND g.ordering_key <> g.event_id::text AND coalesce(f.blocks_key, true) AS placed
  FROM gone g LEFT JOIN {message_failure} f ON f.failure_id = g.failure_id
  WHERE NOT g.marker
), reopened AS (
  UPDATE {message_failure} f SET state = 'Open', generation = f.generation + 1, blocks_key = r.placed AND NOT $8,
    reason = r.code, error_detail = r.detail, attempts = r.attempts, last_failed_at = clock_timestamp()
  FROM fate r WHERE r.again AND f.failure_id = r.failure_id
), kept AS (
  INSERT INTO {message_failure} (origin, origin_name, source, event_id, event_type, schema_version, ordering_key,
    aggregate_version, destination, position, expires_at, raw_key, raw_body, raw_headers, content_type, traceparent,
    occurred_at, source_position, payload_digest, reason, error_detail, attempts, first_failed_at, last_failed_at,
    blocks_key)
  SELECT 'Relay', $6, ` + mapped.Short("r.source") + `, r.event_id::text, r.event_type, r.schema_version, r.ordering_key,
    r.aggregate_version, r.destination, r.position, r.expires_at, convert_to(r.ordering_key, 'UTF8'), r.payload,
    convert_to(r.headers::text, 'UTF8'), r.content_type, r.traceparent, r.occurred_at, $9 || '@' || r.position,
    r.digest, r.code, r.detail, r.attempts, coalesce(r.first_failed_at, clock_timestamp()), clock_timestamp(),
    r.placed AND NOT $8
  FROM fate r WHERE NOT r.again
  ON CONFLICT (origin, origin_name, source, event_id, payload_digest) WHERE state IN ('Open', 'Replaying') DO NOTHING
)
INSERT INTO {outbox} (` + markerColumns + `)
SELECT r.position, gen_random_uuid(), 'postrider.skipped', 1, r.source, r.ordering_key, r.aggregate_version,
  r.destination, 'application/octet-stream', '', clock_timestamp(), true
FROM fate r WHERE r.placed AND $8 AND r.aggregate_version IS NOT NULL`

// markerColumns are those of a marker: a message without data at the place of one that was skipped or discarded.
const markerColumns = `position, event_id, event_type, schema_version, source, ordering_key, aggregate_version,
  destination, content_type, payload, occurred_at, held`

// openBlockSQL says whether an open dead letter of relay $3 blocks key u.key.
const openBlockSQL = `EXISTS (
    SELECT 1 FROM {message_failure} f WHERE f.origin = 'Relay' AND f.origin_name = $3 AND f.ordering_key = u.key
      AND f.state = 'Open' AND f.blocks_key)`

// buriedGateSQL gives keys whose message is gone the gate they have now: Blocked behind an open dead letter, else due at
// once. It looks instead of being told, so that it may be repeated after a commit without an answer, when somebody may
// have decided about the dead letter already.
const buriedGateSQL = `
INSERT INTO {outbox_gate} AS g (shard, ordering_key, state, due)
SELECT $1, k.key, CASE WHEN k.blocked THEN 'Blocked' ELSE 'Retry' END, CASE WHEN NOT k.blocked THEN clock_timestamp() END
FROM (SELECT u.key, ` + openBlockSQL + ` AS blocked FROM unnest($2::text[]) u(key)) k
ORDER BY k.key
ON CONFLICT (shard, ordering_key) DO UPDATE SET state = excluded.state, due = excluded.due`

// UnburiedError says that a dead letter could not be written: the message stays where it is, and its shard with it.
type UnburiedError struct{ Err error }

// Error implements error.
func (e *UnburiedError) Error() string { return "write dead letters: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UnburiedError) Unwrap() error { return e.Err }

// bury runs in a transaction that has locked the lease row.
func (s *Store) bury(ctx context.Context, tx pgx.Tx, l lease.Lease, spent []shard.Refusal) error {
	if len(spent) == 0 {
		return nil
	}
	n := len(spent)
	ids, attempts := make([][16]byte, n), make([]int16, n)
	codes, details, keys := make([]string, n), make([]*string, n), make([]string, n)
	now := make([]pgInterval, n)
	for i := range spent {
		r := &spent[i]
		ids[i], attempts[i], codes[i], keys[i], now[i] = r.ID, small(r.Attempts), r.Code, r.Gate, interval(0)
		if r.Detail != "" {
			details[i] = &r.Detail
		}
	}
	// A marker is refused where its key has no gate yet.
	if _, err := tx.Exec(ctx, s.sql.gate, l.Shard, keys, now); err != nil {
		return fmt.Errorf("make the gates of %d dead letters: %w", n, err)
	}
	_, err := tx.Exec(ctx, s.sql.bury, l.Shard, ids, attempts, codes, details, l.Relay, !s.cfg.Unordered,
		s.cfg.SkipDeadLetters, s.cfg.Names.Outbox)
	if err != nil {
		return &UnburiedError{err}
	}
	if _, err := tx.Exec(ctx, s.sql.buriedGate, l.Shard, keys, l.Relay); err != nil {
		return fmt.Errorf("set the gates of %d dead letters: %w", n, err)
	}
	return nil
}

// unburied says whether an error means that dead letters cannot be written, rather than that the database is away.
func unburied(err error) bool {
	class, _, state := postgres.Classify(err)
	switch class {
	case postgres.ClassRetry, postgres.ClassUnknown, postgres.ClassShutdown:
		return false
	default:
		return state != ""
	}
}
