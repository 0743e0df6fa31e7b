package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/postgres/mapped"
)

// The checks of an outbox that the team already has (layout StatusColumns). Its rows are read as the relay reads them.
// It keeps no broker positions, and whoever deletes its published rows owes nobody a word: what rests on them is not
// checked.

// verifyColumns checks the rows of a snapshot by themselves and then against the copy of the stream.
func (s *session) verifyColumns(ctx context.Context, r Relay, grace time.Duration, copied streamCopy) (Section, error) {
	t := r.Columns
	section := Section{Name: r.Name}
	var err error
	if section.Facts, err = s.columnsFacts(ctx, t); err != nil {
		return Section{}, err
	}
	if section.Checks, err = s.run(ctx, columnsChecks(t, grace)); err != nil {
		return Section{}, err
	}
	if t.Age() == "" {
		section.Checks = append(section.Checks, notChecked([]check{waits(t, grace)},
			"nothing in the table says when a row was written (columns.occurredAt)")...)
	}
	against, unprovable := columnsStreamChecks(t)
	if copied.unchecked != "" {
		section.Checks = append(section.Checks, notChecked(against, copied.unchecked)...)
	} else {
		made, err := s.run(ctx, against)
		if err != nil {
			return Section{}, err
		}
		section.Checks = append(section.Checks, made...)
	}
	section.Checks = append(section.Checks, notChecked(unprovable,
		"published rows are deleted, or nothing says when they were published (columns.publishedAt)")...)
	section.Checks = append(section.Checks, notChecked([]check{{promise: "G1", title: titlePhantom}},
		"the table is the team's, who may delete published rows")...)
	return section, nil
}

func (s *session) columnsFacts(ctx context.Context, t *mapped.Table) ([]Fact, error) {
	facts := []Fact{
		{Name: FactPublished},
		{Name: FactPending},
		{Name: FactHeld},
		{Name: FactRelayDeadLetters},
		{Name: FactDuplicates},
	}
	err := s.tx.QueryRow(ctx, columnsSQL(t, columnsFactsSQL)).
		Scan(&facts[0].Count, &facts[1].Count, &facts[2].Count, &facts[3].Count, &facts[4].Count)
	if err != nil {
		return nil, fmt.Errorf("count rows: %w", err)
	}
	return facts, nil
}

func waits(t *mapped.Table, grace time.Duration) check {
	return check{
		"G1", fmt.Sprintf("no row waits longer than %s without a visible reason", grace),
		columnsSQL(t, columnsWaitingSQL),
		[]any{grace.Seconds()},
	}
}

// columnsChecks are those that need the database only.
func columnsChecks(t *mapped.Table, grace time.Duration) []check {
	list := []check{
		{"R7", "no gate is without a waiting row or an open dead letter", columnsSQL(t, columnsGateSQL), nil},
		{"R7", "a gate is due exactly where it is not blocked", gateDueSQL, nil},
	}
	if t.Buries() {
		list = append(list, check{"G1", "every open dead letter is marked in its row", columnsMarkedSQL(t), nil})
	}
	if t.Age() != "" {
		list = append(list, waits(t, grace))
	}
	return list
}

// columnsStreamChecks compare the table with the copy of the stream. unprovable are those that this table has no
// columns for.
func columnsStreamChecks(t *mapped.Table) (made, unprovable []check) {
	made = []check{
		{"G3", titleUnchanged, columnsSQL(t, columnsUnchangedSQL), nil},
		{"G3", titleDuplicates, duplicatesSQL, nil},
		{"G4", titleBrokerOrder, brokerOrderSQL, nil},
	}
	arrived := check{"G2", titleArrived, columnsSQL(t, columnsArrivedSQL), nil}
	if t.Deletes() || t.Map.PublishedAt == "" {
		return made, []check{arrived}
	}
	return append(made, arrived), nil
}

// columnsSQL writes the table into a statement.
func columnsSQL(t *mapped.Table, statement string) string {
	statement = strings.NewReplacer(
		"{row}", t.Row("2147483647", "false"), "{published}", t.Published(), "{published at}", t.PublishedAt(),
		"{age}", t.Age(),
	).Replace(statement)
	return t.SQL(statement)
}

func columnsMarkedSQL(t *mapped.Table) string {
	return t.SQL(strings.ReplaceAll(columnsMarked, "{buried}", t.IsBuried()))
}

// Each statement returns how much it looked at, how much is broken and the first offender.
const (
	columnsFactsSQL = `
SELECT (SELECT count(*) FROM {outbox} o WHERE {published}),
       (SELECT count(*) FROM {outbox} o WHERE {unsettled}),
       (SELECT count(*) FROM {outbox} o JOIN {outbox_gate} g ON g.shard = {shard} AND g.ordering_key = {scope}
        WHERE {unsettled}),
       (SELECT count(*) FROM {message_failure} WHERE origin = 'Relay' AND state IN ('Open', 'Replaying')),
       (SELECT coalesce(sum(copies - 1), 0)::bigint FROM (
          SELECT count(*) AS copies, count(DISTINCT digest) AS contents FROM pg_temp.verify_stream
          WHERE event_id IS NOT NULL GROUP BY source, event_id) d
        WHERE copies > 1 AND contents = 1)`

	// The reasons are those of waitingSQL.
	columnsWaitingSQL = `
WITH bad AS (
  SELECT {id} AS event_id, {age} AS since FROM {outbox} o
  WHERE {unsettled} AND {age} < statement_timestamp() - make_interval(secs => $1)
    AND NOT EXISTS (
      SELECT 1 FROM {outbox_gate} g JOIN {message_failure} f
        ON f.origin = 'Relay' AND f.state IN ('Open', 'Replaying') AND f.ordering_key = g.ordering_key
      WHERE g.shard = {shard} AND g.ordering_key = {scope} AND g.state = 'Blocked')
    AND NOT EXISTS (
      SELECT 1 FROM {outbox_failing} h WHERE h.ordering_key = {scope} AND h.ambiguous_since IS NOT NULL))
SELECT (SELECT count(*) FROM {outbox} o WHERE {unsettled}), (SELECT count(*) FROM bad),
       (SELECT format('event %s, waiting since %s', event_id, since) FROM bad ORDER BY since LIMIT 1)`

	// A gate whose row went stays until it is due.
	columnsGateSQL = `
WITH bad AS (
  SELECT g.shard, g.ordering_key, g.state FROM {outbox_gate} g
  WHERE NOT EXISTS (
      SELECT 1 FROM {outbox} o
      WHERE {unsettled} AND {place} = {place of g.ordering_key} AND {scope} = g.ordering_key)
    AND NOT (g.state = 'Blocked' AND EXISTS (
      SELECT 1 FROM {message_failure} f
      WHERE f.origin = 'Relay' AND f.state IN ('Open', 'Replaying') AND f.ordering_key = g.ordering_key))
    AND (g.due IS NULL OR g.due < statement_timestamp() - interval '10 s'))
SELECT (SELECT count(*) FROM {outbox_gate}), (SELECT count(*) FROM bad),
       (SELECT format('gate in state %s of shard %s, key hash %s', state, shard, md5(ordering_key))
        FROM bad ORDER BY shard, ordering_key LIMIT 1)`

	columnsMarked = `
WITH letters AS (
  SELECT f.failure_id, f.event_id FROM {message_failure} f
  WHERE f.origin = 'Relay' AND f.state = 'Open' AND f.origin_name = (SELECT w.relay FROM {outbox_owner} w)),
bad AS (
  SELECT l.* FROM letters l
  WHERE NOT EXISTS (SELECT 1 FROM {outbox} o WHERE {id} = l.event_id::uuid AND {buried}))
SELECT (SELECT count(*) FROM letters), (SELECT count(*) FROM bad),
       (SELECT format('dead letter %s of event %s', failure_id, event_id) FROM bad ORDER BY failure_id LIMIT 1)`

	// kept are the rows as messages, r; with the copies of each in the stream, s.
	columnsUnchangedSQL = `
WITH pairs AS (
  SELECT r.*, s.sequence, s.source AS s_source, s.event_type AS s_type, s.destination AS s_destination,
    s.ordering_key AS s_key, s.version AS s_version, s.body_hash
  FROM (SELECT {row} FROM {outbox} o LEFT JOIN {outbox_failing} f ON f.event_id = {id}) r
  JOIN pg_temp.verify_stream s ON s.event_id = r.event_id::text),
bad AS (
  SELECT p.event_id, p.sequence FROM pairs p
  WHERE (p.s_source, p.s_type, p.s_destination, p.s_key) <> (p.source, p.event_type, p.destination, p.ordering_key)
     OR p.s_version IS DISTINCT FROM p.aggregate_version OR p.body_hash <> sha256(p.payload))
SELECT (SELECT count(*) FROM pairs), (SELECT count(*) FROM bad),
       (SELECT format('event %s at sequence %s', event_id, sequence) FROM bad ORDER BY sequence LIMIT 1)`

	// What was published before the first message of ours that the stream still holds may be gone from there, or was
	// another relay's.
	columnsArrivedSQL = `
WITH published AS (
  SELECT {id} AS event_id, {published at} AS at FROM {outbox} o
  WHERE {published} AND {published at} > (
    SELECT min(s.stored_at) FROM pg_temp.verify_stream s WHERE s.source = (SELECT w.source FROM {outbox_owner} w))),
bad AS (
  SELECT p.* FROM published p
  WHERE NOT EXISTS (SELECT 1 FROM pg_temp.verify_stream s WHERE s.event_id = p.event_id::text))
SELECT (SELECT count(*) FROM published), (SELECT count(*) FROM bad),
       (SELECT format('event %s, published at %s', event_id, at) FROM bad ORDER BY at LIMIT 1)`
)
