package verify

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Effects names a table that the consumer's handler writes, so that order and count of the effects can be checked.
type Effects struct {
	// Table may carry a schema.
	Table string
	// Key and Version are the columns that hold a message's ordering key and aggregate version.
	Key     string
	Version string
	// Order is a column that grows as rows are written, such as an identity. Without it order is not checked.
	Order string
	// Complete says that each applied message with a version leaves its row in this table.
	Complete bool
}

// ErrEffects says that a description of an effects table cannot be read.
var ErrEffects = errors.New(`effects are described as "table:key_column:version_column" or ` +
	`"table:key_column:version_column:order_column"`)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]*$`)

// ParseEffects reads table:key_column:version_column[:order_column].
func ParseEffects(s string) (Effects, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 3 || len(parts) > 4 {
		return Effects{}, fmt.Errorf("%w: %q", ErrEffects, s)
	}
	for i, part := range parts {
		names := []string{part}
		if i == 0 {
			names = strings.Split(part, ".")
		}
		for _, name := range names {
			if len(names) > 2 || !identifier.MatchString(name) {
				return Effects{}, fmt.Errorf("%w: %q is not a name", ErrEffects, part)
			}
		}
	}
	e := Effects{Table: parts[0], Key: parts[1], Version: parts[2]}
	if len(parts) == 4 {
		e.Order = parts[3]
	}
	return e, nil
}

// sql writes the table's and the columns' names into a statement.
func (e Effects) sql(statement string) string {
	order := e.Order
	if order == "" {
		order = e.Version
	}
	return strings.NewReplacer(
		"{table}", pgx.Identifier(strings.Split(e.Table, ".")).Sanitize(),
		"{key}", pgx.Identifier{e.Key}.Sanitize(),
		"{version}", pgx.Identifier{e.Version}.Sanitize(),
		"{order}", pgx.Identifier{order}.Sanitize(),
	).Replace(statement)
}

const (
	titleEffectOrder    = "the effects of a key in %s are in order of their versions"
	titleEffectOnce     = "no effect in %s is there twice"
	titleEffectKnown    = "no effect in %s is without its applied message"
	titleEffectComplete = "every applied message has its effect in %s"
)

// effectChecks checks the effects that were named, and says so where none were.
func (s *session) effectChecks(ctx context.Context, c Consumer, copied streamCopy) ([]Check, error) {
	if len(c.Effects) == 0 {
		none := []check{{promise: "G4", title: "effects are in order per key"}}
		return notChecked(none, "no effects table was named (--effects)"), nil
	}
	var results []Check
	for _, e := range c.Effects {
		alone, against, unordered := e.checks(c.ConsumerName)
		found, err := s.run(ctx, alone)
		if err != nil {
			return nil, fmt.Errorf("effects table %s: %w", e.Table, err)
		}
		results = append(results, found...)
		results = append(results, notChecked(unordered, "no order column was named")...)
		if copied.unchecked != "" {
			results = append(results, notChecked(against, copied.unchecked)...)
			continue
		}
		if found, err = s.run(ctx, against); err != nil {
			return nil, fmt.Errorf("effects table %s: %w", e.Table, err)
		}
		results = append(results, found...)
	}
	return results, nil
}

// checks returns those that need the table alone, those that need the stream, and those that cannot be made.
func (e Effects) checks(consumerName string) (alone, against, unordered []check) {
	order := check{"G4", fmt.Sprintf(titleEffectOrder, e.Table), e.sql(effectOrderSQL), nil}
	if e.Order == "" {
		unordered = append(unordered, order)
	} else {
		alone = append(alone, order)
	}
	alone = append(alone, check{"G5", fmt.Sprintf(titleEffectOnce, e.Table), e.sql(effectOnceSQL), nil})
	against = append(against,
		check{"G5", fmt.Sprintf(titleEffectKnown, e.Table), e.sql(effectKnownSQL), []any{consumerName}})
	if e.Complete {
		against = append(against,
			check{"G1", fmt.Sprintf(titleEffectComplete, e.Table), e.sql(effectCompleteSQL), []any{consumerName}})
	}
	return alone, against, unordered
}

const (
	effectOrderSQL = `
WITH effects AS (
  SELECT {key}::text AS key, {version}::bigint AS version, {order}::text AS place,
         lag({version}::bigint) OVER (PARTITION BY {key} ORDER BY {order}) AS before
  FROM {table}),
bad AS (SELECT * FROM effects WHERE before > version)
SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM bad),
       (SELECT format('row %s, key hash %s: version %s after version %s', place, md5(key), version, before)
        FROM bad ORDER BY place LIMIT 1)`

	effectOnceSQL = `
WITH bad AS (
  SELECT {key}::text AS key, {version}::bigint AS version, count(*) AS copies FROM {table}
  WHERE {version} IS NOT NULL GROUP BY {key}, {version} HAVING count(*) > 1)
SELECT (SELECT count(*) FROM {table}), (SELECT count(*) FROM bad),
       (SELECT format('key hash %s, version %s: %s times', md5(key), version, copies) FROM bad ORDER BY key, version LIMIT 1)`

	// Effects of messages that the stream no longer or not yet held when it was copied are left out.
	effectKnownSQL = `
WITH copied AS (
  SELECT ordering_key, min(version) AS lowest, max(version) AS highest
  FROM pg_temp.verify_stream WHERE version IS NOT NULL GROUP BY ordering_key),
effects AS (
  SELECT {key}::text AS key, {version}::bigint AS version FROM {table}
  JOIN copied ON ordering_key = {key}::text AND {version}::bigint BETWEEN lowest AND highest),
applied AS (
  SELECT DISTINCT s.ordering_key, s.version FROM pg_temp.verify_stream s
  JOIN {message_inbox} i ON i.consumer_name = $1 AND i.source = s.source AND i.event_id = s.event_id AND i.outcome = 'A'
  WHERE s.version IS NOT NULL),
bad AS (
  SELECT key, version FROM effects e
  WHERE NOT EXISTS (SELECT 1 FROM applied a WHERE a.ordering_key = e.key AND a.version = e.version))
SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM bad),
       (SELECT format('key hash %s, version %s', md5(key), version) FROM bad ORDER BY key, version LIMIT 1)`

	effectCompleteSQL = `
WITH applied AS (
  SELECT s.event_id, s.ordering_key, s.version, min(s.sequence) AS sequence FROM pg_temp.verify_stream s
  JOIN {message_inbox} i ON i.consumer_name = $1 AND i.source = s.source AND i.event_id = s.event_id AND i.outcome = 'A'
  WHERE s.version IS NOT NULL GROUP BY s.event_id, s.ordering_key, s.version),
bad AS (
  SELECT event_id, sequence FROM applied a
  WHERE NOT EXISTS (SELECT 1 FROM {table} e WHERE e.{key}::text = a.ordering_key AND e.{version}::bigint = a.version))
SELECT (SELECT count(*) FROM applied), (SELECT count(*) FROM bad),
       (SELECT format('event %s at sequence %s', event_id, sequence) FROM bad ORDER BY sequence LIMIT 1)`
)
