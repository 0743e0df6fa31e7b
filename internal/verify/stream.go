package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/message"
)

// The copy of a stream. A record whose envelope cannot be read has no event id.
const (
	createCopySQL = `CREATE TEMPORARY TABLE verify_stream (
		sequence bigint NOT NULL, stored_at timestamptz NOT NULL,
		event_id text, source text, event_type text, destination text, ordering_key text, version bigint,
		body_hash bytea, digest bytea)`
	indexCopySQL = `CREATE INDEX ON pg_temp.verify_stream (event_id);
		CREATE INDEX ON pg_temp.verify_stream (sequence);
		ANALYZE pg_temp.verify_stream`
	nowSQL      = `SELECT clock_timestamp()`
	dropCopySQL = `DROP TABLE IF EXISTS pg_temp.verify_stream`
)

const (
	// chunkRows bounds one COPY. Writing to a temporary table takes a transaction id, which a relay's floor waits
	// for: short transactions let it move on.
	chunkRows = 5000
	// streamTimeout bounds the wait for one message that the stream says it has.
	streamTimeout = 30 * time.Second
	// noTempRight is PostgreSQL's insufficient_privilege.
	noTempRight = "42501"
)

// streamCopy says what of the stream is in the temporary table.
type streamCopy struct {
	first, last uint64    // of the stream, when the copy was begun
	begun       time.Time // by the database's clock: what was published before is in the copy, or lost
	// unchecked says why the stream's content proves nothing; empty where it does.
	unchecked string
}

// copyStream copies what the stream holds now, below the given subjects, into a temporary table.
func (s *session) copyStream(ctx context.Context, source Stream, subjects []string) (streamCopy, error) {
	if _, err := s.conn.Exec(ctx, createCopySQL); err != nil {
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == noTempRight {
			return streamCopy{}, fmt.Errorf("make a temporary table (GRANT TEMPORARY ON DATABASE … allows it): %w", err)
		}
		return streamCopy{}, fmt.Errorf("make a temporary table: %w", err)
	}
	if source.JS == nil {
		return streamCopy{unchecked: "no stream was given"}, nil
	}
	var c streamCopy
	if err := s.conn.QueryRow(ctx, nowSQL).Scan(&c.begun); err != nil {
		return streamCopy{}, fmt.Errorf("read the database's clock: %w", err)
	}
	stream, err := source.JS.Stream(ctx, source.Name)
	if err != nil {
		return streamCopy{}, fmt.Errorf("look at stream %s: %w", source.Name, err)
	}
	info := stream.CachedInfo()
	c.first, c.last = info.State.FirstSeq, info.State.LastSeq
	switch {
	case info.Config.Retention != jetstream.LimitsPolicy:
		c.unchecked = fmt.Sprintf("stream %s drops messages once they are consumed", source.Name)
		return c, nil
	case info.Config.MaxMsgsPerSubject > 0:
		c.unchecked = fmt.Sprintf("stream %s keeps only the newest messages of a subject", source.Name)
		return c, nil
	}
	if err := s.copyRecords(ctx, source, subjects, c.last); err != nil {
		return streamCopy{}, fmt.Errorf("read stream %s: %w", source.Name, err)
	}
	if _, err := s.conn.Exec(ctx, indexCopySQL); err != nil {
		return streamCopy{}, fmt.Errorf("index the copy of stream %s: %w", source.Name, err)
	}
	return c, nil
}

// copyRecords reads up to the last sequence, in order, in chunks.
func (s *session) copyRecords(ctx context.Context, source Stream, subjects []string, last uint64) error {
	consumer, err := source.JS.OrderedConsumer(ctx, source.Name, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return fmt.Errorf("open a reader: %w", err)
	}
	records := &recordSource{ctx: ctx, last: last, left: consumer.CachedInfo().NumPending}
	if records.left == 0 {
		return nil
	}
	if records.iter, err = consumer.Messages(jetstream.PullMaxMessages(chunkRows)); err != nil {
		return fmt.Errorf("open a reader: %w", err)
	}
	defer records.iter.Stop()
	table := pgx.Identifier{"pg_temp", "verify_stream"}
	columns := []string{
		"sequence", "stored_at", "event_id", "source", "event_type", "destination", "ordering_key", "version",
		"body_hash", "digest",
	}
	for !records.over() {
		records.chunk = 0
		if _, err := s.conn.CopyFrom(ctx, table, columns, records); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
	return nil
}

// recordSource feeds a stream's records to COPY, a chunk at a time.
type recordSource struct {
	ctx   context.Context //nolint:containedctx // pgx's CopyFromSource passes none; it lives as long as the copy
	iter  jetstream.MessagesContext
	last  uint64
	left  uint64 // records that the stream still has for us
	seen  uint64 // the last sequence read
	chunk int
	row   []any
	err   error
}

func (r *recordSource) over() bool { return r.left == 0 || r.seen >= r.last }

// Next implements pgx.CopyFromSource.
func (r *recordSource) Next() bool {
	if r.err != nil || r.over() || r.chunk == chunkRows {
		return false
	}
	ctx, cancel := context.WithTimeout(r.ctx, streamTimeout)
	defer cancel()
	msg, err := r.iter.Next(jetstream.NextContext(ctx))
	if err != nil {
		r.err = fmt.Errorf("next record: %w", err)
		return false
	}
	meta, err := msg.Metadata()
	if err != nil {
		r.err = fmt.Errorf("next record: %w", err)
		return false
	}
	r.seen, r.left = meta.Sequence.Stream, meta.NumPending
	if r.seen > r.last {
		return false // arrived after the copy was begun
	}
	r.row = recordRow(msg, meta)
	r.chunk++
	return true
}

// Values implements pgx.CopyFromSource.
func (r *recordSource) Values() ([]any, error) { return r.row, nil }

// Err implements pgx.CopyFromSource.
func (r *recordSource) Err() error { return r.err }

// recordRow turns a record into a row of the copy: hashes in place of content.
func recordRow(msg jetstream.Msg, meta *jetstream.MsgMetadata) []any {
	record := message.Record{Body: msg.Data()}
	for name, values := range msg.Headers() {
		for _, value := range values {
			record.Headers = append(record.Headers, message.Header{Name: name, Value: value})
		}
	}
	sequence := bigint(meta.Sequence.Stream)
	e, err := message.Decode(&record)
	if err != nil {
		return []any{sequence, meta.Timestamp, nil, nil, nil, nil, nil, nil, nil, nil}
	}
	var version *int64
	if e.AggregateVersion > 0 {
		version = &e.AggregateVersion
	}
	body := sha256.Sum256(e.Data)
	digest := message.Digest(e.Type, e.OrderingKey, e.Data)
	return []any{
		sequence, meta.Timestamp, e.EventID, e.Source, e.Type, e.Stream, e.OrderingKey, version, body[:], digest[:],
	}
}

// bigint is a sequence as PostgreSQL holds it.
func bigint(sequence uint64) int64 {
	return int64(min(sequence, math.MaxInt64))
}
