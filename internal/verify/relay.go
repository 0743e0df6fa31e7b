package verify

import (
	"context"
	"fmt"
	"time"
)

// verifyRelay checks one outbox: its own rows first, then against the stream.
func verifyRelay(ctx context.Context, r Relay, grace time.Duration) (Section, error) {
	s, err := openSession(ctx, r.Pool, r.Tables)
	if err != nil {
		return Section{}, err
	}
	defer s.close(ctx)
	// First the stream, then the database: what is in the copy was committed before, and what the archive says about
	// the copied range is complete.
	copied, err := s.copyStream(ctx, r.Stream, nil, nil)
	if err != nil {
		return Section{}, err
	}
	if err := s.snapshot(ctx); err != nil {
		return Section{}, err
	}
	if r.Columns != nil {
		return s.verifyColumns(ctx, r, grace, copied)
	}
	section := Section{Name: r.Name}
	if section.Facts, err = s.relayFacts(ctx); err != nil {
		return Section{}, err
	}
	if section.Checks, err = s.run(ctx, outboxChecks(grace)); err != nil {
		return Section{}, err
	}
	var against []Check
	checks := relayStreamChecks(copied)
	if copied.unchecked != "" {
		against = notChecked(checks, copied.unchecked)
	} else if against, err = s.run(ctx, checks); err != nil {
		return Section{}, err
	} else {
		dropped(against)
	}
	section.Checks = append(section.Checks, against...)
	return section, nil
}

// dropped says of rows whose messages the stream does not hold any more, the last check, that they prove nothing: what
// the stream drops, by its limits or by a hand, may have been delivered.
func dropped(checks []Check) {
	if last := &checks[len(checks)-1]; last.Result == Broken {
		last.leave(

			fmt.Sprintf("%d rows lie below what the stream still holds: they are not covered", last.Broken),
		)
	}
}

// The names of the facts of a relay.
const (
	FactPublished        = "published"
	FactPending          = "pending"
	FactHeld             = "of these held back"
	FactRelayDeadLetters = "open dead letters of the relay"
	FactDuplicates       = "allowed duplicates in the stream"
	FactMarkers          = "published markers of skipped or discarded messages"
)

func (s *session) relayFacts(ctx context.Context) ([]Fact, error) {
	facts := []Fact{
		{
			Name: FactPublished,
		},
		{Name: FactPending},
		{Name: FactHeld},
		{Name: FactRelayDeadLetters},
		{Name: FactDuplicates},
		{Name: FactMarkers},
	}
	err := s.tx.QueryRow(ctx, s.names.SQL(relayFactsSQL)).Scan(
		&facts[0].Count, &facts[1].Count, &facts[2].Count, &facts[3].Count, &facts[4].Count,
		&facts[5].Count)
	if err != nil {
		return nil, fmt.Errorf("count rows: %w", err)
	}
	return facts, nil
}

// outboxChecks are those that need the database only.
func outboxChecks(grace time.Duration) []check {
	return []check{
		{
			"G1", fmt.Sprintf("no row waits longer than %s without a visible reason", grace),
			waitingSQL,
			[]any{grace.Seconds()},
		},
		{"R7", "no held row is without a gate that will release it", heldWithoutGateSQL, nil},
		{"R7", "no gate is without a held row or an open dead letter", gateWithoutReasonSQL, nil},
		{"R7", "a gate is due exactly where it is not blocked", gateDueSQL, nil},
		{"R1", "no row was settled twice", settledTwiceSQL, nil},
	}
}

// The titles of what is checked of every layout.
const (
	titleArrived     = "every published row is in the stream"
	titleUnchanged   = "key, type, version and bytes arrived as they were written"
	titleDuplicates  = "duplicates carry the same key and bytes"
	titleBrokerOrder = "the first deliveries of a key are in order of their versions"
	titlePhantom     = "nothing is in the stream without a committed row"
)

// relayStreamChecks compare the database with the copy of the stream.
func relayStreamChecks(c streamCopy) []check {
	return []check{
		{"G2", titleArrived, arrivedSQL, nil},
		{"G2", "every published row is where its broker position says", atPlaceSQL, nil},
		{"G3", titleUnchanged, unchangedSQL, nil},
		{"G3", titleDuplicates, duplicatesSQL, nil},
		{"G4", titleBrokerOrder, brokerOrderSQL, nil},
		{"G1", titlePhantom, phantomSQL, nil},
		{"G2", "no published row lies beyond the end of the stream", beyondSQL, []any{c.begun}},
		{"G2", "no published row lies below the first message of the stream", belowSQL, nil},
	}
}

// Each statement returns how much it looked at, how much is broken and the first offender.
const (
	relayFactsSQL = `
SELECT (SELECT count(*) FROM {outbox_published}),
       (SELECT count(*) FROM {outbox}),
       (SELECT count(*) FROM {outbox} WHERE held),
       (SELECT count(*) FROM {message_failure} WHERE origin = 'Relay' AND state IN ('Open', 'Replaying')),
       (SELECT coalesce(sum(copies - 1), 0)::bigint FROM (
          SELECT count(*) AS copies, count(DISTINCT digest) AS contents FROM pg_temp.verify_stream
          WHERE event_id IS NOT NULL GROUP BY source, event_id) d
        WHERE copies > 1 AND contents = 1),
       (SELECT count(*) FROM {outbox_published} WHERE event_type = 'postrider.skipped')`

	// Two reasons are visible and allowed (contract G1): the row stands behind an open dead letter of its key, or the
	// head of its key fails ambiguously and no witness tells whose fault it is.
	waitingSQL = `
WITH bad AS (
  SELECT o.position, o.event_id, o.created_at, o.held FROM {outbox} o
  WHERE o.created_at < statement_timestamp() - make_interval(secs => $1)
    AND NOT EXISTS (
      SELECT 1 FROM {outbox_gate} g
      WHERE g.shard = o.shard AND g.ordering_key IN (o.ordering_key, o.event_id::text) AND g.state = 'Blocked'
        AND EXISTS (SELECT 1 FROM {message_failure} f
                    WHERE f.origin = 'Relay' AND f.state IN ('Open', 'Replaying') AND f.ordering_key = g.ordering_key))
    AND NOT EXISTS (
      SELECT 1 FROM {outbox} h
      WHERE h.held AND h.ordering_key = o.ordering_key AND h.ambiguous_since IS NOT NULL))
SELECT (SELECT count(*) FROM {outbox}), (SELECT count(*) FROM bad),
       (SELECT format('event %s at position %s, %s since %s', event_id, position,
                      CASE WHEN held THEN 'held' ELSE 'ready' END, created_at)
        FROM bad ORDER BY position LIMIT 1)`

	// In ordering mode None the waiting message's event id stands for the key.
	heldWithoutGateSQL = `
WITH bad AS (
  SELECT o.position, o.event_id FROM {outbox} o
  WHERE o.held AND NOT EXISTS (
    SELECT 1 FROM {outbox_gate} g WHERE g.shard = o.shard AND g.ordering_key IN (o.ordering_key, o.event_id::text)))
SELECT (SELECT count(*) FROM {outbox} WHERE held), (SELECT count(*) FROM bad),
       (SELECT format('event %s at position %s', event_id, position) FROM bad ORDER BY position LIMIT 1)`

	// The gate of a row that expired stays until it is due, and one whose message was given up until it is looked at.
	gateWithoutReasonSQL = `
WITH bad AS (
  SELECT g.shard, g.ordering_key, g.state FROM {outbox_gate} g
  WHERE NOT EXISTS (
      SELECT 1 FROM {outbox} o
      WHERE o.held AND o.shard = g.shard AND g.ordering_key IN (o.ordering_key, o.event_id::text))
    AND NOT (g.state = 'Blocked' AND EXISTS (
      SELECT 1 FROM {message_failure} f
      WHERE f.origin = 'Relay' AND f.state IN ('Open', 'Replaying') AND f.ordering_key = g.ordering_key))
    AND (g.due IS NULL OR g.due NOT BETWEEN statement_timestamp() - interval '10 s' AND statement_timestamp())
    AND NOT EXISTS (
      SELECT 1 FROM {outbox_published} p
      WHERE p.broker_position = 'expired' AND g.ordering_key IN (p.ordering_key, p.event_id::text)))
SELECT (SELECT count(*) FROM {outbox_gate}), (SELECT count(*) FROM bad),
       (SELECT format('gate in state %s of shard %s, key hash %s', state, shard, md5(ordering_key))
        FROM bad ORDER BY shard, ordering_key LIMIT 1)`

	gateDueSQL = `
WITH bad AS (
  SELECT shard, ordering_key, state, due FROM {outbox_gate} WHERE (state = 'Blocked') <> (due IS NULL))
SELECT (SELECT count(*) FROM {outbox_gate}), (SELECT count(*) FROM bad),
       (SELECT format('gate in state %s of shard %s, key hash %s', state, shard, md5(ordering_key))
        FROM bad ORDER BY shard, ordering_key LIMIT 1)`

	// A replay, told by its failure id, settles an event again on purpose.
	settledTwiceSQL = `
WITH settled AS (
  SELECT event_id, position FROM {outbox_published} WHERE failure_id IS NULL
  UNION ALL
  SELECT o.event_id, o.position FROM {outbox} o
  WHERE o.failure_id IS NULL AND EXISTS (SELECT 1 FROM {outbox_published} p WHERE p.event_id = o.event_id)),
bad AS (SELECT event_id, min(position) AS position FROM settled GROUP BY event_id HAVING count(*) > 1)
SELECT (SELECT count(*) FROM {outbox_published}), (SELECT count(*) FROM bad),
       (SELECT format('event %s at position %s', event_id, position) FROM bad ORDER BY position LIMIT 1)`

	// placed are the archive's rows with their place in a log that was copied: the stream, or a partition.
	placed = `
WITH placed AS (
  SELECT x.*, l.first_sequence, l.last_sequence FROM (
    SELECT p.*, substring(p.broker_position from '^(.*)@[0-9]{1,18}$') AS log,
           substring(p.broker_position from '@([0-9]{1,18})$')::bigint AS sequence
    FROM {outbox_published} p) x
  JOIN pg_temp.verify_log l ON l.name = x.log),
`
	// published are those that the log can still hold.
	published = placed + `published AS (
  SELECT * FROM placed WHERE sequence BETWEEN first_sequence AND last_sequence),
`
	placedResult = `
SELECT (SELECT count(*) FROM placed), (SELECT count(*) FROM bad),
       (SELECT format('event %s, published as %s', event_id, broker_position) FROM bad ORDER BY sequence LIMIT 1)`

	// A stream that ends before what it confirmed was deleted and made again, or put back from an older copy.
	beyondSQL = placed + `bad AS (
  SELECT event_id, broker_position, sequence FROM placed
  WHERE sequence > last_sequence AND published_at < $1::timestamptz)` + placedResult

	belowSQL = placed + `bad AS (
  SELECT event_id, broker_position, sequence FROM placed WHERE sequence < first_sequence)` + placedResult

	publishedResult = `
SELECT (SELECT count(*) FROM published), (SELECT count(*) FROM bad),
       (SELECT format('event %s, published as %s', event_id, broker_position) FROM bad ORDER BY sequence LIMIT 1)`

	arrivedSQL = published + `bad AS (
  SELECT p.event_id, p.broker_position, p.sequence FROM published p
  WHERE NOT EXISTS (SELECT 1 FROM pg_temp.verify_stream s WHERE s.event_id = p.event_id::text))` + publishedResult

	atPlaceSQL = published + `bad AS (
  SELECT p.event_id, p.broker_position, p.sequence FROM published p
  WHERE NOT EXISTS (SELECT 1 FROM pg_temp.verify_stream s
                    WHERE s.log = p.log AND s.sequence = p.sequence AND s.event_id = p.event_id::text))` + publishedResult

	unchangedSQL = published + `bad AS (
  SELECT p.event_id, p.broker_position, p.sequence
  FROM published p
  JOIN pg_temp.verify_stream s ON s.log = p.log AND s.sequence = p.sequence AND s.event_id = p.event_id::text
  WHERE (s.source, s.event_type, s.destination, s.ordering_key) <>
        (p.source, p.event_type, p.destination, p.ordering_key)
     OR s.version IS DISTINCT FROM p.aggregate_version
     OR s.body_hash <> sha256(p.payload))` + publishedResult

	// A source is one outbox table: its rows and their copies carry it.
	duplicatesSQL = `
WITH d AS (
  SELECT event_id, count(*) AS copies, count(DISTINCT digest) AS contents, max(sequence) AS sequence
  FROM pg_temp.verify_stream WHERE event_id IS NOT NULL GROUP BY source, event_id HAVING count(*) > 1)
SELECT coalesce(sum(copies), 0)::bigint, count(*) FILTER (WHERE contents > 1),
       (SELECT format('event %s, again with other content at sequence %s', event_id, sequence)
        FROM d WHERE contents > 1 ORDER BY sequence LIMIT 1)
FROM d`

	// A key is in one log, unless a topic was given more partitions: nothing tells the order of two.
	brokerOrderSQL = `
WITH firsts AS (
  SELECT DISTINCT ON (source, event_id) source, event_id, destination, ordering_key, version, log, sequence
  FROM pg_temp.verify_stream WHERE version IS NOT NULL ORDER BY source, event_id, sequence),
bad AS (
  SELECT * FROM (
    SELECT event_id, version, sequence,
           lag(version) OVER (PARTITION BY source, destination, ordering_key, log ORDER BY sequence) AS before
    FROM firsts) w
  WHERE before >= version)
SELECT (SELECT count(*) FROM firsts), (SELECT count(*) FROM bad),
       (SELECT format('event %s at sequence %s has version %s, after version %s', event_id, sequence, version, before)
        FROM bad ORDER BY sequence LIMIT 1)`

	// Once the ring of the archive has turned, messages older than what it holds are left out.
	phantomSQL = `
WITH ours AS (
  SELECT s.sequence, s.event_id FROM pg_temp.verify_stream s
  WHERE s.source = (SELECT source FROM {outbox_owner})
    AND s.stored_at >= coalesce((SELECT min(published_at) FROM {outbox_published}
                                 WHERE EXISTS (SELECT 1 FROM {outbox_ring} WHERE left_at IS NOT NULL)), '-infinity')),
bad AS (
  SELECT s.sequence, s.event_id FROM ours s
  WHERE NOT EXISTS (SELECT 1 FROM {outbox_published} p WHERE p.event_id::text = s.event_id)
    AND NOT EXISTS (SELECT 1 FROM {outbox} o WHERE o.event_id::text = s.event_id)
    AND NOT EXISTS (SELECT 1 FROM {message_failure} f WHERE f.origin = 'Relay' AND f.event_id = s.event_id))
SELECT (SELECT count(*) FROM ours), (SELECT count(*) FROM bad),
       (SELECT format('event %s at sequence %s', event_id, sequence) FROM bad ORDER BY sequence LIMIT 1)`
)
