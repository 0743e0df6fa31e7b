package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/message"
)

// The relay's statements without what makes them safe: a cursor in place of the floor, no look at gates, no lease.
const (
	bareReadSQL = `
SELECT position, event_id, event_type, schema_version, source, ordering_key, coalesce(aggregate_version, 0), destination,
       content_type, payload, headers, coalesce(traceparent, ''), occurred_at, attempts, unknowns
FROM {outbox} WHERE shard = $1 AND NOT held AND position > $2 ORDER BY position LIMIT $3`

	bareSettleSQL = `
WITH moved AS (
  DELETE FROM {outbox} o USING unnest($1::uuid[], $2::text[]) u(id, broker_position) WHERE o.event_id = u.id
  RETURNING o.position, o.shard, o.event_id, o.event_type, o.schema_version, o.source, o.ordering_key,
    o.aggregate_version, o.destination, o.content_type, o.payload, o.headers, o.traceparent, o.occurred_at, o.expires_at,
    o.created_at, o.attempts, o.unknowns, o.first_failed_at, o.last_failed_at, o.last_error_code, o.failure_id,
    u.broker_position)
INSERT INTO {outbox_published} (position, shard, event_id, event_type, schema_version, source, ordering_key,
  aggregate_version, destination, content_type, payload, headers, traceparent, occurred_at, expires_at, created_at,
  attempts, unknowns, first_failed_at, last_failed_at, last_error_code, failure_id, broker_position, slot)
SELECT moved.*, 0 FROM moved`
)

// bareDrain drains every shard in a loop of its own, reading the next batch while the last one settles.
func bareDrain(ctx context.Context, t *table) (time.Duration, error) {
	return t.bareLoops(ctx, nil)
}

// togetherDrain has the broker's own client send each batch between its read and its settle.
func togetherDrain(ctx context.Context, t *table) (time.Duration, error) {
	return t.bareLoops(ctx, t.cfg.Destination.Produce)
}

// bareLoops drains every shard; what produces, where it is not nil, gets a batch while the one before it settles and the
// one behind it is read.
func (t *table) bareLoops(
	ctx context.Context, produce func(context.Context, []message.Message) error,
) (time.Duration, error) {
	started := time.Now()
	lanes, ctx := errgroup.WithContext(ctx)
	for shard := range int16(t.shards) { //nolint:gosec // a few
		read := make(chan []message.Message, 1)
		lanes.Go(func() error {
			defer close(read)
			return t.bareRead(ctx, shard, read)
		})
		sent := read
		if produce != nil {
			sent = make(chan []message.Message, 1)
			lanes.Go(func() error {
				defer close(sent)
				return produceEach(ctx, read, sent, produce)
			})
		}
		lanes.Go(func() error { return t.bareSettle(ctx, sent) })
	}
	err := lanes.Wait()
	return time.Since(started), err
}

func produceEach(
	ctx context.Context, read <-chan []message.Message, sent chan<- []message.Message,
	produce func(context.Context, []message.Message) error,
) error {
	for batch := range read {
		if err := produce(ctx, batch); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
		select {
		case sent <- batch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (t *table) bareRead(ctx context.Context, shard int16, batches chan<- []message.Message) error {
	query := t.names.SQL(bareReadSQL)
	var last message.Position
	for {
		rows, err := t.plain.Query(ctx, query, shard, last, t.cfg.Batch)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		batch, err := pgx.AppendRows(make([]message.Message, 0, t.cfg.Batch), rows, scanMessage)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if len(batch) == 0 {
			return nil
		}
		last = batch[len(batch)-1].Position
		select {
		case batches <- batch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func scanMessage(row pgx.CollectableRow) (message.Message, error) {
	var m message.Message
	var id [16]byte
	err := row.Scan(&m.Position, &id, &m.Type, &m.SchemaVersion, &m.Source, &m.OrderingKey, &m.AggregateVersion,
		&m.Destination, &m.ContentType, &m.Payload, &m.Headers, &m.Traceparent, &m.OccurredAt, &m.Attempts, &m.Unknowns)
	m.ID, m.Size = id, len(m.Payload)
	return m, err
}

func (t *table) bareSettle(ctx context.Context, batches <-chan []message.Message) error {
	statement := t.names.SQL(bareSettleSQL)
	for batch := range batches {
		ids, positions := make([][16]byte, len(batch)), make([]string, len(batch))
		for i := range batch {
			ids[i], positions[i] = batch[i].ID, nullPosition(&batch[i])
		}
		if _, err := t.plain.Exec(ctx, statement, ids, positions); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
	}
	return nil
}

// nullPosition is where the null broker keeps a message: everybody pays for making the text.
func nullPosition(m *message.Message) string {
	return "null@" + strconv.FormatInt(int64(m.Position), 10)
}
