package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/postgres"
)

// verifyConsumer checks one inbox: its own rows, then against the stream, then the effects that were named.
func verifyConsumer(ctx context.Context, c Consumer, grace time.Duration) (Section, error) {
	s, err := openSession(ctx, c.Pool, postgres.Names{Schema: c.Schema})
	if err != nil {
		return Section{}, err
	}
	defer s.close(ctx)
	due, err := c.lookAtDurable(ctx)
	if err != nil {
		return Section{}, err
	}
	var copied streamCopy
	if c.Queue != nil {
		copied, err = s.copyArchives(ctx, c.Queue)
	} else {
		copied, err = s.copyStream(ctx, c.Stream, due.subjects, due.acked)
	}
	if err != nil {
		return Section{}, err
	}
	if err := s.snapshot(ctx); err != nil {
		return Section{}, err
	}
	section := Section{Name: c.Name}
	if section.Facts, err = s.consumerFacts(ctx, c.ConsumerName); err != nil {
		return Section{}, err
	}
	if section.Checks, err = s.run(ctx, inboxChecks(c.ConsumerName)); err != nil {
		return Section{}, err
	}
	var against []Check
	if c.Queue != nil {
		against, err = s.againstQueue(ctx, c, grace, copied)
	} else {
		against, err = s.againstStream(ctx, c, grace, due, copied)
	}
	if err != nil {
		return Section{}, err
	}
	section.Checks = append(section.Checks, against...)
	effects, err := s.effectChecks(ctx, c, copied)
	if err != nil {
		return Section{}, err
	}
	section.Checks = append(section.Checks, effects...)
	return section, nil
}

// duties says which messages of the stream a consumer owes an outcome.
type duties struct {
	subjects []string
	from     uint64            // first sequence
	since    time.Time         // stored at or after
	acked    map[string]uint64 // by log: everything up to here was acknowledged
	known    bool              // a durable or group was looked at
}

// lookAtDurable reads what the durable consumer is to deliver and how far it was acknowledged.
func (c Consumer) lookAtDurable(ctx context.Context) (duties, error) {
	if c.Stream.Kafka != nil && c.Durable != "" {
		return c.lookAtGroup(ctx)
	}
	d := duties{subjects: c.FilterSubjects}
	if c.Stream.JS == nil || c.Durable == "" {
		return d, nil
	}
	durable, err := c.Stream.JS.Consumer(ctx, c.Stream.Name, c.Durable)
	if err != nil {
		return d, fmt.Errorf("look at consumer %s of stream %s: %w", c.Durable, c.Stream.Name, err)
	}
	info := durable.CachedInfo()
	d.known, d.acked = true, map[string]uint64{c.Stream.Name: info.AckFloor.Stream}
	d.subjects = info.Config.FilterSubjects
	if info.Config.FilterSubject != "" {
		d.subjects = []string{info.Config.FilterSubject}
	}
	switch info.Config.DeliverPolicy {
	case jetstream.DeliverAllPolicy:
	case jetstream.DeliverByStartSequencePolicy:
		d.from = info.Config.OptStartSeq
	case jetstream.DeliverByStartTimePolicy:
		if info.Config.OptStartTime != nil {
			d.since = *info.Config.OptStartTime
		}
	default: // from about the time it was made
		d.since = info.Created
	}
	return d, nil
}

// The names of the facts of a consumer.
const (
	FactApplied             = "applied"
	FactSkipped             = "skipped"
	FactParked              = "parked"
	FactDeadLettered        = "dead-lettered"
	FactConsumerDeadLetters = "open dead letters of the consumer"
)

func (s *session) consumerFacts(ctx context.Context, consumerName string) ([]Fact, error) {
	facts := []Fact{
		{Name: FactApplied},
		{Name: FactSkipped},
		{Name: FactParked},
		{Name: FactDeadLettered},
		{Name: FactConsumerDeadLetters},
	}
	err := s.tx.QueryRow(ctx, s.names.SQL(consumerFactsSQL), consumerName).Scan(
		&facts[0].Count, &facts[1].Count, &facts[2].Count, &facts[3].Count, &facts[4].Count)
	if err != nil {
		return nil, fmt.Errorf("count rows: %w", err)
	}
	return facts, nil
}

// inboxChecks are those that need the database only.
func inboxChecks(consumerName string) []check {
	args := []any{consumerName}
	return []check{
		{"G6", "no outcome Parked is without its parked message", parkedOutcomeSQL, args},
		{"G6", "no parked message is without the outcome Parked", parkedRowSQL, args},
		{"G6", "no outcome DeadLettered is without its dead letter", deadLetteredSQL, args},
		{"G1", "every parked message will be tried again or waits for its key", parkedStuckSQL, args},
		{"G1", "no key waits without a parked message", keyWithoutReasonSQL, args},
	}
}

// againstStream compares the inbox with the copy of the stream.
func (s *session) againstStream(
	ctx context.Context, c Consumer, grace time.Duration, due duties, copied streamCopy,
) ([]Check, error) {
	from, since := bigint(due.from), any("-infinity")
	if !due.since.IsZero() {
		since = due.since
	}
	scope := slices.Clip([]any{c.ConsumerName, c.Retention.Seconds(), from, since})
	acked := []check{
		{"G5", "everything acknowledged has an outcome or a dead letter", ackedSQL, scope},
	}
	aside := []check{
		{"G1", "nothing without an outcome lies before where the durable begins", beforeSQL, scope},
		{"G1", "nothing without an outcome is older than the inbox remembers", forgottenSQL, scope[:2]},
	}
	checks := []check{
		{
			"G1", fmt.Sprintf("everything in the stream has an outcome after %s", grace), handledSQL,
			append(scope, grace.Seconds()),
		},
		{"G5", "every outcome is that of the message in the stream", digestSQL, []any{c.ConsumerName}},
	}
	if copied.unchecked != "" {
		return notChecked(slices.Concat(checks, acked, aside[:1]), copied.unchecked), nil
	}
	results, err := s.run(ctx, slices.Concat(checks, aside))
	if err != nil {
		return nil, err
	}
	results = notCovered(results, c)
	if !due.known {
		return append(results, notChecked(acked, "no durable consumer was named")...), nil
	}
	more, err := s.run(ctx, acked)
	return append(results, more...), err
}

// notCovered judges what the consumer does not owe, the last two of the results. What the inbox was to forget proves
// nothing; where the durable begins is the user's word or a loss, and nobody but the user can tell.
func notCovered(results []Check, c Consumer) []Check {
	before, forgotten := &results[len(results)-2], &results[len(results)-1]
	if c.AcceptStart && before.Result == Broken {
		before.leave(fmt.Sprintf("%d messages lie below where the durable begins: they are not covered",
			before.Broken))
	}
	if forgotten.Result == Broken {
		forgotten.leave(fmt.Sprintf("%d messages are older than %s: they are not covered",
			forgotten.Broken, c.Retention))
	}
	if c.Retention == 0 { // it remembers for ever: nothing can be left out
		return results[:len(results)-1]
	}
	return results
}

// Each statement returns how much it looked at, how much is broken and the first offender. $1 is the consumer name.
const (
	consumerFactsSQL = `
SELECT count(*) FILTER (WHERE outcome = 'A'), count(*) FILTER (WHERE outcome = 'S'),
       count(*) FILTER (WHERE outcome = 'P'), count(*) FILTER (WHERE outcome = 'D'),
       (SELECT count(*) FROM {message_failure}
        WHERE origin = 'Consumer' AND origin_name = $1 AND state IN ('Open', 'Replaying'))
FROM {message_inbox} WHERE consumer_name = $1`

	parkedOutcomeSQL = `
WITH parked AS (SELECT source, event_id, processed_at FROM {message_inbox} WHERE consumer_name = $1 AND outcome = 'P'),
bad AS (
  SELECT i.event_id, i.processed_at FROM parked i
  WHERE NOT EXISTS (SELECT 1 FROM {message_parked} p
                    WHERE p.consumer_name = $1 AND p.source = i.source AND p.event_id = i.event_id))
SELECT (SELECT count(*) FROM parked), (SELECT count(*) FROM bad),
       (SELECT format('event %s, parked at %s', event_id, processed_at) FROM bad ORDER BY processed_at LIMIT 1)`

	parkedRowSQL = `
WITH bad AS (
  SELECT p.event_id, p.sequence FROM {message_parked} p
  WHERE p.consumer_name = $1 AND NOT EXISTS (
    SELECT 1 FROM {message_inbox} i
    WHERE i.consumer_name = $1 AND i.source = p.source AND i.event_id = p.event_id AND i.outcome = 'P'))
SELECT (SELECT count(*) FROM {message_parked} WHERE consumer_name = $1), (SELECT count(*) FROM bad),
       (SELECT format('event %s', event_id) FROM bad ORDER BY sequence LIMIT 1)`

	deadLetteredSQL = `
WITH dead AS (SELECT source, event_id, processed_at FROM {message_inbox} WHERE consumer_name = $1 AND outcome = 'D'),
bad AS (
  SELECT i.event_id, i.processed_at FROM dead i
  WHERE NOT EXISTS (SELECT 1 FROM {message_failure} f
                    WHERE f.origin = 'Consumer' AND f.origin_name = $1 AND f.source = i.source AND f.event_id = i.event_id
                      AND f.state IN ('Open', 'Replaying')))
SELECT (SELECT count(*) FROM dead), (SELECT count(*) FROM bad),
       (SELECT format('event %s, dead-lettered at %s', event_id, processed_at) FROM bad ORDER BY processed_at LIMIT 1)`

	// A message is drained with its key, or by its own due time where keys play no part. A gap may be held for ever.
	parkedStuckSQL = `
WITH bad AS (
  SELECT p.event_id, p.sequence, k.state FROM {message_parked} p
  LEFT JOIN {message_inbox_key} k ON k.key_hash = p.key_hash
  WHERE p.consumer_name = $1 AND CASE
    WHEN p.key_hash IS NULL THEN p.due_at IS NULL
    ELSE k.key_hash IS NULL OR k.state = 'O' OR (k.state = 'R' AND k.due_at IS NULL) END)
SELECT (SELECT count(*) FROM {message_parked} WHERE consumer_name = $1), (SELECT count(*) FROM bad),
       (SELECT format('event %s, state of its key: %s', event_id, coalesce(state::text, 'none'))
        FROM bad ORDER BY sequence LIMIT 1)`

	keyWithoutReasonSQL = `
WITH waiting AS (SELECT key_hash, state FROM {message_inbox_key} WHERE consumer_name = $1 AND state IN ('R', 'G')),
bad AS (
  SELECT w.key_hash, w.state FROM waiting w
  WHERE NOT EXISTS (SELECT 1 FROM {message_parked} p WHERE p.key_hash = w.key_hash))
SELECT (SELECT count(*) FROM waiting), (SELECT count(*) FROM bad),
       (SELECT format('key hash %s in state %s', key_hash, state) FROM bad ORDER BY key_hash LIMIT 1)`

	// Three sets of the stream's messages, each told by its first copy: owed must have an outcome; before lie wholly below
	// where the consumer began; forgotten are older than the inbox's memory. $2 is the inbox's memory in seconds, $3 and $4
	// where the consumer began. Records whose envelope cannot be read are owed a dead letter.
	copies = `
WITH owed AS (
  SELECT s.source, s.event_id, min(s.log) AS log, min(s.sequence) AS sequence, min(s.stored_at) AS stored_at
  FROM pg_temp.verify_stream s
`
	begun      = `(s.sequence >= $3::bigint AND s.stored_at >= $4::timestamptz)`
	remembered = `($2::float8 = 0 OR s.stored_at > statement_timestamp() - make_interval(secs => $2::float8))`
	each       = `  GROUP BY s.source, s.event_id, CASE WHEN s.event_id IS NULL THEN s.log || '@' || s.sequence END`

	owed      = copies + `  WHERE ` + begun + ` AND ` + remembered + each + `),` + open
	before    = copies + each + ` HAVING NOT bool_or(` + begun + `) AND bool_or(` + remembered + `)),` + open
	forgotten = copies + each + ` HAVING NOT bool_or(` + remembered + `)),` + open

	open = `
open AS (
  SELECT o.log, o.sequence, o.event_id, o.stored_at FROM owed o
  WHERE NOT EXISTS (SELECT 1 FROM {message_inbox} i
                    WHERE i.consumer_name = $1 AND i.source = o.source AND i.event_id = o.event_id)
    AND NOT EXISTS (SELECT 1 FROM {message_failure} f
                    WHERE f.origin = 'Consumer' AND f.origin_name = $1 AND (f.source_position = o.log || '@' || o.sequence
                      OR (f.source = o.source AND f.event_id = o.event_id)))),
`
	owedResult = `
SELECT (SELECT count(*) FROM owed), (SELECT count(*) FROM bad),
       (SELECT format('event %s at sequence %s, stored at %s', coalesce(event_id, 'without a readable id'), sequence,
                      stored_at)
        FROM bad ORDER BY sequence LIMIT 1)`

	handledSQL = owed + `bad AS (
  SELECT * FROM open WHERE stored_at < statement_timestamp() - make_interval(secs => $5::float8))` + owedResult

	beforeSQL    = before + `bad AS (SELECT * FROM open)` + owedResult
	forgottenSQL = forgotten + `bad AS (SELECT * FROM open)` + owedResult

	ackedSQL = owed + `bad AS (
  SELECT open.* FROM open JOIN pg_temp.verify_log l ON l.name = open.log WHERE open.sequence <= l.acked)` + owedResult

	digestSQL = `
WITH both_known AS (
  SELECT i.event_id, min(s.sequence) AS sequence, bool_or(s.digest = i.payload_digest) AS same
  FROM {message_inbox} i JOIN pg_temp.verify_stream s ON s.source = i.source AND s.event_id = i.event_id
  WHERE i.consumer_name = $1 GROUP BY i.source, i.event_id)
SELECT count(*), count(*) FILTER (WHERE NOT same),
       (SELECT format('event %s at sequence %s', event_id, sequence)
        FROM both_known WHERE NOT same ORDER BY sequence LIMIT 1)
FROM both_known`
)
