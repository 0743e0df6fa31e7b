package testkit

import (
	"strings"

	"github.com/postrider/postrider/internal/config"
)

// TeamTable is an outbox table as a team already has it, with the columns and types of its project's own definition.
type TeamTable struct {
	// Name is the table's, Preset the mapping's.
	Name   string
	Preset string
	// DDL makes it.
	DDL string
	// WriteSQL inserts one message as the project's own writers do: $1 is the id, $2 the key. It returns the version, 0
	// where the table has none. Writers of a key wait for each other.
	WriteSQL string
	// Change, unless nil, changes the preset's mapping.
	Change func(*config.Columns)
}

// Columns returns the table's mapping.
func (t TeamTable) Columns() *config.Columns {
	c, ok := config.Preset(t.Preset)
	if !ok {
		panic("no preset " + t.Preset)
	}
	if t.Change != nil {
		t.Change(&c)
	}
	return &c
}

// Unordered says that the table has nothing that orders the messages of a key.
func (t TeamTable) Unordered() bool { return t.Columns().Version == "" }

// IndexSQL turns the statement that makes the index into one for a test: a concurrent one waits for all other tests of
// the database.
func IndexSQL(ddl string) string { return strings.Replace(ddl, " CONCURRENTLY", "", 1) }

// ClassicTable is the table with a status column and a version of each aggregate.
func ClassicTable() TeamTable {
	return TeamTable{
		Name: "outbox_event", Preset: config.PresetPostrider,
		DDL: `
CREATE TABLE aggregate (id text PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE outbox_event (
  event_id          uuid PRIMARY KEY,
  aggregate_id      varchar(255) NOT NULL,
  aggregate_version int NOT NULL,
  topic             text NOT NULL,
  payload           jsonb NOT NULL,
  status            varchar(20) NOT NULL DEFAULT 'pending'
    CHECK (status IN ('pending', 'publishing', 'published', 'failed')),
  attempts          int NOT NULL DEFAULT 0,
  available_at      timestamptz NOT NULL DEFAULT now(),
  lease_until       timestamptz,
  published_at      timestamptz,
  last_error        text,
  created_at        timestamptz NOT NULL DEFAULT now(),
  UNIQUE (aggregate_id, aggregate_version)
);`,
		WriteSQL: `
WITH a AS (
  INSERT INTO aggregate AS a (id, version) VALUES ($2, 1)
  ON CONFLICT (id) DO UPDATE SET version = a.version + 1 RETURNING version)
INSERT INTO outbox_event (event_id, aggregate_id, aggregate_version, topic, payload)
SELECT $1, $2, version, 'orders', jsonb_build_object('n', version) FROM a
RETURNING aggregate_version::bigint`,
	}
}

// DebeziumTable is the table that Debezium's outbox event router reads.
func DebeziumTable() TeamTable {
	return TeamTable{
		Name: "outboxevent", Preset: config.PresetDebeziumOutbox,
		DDL: `
CREATE TABLE outboxevent (
  id            uuid NOT NULL PRIMARY KEY,
  aggregatetype character varying(255) NOT NULL,
  aggregateid   character varying(255) NOT NULL,
  type          character varying(255) NOT NULL,
  payload       jsonb
);`,
		WriteSQL: `
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)
VALUES ($1, 'order', $2, 'OrderPaid', '{"n": 1}') RETURNING 0::bigint`,
	}
}

// OpenOutboxTable is the table of the Open Outbox relay.
func OpenOutboxTable() TeamTable {
	return TeamTable{
		Name: "openoutbox_events", Preset: config.PresetOpenOutbox,
		DDL: `
CREATE TABLE openoutbox_events (
  event_id      uuid PRIMARY KEY,
  event_type    text NOT NULL,
  partition_key text,
  payload       bytea NOT NULL,
  headers       jsonb NOT NULL DEFAULT '{}',
  status        text NOT NULL DEFAULT 'PENDING'
    CHECK (status IN ('PENDING', 'DELIVERING', 'DELIVERED', 'DEAD')),
  attempts      int NOT NULL DEFAULT 0,
  last_error    text,
  available_at  timestamptz NOT NULL DEFAULT now(),
  locked_by     text,
  locked_at     timestamptz,
  delivered_at  timestamptz,
  created_at    timestamptz NOT NULL DEFAULT now(),
  updated_at    timestamptz NOT NULL DEFAULT now()
);`,
		WriteSQL: `
INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload, headers)
VALUES ($1, 'order.paid', $2, convert_to('{"n":1}', 'UTF8'), '{"Trace_Id": "t1", "tries": 3}') RETURNING 0::bigint`,
	}
}
