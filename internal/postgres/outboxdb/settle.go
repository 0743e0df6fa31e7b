package outboxdb

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// settleSQL moves confirmed rows to the archive, in one statement, while the lease is held in this term.
//
// l locks the lease before the first row is deleted, since EXISTS (l) is evaluated once and first: a takeover
// waits for a settle that runs, and a settle that waited for a takeover finds another term and moves nothing.
// The rest of its snapshot being older than the wait does no harm: DELETE looks at the current rows.
//
// ANY(ARRAY[u.id]) is u.id: in a plan that was made when few rows were there, = may become a merge join, which reads the
// whole index for each batch once there are many.
//
// A dead letter whose replay arrived is closed with it. The array keeps the planner from joining all dead letters.
const settleSQL = `
WITH l AS MATERIALIZED (
  SELECT 1 FROM {outbox_lease} WHERE relay = $1 AND shard = $2 AND holder = $3 AND term = $4 FOR NO KEY UPDATE
), moved AS (
  DELETE FROM {outbox} o USING unnest($5::uuid[], $6::text[]) u(id, broker_position)
  WHERE o.event_id = ANY(ARRAY[u.id]) AND EXISTS (SELECT 1 FROM l)
  RETURNING o.position, o.shard, o.event_id, o.event_type, o.schema_version, o.source, o.ordering_key,
    o.aggregate_version, o.destination, o.content_type, o.payload, o.headers, o.traceparent, o.occurred_at,
    o.expires_at, o.created_at, o.attempts, o.unknowns, o.first_failed_at, o.last_failed_at, o.last_error_code,
    o.failure_id, u.broker_position
), kept AS (
  INSERT INTO {outbox_published} (position, shard, event_id, event_type, schema_version, source, ordering_key,
    aggregate_version, destination, content_type, payload, headers, traceparent, occurred_at,
    expires_at, created_at, attempts, unknowns, first_failed_at, last_failed_at, last_error_code,
    failure_id, broker_position, slot)
  SELECT moved.*, (SELECT slot FROM {outbox_ring} WHERE current) FROM moved RETURNING 1
), replayed AS (
  UPDATE {message_failure} SET state = 'Replayed' WHERE state = 'Replaying'
    AND failure_id = ANY(ARRAY(SELECT m.failure_id FROM moved m WHERE m.failure_id IS NOT NULL))
)
SELECT (SELECT count(*) FROM l), (SELECT count(*) FROM kept), pg_current_xact_id()`

// archivedSQL counts which of the ids are in the archive. $2 and $3 are the lowest and highest of them: version 7
// ids are nearly in the order of writing, so the block range index on event_id leaves few blocks to look at.
const archivedSQL = `
SELECT count(DISTINCT event_id) FROM {outbox_published}
WHERE event_id >= $2 AND event_id <= $3 AND event_id = ANY($1::uuid[])`

// settling is the answer of settleSQL.
type settling struct {
	holds, moved int
	xid          uint64
}

// Settle archives the messages that the broker holds, ids and brokerPositions side by side. It returns
// lease.ErrLost, and changes nothing, when the shard has passed on. After an error whose outcome nobody knows
// it may be called again with the same rows.
func (s *Store) Settle(
	ctx context.Context, l lease.Lease, ids []message.ID, brokerPositions []string,
) (shard.Settlement, error) {
	var got settling
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.settle, l.Relay, l.Shard, l.Holder, l.Term, uuids(ids), brokerPositions).QueryRow(
			func(row pgx.Row) error { return row.Scan(&got.holds, &got.moved, &got.xid) })
	})
	if err != nil {
		return shard.Settlement{}, fmt.Errorf("settle %d messages: %w", len(ids), err)
	}
	if got.holds == 0 {
		return shard.Settlement{}, lease.ErrLost
	}
	return s.settlement(ctx, got, ids), nil
}

// settlement tells rows that an earlier settle moved from rows that somebody deleted. The look runs after the
// settle and outside of it, and its failure is no failure of the settle: where ids are not version 7 it may
// take too long, and the rows are out of the outbox either way.
func (s *Store) settlement(ctx context.Context, got settling, ids []message.ID) shard.Settlement {
	out := shard.Settlement{Moved: got.moved, Xid: got.xid}
	missing := len(ids) - got.moved
	if missing == 0 {
		return out
	}
	if s.sql.archived == "" { // nothing is left of what was settled
		out.Unclear = missing
		return out
	}
	lowest, highest := slices.MinFunc(ids, compareIDs), slices.MaxFunc(ids, compareIDs)
	var archived int
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.archived, uuids(ids), [16]byte(lowest), [16]byte(highest)).QueryRow(
			func(row pgx.Row) error { return row.Scan(&archived) })
	})
	if err != nil {
		out.Unclear = missing
		return out
	}
	out.Already = archived - got.moved
	out.Vanished = len(ids) - archived
	return out
}

func compareIDs(a, b message.ID) int { return slices.Compare(a[:], b[:]) }

// SettleDue archives the held rows of waiting keys that the broker holds and opens the gates of the keys named
// in release, in one transaction: a key in Retry whose head got through is never seen half done.
func (s *Store) SettleDue(
	ctx context.Context, l lease.Lease, ids []message.ID, brokerPositions, release []string, most int,
) (settled shard.Settlement, released []shard.Released, err error) {
	var got settling
	_, err = s.fenced(ctx, l, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, s.sql.settle, l.Relay, l.Shard, l.Holder, l.Term, uuids(ids), brokerPositions).
			Scan(&got.holds, &got.moved, &got.xid)
		if err != nil {
			return fmt.Errorf("settle %d held messages: %w", len(ids), err)
		}
		released, err = s.releaseIn(ctx, tx, l, release, most)
		return err
	})
	if err != nil {
		return shard.Settlement{}, nil, err
	}
	return s.settlement(ctx, got, ids), released, nil
}
