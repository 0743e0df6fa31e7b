package outboxdb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/shard"
)

const (
	// defectHeaders marks a row whose headers or times no record can carry.
	defectHeaders = "InvalidHeader"
	// defectTooLarge marks a row whose headers or texts are so large that they are not loaded whole.
	defectTooLarge = "TooLarge"
)

// before is what the rows before x in the answer count for.
const before = `sum(x.size + x.headers_size) OVER (ORDER BY x.position ROWS UNBOUNDED PRECEDING)
      - x.size - x.headers_size`

// headersSize is what the headers of a row count for.
var headersSize = mapped.HeadersSize("headers")

// readHeaders reads the headers of a row whose headers_size is known.
func readHeaders(row string) string { return mapped.ReadHeaders(row+".headers", row+".headers_size") }

// envelope reads the first columns of a row, its texts bounded.
func envelope(row string) string {
	text := func(name string) string { return mapped.Short(row + "." + name) }
	return strings.Join([]string{
		row + ".position", row + ".event_id", text("event_type"), row + ".schema_version", text("source"),
		row + ".ordering_key", row + ".aggregate_version", text("destination"), text("content_type"),
	}, ", ")
}

// runningSQL are the transactions that run, in the snapshot of the statement.
const runningSQL = `(SELECT array_agg(t.id::text::bigint) FROM pg_snapshot_xip(pg_current_snapshot()) t(id))`

// claimSQL reads a lane's window in one snapshot. The first row holds when the server was started, the snapshot's xmin,
// the transactions that run in it, the positions between the floor ($2) and what was read ($3), and how far a walk went
// (columnsClaim); the others are whole rows above it.
//
// A plain cursor would lose the messages that commit late below it, or send them out of order. So the floor
// moves only when nothing can appear below it, and what lies between is compared with what the lane has in
// hand; positions are enough for that. (position <> ALL(array) would do it in one go, but a generic plan
// compares linearly.)
//
// The row whose payload and headers reach $5 bytes is the last; octet_length does not load a payload that is stored
// out of line, mapped.HeadersSize no headers and mapped.Short no text, so a row of any size costs nothing until it is
// sent.
var claimSQL = `
SELECT pg_postmaster_start_time() AS server, pg_snapshot_xmin(pg_current_snapshot()) AS xmin,
  ` + runningSQL + ` AS running,
  (SELECT array_agg(b.position ORDER BY b.position) FROM (
    SELECT position FROM {outbox} WHERE shard = $1 AND NOT held AND position > $2 AND position <= $3
    ORDER BY position LIMIT $6) b) AS below,
  NULL::bigint[] AS look,
  NULL::bigint, NULL::uuid, NULL::text, NULL::int, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text,
  NULL::bytea, NULL::int, NULL::bytea, NULL::int, NULL::text, NULL::timestamptz, NULL::smallint, NULL::smallint,
  NULL::bigint, NULL::boolean, NULL::boolean
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, r.* FROM (
  SELECT ` + envelope("y") + `,
    CASE WHEN y.size <= $5 THEN y.payload END, y.size, ` + readHeaders("y") + `, y.headers_size,
    ` + mapped.Short("y.traceparent") + `, y.occurred_at, y.attempts, y.unknowns, y.republish_id, y.expired, g.ordering_key IS NOT NULL
  FROM (
    SELECT x.*, ` + before + ` AS before FROM (
      SELECT position, event_id, event_type, schema_version, source, ordering_key, aggregate_version, destination,
        content_type, payload, octet_length(payload) AS size, headers, ` + headersSize + ` AS headers_size,
        traceparent, occurred_at, attempts, unknowns, republish_id,
        (aggregate_version IS NULL AND expires_at <= statement_timestamp()) IS TRUE AS expired
      FROM {outbox} WHERE shard = $1 AND NOT held AND position > $3 ORDER BY position LIMIT $4) x) y
  LEFT JOIN {outbox_gate} g ON $7 AND g.shard = $1 AND g.ordering_key = y.ordering_key
  WHERE y.before < $5) r`

// Claim returns what one snapshot shows of the window of the lease's shard.
func (s *Store) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	c := shard.Claim{}
	read := func(rows pgx.Rows) error { return collectClaim(rows, w, s.cfg.Columns != nil, &c) }
	args := []any{
		l.Shard, int64(w.Floor), int64(w.Read), w.MaxMessages, w.MaxBytes, w.MaxBelow, !s.cfg.Unordered,
	}
	if s.cfg.Columns != nil {
		args = append(args, int64(w.Next))
	}
	err := s.pipelined(ctx, func(b *pgx.Batch) { b.Queue(s.sql.claim, args...).Query(read) })
	if err != nil {
		return shard.Claim{}, fmt.Errorf("claim batch: %w", err)
	}
	return c, nil
}

// collectClaim reads the answer. partly says that rows above what was read leave what is below unlooked at.
func collectClaim(rows pgx.Rows, w shard.Window, partly bool, c *shard.Claim) error {
	scan := newRowScan(snapshotColumns)
	var bytes int64
	seen := false
	for rows.Next() {
		if rows.RawValues()[0] != nil {
			if err := readSnapshot(rows, c); err != nil {
				return err
			}
			seen = true
			continue
		}
		if c.Rows == nil {
			c.Rows = make([]shard.Row, 0, w.MaxMessages)
		}
		row, err := scan.row(rows)
		if err != nil {
			return err
		}
		bytes += row.Bytes()
		c.Rows = append(c.Rows, row)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if !seen {
		return errors.New("the answer has no snapshot")
	}
	// The join keeps the order of the rows in every plan seen, and sorting them there costs a tenth of the claim; but
	// nothing promises it.
	if !slices.IsSortedFunc(c.Rows, byPosition) {
		slices.SortFunc(c.Rows, byPosition)
	}
	if bytes >= w.MaxBytes { // it went further than its rows
		c.Look = shard.Look{}
	}
	c.Cut = len(c.Rows) >= w.MaxMessages || bytes >= w.MaxBytes || (partly && len(c.Rows) > 0) || c.Look.Stopped != 0
	c.BelowCut = len(c.Below) >= w.MaxBelow
	return nil
}

func byPosition(a, b shard.Row) int { return cmp.Compare(a.Position, b.Position) }

// snapshotColumns is the number of a claim's columns that only its first row fills.
const snapshotColumns = 5

// readSnapshot reads a claim's first row, whose other columns are empty.
func readSnapshot(rows pgx.Rows, c *shard.Claim) error {
	var running, below []int64
	var look []*int64
	into := make([]any, snapshotColumns+rowColumns)
	into[0], into[1], into[2], into[3], into[4] = &c.Server, &c.Xmin, &running, &below, &look
	if err := rows.Scan(into...); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	c.Running = transactions(running)
	c.Below = make([]message.Position, len(below))
	for i, p := range below {
		c.Below[i] = message.Position(p)
	}
	c.Look = lookOf(look)
	return nil
}

// lookOf reads what a claim says of how far it went: the last place above, where it stopped, and its steps.
func lookOf(said []*int64) shard.Look {
	var v [3]int64
	for i := range min(len(said), len(v)) {
		if said[i] != nil {
			v[i] = *said[i]
		}
	}
	return shard.Look{
		Reached: message.Position(v[0]), Stopped: message.Position(v[1]), Long: v[2] >= lookSteps,
	}
}

func transactions(ids []int64) []uint64 {
	out := make([]uint64, len(ids))
	for i, id := range ids {
		out[i] = uint64(id) //nolint:gosec // 64 bits count from 1 and reach no sign
	}
	return out
}

// rowColumns is the number of columns of a row.
const rowColumns = 20

// rowScan reads rows without a new target for each.
type rowScan struct {
	row0       shard.Row
	into       []any
	version    pgtype.Int8
	size       int32
	headersOf  int32
	headers    []byte
	trace      pgtype.Text
	occurred   pgtype.Timestamptz
	attempts   int16
	unknowns   int16
	republish  pgtype.Int8
	id         [16]byte
	position   int64
	attributes struct{ typ, source, destination, contentType repeated }
}

// newRowScan returns a scan of rows whose columns come after some others.
func newRowScan(skip int) *rowScan {
	s := &rowScan{}
	s.into = make([]any, skip, skip+rowColumns)
	s.into = append(
		s.into,
		&s.position,
		&s.id,
		&s.attributes.typ,
		&s.row0.SchemaVersion,
		&s.attributes.source,
		&s.row0.OrderingKey,
		&s.version,
		&s.attributes.destination,
		&s.attributes.contentType,
		&s.row0.Payload,
		&s.size,
		&s.headers,
		&s.headersOf,
		&s.trace,
		&s.occurred,
		&s.attempts,
		&s.unknowns,
		&s.republish,
		&s.row0.Expired,
		&s.row0.Gated,
	)
	return s
}

func (s *rowScan) row(rows pgx.Rows) (shard.Row, error) {
	s.row0.Payload, s.row0.Headers, s.row0.Defect = nil, nil, ""
	if err := rows.Scan(s.into...); err != nil {
		return shard.Row{}, fmt.Errorf("read row: %w", err)
	}
	// A row that was inserted by hand may hold what no record can carry: that is this row's failure, not the claim's.
	if s.occurred.InfinityModifier != pgtype.Finite {
		s.row0.Defect = defectHeaders
	}
	if s.headers != nil && json.Unmarshal(s.headers, &s.row0.Headers) != nil {
		s.row0.Headers, s.row0.Defect = nil, defectHeaders
	}
	if s.headersOf > mapped.HeadersBound || s.overlong() {
		s.row0.Defect = defectTooLarge
	}
	r := s.row0 // no pointer to it is taken, or each row would be allocated
	r.Position, r.ID, r.AggregateVersion = message.Position(s.position), s.id, s.version.Int64
	r.Type, r.Source = s.attributes.typ.value, s.attributes.source.value
	r.Destination, r.ContentType = s.attributes.destination.value, s.attributes.contentType.value
	r.Size, r.Attempts, r.Unknowns = int(s.size), int(s.attempts), int(s.unknowns)
	r.HeadersSize, r.RepublishID = int(s.headersOf), s.republish.Int64
	r.Traceparent, r.OccurredAt = s.trace.String, s.occurred.Time
	return r, nil
}

// overlong says that a text may be only the beginning of one; no record carries even that.
func (s *rowScan) overlong() bool {
	a := &s.attributes
	return max(len(a.typ.value), len(a.source.value), len(a.destination.value), len(a.contentType.value),
		len(s.trace.String)) >= mapped.TextBound
}

// repeated is a text column whose values are mostly the same in neighbouring rows: the text is allocated only
// when it changes.
type repeated struct{ value string }

// ScanBytes implements pgtype.BytesScanner.
func (r *repeated) ScanBytes(v []byte) error {
	if string(v) != r.value { // compares without allocating
		r.value = string(v)
	}
	return nil
}

// fetchSQL reads ready rows by their positions, one by one in the ready index: before PostgreSQL 17 the planner prefers to
// read all of a shard where that brings them in order. The row whose payload and headers reach $3 bytes is the last.
var fetchSQL = `
SELECT ` + envelope("y") + `,
  CASE WHEN y.size <= $3 THEN y.payload END, y.size, ` + readHeaders("y") + `, y.headers_size,
  ` + mapped.Short("y.traceparent") + `, y.occurred_at, y.attempts, y.unknowns, y.republish_id, y.expired, g.ordering_key IS NOT NULL
FROM (
  SELECT x.*, ` + before + ` AS before FROM (
    SELECT position, event_id, event_type, schema_version, source, ordering_key, aggregate_version, destination,
      content_type, payload, octet_length(payload) AS size, headers, ` + headersSize + ` AS headers_size,
      traceparent, occurred_at, attempts, unknowns, republish_id,
      (aggregate_version IS NULL AND expires_at <= statement_timestamp()) IS TRUE AS expired
    FROM unnest($2::bigint[]) p(at) CROSS JOIN LATERAL (
      SELECT * FROM {outbox} WHERE shard = $1 AND NOT held AND position = p.at OFFSET 0) o) x) y
LEFT JOIN {outbox_gate} g ON $4 AND g.shard = $1 AND g.ordering_key = y.ordering_key
WHERE y.before < $3
ORDER BY y.position`

// Fetch returns the ready rows of the lease's shard at the positions, as far as they are still there, in position
// order. It stops at the row whose payload and headers reach maxBytes; cut says that there may be more.
func (s *Store) Fetch(
	ctx context.Context, l lease.Lease, at []message.Position, maxBytes int64,
) (rows []shard.Row, cut bool, err error) {
	positions := make([]int64, len(at))
	for i, p := range at {
		positions[i] = int64(p)
	}
	rows, err = s.rows(ctx, s.sql.fetch, l.Shard, positions, maxBytes, !s.cfg.Unordered)
	if err != nil {
		return nil, false, fmt.Errorf("fetch %d late rows: %w", len(at), err)
	}
	var bytes int64
	for i := range rows {
		bytes += rows[i].Bytes()
	}
	return rows, bytes >= maxBytes, nil
}

// loadSQL reads held rows by their ids. How long ago a message failed is told by the database's clock, as a duration.
var loadSQL = `
SELECT clock_timestamp() - x.last_failed_at, x.failing_for, ` + envelope("x") + `,
  CASE WHEN octet_length(x.payload) <= $3 THEN x.payload END, octet_length(x.payload), ` + readHeaders("x") + `,
  x.headers_size, ` + mapped.Short("x.traceparent") + `, x.occurred_at, x.attempts, x.unknowns, x.republish_id,
  (x.aggregate_version IS NULL AND x.expires_at <= statement_timestamp()) IS TRUE, true
FROM (SELECT o.*, ` + headersSize + ` AS headers_size FROM {outbox} o) x
WHERE x.shard = $1 AND x.held AND x.event_id = ANY($2::uuid[])
ORDER BY x.position`

// Load returns the held rows of the lease's shard with these ids, as far as they are still there.
func (s *Store) Load(ctx context.Context, l lease.Lease, ids []message.ID, maxBytes int64) ([]shard.Row, error) {
	var out []shard.Row
	read := func(rows pgx.Rows) error {
		var since, failing pgInterval
		scan := newRowScan(2)
		scan.into[0], scan.into[1] = &since, &failing
		for rows.Next() {
			row, err := scan.row(rows)
			if err != nil {
				return err
			}
			row.Failed, row.SinceFailed, row.FailingFor = since.Valid, duration(since), duration(failing)
			out = append(out, row)
		}
		return rows.Err()
	}
	err := s.pipelined(ctx, func(b *pgx.Batch) { b.Queue(s.sql.load, l.Shard, uuids(ids), maxBytes).Query(read) })
	if err != nil {
		return nil, fmt.Errorf("load %d held rows: %w", len(ids), err)
	}
	return out, nil
}

func (s *Store) rows(ctx context.Context, query string, args ...any) ([]shard.Row, error) {
	var out []shard.Row
	read := func(rows pgx.Rows) error {
		scan := newRowScan(0)
		for rows.Next() {
			row, err := scan.row(rows)
			if err != nil {
				return err
			}
			out = append(out, row)
		}
		return rows.Err()
	}
	err := s.pipelined(ctx, func(b *pgx.Batch) { b.Queue(query, args...).Query(read) })
	return out, err
}

// uuids gives pgx the ids as the array it encodes in binary.
func uuids(ids []message.ID) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}

// waitingSQL finds the shards that have something to do: a ready row above the lane's floor or a key that is due.
// statement_timestamp() is stable, so that the index on (shard, due) serves; clock_timestamp() would not.
const waitingSQL = `
SELECT s.shard FROM unnest($1::smallint[], $2::bigint[]) s(shard, floor)
WHERE EXISTS (SELECT 1 FROM {outbox} o WHERE o.shard = s.shard AND NOT o.held AND o.position > s.floor)
   OR EXISTS (SELECT 1 FROM {outbox_gate} g WHERE g.shard = s.shard AND g.due <= statement_timestamp())`

// lookSQL asks for the shards that a statement finds, for when the server was started and for the transactions that run.
func lookSQL(waiting string) string {
	return `SELECT pg_postmaster_start_time(), ` + runningSQL + `, (SELECT array_agg(w.shard) FROM (` + waiting + `) w)`
}

// Waiting returns those of the shards whose lane has something to do. Floors are those of the lanes, which must have
// nothing in hand.
func (s *Store) Waiting(ctx context.Context, shards []int16, floors []message.Position) (shard.Work, error) {
	above := make([]int64, len(floors))
	for i, f := range floors {
		above[i] = int64(f)
	}
	var work shard.Work
	var running []int64
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.waiting, shards, above).QueryRow(func(row pgx.Row) error {
			return row.Scan(&work.Server, &running, &work.Shards)
		})
	})
	if err != nil {
		return shard.Work{}, fmt.Errorf("look for work: %w", err)
	}
	work.Running = transactions(running)
	return work, nil
}
