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

// The copy of a stream. It consists of logs, each with a sequence of its own: JetStream's has one, of Kafka each partition
// is one. A record whose envelope cannot be read has no event id.
const (
	createCopySQL = `CREATE TEMPORARY TABLE verify_log (
		name text PRIMARY KEY, first_sequence bigint NOT NULL, last_sequence bigint NOT NULL, acked bigint NOT NULL);
	CREATE TEMPORARY TABLE verify_stream (
		log text NOT NULL, sequence bigint NOT NULL, stored_at timestamptz NOT NULL,
		event_id text, source text, event_type text, destination text, ordering_key text, version bigint,
		body_hash bytea, digest bytea)`
	indexCopySQL = `CREATE INDEX ON pg_temp.verify_stream (event_id);
		CREATE INDEX ON pg_temp.verify_stream (sequence);
		ANALYZE pg_temp.verify_stream`
	insertLogSQL = `INSERT INTO pg_temp.verify_log (name, first_sequence, last_sequence, acked) VALUES ($1, $2, $3, $4)`
	nowSQL       = `SELECT clock_timestamp()`
	dropCopySQL  = `DROP TABLE IF EXISTS pg_temp.verify_stream, pg_temp.verify_log`
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
	begun time.Time // by the database's clock: what was published before is in the copy, or lost
	// unchecked says why the stream's content proves nothing; empty where it does.
	unchecked string
}

// copyStream copies what the stream holds now, below the given subjects, into a temporary table. Acked says up to where
// each log was acknowledged.
func (s *session) copyStream(
	ctx context.Context, source Stream, subjects []string, acked map[string]uint64,
) (streamCopy, error) {
	if err := s.createCopy(ctx); err != nil {
		return streamCopy{}, err
	}
	switch {
	case source.Unreadable != "":
		return streamCopy{unchecked: source.Unreadable}, nil
	case source.JS == nil && source.Kafka == nil:
		return streamCopy{unchecked: "no stream was given"}, nil
	}
	var c streamCopy
	if err := s.conn.QueryRow(ctx, nowSQL).Scan(&c.begun); err != nil {
		return streamCopy{}, fmt.Errorf("read the database's clock: %w", err)
	}
	var err error
	if source.Kafka != nil {
		c.unchecked, err = s.copyTopics(ctx, source, acked)
	} else {
		c.unchecked, err = s.copyJetStream(ctx, source, subjects, acked)
	}
	if err != nil || c.unchecked != "" {
		return c, err
	}
	if _, err := s.conn.Exec(ctx, indexCopySQL); err != nil {
		return streamCopy{}, fmt.Errorf("index the copy of stream %s: %w", source.Name, err)
	}
	return c, nil
}

// createCopy makes the temporary table.
func (s *session) createCopy(ctx context.Context) error {
	_, err := s.conn.Exec(ctx, createCopySQL)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == noTempRight {
		return fmt.Errorf("make a temporary table (GRANT TEMPORARY ON DATABASE … allows it): %w", err)
	}
	if err != nil {
		return fmt.Errorf("make a temporary table: %w", err)
	}
	return nil
}

// copyJetStream copies one stream, or says why its content proves nothing.
func (s *session) copyJetStream(
	ctx context.Context, source Stream, subjects []string, acked map[string]uint64,
) (unchecked string, err error) {
	stream, err := source.JS.Stream(ctx, source.Name)
	if err != nil {
		return "", fmt.Errorf("look at stream %s: %w", source.Name, err)
	}
	info := stream.CachedInfo()
	switch {
	case info.Config.Retention != jetstream.LimitsPolicy:
		return fmt.Sprintf("stream %s drops messages once they are consumed", source.Name), nil
	case info.Config.MaxMsgsPerSubject > 0:
		return fmt.Sprintf("stream %s keeps only the newest messages of a subject", source.Name), nil
	}
	first, last := info.State.FirstSeq, info.State.LastSeq
	if err := s.addLog(ctx, source.Name, bigint(first), bigint(last), bigint(acked[source.Name])); err != nil {
		return "", err
	}
	if err := s.copyRecords(ctx, source, subjects, last); err != nil {
		return "", fmt.Errorf("read stream %s: %w", source.Name, err)
	}
	return "", nil
}

// addLog notes a log that is copied.
func (s *session) addLog(ctx context.Context, name string, first, last, acked int64) error {
	if _, err := s.conn.Exec(ctx, insertLogSQL, name, first, last, acked); err != nil {
		return fmt.Errorf("note what of %s is copied: %w", name, err)
	}
	return nil
}

// copyRecords reads up to the last sequence, in order, in chunks.
func (s *session) copyRecords(ctx context.Context, source Stream, subjects []string, last uint64) error {
	consumer, err := source.JS.OrderedConsumer(ctx, source.Name, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return fmt.Errorf("open a reader: %w", err)
	}
	records := &recordSource{ctx: ctx, log: source.Name, last: last, left: consumer.CachedInfo().NumPending}
	if records.left == 0 {
		return nil
	}
	if records.iter, err = consumer.Messages(jetstream.PullMaxMessages(chunkRows)); err != nil {
		return fmt.Errorf("open a reader: %w", err)
	}
	defer records.iter.Stop()
	for !records.over() {
		records.chunk = 0
		if err := s.copyRows(ctx, records); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) copyRows(ctx context.Context, rows pgx.CopyFromSource) error {
	table := pgx.Identifier{"pg_temp", "verify_stream"}
	columns := []string{
		"log", "sequence", "stored_at", "event_id", "source", "event_type", "destination", "ordering_key", "version",
		"body_hash", "digest",
	}
	if _, err := s.conn.CopyFrom(ctx, table, columns, rows); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// recordSource feeds a stream's records to COPY, a chunk at a time.
type recordSource struct {
	ctx   context.Context //nolint:containedctx // pgx's CopyFromSource passes none; it lives as long as the copy
	log   string
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
	record := message.Record{Body: msg.Data()}
	for name, values := range msg.Headers() {
		for _, value := range values {
			record.Headers = append(record.Headers, message.Header{Name: name, Value: value})
		}
	}
	r.row = recordRow(r.log, bigint(meta.Sequence.Stream), meta.Timestamp, &record)
	r.chunk++
	return true
}

// Values implements pgx.CopyFromSource.
func (r *recordSource) Values() ([]any, error) { return r.row, nil }

// Err implements pgx.CopyFromSource.
func (r *recordSource) Err() error { return r.err }

// recordRow turns a record into a row of the copy: hashes in place of content.
func recordRow(log string, sequence int64, stored time.Time, record *message.Record) []any {
	e, err := message.Decode(record)
	if err != nil {
		return []any{log, sequence, stored, nil, nil, nil, nil, nil, nil, nil, nil}
	}
	var version *int64
	if e.AggregateVersion > 0 {
		version = &e.AggregateVersion
	}
	body := sha256.Sum256(e.Data)
	digest := message.Digest(e.Type, e.OrderingKey, e.Data)
	return []any{
		log, sequence, stored, e.EventID, e.Source, e.Type, e.Stream, e.OrderingKey, version, body[:], digest[:],
	}
}

// bigint is a sequence as PostgreSQL holds it.
func bigint(sequence uint64) int64 {
	return int64(min(sequence, math.MaxInt64))
}
