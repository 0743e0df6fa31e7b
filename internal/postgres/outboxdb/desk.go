package outboxdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
)

// Desk is where people decide about messages: what to send again, give up or skip. It works beside running relays: like
// them it locks the shard's lease first, without comparing who holds it. Every decision is written to message_audit.
type Desk struct {
	store *Store
	names postgres.Names

	learning sync.Mutex
	learned  bool // below is for the table's layout
	sql      deskStatements
}

// NewDesk returns a desk for the outbox and dead letters of some names. Timeout bounds each transaction.
func NewDesk(db DB, names postgres.Names, timeout time.Duration) *Desk {
	return &Desk{
		store: &Store{
			db:  db,
			cfg: Config{Names: names, QueryTimeout: timeout},
			sql: newStatements(names),
		},
		names: names,
		sql:   queueDesk(),
	}
}

// layoutSQL reads how many shards a table has, who uses it, and how its columns are named where it is the team's own:
// only then is there a mapping, which is null until a relay has used the table.
const layoutSQL = `SELECT w.shards, coalesce(w.relay, ''), to_jsonb(w) -> 'mapping' FROM {outbox_owner} w`

// learn finds out which layout the outbox has.
func (d *Desk) learn(ctx context.Context) error {
	d.learning.Lock()
	defer d.learning.Unlock()
	if d.learned {
		return nil
	}
	err := d.store.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var shards int16
		var relay string
		var noted []byte
		if err := tx.QueryRow(ctx, d.names.SQL(layoutSQL)).Scan(&shards, &relay, &noted); err != nil {
			return err
		}
		switch {
		case noted == nil:
			return nil // an outbox of our own
		case string(noted) == "null":
			return refuse("no relay has ever used table %s", d.names.Outbox)
		}
		var m mapping
		if err := json.Unmarshal(noted, &m); err != nil {
			return fmt.Errorf("read how the columns of %s are named: %w", d.names.Outbox, err)
		}
		t, err := mapped.Read(ctx, tx, mapped.Table{
			Names: d.names, Map: m.Columns, Unordered: m.Unordered, Shards: int(shards), Relay: relay,
		})
		if err != nil {
			return err
		}
		d.store.cfg.Columns, d.store.cfg.Shards = t, int(shards)
		d.store.cfg.Unordered, d.store.cfg.Relay = m.Unordered, relay
		d.store.sql.onColumns(d.store.cfg)
		d.sql = columnsDesk(t)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at the outbox: %w", err)
	}
	d.learned = true
	return nil
}

// RefusedError says why a decision was not carried out. Its text names ids only.
type RefusedError struct{ Message string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Message }

func refuse(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// Decision is who decided and why; both are kept.
type Decision struct{ Actor, Why string }

// Letter is a dead letter.
type Letter struct {
	ID                                        int64
	Origin, OriginName, Source, EventID, Type string
	OrderingKey, Destination, SourcePosition  string
	Version, Position                         *int64
	Reason, Code, Detail, ContentType         string
	Attempts, Generation                      int
	State                                     string
	BlocksKey                                 bool
	FirstFailedAt, LastFailedAt               time.Time
	Size                                      int64
	Digest                                    []byte
	// Payload and Headers are read only where they are asked for.
	Payload, Headers []byte
}

// Filter chooses dead letters; what is empty chooses all.
type Filter struct {
	Origin, OriginName, State, Reason, OrderingKey string
	// Limit bounds the answer.
	Limit int
}

// letterColumns are those of a Letter f, its texts bounded. The body only where $1 says so.
var letterColumns = `f.failure_id, f.origin, f.origin_name, ` + mapped.Short("f.source") + `, f.event_id,
  ` + mapped.Short("f.event_type") + `, f.ordering_key, ` + mapped.Short("f.destination") + `,
  f.source_position, f.aggregate_version, f.position, f.reason, coalesce(f.error_code, ''), coalesce(f.error_detail, ''),
  coalesce(` + mapped.Short("f.content_type") + `, ''), f.attempts, f.generation, f.state, f.blocks_key, f.first_failed_at, f.last_failed_at,
  coalesce(octet_length(f.raw_body), 0)::bigint, f.payload_digest,
  CASE WHEN $1::boolean THEN f.raw_body END, CASE WHEN $1::boolean THEN f.raw_headers END`

var lettersSQL = `
SELECT ` + letterColumns + ` FROM {message_failure} f
WHERE ($2 = '' OR f.origin = $2) AND ($3 = '' OR f.origin_name = $3) AND ($4 = '' OR f.state = $4)
  AND ($5 = '' OR f.reason = $5) AND ($6 = '' OR f.ordering_key = $6)
ORDER BY f.failure_id LIMIT $7`

var letterSQL = `SELECT ` + letterColumns + ` FROM {message_failure} f WHERE f.failure_id = $2`

// List returns dead letters in the order in which they were made, without their payloads.
func (d *Desk) List(ctx context.Context, f Filter) ([]Letter, error) {
	letters, err := d.letters(ctx, lettersSQL, false, f.Origin, f.OriginName, f.State, f.Reason, f.OrderingKey, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

// Get returns one dead letter, with its payload and headers only if asked.
func (d *Desk) Get(ctx context.Context, id int64, payload bool) (Letter, error) {
	letters, err := d.letters(ctx, letterSQL, payload, id)
	switch {
	case err != nil:
		return Letter{}, fmt.Errorf("read dead letter %d: %w", id, err)
	case len(letters) == 0:
		return Letter{}, refuse("there is no dead letter %d", id)
	default:
		return letters[0], nil
	}
}

func (d *Desk) letters(ctx context.Context, statement string, args ...any) ([]Letter, error) {
	var out []Letter
	err := d.store.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, d.names.SQL(statement), args...)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Letter, err error) {
			err = row.Scan(
				&l.ID,
				&l.Origin,
				&l.OriginName,
				&l.Source,
				&l.EventID,
				&l.Type,
				&l.OrderingKey,
				&l.Destination,
				&l.SourcePosition,
				&l.Version,
				&l.Position,
				&l.Reason,
				&l.Code,
				&l.Detail,
				&l.ContentType,
				&l.Attempts,
				&l.Generation,
				&l.State,
				&l.BlocksKey,
				&l.FirstFailedAt,
				&l.LastFailedAt,
				&l.Size,
				&l.Digest,
				&l.Payload,
				&l.Headers,
			)
			return l, err
		})
		return err
	})
	return out, err
}

// shardLockSQL locks the leases of the shard of a key, whoever holds them, and returns the shard.
const shardLockSQL = `
SELECT l.shard FROM {outbox_lease} l
WHERE l.shard = (SELECT ((hashtextextended($1 COLLATE "C", 0) & 9223372036854775807) % o.shards)::smallint
  FROM {outbox_owner} o)
ORDER BY l.relay FOR NO KEY UPDATE`

// lowestSQL finds the first undecided dead letter among those that block a key and the one that is meant.
const lowestSQL = `
SELECT f.failure_id, f.state FROM {message_failure} f
WHERE f.origin = 'Relay' AND f.origin_name = $1 AND f.ordering_key = $2 AND f.state IN ('Open', 'Replaying')
  AND (f.failure_id = $3 OR (f.blocks_key AND $4))
ORDER BY f.position, f.failure_id LIMIT 1 FOR UPDATE`

const (
	stateSQL = `UPDATE {message_failure} SET state = $2 WHERE failure_id = $1`

	// dueGateSQL lets a key have its next look at once.
	dueGateSQL = `
INSERT INTO {outbox_gate} (shard, ordering_key, state, due) VALUES ($1, $2, 'Retry', clock_timestamp())
ON CONFLICT (shard, ordering_key) DO UPDATE SET state = excluded.state, due = excluded.due`

	// replaySQL puts the message back at its place.
	replaySQL = `
INSERT INTO {outbox} (position, event_id, event_type, schema_version, source, ordering_key, aggregate_version,
  destination, content_type, payload, headers, traceparent, occurred_at, expires_at, held, failure_id)
SELECT f.position, f.event_id::uuid, f.event_type, f.schema_version, f.source, f.ordering_key, f.aggregate_version,
  f.destination, f.content_type, coalesce(f.raw_body, ''), convert_from(f.raw_headers, 'UTF8')::jsonb, f.traceparent,
  f.occurred_at, f.expires_at, true, f.failure_id
FROM {message_failure} f WHERE f.failure_id = $1`

	// discardSQL puts a marker at the message's place, where the message has a version that consumers may wait for.
	discardSQL = `
INSERT INTO {outbox} (` + markerColumns + `)
SELECT f.position, gen_random_uuid(), 'postrider.skipped', 1, f.source, f.ordering_key, f.aggregate_version,
  f.destination, 'application/octet-stream', '', clock_timestamp(), true
FROM {message_failure} f WHERE f.failure_id = $1 AND f.aggregate_version IS NOT NULL`

	auditSQL = `
INSERT INTO {message_audit} (actor, action, failure_id, origin, origin_name, event_id, why, digest_before, digest_after)
SELECT $1, $2, f.failure_id, f.origin, f.origin_name, f.event_id, $3, f.payload_digest,
  CASE WHEN $2 = 'Replay' THEN f.payload_digest END
FROM {message_failure} f WHERE f.failure_id = $4`
)

// Replay sends a dead letter of a relay again, at its place in its key. One whose place was taken by a marker is sent
// behind what was published since, which outOfOrder must allow.
func (d *Desk) Replay(ctx context.Context, id int64, by Decision, outOfOrder bool) error {
	l, err := d.own(ctx, id)
	if err != nil {
		return err
	}
	if !l.BlocksKey && l.Version != nil && !outOfOrder {
		return refuse("the key of dead letter %d went on without it: consumers that compare versions will refuse it; "+
			"--out-of-order sends it all the same", id)
	}
	return d.decide(ctx, &l, by, "Replay", func(ctx context.Context, tx pgx.Tx, shard int16) error {
		gate := l.OrderingKey
		if !l.BlocksKey {
			gate = l.EventID // it waits by itself: its key has no place for it any more
		}
		if err := d.run(ctx, tx, query{dueGateSQL, []any{shard, gate}}); err != nil {
			return err
		}
		back, err := tx.Exec(ctx, d.names.SQL(d.sql.replay), id)
		if err != nil {
			return err
		}
		if back.RowsAffected() == 0 {
			return refuse("the row of dead letter %d is gone, or has another status: discard the dead letter", id)
		}
		return d.run(ctx, tx, query{stateSQL, []any{id, "Replaying"}})
	})
}

// Discard gives a dead letter of a relay up. Its key goes on behind a marker in its place.
func (d *Desk) Discard(ctx context.Context, id int64, by Decision) error {
	l, err := d.own(ctx, id)
	if err != nil {
		return err
	}
	return d.decide(ctx, &l, by, "Discard", func(ctx context.Context, tx pgx.Tx, shard int16) error {
		if !l.BlocksKey {
			return d.run(ctx, tx, query{stateSQL, []any{id, "Discarded"}})
		}
		decided := []query{{dueGateSQL, []any{shard, l.OrderingKey}}, {stateSQL, []any{id, "Discarded"}}}
		if d.sql.discard != "" {
			decided = append(decided, query{d.sql.discard, []any{id}})
		}
		return d.run(ctx, tx, decided...)
	})
}

// own returns a dead letter that is this outbox's.
func (d *Desk) own(ctx context.Context, id int64) (Letter, error) {
	l, err := d.Get(ctx, id, false)
	switch {
	case err != nil:
		return Letter{}, err
	case l.Origin != "Relay":
		return Letter{}, refuse("dead letter %d is a consumer's: it cannot be decided here yet", id)
	case !strings.HasPrefix(l.SourcePosition, d.names.Outbox+"@"):
		return Letter{}, refuse(
			"dead letter %d is of another outbox table, at %s: name it with --table",
			id,
			l.SourcePosition,
		)
	default:
		return l, d.learn(ctx)
	}
}

// place is the key whose shard a dead letter belongs to.
func (d *Desk) place(l *Letter) string {
	if d.store.cfg.Columns != nil && d.store.cfg.Unordered {
		return l.EventID
	}
	return l.OrderingKey
}

// decide carries a decision out: the lease is locked by the first statement of its transaction, and only the lowest
// undecided dead letter of a key may be decided about.
func (d *Desk) decide(
	ctx context.Context, l *Letter, by Decision, action string,
	do func(ctx context.Context, tx pgx.Tx, shard int16) error,
) error {
	err := d.store.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		shard, err := d.lock(ctx, tx, d.place(l))
		if err != nil {
			return err
		}
		var lowest int64
		var state string
		err = tx.QueryRow(ctx, d.names.SQL(lowestSQL), l.OriginName, l.OrderingKey, l.ID, l.BlocksKey).
			Scan(&lowest, &state)
		switch {
		case errors.Is(err, pgx.ErrNoRows) || (err == nil && lowest == l.ID && state != "Open"):
			return refuse("dead letter %d is not open", l.ID)
		case err != nil:
			return err
		case lowest != l.ID:
			return refuse("dead letter %d of the same key comes first and is undecided or on its way", lowest)
		}
		if err := do(ctx, tx, shard); err != nil {
			return err
		}
		return d.run(ctx, tx, query{auditSQL, []any{by.Actor, action, by.Why, l.ID}})
	})
	if err != nil {
		return fmt.Errorf("%s dead letter %d: %w", strings.ToLower(action), l.ID, err)
	}
	return nil
}

// lock locks the leases of a key's shard and returns the shard.
func (d *Desk) lock(ctx context.Context, tx pgx.Tx, key string) (int16, error) {
	rows, err := tx.Query(ctx, d.names.SQL(d.sql.lock), key)
	if err != nil {
		return 0, fmt.Errorf("lock the lease: %w", err)
	}
	shards, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	switch {
	case err != nil:
		return 0, fmt.Errorf("lock the lease: %w", err)
	case len(shards) == 0:
		return 0, refuse("no relay has ever used table %s", d.names.Outbox)
	default:
		return shards[0], nil
	}
}

// query is a statement with its arguments.
type query struct {
	sql  string
	args []any
}

func (d *Desk) run(ctx context.Context, tx pgx.Tx, queries ...query) error {
	for _, q := range queries {
		if _, err := tx.Exec(ctx, d.names.SQL(q.sql), q.args...); err != nil {
			return err
		}
	}
	return nil
}

// headSQL is a message that waits, as the head of what waits with it: its gate, the table's relay, and what is known of
// its failures. No row where the message is not there, was never tried, or waits behind another.
const headSQL = `
SELECT g.ordering_key, o.ordering_key = g.ordering_key, w.relay, o.attempts, coalesce(o.last_error_code, 'Moved')
FROM {outbox} o
JOIN {outbox_gate} g ON g.shard = o.shard AND g.ordering_key IN (o.ordering_key, o.event_id::text)
CROSS JOIN {outbox_owner} w
WHERE o.event_id = $1 AND o.held AND o.last_failed_at IS NOT NULL AND w.relay IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM {outbox} b WHERE b.held AND b.ordering_key = o.ordering_key AND b.position < o.position
    AND g.ordering_key = o.ordering_key)
LIMIT 1`

// keySQL is the key of a message.
const keySQL = `SELECT ordering_key FROM {outbox} WHERE event_id = $1`

// movedSQL finds the dead letter that was just made of a message.
const movedSQL = `
SELECT max(failure_id) FROM {message_failure} WHERE origin = 'Relay' AND origin_name = $1 AND event_id = $2`

// Move makes a dead letter of a message that fails and waits for its next try, whatever is left of its budget, and
// returns the dead letter's id. Its key is blocked until somebody decides. A try that is under way may still arrive.
func (d *Desk) Move(ctx context.Context, event message.ID, by Decision) (id int64, err error) {
	if err := d.learn(ctx); err != nil {
		return 0, err
	}
	if d.store.sql.bury == "" {
		return 0, refuse("no status of table %s stands for dead letters: name one as outbox.columns.values.failed",
			d.names.Outbox)
	}
	err = d.store.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		id, err = d.moveIn(ctx, tx, event, by)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("move event %s: %w", event, err)
	}
	return id, nil
}

func (d *Desk) moveIn(ctx context.Context, tx pgx.Tx, event message.ID, by Decision) (id int64, err error) {
	waits := func(err error) error {
		if errors.Is(err, pgx.ErrNoRows) {
			return refuse(
				"the message does not fail: it is not there, was not tried, or waits behind another of its key",
			)
		}
		return err
	}
	var key string
	if err := tx.QueryRow(ctx, d.names.SQL(d.sql.key), [16]byte(event)).Scan(&key); err != nil {
		return 0, waits(err)
	}
	shard, err := d.lock(ctx, tx, key)
	if err != nil {
		return 0, err
	}
	var gate, relay, code string
	var byKey bool
	var attempts int16
	err = tx.QueryRow(ctx, d.names.SQL(d.sql.moved), [16]byte(event)).Scan(&gate, &byKey, &relay, &attempts, &code)
	if err != nil {
		return 0, waits(err)
	}
	detail := "given up by hand"
	if _, err := tx.Exec(ctx, d.store.sql.bury, shard, [][16]byte{event}, []int16{attempts}, []string{code},
		[]*string{&detail}, relay, byKey, false, d.names.Outbox); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, d.store.sql.buriedGate, shard, []string{gate}, relay); err != nil {
		return 0, err
	}
	if err := tx.QueryRow(ctx, d.names.SQL(movedSQL), relay, event.String()).Scan(&id); err != nil {
		return 0, err
	}
	return id, d.run(ctx, tx, query{auditSQL, []any{by.Actor, "Move", by.Why, id}})
}
