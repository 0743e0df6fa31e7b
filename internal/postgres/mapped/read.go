package mapped

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres"
)

// Querier reads: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// kindsSQL tells what the columns of a table hold.
const kindsSQL = `
SELECT a.attname, format_type(a.atttypid, NULL), t.typtype = 'e', a.attnotnull
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')`

// Read looks at a table and returns it with what its columns hold. A table that is not there, lacks a column or has one
// of a type that is of no use is a *postgres.Error that names each.
func Read(ctx context.Context, q Querier, t Table) (*Table, error) {
	rows, err := q.Query(ctx, kindsSQL, t.Names.Schema, t.Names.Outbox)
	if err != nil {
		return nil, fmt.Errorf("look at the columns of the outbox: %w", err)
	}
	types := make(map[string]string)
	var name, typeName string
	var enum, notNull, hasID bool
	if _, err = pgx.ForEachRow(rows, []any{&name, &typeName, &enum, &notNull}, func() error {
		hasID = hasID || (name == t.Map.ID && notNull)
		types[name] = typeName
		if enum {
			types[name] = enumType
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("look at the columns of the outbox: %w", err)
	}
	if len(types) == 0 {
		return nil, &postgres.Error{
			Reason:  postgres.ReasonSchemaMissing,
			Message: fmt.Sprintf("table %s in schema %s does not exist", t.Names.Outbox, t.Names.Schema),
		}
	}
	var problems []string
	for _, w := range t.wanted() {
		if problem := w.check(types); problem != "" {
			problems = append(problems, problem)
		}
	}
	if problems == nil && !hasID {
		problems = []string{fmt.Sprintf("column %s (id) may be NULL", t.Map.ID)}
	}
	if problems != nil {
		return nil, invalid("table %s: %s", t.Names.Outbox, strings.Join(problems, ", "))
	}
	t.Payload, _ = kindOf(types[t.Map.Payload])
	return &t, nil
}

func invalid(format string, args ...any) error {
	return &postgres.Error{Reason: postgres.ReasonSchemaInvalid, Message: fmt.Sprintf(format, args...)}
}

// enumType stands for the name of a type that lists its values.
const enumType = "an enumeration"

// kindOf tells what a column of a type holds; false for a type that none of ours can be.
func kindOf(typeName string) (Kind, bool) {
	switch typeName {
	case "text", "character varying", "character":
		return Text, true
	case "bytea":
		return Bytes, true
	case "json", "jsonb":
		return JSON, true
	case "uuid":
		return UUID, true
	case "smallint", "integer", "bigint":
		return Integer, true
	case "timestamp with time zone", "timestamp without time zone":
		return Time, true
	case enumType:
		return Word, true
	default:
		return 0, false
	}
}

// want is a column with the kinds that it may be of.
type want struct {
	field, column string
	kinds         []Kind
	words         string
}

func (t *Table) wanted() []want {
	m := &t.Map
	const texts, times = "text", "a timestamp"
	return []want{
		{"id", m.ID, []Kind{UUID}, "uuid"},
		{"orderingKey", m.OrderingKey, []Kind{Text, UUID, Integer}, "text, uuid or an integer"},
		{"version", m.Version, []Kind{Integer}, "an integer"},
		{"eventType", m.EventType, []Kind{Text, Word}, texts},
		{"destination", m.Destination, []Kind{Text, Word}, texts},
		{"payload", m.Payload, []Kind{Bytes, Text, JSON}, "bytea, text, json or jsonb"},
		{"headers", m.Headers, []Kind{JSON}, "json or jsonb"},
		{"contentType", m.ContentType, []Kind{Text}, texts},
		{"traceparent", m.Traceparent, []Kind{Text}, texts},
		{"occurredAt", m.OccurredAt, []Kind{Time}, times},
		{"status", m.Status, []Kind{Text, Word}, "text or an enumeration"},
		{"availableAt", m.AvailableAt, []Kind{Time}, times},
		{"attempts", m.Attempts, []Kind{Integer}, "an integer"},
		{"publishedAt", m.PublishedAt, []Kind{Time}, times},
		{"lastError", m.LastError, []Kind{Text}, texts},
	}
}

// check says what is wrong with a column, empty where nothing is.
func (w want) check(types map[string]string) string {
	if w.column == "" {
		return ""
	}
	have, there := types[w.column]
	if !there {
		return fmt.Sprintf("column %s (%s) is missing", w.column, w.field)
	}
	if kind, ok := kindOf(have); ok && slices.Contains(w.kinds, kind) {
		return ""
	}
	return fmt.Sprintf("column %s (%s) is %s, not %s", w.column, w.field, have, w.words)
}

// indexesSQL lists the valid indexes of a table: whether they are unique and whole, their keys and their condition as
// the server writes them.
const indexesSQL = `
SELECT i.indisunique AND i.indpred IS NULL,
  ARRAY(SELECT pg_get_indexdef(i.indexrelid, k, false) FROM generate_series(1, i.indnkeyatts) k ORDER BY k),
  coalesce(pg_get_expr(i.indpred, i.indrelid), ''),
  0 = ALL(i.indoption::int2[])
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = x.relam AND m.amname = 'btree'
WHERE n.nspname = $1 AND c.relname = $2 AND i.indisvalid AND i.indisready`

// MissingError names an index that the table needs, with the statement that makes it. It is for the table's owner to
// run: nothing of ours alters the table.
type MissingError struct {
	Table, What, DDL string
}

// Error implements error.
func (e *MissingError) Error() string { return fmt.Sprintf("table %s has no %s", e.Table, e.What) }

// Safe returns the reason and the text that may be shown: postgres.Classify and SafeError use it.
func (e *MissingError) Safe() (reason postgres.Reason, message string) {
	return postgres.ReasonSchemaInvalid, e.Error() + "; `postrider schema verify` prints it"
}

// CheckIndexes looks for the two indexes without which a claim would read the whole table: the one of the id, and the
// one that finds the first row of each key. What is missing is a *MissingError.
func (t *Table) CheckIndexes(ctx context.Context, q Querier) error {
	rows, err := q.Query(ctx, indexesSQL, t.Names.Schema, t.Names.Outbox)
	if err != nil {
		return fmt.Errorf("look at the indexes of the outbox: %w", err)
	}
	wantKeys := []string{place(t.scope())}
	wantKeys = append(wantKeys, strings.Split(t.order(), ", ")...)
	wantCondition := ""
	if !t.Deletes() {
		wantCondition = t.ready()
	}
	var unique, plain, byID, byPlace bool
	var keys []string
	var condition string
	if _, err = pgx.ForEachRow(rows, []any{&unique, &keys, &condition, &plain}, func() error {
		byID = byID || (unique && len(keys) == 1 && same(keys[0], t.id()))
		byPlace = byPlace || (plain && startsWith(keys, wantKeys) && same(condition, wantCondition))
		return nil
	}); err != nil {
		return fmt.Errorf("look at the indexes of the outbox: %w", err)
	}
	switch {
	case !byID:
		return &MissingError{
			Table: t.Names.Outbox, What: "unique index on " + t.Map.ID + ", the event's id",
			DDL: fmt.Sprintf("CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s)",
				t.Names.SQL("{outbox}"), pgx.Identifier{t.Map.ID}.Sanitize()),
		}
	case !byPlace:
		return &MissingError{
			Table: t.Names.Outbox, What: "index that finds the first pending row of each key", DDL: t.Index(),
		}
	default:
		return nil
	}
}

func startsWith(keys, want []string) bool {
	return len(keys) >= len(want) && slices.EqualFunc(keys[:len(want)], want, same)
}

// same compares an expression as the server writes it with one of ours, without what the server adds.
func same(server, ours string) bool { return plainWords(server) == plainWords(own(ours)) }

// casts are what the server writes behind an expression for its type.
var casts = []string{
	"::text", "::character varying", "::bigint", "::integer", "::uuid", "::bpchar",
}

// plainWords drops from an expression what says nothing: brackets, quotes, casts and spaces. An enumeration's cast has a
// name that nobody knows, so what follows a quoted word's cast is dropped up to the next bracket.
func plainWords(expression string) string {
	for _, c := range casts {
		expression = strings.ReplaceAll(expression, c, "")
	}
	for {
		at := strings.Index(expression, "'::")
		if at < 0 {
			break
		}
		rest := expression[at+3:]
		end := strings.IndexAny(rest, ") ")
		if end < 0 {
			end = len(rest)
		}
		expression = expression[:at] + rest[end:]
	}
	return strings.NewReplacer("(", "", ")", "", `"`, "", "'", "", " ", "", "COALESCE", "coalesce").Replace(expression)
}

// Verify reads a table and checks that it can be worked on.
func Verify(ctx context.Context, q Querier, t Table) (*Table, error) {
	read, err := Read(ctx, q, t)
	if err != nil {
		return nil, err
	}
	return read, read.CheckIndexes(ctx, q)
}

// IsMissing returns the statement that makes what is missing; false for another error.
func IsMissing(err error) (ddl string, ok bool) {
	missing, ok := errors.AsType[*MissingError](err)
	if !ok {
		return "", false
	}
	return missing.DDL, true
}
