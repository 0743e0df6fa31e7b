package inboxdb

import "github.com/postrider/postrider/internal/postgres"

// addKeysSQL makes the rows of keys that were never seen, sorted, so that two processes that add the same ones wait in
// one order. It runs in a transaction of its own: within the batch's it would wait for another process's batch, and with
// it all other keys. Nothing is lost if it is: synchronous_commit is off for it. Whatever a batch commits of the key comes
// later in the log and waits for the disk, so that a row that a crash takes back is of a key of which nothing is known.
const addKeysSQL = `
INSERT INTO {message_inbox_key} (key_hash, consumer_name)
SELECT h, $2 FROM unnest($1::uuid[]) h ORDER BY h
ON CONFLICT DO NOTHING`

// addKeysSettingsSQL comes before it.
const addKeysSettingsSQL = `
SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.set_config('lock_timeout', $1, true)`

// lockKeysSQL takes the keys that no one else holds, in one order.
const lockKeysSQL = `
SELECT key_hash, last_version, state::text FROM {message_inbox_key}
WHERE key_hash = ANY($1::uuid[]) ORDER BY key_hash FOR UPDATE SKIP LOCKED`

// waitKeysSQL takes keys and waits for whoever holds them, at most for lock_timeout.
const waitKeysSQL = `
SELECT key_hash, last_version, state::text FROM {message_inbox_key}
WHERE key_hash = ANY($1::uuid[]) ORDER BY key_hash FOR UPDATE`

// lockTimeoutSQL bounds the wait for locks in this transaction.
const lockTimeoutSQL = `SELECT pg_catalog.set_config('lock_timeout', $1, true)`

// statementTimeoutSQL bounds each statement of the handler, in milliseconds.
const statementTimeoutSQL = `SELECT pg_catalog.set_config('statement_timeout', $1, true)`

// resetTimeoutSQL gives our own statements behind the handler's their usual bound again.
const resetTimeoutSQL = `SET LOCAL statement_timeout TO DEFAULT`

// rememberSQL puts ids into the inbox and returns those that are new. It waits for a transaction that is just adding one
// of them. Sorted, or two batches that share ids deadlock.
const rememberSQL = `
INSERT INTO {message_inbox} (consumer_name, source, event_id, payload_digest, outcome)
SELECT $1, s, e, d, 'A' FROM unnest($2::text[], $3::text[], $4::bytea[]) u(s, e, d)
ORDER BY s COLLATE "C", e COLLATE "C"
ON CONFLICT DO NOTHING RETURNING source, event_id`

// digestsSQL reads the digests of ids that are known. It must be a statement of its own: rememberSQL's snapshot is older
// than the commit it waited for, so in the same statement a concurrent duplicate's digest would be invisible.
const digestsSQL = `
SELECT i.source, i.event_id, i.payload_digest
FROM unnest($2::text[], $3::text[]) u(s, e)
JOIN {message_inbox} i ON i.consumer_name = $1 AND i.source = u.s AND i.event_id = u.e`

// forgetSQL takes ids out of the inbox again that were put in by this transaction.
const forgetSQL = `
DELETE FROM {message_inbox} i USING unnest($2::text[], $3::text[]) u(s, e)
WHERE i.consumer_name = $1 AND i.source = u.s AND i.event_id = u.e`

// outcomesSQL corrects the outcome of ids that were not simply applied.
const outcomesSQL = `
UPDATE {message_inbox} i SET outcome = u.o::"char"
FROM unnest($2::text[], $3::text[], $4::text[]) u(s, e, o)
WHERE i.consumer_name = $1 AND i.source = u.s AND i.event_id = u.e`

// advanceSQL moves keys on that wait for nothing: neither of the indexed columns changes.
const advanceSQL = `
UPDATE {message_inbox_key} k SET last_version = u.v
FROM unnest($1::uuid[], $2::bigint[]) u(h, v) WHERE k.key_hash = u.h`

// changeKeysSQL writes keys whose state changes. u.d is the new due time: K keeps it, N clears it, A sets it to u.p
// microseconds from now.
const changeKeysSQL = `
UPDATE {message_inbox_key} k SET last_version = u.v, state = u.s::"char",
  due_at = CASE u.d WHEN 'K' THEN k.due_at WHEN 'A' THEN clock_timestamp() + u.p * interval '1 microsecond' END
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::bigint[]) u(h, v, s, d, p)
WHERE k.key_hash = u.h`

// parkSQL keeps a message that waits. $15 says whether its statement failed; $17 is the pause in microseconds of a
// message without a key: with one, the key's due time counts.
const parkSQL = `
INSERT INTO {message_parked} (consumer_name, source, event_id, event_type, key_hash, stream, ordering_key,
  aggregate_version, raw_key, raw_body, raw_headers, payload_digest, source_position, attempts,
  first_failed_at, last_failed_at, error_code, due_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
  CASE WHEN $15::boolean THEN clock_timestamp() END, CASE WHEN $15::boolean THEN clock_timestamp() END, $16,
  clock_timestamp() + $17::bigint * interval '1 microsecond')
ON CONFLICT (consumer_name, source, event_id) DO NOTHING`

// burySQL keeps a dead letter. An open one of the same message is the same dead letter.
const burySQL = `
INSERT INTO {message_failure} (origin, origin_name, source, event_id, event_type, schema_version, ordering_key,
  aggregate_version, destination, raw_key, raw_body, raw_headers, content_type, traceparent, occurred_at,
  source_position, payload_digest, reason, error_code, error_detail, attempts, first_failed_at, last_failed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
  coalesce($22, clock_timestamp()), clock_timestamp())
ON CONFLICT (origin, origin_name, source, event_id, payload_digest) WHERE state IN ('Open', 'Replaying') DO NOTHING`

// lateSQL returns which of the versions were given up on purpose.
const lateSQL = `
SELECT u.i FROM unnest($1::uuid[], $2::bigint[], $3::int[]) u(h, v, i)
WHERE EXISTS (SELECT FROM {message_skipped} s WHERE s.key_hash = u.h AND u.v BETWEEN s.first_version AND s.last_version)`

// skipSQL remembers that versions were given up.
const skipSQL = `
INSERT INTO {message_skipped} (key_hash, first_version, last_version, consumer_name, reason)
VALUES ($1, $2, $3, $4, 'GapTimeout')`

// dueKeySQL takes the key that is due for the longest time and that no one else holds.
const dueKeySQL = `
SELECT key_hash, last_version, state::text FROM {message_inbox_key}
WHERE consumer_name = $1 AND due_at <= statement_timestamp()
ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED`

// parkedColumns are what a parked message is read back from. Times are told as durations by the database's clock.
const parkedColumns = `sequence, source, event_id, key_hash IS NOT NULL, raw_key, raw_body, raw_headers, payload_digest,
  source_position, attempts, (extract(epoch FROM clock_timestamp() - parked_at) * 1e6)::bigint,
  (extract(epoch FROM clock_timestamp() - coalesce(first_failed_at, clock_timestamp())) * 1e6)::bigint`

// parkedByVersionSQL reads the first parked messages of a key: $2 at most, and bodies of $3 bytes in all beside the first.
const parkedByVersionSQL = `
SELECT ` + parkedColumns + ` FROM (
  SELECT p.*, sum(octet_length(raw_body)) OVER (ORDER BY aggregate_version, sequence) - octet_length(raw_body) AS before
  FROM (SELECT * FROM {message_parked} WHERE key_hash = $1 ORDER BY aggregate_version, sequence LIMIT $2) p) q
WHERE before < $3 ORDER BY aggregate_version, sequence`

// parkedBySequenceSQL is the same in the order of arrival.
const parkedBySequenceSQL = `
SELECT ` + parkedColumns + ` FROM (
  SELECT p.*, sum(octet_length(raw_body)) OVER (ORDER BY sequence) - octet_length(raw_body) AS before
  FROM (SELECT * FROM {message_parked} WHERE key_hash = $1 ORDER BY sequence LIMIT $2) p) q
WHERE before < $3 ORDER BY sequence`

// dueParkedSQL takes one message without a key that is due.
const dueParkedSQL = `
SELECT ` + parkedColumns + ` FROM {message_parked}
WHERE consumer_name = $1 AND due_at <= statement_timestamp() AND key_hash IS NULL
ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED`

// leftByVersionSQL and leftBySequenceSQL look at the first message that stays parked.
const leftByVersionSQL = `
SELECT coalesce(aggregate_version, 0), (extract(epoch FROM clock_timestamp() - parked_at) * 1e6)::bigint
FROM {message_parked} WHERE key_hash = $1 ORDER BY aggregate_version, sequence LIMIT 1`

const leftBySequenceSQL = `
SELECT coalesce(aggregate_version, 0), (extract(epoch FROM clock_timestamp() - parked_at) * 1e6)::bigint
FROM {message_parked} WHERE key_hash = $1 ORDER BY sequence LIMIT 1`

// flipSQL turns the outcome of a parked message into the one it has now. No row means that it was applied before, so that
// its statement must not run. A row that is missing, as after a purge by hand, is made again.
const flipSQL = `
INSERT INTO {message_inbox} AS i (consumer_name, source, event_id, payload_digest, outcome)
VALUES ($1, $2, $3, $4, $5::text::"char")
ON CONFLICT (consumer_name, source, event_id) DO UPDATE SET outcome = excluded.outcome, processed_at = clock_timestamp()
WHERE i.outcome IN ('P', 'D')`

// unparkSQL removes a parked message that was handled.
const unparkSQL = `DELETE FROM {message_parked} WHERE sequence = $1`

// failParkedSQL writes a further failure of a parked message.
const failParkedSQL = `
UPDATE {message_parked} SET attempts = $2, error_code = $3, last_failed_at = clock_timestamp(),
  first_failed_at = coalesce(first_failed_at, clock_timestamp()),
  due_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE sequence = $1`

// rearmSQL makes gaps that are held due, so that a new gap time-out reaches them.
const rearmSQL = `
UPDATE {message_inbox_key} SET due_at = clock_timestamp()
WHERE key_hash IN (SELECT key_hash FROM {message_inbox_key}
  WHERE consumer_name = $1 AND state = 'G' AND due_at IS NULL ORDER BY key_hash FOR UPDATE SKIP LOCKED)`

// claimSQL takes or renews a consumer name. A resource that was made again under its old name takes over at once.
const claimSQL = `
INSERT INTO {message_inbox_owner} AS o (consumer_name, resource, resource_uid, seen_until)
VALUES ($1, $2, $3, clock_timestamp() + $4::bigint * interval '1 microsecond')
ON CONFLICT (consumer_name) DO UPDATE
SET resource = excluded.resource, resource_uid = excluded.resource_uid, seen_until = excluded.seen_until
WHERE o.resource = excluded.resource OR o.seen_until < clock_timestamp()`

// ownerSQL tells who has a consumer name.
const ownerSQL = `SELECT resource FROM {message_inbox_owner} WHERE consumer_name = $1`

// finishSQL notes up to which sequence of a stream everything is finished. It never goes back within a stream.
const finishSQL = `
UPDATE {message_inbox_owner} SET stream = $2,
  finished_sequence = CASE WHEN stream = $2 THEN greatest(finished_sequence, $3) ELSE $3 END
WHERE consumer_name = $1 AND (stream IS DISTINCT FROM $2 OR finished_sequence IS NULL OR finished_sequence < $3)`

// finishedSQL reads it back.
const finishedSQL = `
SELECT coalesce(stream, ''), coalesce(finished_sequence, 0) FROM {message_inbox_owner} WHERE consumer_name = $1`

// purgeSQL forgets old ids, a few at a time. What is parked or a dead letter is never forgotten: a replay needs its row.
const purgeSQL = `
DELETE FROM {message_inbox} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {message_inbox}
  WHERE consumer_name = $1 AND outcome IN ('A', 'S')
    AND processed_at < statement_timestamp() - $2::bigint * interval '1 microsecond'
  LIMIT $3 FOR UPDATE SKIP LOCKED))`

// countsSQL takes the counts of a report. Each stops at $2.
const countsSQL = `
SELECT statement_timestamp(),
  (SELECT count(*) FROM (SELECT FROM {message_parked} WHERE consumer_name = $1 LIMIT $2) x),
  (SELECT count(*) FROM (SELECT FROM {message_inbox_key} WHERE consumer_name = $1 AND state = 'G' LIMIT $2) x),
  (SELECT count(*) FROM (SELECT FROM {message_inbox_key} WHERE consumer_name = $1 AND state = 'B' LIMIT $2) x),
  d.n, d.oldest
FROM (SELECT count(*) n, min(first_failed_at) oldest FROM (SELECT first_failed_at FROM {message_failure}
  WHERE origin = 'Consumer' AND origin_name = $1 AND state IN ('Open', 'Replaying') LIMIT $2) f) d`

// privilegesSQL finds a right that a handler's role must not have, also through a role it is a member of.
const privilegesSQL = `
SELECT CASE WHEN r.rolsuper THEN 'the SUPERUSER attribute' WHEN r.rolcreaterole THEN 'the CREATEROLE attribute'
  ELSE 'the role ' || r.rolname END
FROM pg_catalog.pg_roles r
WHERE pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER') AND (r.rolsuper OR r.rolcreaterole
  OR r.rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files'))
ORDER BY r.rolsuper DESC, r.rolcreaterole DESC LIMIT 1`

// tablesSQL touches every column that is written, so that a missing table or right shows at the start.
const tablesSQL = `
SELECT (SELECT count(*) FROM (SELECT consumer_name, source, event_id, payload_digest, outcome, processed_at
    FROM {message_inbox} LIMIT 0) x),
  (SELECT count(*) FROM (SELECT key_hash, consumer_name, last_version, state, due_at FROM {message_inbox_key} LIMIT 0) x),
  (SELECT count(*) FROM (SELECT sequence, key_hash, raw_body, due_at FROM {message_parked} LIMIT 0) x),
  (SELECT count(*) FROM (SELECT key_hash, first_version, last_version FROM {message_skipped} LIMIT 0) x)`

// statements are the constants above with the configured names.
type statements struct {
	addKeys, lockKeys, waitKeys, remember, digests, forget, outcomes, advance, changeKeys, park, bury, late, skip string

	dueKey, parkedByVersion, parkedBySequence, dueParked, leftByVersion, leftBySequence string

	flip, unpark, failParked, rearm, claim, owner, finish, finished, purge, counts, tables string
}

func newStatements(n postgres.Names) statements {
	return statements{
		addKeys:  n.SQL(addKeysSQL),
		lockKeys: n.SQL(lockKeysSQL),
		waitKeys: n.SQL(waitKeysSQL),
		remember: n.SQL(
			rememberSQL,
		),
		digests:          n.SQL(digestsSQL),
		forget:           n.SQL(forgetSQL),
		outcomes:         n.SQL(outcomesSQL),
		advance:          n.SQL(advanceSQL),
		changeKeys:       n.SQL(changeKeysSQL),
		park:             n.SQL(parkSQL),
		bury:             n.SQL(burySQL),
		late:             n.SQL(lateSQL),
		skip:             n.SQL(skipSQL),
		dueKey:           n.SQL(dueKeySQL),
		parkedByVersion:  n.SQL(parkedByVersionSQL),
		parkedBySequence: n.SQL(parkedBySequenceSQL),
		dueParked:        n.SQL(dueParkedSQL),
		leftByVersion:    n.SQL(leftByVersionSQL),
		leftBySequence:   n.SQL(leftBySequenceSQL),
		flip:             n.SQL(flipSQL),
		unpark:           n.SQL(unparkSQL),
		failParked:       n.SQL(failParkedSQL),
		rearm:            n.SQL(rearmSQL),
		claim:            n.SQL(claimSQL),
		owner:            n.SQL(ownerSQL),
		finish:           n.SQL(finishSQL),
		finished:         n.SQL(finishedSQL),
		purge:            n.SQL(purgeSQL),
		counts:           n.SQL(countsSQL),
		tables:           n.SQL(tablesSQL),
	}
}
