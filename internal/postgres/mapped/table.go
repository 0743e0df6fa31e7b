// Package mapped says how statements of ours name what is in a table that a team already has: layout StatusColumns.
//
// It promises that the team's table is only ever read, and written in the columns it was told of: nothing here alters
// it. What an outbox of our own has in columns and this table has not, the relay keeps in tables beside it.
package mapped

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
)

// Kind is what a column holds, as far as statements differ by it.
type Kind uint8

// The kinds of columns.
const (
	// Text is text of any length.
	Text Kind = iota
	// Bytes is bytea.
	Bytes
	// JSON is json or jsonb.
	JSON
	// UUID is uuid.
	UUID
	// Integer is smallint, integer or bigint.
	Integer
	// Time is a timestamp with or without time zone.
	Time
	// Word is a type of its own that lists its values.
	Word
)

// Table is a team's table with what it has for a message. Make one with Read, which looks at it, or New.
type Table struct {
	Names postgres.Names
	Map   config.Columns
	// Unordered is ordering mode None.
	Unordered bool
	Shards    int
	// Relay stands for the source of the rows until one is written down beside the table.
	Relay string
	// Payload is what the payload's column holds.
	Payload Kind
}

// places is the number of places on the ring of hashed keys, a power of two; the shards share it out in equal arcs.
const places = 1 << 62

// mask keeps the lower bits of a hash, as many as there are places.
const mask = "4611686018427387903"

// place is the place of a text on the ring, from 1.
func place(text string) string {
	return `((hashtextextended(` + text + ` COLLATE "C", 0) & ` + mask + `) + 1)`
}

// Arc is the number of places of a shard. Shard s has those above s*Arc up to (s+1)*Arc.
func (t *Table) Arc() int64 { return (places + int64(t.Shards) - 1) / int64(t.Shards) }

// Deletes says that settling a row deletes it, since nothing in the row can say that it is published.
func (t *Table) Deletes() bool { return t.Map.Status == "" }

// column names a column of the row o.
func column(name string) string { return "o." + pgx.Identifier{name}.Sanitize() }

// literal quotes a text as it is: it was checked to be short and printable.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// text is a column as text, or what stands for a column that there is not.
func text(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return column(name) + "::text"
}

// textOr is a column as text, with what stands for NULL and for a column that there is not.
func textOr(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return "coalesce(" + column(name) + "::text, " + otherwise + ")"
}

func (t *Table) id() string { return column(t.Map.ID) }

// key is the ordering key of the row o: the id where the row has none.
func (t *Table) key() string { return textOr(t.Map.OrderingKey, t.id()+"::text") }

// scope is what waits together: the key, or the row alone where nothing is ordered.
func (t *Table) scope() string {
	if t.Unordered {
		return t.id() + "::text"
	}
	return t.key()
}

// ready says that the row o is one that writers left to be sent. Indexes are made for these very words.
func (t *Table) ready() string {
	if t.Deletes() {
		return "true"
	}
	return column(t.Map.Status) + " = " + literal(t.Map.Values.Pending)
}

// unsettled says that the row o is neither published nor a dead letter.
func (t *Table) unsettled() string {
	if t.Map.Values.Waiting == "" {
		return t.ready()
	}
	return fmt.Sprintf("%s IN (%s, %s)", column(t.Map.Status),
		literal(t.Map.Values.Pending), literal(t.Map.Values.Waiting))
}

// order is the order of rows at one place: which comes first of a key.
func (t *Table) order() string {
	if t.Unordered {
		return t.id()
	}
	return column(t.Map.Version) + ", " + t.id()
}

// due says that the row o may be sent by now.
func (t *Table) due() string {
	if t.Map.AvailableAt == "" {
		return "true"
	}
	return "(" + column(t.Map.AvailableAt) + " <= statement_timestamp()) IS NOT FALSE"
}

func (t *Table) version() string {
	if t.Map.Version == "" {
		return "NULL::bigint"
	}
	return column(t.Map.Version) + "::bigint"
}

// SQL writes the table's names and columns into a statement whose row of it is o. What it knows:
//
//	{id} {key} {scope} {version} {order}  the row's id, key, what waits together, its number, the order in a key
//	{place} {place of x}                  the row's place on the ring of hashed keys; that of a text
//	{ready} {unsettled} {due}             whether the row may be claimed, is not settled, may be sent by now
//	{size}                                what the row counts for in a batch, in bytes
//	{created}                             when the row was written, as far as it says
//	{shard} {arc}                         the row's shard; the number of places of a shard
//
// and what postgres.Names knows.
func (t *Table) SQL(statement string) string {
	statement = strings.NewReplacer(
		"{id}", t.id(),
		"{key}", t.key(),
		"{scope}", t.scope(),
		"{version}", t.version(),
		"{order}", t.order(),
		"{place}", place(t.scope()),
		"{place of u.key}", place("u.key"),
		"{place of g.ordering_key}", place("g.ordering_key"),
		"{ready}", t.ready(),
		"{unsettled}", t.unsettled(),
		"{due}", t.due(),
		"{size}", t.size(),
		"{created}", t.created("NULL::timestamptz"),
		"{shard}", fmt.Sprintf("((%s - 1) / %d)::smallint", place(t.scope()), t.Arc()),
		"{arc}", fmt.Sprint(t.Arc()),
	).Replace(statement)
	return t.Names.SQL(statement)
}

func (t *Table) created(otherwise string) string {
	if t.Map.OccurredAt == "" {
		return otherwise
	}
	return column(t.Map.OccurredAt) + "::timestamptz"
}

// Row lists what a claim reads of the row o and of f, what is known of its failures. A payload above the bound, an
// expression, is not loaded, nor are headers above HeadersBound. gated is true or false.
func (t *Table) Row(bound, gated string) string {
	size, payload := t.payload()
	return strings.Join([]string{
		"{place} AS position", "{id} AS event_id", Short(t.eventType()) + " AS event_type", "1 AS schema_version",
		"coalesce((SELECT w.source FROM {outbox_owner} w), " + literal(t.Relay) + ") AS source",
		"{key} AS ordering_key", "{version} AS aggregate_version",
		Short(textOr(t.Map.Destination, "''")) + " AS destination", Short(t.contentType()) + " AS content_type",
		"CASE WHEN " + size + " <= " + bound + " THEN " + payload + " END AS payload", size + " AS size",
		t.headers() + " AS headers", t.headersSize() + " AS headers_size",
		Short(text(t.Map.Traceparent, "NULL::text")) + " AS traceparent",
		t.created("statement_timestamp()") + " AS occurred_at",
		"coalesce(f.attempts, 0)::smallint AS attempts", "coalesce(f.unknowns, 0)::smallint AS unknowns",
		"NULL::bigint AS republish_id", "false AS expired", gated + " AS gated",
	}, ", ")
}

// payload returns the payload's size and its bytes. A payload that is NULL is an empty one.
func (t *Table) payload() (size, bytes string) {
	p := column(t.Map.Payload)
	switch t.Payload {
	case Bytes:
		return "coalesce(octet_length(" + p + "), 0)", "coalesce(" + p + ", ''::bytea)"
	case JSON:
		p += "::text"
	default:
	}
	return "coalesce(octet_length(" + p + "), 0)", "convert_to(coalesce(" + p + ", ''), 'UTF8')"
}

func (t *Table) size() string {
	size, _ := t.payload()
	return size + " + " + t.headersSize()
}

func (t *Table) contentType() string {
	if t.Payload == Bytes {
		return textOr(t.Map.ContentType, "'application/octet-stream'")
	}
	return textOr(t.Map.ContentType, "'application/json'")
}

// eventType is the row's event type. Something must tell consumers what a message is.
func (t *Table) eventType() string {
	if t.Map.EventType != "" {
		return textOr(t.Map.EventType, "''")
	}
	return textOr(t.Map.Destination, literal(t.Names.Outbox))
}

// headersSize is what the row's headers count for in a batch.
func (t *Table) headersSize() string {
	if t.Map.Headers == "" {
		return "0"
	}
	return HeadersSize(column(t.Map.Headers))
}

// headers turns a JSON object into texts by names that records carry: lower case, with - for _. What is no object is
// left as it is, and found to be none; what cannot be read as one is taken for no object. The length of the text is bounded
// first: what a few bytes stand for would not fit into an object of texts.
func (t *Table) headers() string {
	if t.Map.Headers == "" {
		return "NULL::bytea"
	}
	h := column(t.Map.Headers)
	object := "CASE WHEN octet_length(" + h + "::text) > " + headersBound + " THEN '0'::jsonb WHEN " + unreadable(h) +
		" THEN '0'::jsonb WHEN jsonb_typeof(" + h + "::jsonb) = 'object' THEN (SELECT jsonb_object_agg(" +
		"lower(replace(e.key, '_', '-')), e.value #>> '{}') FROM jsonb_each(" + h + "::jsonb) e" +
		" WHERE e.value <> 'null') ELSE " + h + "::jsonb END"
	return ReadHeaders("("+object+")", t.headersSize())
}

// Settled is what a settle writes into the row.
func (t *Table) Settled() string {
	set := pgx.Identifier{t.Map.Status}.Sanitize() + " = " + literal(t.Map.Values.Published)
	if t.Map.PublishedAt != "" {
		set += ", " + pgx.Identifier{t.Map.PublishedAt}.Sanitize() + " = clock_timestamp()"
	}
	return set
}

// Published says that the row o is settled; there is nothing to tell it by where settling deletes.
func (t *Table) Published() string {
	if t.Deletes() {
		return "false"
	}
	return column(t.Map.Status) + " = " + literal(t.Map.Values.Published)
}

// PublishedAt is when the row o was settled, as far as it says; else NULL.
func (t *Table) PublishedAt() string {
	if t.Map.PublishedAt == "" {
		return "NULL::timestamptz"
	}
	return column(t.Map.PublishedAt) + "::timestamptz"
}

// Age is since when the row o may be sent; empty where nothing in it says so.
func (t *Table) Age() string {
	if t.Map.OccurredAt == "" {
		return ""
	}
	if t.Map.AvailableAt == "" {
		return t.created("")
	}
	return "greatest(" + t.created("") + ", " + column(t.Map.AvailableAt) + "::timestamptz)"
}

// Refused is what a refusal u writes into the row for people to see; empty where there is no column for it.
func (t *Table) Refused() string { return t.shown(t.Map.Values.Waiting) }

// shown is what of a refusal u is written into the row, with its new status unless that stays.
func (t *Table) shown(status string) string {
	var set []string
	if status != "" {
		set = append(set, pgx.Identifier{t.Map.Status}.Sanitize()+" = "+literal(status))
	}
	if t.Map.Attempts != "" {
		set = append(set, pgx.Identifier{t.Map.Attempts}.Sanitize()+" = u.attempts")
	}
	if t.Map.LastError != "" {
		set = append(set, pgx.Identifier{t.Map.LastError}.Sanitize()+" = u.code")
	}
	return strings.Join(set, ", ")
}

// Freed is what makes a row that waits ready again; empty where rows that wait stay pending.
func (t *Table) Freed() string {
	if t.Map.Values.Waiting == "" {
		return ""
	}
	return t.Pending()
}

// Pending is what makes a row ready.
func (t *Table) Pending() string {
	return pgx.Identifier{t.Map.Status}.Sanitize() + " = " + literal(t.Map.Values.Pending)
}

// Buries says that rows become dead letters: there is a status for them.
func (t *Table) Buries() bool { return t.Map.Values.Failed != "" }

// Buried is what makes a dead letter of the row of a refusal u.
func (t *Table) Buried() string {
	return t.shown(t.Map.Values.Failed)
}

// IsBuried says that the row o is a dead letter.
func (t *Table) IsBuried() string {
	if !t.Buries() {
		return "false"
	}
	return column(t.Map.Status) + " = " + literal(t.Map.Values.Failed)
}

// IsWaiting says that the row o was refused and is tried again.
func (t *Table) IsWaiting() string {
	if t.Map.Values.Waiting == "" {
		return "false"
	}
	return column(t.Map.Status) + " = " + literal(t.Map.Values.Waiting)
}

// Index is the index that finds the first row of each key at once. Only its keys and condition matter, not its name.
func (t *Table) Index() string {
	name := t.Names.Outbox + "_postrider_ready"
	condition := ""
	if !t.Deletes() {
		condition = " WHERE " + own(t.ready())
	}
	return fmt.Sprintf("CREATE INDEX CONCURRENTLY %s ON %s (%s, %s)%s", pgx.Identifier{name}.Sanitize(),
		t.Names.SQL("{outbox}"), own(place(t.scope())), own(t.order()), condition)
}

// own drops the name of the row: an index speaks of its own table only.
func own(expression string) string { return strings.ReplaceAll(expression, `o."`, `"`) }

// Writes lists the columns that the relay writes, for its rights.
func (t *Table) Writes() []string {
	var list []string
	for _, name := range []string{t.Map.Status, t.Map.Attempts, t.Map.PublishedAt, t.Map.LastError} {
		if name != "" {
			list = append(list, name)
		}
	}
	return list
}

// cost says in words what rows that may not be sent yet cost: no index tells them from the others.
func (t *Table) cost() string {
	what, waits := "keys whose first row", "the key waits for another try"
	if t.Unordered {
		what, waits = "rows that", "they wait for another try"
		if t.Map.AvailableAt != "" {
			waits = "their time has not come or " + waits
		}
	} else if t.Map.AvailableAt != "" {
		waits = "its time has not come or " + waits
	}
	return "Looks for messages pass over all " + what + " may not be sent yet, since " + waits + ": with a million of " +
		"them in a shard a new message is found after up to half a minute, or two while nothing else is sent."
}

// Limits says in words what this table cannot do that an outbox of our own can.
func (t *Table) Limits() []string {
	list := []string{
		"A row that is inserted and deleted in one transaction is never seen: polling sees what is committed.",
		"Order per key is by version: writers must give the versions of a key one after the other, each after the one " +
			"before it was committed.",
	}
	if t.Unordered {
		list[1] = "No order is kept: ordering mode None. Of a key, rows are sent side by side."
	} else {
		list = append(list, "Of a key one row is sent at a time: the next one after the one before it is settled.")
	}
	list = append(list, t.cost())
	if t.Map.OccurredAt != "" {
		list = append(list, "A creation time that defaults to now() is when its transaction began, not when it was "+
			"committed: it tells how old a row is, and orders nothing.")
	}
	if t.Buries() {
		list = append(list, "A dead letter leaves no marker in its place, also when it is skipped or discarded: "+
			"consumers that compare versions (Enforce) wait for it.")
	} else {
		list = append(list, "Nothing becomes a dead letter: no status says so (values.failed). A message that spent "+
			"its retry budget is tried on, and its key waits.")
	}
	if t.Deletes() {
		list = append(list, "A published row is deleted: nothing is kept to send again, and a settle whose answer was "+
			"lost cannot be told from a row that somebody deleted.")
	} else {
		list = append(list, "Published rows stay in the table: delete old ones yourself.")
	}
	return list
}
