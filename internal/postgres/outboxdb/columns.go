package outboxdb

import (
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres/mapped"
)

// The statements for a table that the team already has (layout StatusColumns). They take and return what those of the
// Queue layout do, so that the code around them is the same.
//
// Such a table has no position that could be trusted. Order per key is by version: of each key only the first pending
// row is ever claimed, and none while the key has a gate. So a message cannot be sent before the one before it is
// settled, whatever a lane has in memory, and nothing behind a gate needs to be marked.
//
// What stands for the position is the place of the key on a ring of hashes (of the row's id where nothing is ordered). A
// lane has one row at a place, so the place tells its rows apart; a shard is an arc of the ring. Places say nothing about
// time: the floor of such a lane stays at the bottom, and a claim looks at the places above what was read, and when
// there is nothing any more, at those below, from a random one on, so that no key waits for ever behind busier ones.
//
// The index of mapped.Table.Index has the rows by place, version and id, so that one probe finds the first row of the
// next key, however many rows a key has. A key whose first row may not be sent yet costs a probe as well, and nothing
// says how many such keys there are. So a walk has a bound: a claim ends there, says where, and the lane goes on from
// that place, round and round. An idle lane whose claim was long looks by itself: the common look goes less far.

// firstRow is the row that comes first at the next place above one expression and up to another, if any. It says whether
// the row may be claimed: its key has no gate and its time has come. $1 is the shard, {by key} whether keys are what
// waits. (For NOT EXISTS the planner may read all gates into memory, for each claim anew, however many they are.)
const firstRow = `
    SELECT {place} AS position, {id} AS id, {due} AND (
      SELECT g.shard FROM {outbox_gate} g WHERE g.shard = $1
        AND g.ordering_key = CASE WHEN {by key} THEN {key} ELSE {id}::text END) IS NULL AS free
    FROM {outbox} o WHERE {ready} AND {place} > {above} AND {place} <= {upto}
    ORDER BY {place}, {order} LIMIT 1`

// placesSQL walks the places from one expression to another, place by place, and counts its steps (n) up to a bound. Its
// first step is for each row of from.
const placesSQL = `(
    SELECT h.position, h.id, h.free, {counted} + 1 AS n {from} CROSS JOIN LATERAL ({first row}) h
    WHERE {counted} < {most}
    UNION ALL
    SELECT h.position, h.id, h.free, p.n + 1 FROM {walk} p {beside} CROSS JOIN LATERAL ({next row}) h
    WHERE p.n < {most})`

// walk is a walk over places.
type walk struct {
	name string
	// from is a FROM clause of one row or none, on which the expressions may rest; beside is what the later steps need of it.
	from, beside string
	above, upto  string
	// counted is how many steps were made before this walk, most is how many may be made with those.
	counted, most string
}

// sql is the recursive query.
func (w walk) sql() string {
	step := func(above string) string {
		return strings.NewReplacer("{above}", above, "{upto}", w.upto).Replace(firstRow)
	}
	return w.name + " AS " + strings.NewReplacer("{walk}", w.name, "{from}", w.from, "{beside}", w.beside,
		"{counted}", w.counted, "{most}", w.most,
		"{first row}", step(w.above), "{next row}", step("p.position")).Replace(placesSQL)
}

// The bounds of walks, in places.
const (
	// claimSteps is how many a claim looks at above what was read, and below it: enough for its rows where three in four
	// places may not be sent yet, and some 20 to 50 ms with the default batch.
	claimSteps = `(4 * $4::bigint + 1000)`
	// lookSteps is how many the common look of idle lanes looks at of each shard: with 64 shards it must still end in time.
	// A lane whose claim saw as many does not rest on that look.
	lookSteps = 1000
)

// shardFrom and shardUpTo bound the places of shard $1.
const (
	shardFrom = `$1::bigint * {arc}`
	shardUpTo = `($1::bigint + 1) * {arc}`
)

// columnsClaim reads a lane's window in one snapshot, as claimSQL does. xmin is 0: there is no floor to raise. What is
// below is looked at from $8 on where that is a place, else from anywhere, and only when there is nothing above.
//
// look is told when neither part has as many rows as were asked for: the last place looked at above, the place where the
// bound ended the look, and the steps of both. Where a part has them, it was left at the last one: to count its steps
// would walk on, which is why CASE stands before each count.
func columnsClaim(t *mapped.Table) string {
	above := walk{
		name: "above", from: "FROM (SELECT 1) s", counted: "0::bigint", most: claimSteps,
		above: "greatest($3::bigint, " + shardFrom + ")", upto: shardUpTo,
	}
	later := walk{
		name: "later", from: "FROM start s", counted: "0::bigint", most: claimSteps,
		above: "greatest(s.at, $2::bigint)", upto: "$3::bigint",
	}
	earlier := walk{
		name: "earlier", from: "FROM start s CROSS JOIN (SELECT count(*) AS n FROM later) c", counted: "c.n",
		beside: "CROSS JOIN start s", most: claimSteps,
		above: "greatest($2::bigint, " + shardFrom + ")", upto: "least(s.at, $3::bigint)",
	}
	return "WITH RECURSIVE " + above.sql() + `,
found AS MATERIALIZED (SELECT position, id FROM above WHERE free LIMIT $4),
start AS MATERIALIZED (
  SELECT CASE WHEN $8::bigint > 0 THEN $8 ELSE ` + shardFrom + ` + floor(random() * {arc})::bigint END AS at
  WHERE CASE WHEN NOT EXISTS (SELECT FROM found) THEN (SELECT count(*) FROM above) < ` + claimSteps + ` END),
` + later.sql() + `,
` + earlier.sql() + `,
below AS MATERIALIZED (
  SELECT x.position FROM (SELECT position, free FROM later UNION ALL SELECT position, free FROM earlier) x
  WHERE x.free LIMIT $6)
SELECT pg_postmaster_start_time() AS server, '0'::xid8 AS xmin, NULL::bigint[] AS running, (SELECT array_agg(position) FROM below) AS below,
  CASE WHEN (SELECT count(*) FROM found) < $4 THEN CASE WHEN (SELECT count(*) FROM below) < $6 THEN ARRAY[
    (SELECT max(position) FROM above),
    (SELECT x.position FROM (
      SELECT position, n FROM above UNION ALL SELECT position, n FROM later UNION ALL SELECT position, n FROM earlier
    ) x WHERE x.n = ` + claimSteps + `),
    (SELECT count(*) FROM above) + (SELECT count(*) FROM later) + (SELECT count(*) FROM earlier)] END END AS look,
  NULL::bigint, NULL::uuid, NULL::text, NULL::int, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text,
  NULL::bytea, NULL::int, NULL::bytea, NULL::int, NULL::text, NULL::timestamptz, NULL::smallint, NULL::smallint,
  NULL::bigint, NULL::boolean, NULL::boolean
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, r.* FROM (` + boundedRows("found n", t.Row("$5::bigint", "false"), "$5::bigint") + `) r`
}

// boundedRows are the whole rows of some ids n, in the order of their places, up to the one whose payload and headers
// reach the bound. Each is looked up by itself (LIMIT keeps the planner from joining the tables): a plan that reads the
// whole table would be as slow as the table is large.
func boundedRows(from, row, bound string) string {
	return `
  SELECT ` + rowNames("y.") + ` FROM (
    SELECT x.*, ` + before + ` AS before FROM (
      SELECT l.* FROM ` + from + ` CROSS JOIN LATERAL (
        SELECT ` + row + ` FROM {outbox} o LEFT JOIN {outbox_failing} f ON f.event_id = {id}
        WHERE {id} = n.id LIMIT 1) l) x) y
  WHERE y.before < ` + bound + ` ORDER BY y.position`
}

// rowNames are the columns of a row in the order in which rowScan reads them.
func rowNames(prefix string) string {
	names := []string{
		"position", "event_id", "event_type", "schema_version", "source", "ordering_key", "aggregate_version",
		"destination", "content_type", "payload", "size", "headers", "headers_size", "traceparent", "occurred_at",
		"attempts", "unknowns", "republish_id", "expired", "gated",
	}
	return prefix + strings.Join(names, ", "+prefix)
}

// columnsFetch reads the first rows at some places, as far as they may be claimed.
func columnsFetch(t *mapped.Table) string {
	first := strings.NewReplacer("{above}", "u.place - 1", "{upto}", "u.place", "{by key}", "$4").Replace(firstRow)
	return `SELECT ` + rowNames("z.") + ` FROM (` + boundedRows(
		`(SELECT h.id FROM unnest($2::bigint[]) u(place) CROSS JOIN LATERAL (`+first+`) h WHERE h.free) n`,
		t.Row("$3::bigint", "false"), "$3::bigint") + `) z`
}

// columnsLoad reads rows of waiting keys by their ids.
func columnsLoad(t *mapped.Table) string {
	return `
SELECT clock_timestamp() - f.last_failed_at, coalesce(f.failing_for, '0'), ` + t.Row("$3::bigint", "true") + `
FROM {outbox} o LEFT JOIN {outbox_failing} f ON f.event_id = {id}
WHERE $1::smallint >= 0 AND {id} = ANY($2::uuid[]) AND {unsettled}
ORDER BY position`
}

// columnsWaiting finds the shards with a row that may be claimed or a key that is due, and those that are too much to
// look at: their lanes look on by themselves.
func columnsWaiting() string {
	steps := strconv.Itoa(lookSteps)
	free := walk{
		name: "above", from: "FROM (SELECT 1) x", counted: "0::bigint", most: steps,
		above: "greatest(s.floor, s.shard::bigint * {arc})", upto: "(s.shard::bigint + 1) * {arc}",
	}.sql()
	free = strings.NewReplacer("g.shard = $1", "g.shard = s.shard",
		"CASE WHEN {by key} THEN {key} ELSE {id}::text END", "{scope}").Replace(free)
	return `
SELECT s.shard FROM unnest($1::smallint[], $2::bigint[]) s(shard, floor)
WHERE EXISTS (WITH RECURSIVE ` + free + ` SELECT FROM above WHERE free OR n = ` + steps + `)
   OR EXISTS (SELECT FROM {outbox_gate} g WHERE g.shard = s.shard AND g.due <= statement_timestamp())`
}

// columnsSettle settles confirmed rows in one statement while the lease is held in this term, as settleSQL does: l locks
// the lease before the first row is touched. The id of the transaction is 0, since there is no floor to raise.
func columnsSettle(t *mapped.Table) string {
	change := `UPDATE {outbox} o SET ` + t.Settled() + ` FROM unnest($5::uuid[], $6::text[]) u(id, broker_position)`
	if t.Deletes() {
		change = `DELETE FROM {outbox} o USING unnest($5::uuid[], $6::text[]) u(id, broker_position)`
	}
	return `
WITH l AS MATERIALIZED (
  SELECT 1 FROM {outbox_lease} WHERE relay = $1 AND shard = $2 AND holder = $3 AND term = $4 FOR NO KEY UPDATE
), settled AS (
  ` + change + `
  WHERE {id} = u.id AND {unsettled} AND EXISTS (SELECT 1 FROM l) RETURNING {id} AS id
), mended AS (
  DELETE FROM {outbox_failing} f USING settled s WHERE f.event_id = s.id RETURNING f.failure_id
), replayed AS (
  UPDATE {message_failure} SET state = 'Replayed' WHERE state = 'Replaying'
    AND failure_id = ANY(ARRAY(SELECT m.failure_id FROM mended m WHERE m.failure_id IS NOT NULL))
)
SELECT (SELECT count(*) FROM l), (SELECT count(*) FROM settled), '0'::xid8`
}

// columnsSettled counts which of the ids are settled. $2 and $3 are the lowest and highest of them.
func columnsSettled(t *mapped.Table) string {
	if t.Deletes() {
		return ""
	}
	return `
SELECT count(*) FROM {outbox} o WHERE {id} = ANY($1::uuid[]) AND {id} BETWEEN $2 AND $3 AND ` + t.Published()
}

// columnsHoldGated says which rows have a key that waits: the gate alone holds them.
const columnsHoldGated = `
SELECT {place} FROM {outbox} o JOIN {outbox_gate} g ON g.shard = $1 AND g.ordering_key = {scope}
WHERE {id} = ANY($2::uuid[]) AND {unsettled}`

// columnsRefuse writes what is known of failed rows: beside the table, where the relay reads it, and in the table for
// people to see. The counts are values and only grow.
func columnsRefuse(t *mapped.Table) string {
	show := `SELECT 1`
	if set := t.Refused(); set != "" {
		show = `UPDATE {outbox} o SET ` + set + ` FROM u WHERE {id} = u.id AND {unsettled}`
	}
	return `
WITH u AS (
  SELECT * FROM unnest($2::uuid[], $3::smallint[], $4::smallint[], $5::text[], $6::interval[], $7::boolean[])
    u(id, attempts, unknowns, code, failing_for, counted)
), noted AS (
  INSERT INTO {outbox_failing} AS f
    (event_id, ordering_key, attempts, unknowns, first_failed_at, last_failed_at, last_error_code, failing_for,
     ambiguous_since)
  SELECT u.id, {scope}, u.attempts, u.unknowns, clock_timestamp(), clock_timestamp(), u.code, u.failing_for,
    CASE WHEN NOT u.counted THEN clock_timestamp() END
  FROM u JOIN {outbox} o ON {id} = u.id AND {unsettled} WHERE $1::smallint >= 0
  ON CONFLICT (event_id) DO UPDATE SET
    ordering_key = excluded.ordering_key, attempts = greatest(f.attempts, excluded.attempts),
    first_failed_at = coalesce(f.first_failed_at, excluded.first_failed_at),
    unknowns = greatest(f.unknowns, excluded.unknowns), last_failed_at = excluded.last_failed_at,
    last_error_code = excluded.last_error_code, failing_for = greatest(f.failing_for, excluded.failing_for),
    ambiguous_since = CASE WHEN excluded.ambiguous_since IS NOT NULL
      THEN coalesce(f.ambiguous_since, excluded.ambiguous_since) END
)
` + show
}

// columnsHead is the first row behind a gate g: the first pending one of its key, or one that is marked as waiting and
// comes before it.
func columnsHead(t *mapped.Table) string {
	const head = `
    SELECT {place} AS position, {id} AS event_id, {size} AS size, {version} AS version
    FROM {outbox} o `
	list := "(" + head + `
    WHERE {ready} AND {place} = {place of g.ordering_key} AND {scope} = g.ordering_key ORDER BY {order} LIMIT 1)`
	if t.Map.Values.Waiting != "" {
		list += "\n    UNION ALL " + strings.Replace(
			head,
			"{outbox} o",
			"{outbox_failing} w JOIN {outbox} o ON {id} = w.event_id",
			1,
		) +
			`WHERE w.ordering_key = g.ordering_key AND ` + t.IsWaiting()
	}
	return `(SELECT x.*, coalesce(f.unknowns, 0)::smallint AS unknowns
    FROM (` + list + `) x LEFT JOIN {outbox_failing} f ON f.event_id = x.event_id
    ORDER BY x.version, x.event_id LIMIT 1)`
}

// columnsDue finds keys that may be tried again, each with its first row.
func columnsDue(t *mapped.Table) string {
	return `
SELECT g.ordering_key, g.state, h.ids, h.sizes, h.unknowns
FROM (
  SELECT shard, ordering_key, state, due FROM {outbox_gate}
  WHERE shard = $1 AND due <= statement_timestamp() ORDER BY due LIMIT $2) g
CROSS JOIN LATERAL (
  SELECT array_agg(r.event_id) AS ids, array_agg(r.size) AS sizes, array_agg(r.unknowns) AS unknowns
  FROM ` + columnsHead(t) + ` r WHERE $3::int > 0) h
ORDER BY g.due`
}

// columnsRelease opens the gates of some keys: what waits behind one was never marked, so that it is free at once
// however much it is.
func columnsRelease(t *mapped.Table) string {
	freed := ""
	if set := t.Freed(); set != "" {
		freed = `, freed AS (
  UPDATE {outbox} o SET ` + set + ` FROM k JOIN {outbox_failing} f ON f.ordering_key = k.ordering_key
  WHERE NOT k.open AND {id} = f.event_id AND ` + t.IsWaiting() + `
)`
	}
	return `
WITH k AS MATERIALIZED (
  SELECT g.ordering_key, (SELECT r.position FROM ` + columnsHead(t) + ` r WHERE $3::int > 0) AS first, EXISTS (
    SELECT 1 FROM {message_failure} f
    WHERE f.origin = 'Relay' AND f.origin_name = $4 AND f.ordering_key = g.ordering_key
      AND f.state = 'Open' AND f.blocks_key) AS open
  FROM {outbox_gate} g WHERE g.shard = $1 AND g.ordering_key = ANY($2::text[])
), gone AS (
  DELETE FROM {outbox_gate} g USING k WHERE NOT k.open AND g.shard = $1 AND g.ordering_key = k.ordering_key
), stays AS (
  UPDATE {outbox_gate} g SET state = 'Blocked', due = NULL
  FROM k WHERE k.open AND g.shard = $1 AND g.ordering_key = k.ordering_key
)` + freed + `
SELECT ordering_key, NOT open, CASE WHEN NOT open THEN first END FROM k`
}

// columnsBacklog counts what is not settled of each shard, what waits apart, both up to $2. What waits is counted by its
// gates, and taken off from all that is pending. The oldest is the oldest of those counted.
func columnsBacklog(t *mapped.Table) string {
	const arc = `{place} > s.shard::bigint * {arc} AND {place} <= (s.shard::bigint + 1) * {arc}`
	behind := `(SELECT {created} AS at FROM {outbox} o
      WHERE {ready} AND {place} = {place of g.ordering_key} AND {scope} = g.ordering_key LIMIT $2)`
	marked := `0`
	if t.Map.Values.Waiting != "" {
		behind = `(` + behind + ` UNION ALL SELECT {created} FROM {outbox_failing} w JOIN {outbox} o ON {id} = w.event_id
      WHERE w.ordering_key = g.ordering_key AND ` + t.IsWaiting() + `)`
		marked = `(SELECT count(*) FROM {outbox_gate} g JOIN {outbox_failing} w ON w.ordering_key = g.ordering_key
      JOIN {outbox} o ON {id} = w.event_id AND ` + t.IsWaiting() + ` WHERE g.shard = s.shard)`
	}
	return `
SELECT statement_timestamp(), greatest(ready.n + ` + marked + ` - held.retrying - held.blocked, 0), ready.at,
  held.retrying, held.blocked, held.at, held.blocked_at, keys.n, ambiguous.n
FROM unnest($1::smallint[]) s(shard)
CROSS JOIN LATERAL (SELECT count(*) AS n, min(x.at) AS at FROM (
  SELECT {created} AS at FROM {outbox} o WHERE {ready} AND ` + arc + ` LIMIT greatest($2::bigint, $3::bigint)) x) ready
CROSS JOIN LATERAL (SELECT
    count(*) FILTER (WHERE x.state <> 'Blocked') AS retrying, count(*) FILTER (WHERE x.state = 'Blocked') AS blocked,
    min(x.at) FILTER (WHERE x.state <> 'Blocked') AS at,
    min(x.at) FILTER (WHERE x.state = 'Blocked') AS blocked_at
  FROM (SELECT g.state, r.at FROM {outbox_gate} g CROSS JOIN LATERAL ` + behind + ` r
    WHERE g.shard = s.shard LIMIT $2) x) held
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
  SELECT 1 FROM {outbox_gate} g WHERE g.shard = s.shard AND g.state = 'Blocked' LIMIT $2) x) keys
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
  SELECT 1 FROM {outbox_gate} g JOIN {outbox_failing} w ON w.ordering_key = g.ordering_key
    AND w.ambiguous_since < statement_timestamp() - $4::interval
  WHERE g.shard = s.shard LIMIT $2) x) ambiguous`
}

// columnsOwn also notes how the columns are named, for the tools that work beside the relay.
const columnsOwn = `
UPDATE {outbox_owner} SET relay = $1, relay_uid = $2, seen_until = clock_timestamp() + $3::interval, mapping = $4
RETURNING seen_until`

// mapping is what is noted of how a relay's configuration names the columns of a team's table.
type mapping struct {
	Columns   config.Columns `json:"columns"`
	Unordered bool           `json:"unordered,omitempty"`
}

// table is the team's table as this relay works on it.
func (c *Config) table() mapped.Table {
	t := *c.Columns
	t.Names, t.Shards, t.Unordered, t.Relay = c.Names, c.Shards, c.Unordered, c.Relay
	return t
}

// ownership are the arguments with which a relay says that the table is its own.
func (s *Store) ownership(until time.Duration) []any {
	args := []any{s.cfg.Relay, s.cfg.RelayUID, interval(until)}
	if s.cfg.Columns != nil {
		args = append(args, mapping{s.cfg.Columns.Map, s.cfg.Unordered})
	}
	return args
}

// onColumns puts the statements of this layout in the place of the Queue's.
func (st *statements) onColumns(cfg Config) {
	t := cfg.table()
	byKey := func(statement, parameter string) string {
		return t.SQL(strings.ReplaceAll(statement, "{by key}", parameter))
	}
	st.claim = byKey(columnsClaim(&t), "$7")
	st.fetch = t.SQL(columnsFetch(&t))
	st.load = t.SQL(columnsLoad(&t))
	st.waiting = t.SQL(lookSQL(columnsWaiting()))
	st.settle = t.SQL(columnsSettle(&t))
	st.archived = t.SQL(columnsSettled(&t))
	st.holdGated, st.holdRows = t.SQL(columnsHoldGated), ""
	st.bury = ""
	if t.Buries() {
		st.bury = t.SQL(columnsBury(&t))
	}
	st.own = t.SQL(columnsOwn)
	st.refuse = t.SQL(columnsRefuse(&t))
	st.due = t.SQL(columnsDue(&t))
	st.release = t.SQL(columnsRelease(&t))
	st.backlog = t.SQL(columnsBacklog(&t))
}
