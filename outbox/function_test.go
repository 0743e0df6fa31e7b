package outbox_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// publicationServers are a database of its own on each major version that differs.
func publicationServers(t *testing.T) map[string][]testkit.PostgresOption {
	t.Helper()
	server := testkit.PostgresServer(t, local.PostgresConfig{Version: local.Postgres18})
	return map[string][]testkit.PostgresOption{
		"PostgreSQL 17": {testkit.OwnDatabase(nil)},
		"PostgreSQL 18": {testkit.OnServer(server), testkit.OwnDatabase(nil)},
	}
}

// callFunction writes a message with message_outbox_write.
func callFunction(t *testing.T, d *tables, m outbox.Message) (id string, version *int64, err error) {
	t.Helper()
	args := pgx.NamedArgs{
		"key":         &m.OrderingKey,
		"type":        m.Type,
		"payload":     m.Payload,
		"source":      "shop",
		"headers":     m.Headers,
		"destination": m.Destination,
		"content":     nil,
		"schema":      nil,
		"trace":       nil,
		"occurred":    nil,
		"expires":     nil,
		"version":     nil,
	}
	if m.Unordered && m.OrderingKey == "" {
		args["key"] = nil
	}
	for name, set := range map[string]any{"content": m.ContentType, "trace": m.Traceparent} {
		if set != "" {
			args[name] = set
		}
	}
	for name, at := range map[string]time.Time{"occurred": m.OccurredAt, "expires": m.ExpiresAt} {
		if !at.IsZero() {
			args[name] = at
		}
	}
	if m.SchemaVersion != 0 {
		args["schema"] = m.SchemaVersion
	}
	if m.Version != 0 {
		args["version"] = m.Version
	}
	err = d.Pool().
		QueryRow(t.Context(), `SELECT id::text, version FROM message_outbox_write(@key, @type, @payload, @source,
	  headers => @headers, destination => @destination, content_type => @content, schema_version => @schema,
	  occurred_at => @occurred, traceparent => @trace, expires_at => @expires, aggregate_version => @version)`, args).
		Scan(&id, &version)
	return id, version, err
}

// The library and the function refuse the same messages, and name the same field. What both accept, a relay encodes.
func TestLibraryAndFunctionAgree(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	cases := agreementCases()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := cases[name]
			m := order("key", "{}")
			tc.change(&m)
			_, err := d.write(w, m)
			checkRefusal(t, "Write()", err, tc.field, tc.kind)
			if tc.onlyLibrary {
				return
			}
			_, _, err = callFunction(t, d, m)
			checkFunctionRefusal(t, err, tc.field, tc.state)
			if tc.field == "" {
				checkEncodes(t, m)
			}
		})
	}
}

func checkRefusal(t *testing.T, what string, err error, field string, kind error) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("%s = %v, want it written", what, err)
		}
		return
	}
	var refused *outbox.FieldError
	if !errors.As(err, &refused) || refused.Field != field || !errors.Is(err, kind) {
		t.Errorf("%s error = %v, want %v of %s", what, err, kind, field)
	}
	if err != nil && strings.Contains(err.Error(), canary) {
		t.Errorf("%s error %q quotes a value", what, err)
	}
}

func checkFunctionRefusal(t *testing.T, err error, field, state string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("message_outbox_write() = %v, want it written", err)
		}
		return
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		t.Fatalf("message_outbox_write() error = %v, want one of the server", err)
	}
	if pg.Code != state {
		t.Errorf("message_outbox_write() SQLSTATE = %s (%s), want %s", pg.Code, pg.Message, state)
	}
	ours := strings.HasPrefix(pg.Message, "postrider: ")
	if ours && (pg.ColumnName != field || !strings.Contains(pg.Message, field)) {
		t.Errorf("message_outbox_write() names %q in %q, want %s", pg.ColumnName, pg.Message, field)
	}
	if !ours && state != "22P05" && state != "22021" {
		t.Errorf("message_outbox_write() = %q, want our own words", pg.Message)
	}
	if ours && strings.Contains(pg.Message+pg.Detail+pg.Hint, canary) {
		t.Errorf("message_outbox_write() error %+v quotes a value", pg)
	}
}

// checkEncodes holds the writers to what a relay can publish.
func checkEncodes(t *testing.T, m outbox.Message) {
	t.Helper()
	key := m.OrderingKey
	if m.Unordered {
		key = "01920000-0000-7000-8000-000000000000"
	}
	if _, err := message.Encode(&message.Message{
		Type:          m.Type,
		SchemaVersion: max(1, m.SchemaVersion),
		Source:        "shop",
		OrderingKey:   key,
		Destination:   m.Destination,
		ContentType:   m.ContentType,
		Payload:       m.Payload,
		Size:          len(m.Payload),
		Headers:       m.Headers,
		Traceparent:   m.Traceparent,
		OccurredAt:    time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}); err != nil {
		t.Errorf("the writers accept what the relay refuses: %v", err)
	}
}

func TestFunctionWritesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	m := outbox.Message{
		Type:          "order.paid",
		OrderingKey:   "ключ",
		Destination:   "orders.eu",
		ContentType:   "application/xml",
		SchemaVersion: 3,
		Payload:       allBytes(),
		Headers:       map[string]string{"tenant": "é\u2028\t"},
		OccurredAt:    time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		Traceparent:   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	id, version, err := callFunction(t, d, m)
	if err != nil || version == nil || *version != 1 {
		t.Fatalf("message_outbox_write() = version %v, %v", version, err)
	}
	parsed, err := outbox.ParseEventID(id)
	if err != nil || parsed[6]>>4 != 7 || parsed[8]>>6 != 2 {
		t.Errorf("id = %s, %v, want a version 7 UUID", id, err)
	}
	m.ID = parsed
	checkFull(t, d, m)
	d.Exec(`SELECT message_outbox_write('k', 't', 'x', 'shop', event_id => $1)`, "00000000-0000-4000-8000-000000000001")
	_, err = d.Pool().
		Exec(t.Context(), `SELECT message_outbox_write('k', 't', 'x', 'shop', event_id => $1)`, "00000000-0000-4000-8000-000000000001")
	checkFunctionRefusal(t, err, "event_id", "23505")
	if _, version, err := callFunction(t, d, order("k", "")); err != nil || *version != 2 {
		t.Errorf("after a refused call the version is %v, %v, want 2: no gap", *version, err)
	}
}

// Ids made without uuidv7() are in the order of their time, as an index wants them.
func TestBuiltIDsGrow(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	ids := testkit.Values[string](
		d.DB,
		`SELECT (message_outbox_write('k', 'order.paid', 'x', 'shop')).id::text FROM generate_series(1, 200)`,
	)
	before := time.Now()
	for i, s := range ids {
		id, err := outbox.ParseEventID(s)
		if err != nil || id[6]>>4 != 7 || id[8]>>6 != 2 {
			t.Fatalf("id = %s, %v, want a version 7 UUID", s, err)
		}
		if i > 0 && s[:14] < ids[i-1][:14] {
			t.Fatalf("id %s comes after %s", s, ids[i-1])
		}
		ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
		if age := before.Sub(time.UnixMilli(ms)); age > time.Minute || age < -time.Minute {
			t.Fatalf("id %s is of %s, %s ago", s, time.UnixMilli(ms), age)
		}
	}
}

// The caller's search_path must decide neither which tables the function writes to nor what its own words mean.
func TestFunctionIgnoresTheCallersSearchPath(t *testing.T) {
	t.Parallel()
	d := newTables(t, testkit.OwnDatabase(nil))
	conn := d.Connect()
	write := "SELECT " + pgx.Identifier{d.Schema, "message_outbox_write"}.Sanitize()
	for _, statement := range []string{
		"CREATE TEMP TABLE message_outbox (LIKE message_outbox)",
		"CREATE SCHEMA evil",
		"CREATE FUNCTION evil.octet_length(bytea) RETURNS int LANGUAGE sql AS 'SELECT 0'",
		"SET search_path = pg_temp, evil, pg_catalog",
		write + "('k', 'order.paid', 'x', 'shop')",
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	_, err := conn.Exec(t.Context(), write+"('k', 'order.paid', repeat('x', 2000000)::bytea, 'shop')")
	checkFunctionRefusal(t, err, "payload", "54000")
	if n := len(d.rows()); n != 1 {
		t.Errorf("rows in the outbox = %d, want 1", n)
	}
}
