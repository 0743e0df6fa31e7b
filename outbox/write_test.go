package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// allBytes holds every byte, NUL among them.
func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestWriteKeepsEveryField(t *testing.T) {
	t.Parallel()
	occurred := time.Date(2026, 3, 4, 5, 6, 7, 890123000, time.UTC)
	full := outbox.Message{
		ID:            outbox.EventID{1, 2, 3, 4, 5, 6, 0x77, 8, 0x89, 10, 11, 12, 13, 14, 15, 16},
		Type:          "order/paid.v-1_x",
		SchemaVersion: 7,
		OrderingKey:   `Zoë "quoted" \ {a,b} NULL`,
		Destination:   `über,"\`,
		ContentType:   "text/plain; charset=utf-8",
		Payload:       allBytes(),
		Headers:       map[string]string{"tenant": `a"b\c <é> {,} ` + "\u2028\t", "empty": ""},
		Traceparent:   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		OccurredAt:    occurred,
	}
	letter := outbox.Message{
		Type: "mail.send", Unordered: true, Payload: []byte{}, ExpiresAt: occurred.Add(time.Hour),
	}
	for name, write := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTables(t)
			written, err := write(t, d, d.writer(), full, letter, full2(full))
			if err != nil {
				t.Fatal(err)
			}
			if len(written) != 3 || written[0].EventID != full.ID || written[0].Version != 1 ||
				written[1].Version != 0 || written[2].Version != 2 {
				t.Fatalf("Write() = %v", written)
			}
			checkFull(t, d, full)
			checkLetter(t, d, letter, written[1].EventID.String())
		})
	}
}

func full2(m outbox.Message) outbox.Message {
	m.ID = outbox.EventID{}
	return m
}

func checkFull(t *testing.T, d *tables, want outbox.Message) {
	t.Helper()
	var got outbox.Message
	var source string
	var headers []byte
	var version int64
	d.QueryRow(
		`SELECT event_type, schema_version, source, ordering_key, destination, content_type, payload, headers, traceparent,
	  occurred_at, aggregate_version FROM message_outbox WHERE event_id = $1`,
		[]any{want.ID.String()},
		&got.Type,
		&got.SchemaVersion,
		&source,
		&got.OrderingKey,
		&got.Destination,
		&got.ContentType,
		&got.Payload,
		&headers,
		&got.Traceparent,
		&got.OccurredAt,
		&version,
	)
	if err := json.Unmarshal(headers, &got.Headers); err != nil {
		t.Fatal(err)
	}
	got.ID, got.OccurredAt = want.ID, got.OccurredAt.UTC()
	if !bytes.Equal(got.Payload, want.Payload) {
		t.Errorf("payload = %x, want %x", got.Payload, want.Payload)
	}
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w || source != "shop" || version != 1 {
		t.Errorf("row = %s of %s, version %d\nwant %s", g, source, version, w)
	}
}

func checkLetter(t *testing.T, d *tables, want outbox.Message, id string) {
	t.Helper()
	var key, contentType string
	var payload []byte
	var headers, traceparent *string
	var version *int64
	var schemaVersion int
	var expires, occurred, now time.Time
	d.QueryRow(
		`SELECT ordering_key, content_type, payload, headers::text, traceparent, aggregate_version, schema_version,
	  expires_at, occurred_at, clock_timestamp() FROM message_outbox WHERE event_id = $1`,
		[]any{id},
		&key,
		&contentType,
		&payload,
		&headers,
		&traceparent,
		&version,
		&schemaVersion,
		&expires,
		&occurred,
		&now,
	)
	if key != id || contentType != "application/json" || len(payload) != 0 || headers != nil || traceparent != nil ||
		version != nil || schemaVersion != 1 || !expires.Equal(want.ExpiresAt) {
		t.Errorf("unordered row = %q %q %x %v %v %v %d %s", key, contentType, payload, headers, traceparent, version,
			schemaVersion, expires)
	}
	if age := now.Sub(occurred); age < 0 || age > time.Minute {
		t.Errorf("occurred %s ago, want the database's time of writing", age)
	}
}

func TestWriteManyInOneCall(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	if _, err := d.write(w, order("b", "0")); err != nil {
		t.Fatal(err)
	}
	var msgs []outbox.Message
	for i := range 1000 {
		m := order([]string{"b", "a", "Z", "é"}[i%4], fmt.Sprint(i))
		m.Destination = []string{"", "orders.eu"}[i/500]
		if i%10 == 9 {
			m.OrderingKey, m.Unordered = "", true
		}
		msgs = append(msgs, m)
	}
	written, err := d.write(w, msgs...)
	if err != nil {
		t.Fatal(err)
	}
	rows := d.rows()[1:]
	for i, r := range rows {
		if string(r.Payload) != fmt.Sprint(i) {
			t.Fatalf("position %d holds message %s, want %d: positions follow the arguments", r.Position, r.Payload, i)
		}
		if r.EventID != written[i].EventID.String() || (r.Version == nil) != msgs[i].Unordered ||
			(r.Version != nil && *r.Version != written[i].Version) {
			t.Fatalf("message %d: row %s version %v, Write said %v", i, r.EventID, r.Version, written[i])
		}
	}
	if n := d.holes(); n != 0 {
		t.Errorf("%d messages have a version that is not dense", n)
	}
}

func TestOwnVersions(t *testing.T) {
	t.Parallel()
	own := func(key string, version int64) outbox.Message {
		m := order(key, "")
		m.Version = version
		return m
	}
	for name, write := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTables(t)
			w := d.writer()
			written, err := write(t, d, w, own("a", 3), order("b", ""), own("a", 4), order("b", ""))
			if err != nil {
				t.Fatal(err)
			}
			if got := []int64{
				written[0].Version,
				written[1].Version,
				written[2].Version,
				written[3].Version,
			}; !slices.Equal(
				got,
				[]int64{3, 1, 4, 2},
			) {
				t.Errorf("versions = %v, want 3 1 4 2", got)
			}
			if written, err = write(t, d, w, order("a", "")); err != nil || written[0].Version != 5 {
				t.Errorf("the writer's next version = %v, %v, want 5", written, err)
			}
		})
	}
}

func TestRefusedVersionsLeaveNothing(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	m := order("a", "")
	m.Version = 5
	if _, err := d.write(w, m); err != nil {
		t.Fatal(err)
	}
	for name, refused := range map[string]int64{"the last version": 5, "an older version": 4} {
		m.Version = refused
		err := d.inTx(t.Context(), func(tx pgx.Tx) error {
			_, err := w.Write(t.Context(), tx, order("b", ""), m)
			var field *outbox.FieldError
			if !errors.Is(err, outbox.ErrVersion) || !errors.As(err, &field) || field.Index != 1 ||
				field.Field != "aggregate_version" {
				t.Errorf("%s: Write() error = %v, want ErrVersion of message 1", name, err)
			}
			// Even a caller that goes on leaves no hole in the other keys of the refused call.
			_, err = w.Write(t.Context(), tx, order("c", ""))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if written, err := d.write(w, order("b", "")); err != nil || written[0].Version != 1 {
		t.Errorf("first of b = %v, %v, want version 1", written, err)
	}
	if got := testkit.Value[int64](d.DB, "SELECT count(*) FROM message_outbox"); got != 4 {
		t.Errorf("rows = %d, want 4", got)
	}
}

func TestIDsAreUsedOnce(t *testing.T) {
	t.Parallel()
	for name, write := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTables(t)
			m := order("a", "")
			m.ID = outbox.EventID{9}
			if _, err := write(t, d, d.writer(), m); err != nil {
				t.Fatal(err)
			}
			_, err := write(t, d, d.writer(), m)
			var field *outbox.FieldError
			if !errors.Is(err, outbox.ErrIDInUse) || !errors.As(err, &field) || field.Field != "event_id" {
				t.Errorf("Write() error = %v, want ErrIDInUse", err)
			}
			if _, err := write(t, d, d.writer(), full2(m), full2(m)); err != nil {
				t.Errorf("two new ids: %v", err)
			}
		})
	}
}

// The relay's floor rests on it: a transaction that takes a position has an id that snapshots see.
func TestTransactionIDComesBeforePosition(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	d.Exec(`CREATE FUNCTION has_xid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	  IF pg_current_xact_id_if_assigned() IS NULL THEN RAISE 'a position without a transaction id'; END IF; RETURN NEW; END $$`)
	d.Exec(`CREATE TRIGGER has_xid BEFORE INSERT ON message_outbox FOR EACH ROW EXECUTE FUNCTION has_xid()`)
	unordered := outbox.Message{Type: "mail.send", Unordered: true, Payload: []byte("x")}
	for range 5 { // the first value of a sequence brings a transaction id by itself
		if _, err := d.write(d.writer(), unordered); err != nil {
			t.Errorf("Write() of an unordered message: %v", err)
		}
		d.Exec(`SELECT message_outbox_write(NULL, 'mail.send', 'x', 'shop')`)
	}
	_, err := d.Pool().
		Exec(t.Context(), `INSERT INTO message_outbox (event_id, event_type, source, ordering_key, payload, occurred_at)
	  VALUES (gen_random_uuid(), 't', 's', 'k', '', now())`)
	if err == nil {
		t.Error("the trigger sees an id where none was asked for: this test shows nothing")
	}
}

func TestNotInATransaction(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	conn := d.Connect()
	pooled, err := d.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	for name, tx := range map[string]outbox.Tx{"a pool": d.Pool(), "an idle connection": conn, "an idle pooled one": pooled} {
		if _, err := w.Write(t.Context(), tx, order("a", "")); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("%s: Write() error = %v, want ErrNoTransaction", name, err)
		}
	}
	db := stdlib.OpenDBFromPool(d.Pool())
	defer func() { _ = db.Close() }()
	if _, err := w.WriteSQL(t.Context(), db, order("a", "")); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("a *sql.DB: WriteSQL() error = %v, want ErrNoTransaction", err)
	}
	if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(t.Context(), conn, order("a", "")); err != nil {
		t.Errorf("a connection in a transaction: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if n := len(d.rows()); n != 1 {
		t.Errorf("rows = %d, want 1", n)
	}
}

func TestRefusedMessagesReachNoDatabase(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	bad := order("a", "")
	bad.Headers = map[string]string{"tenant": "a\x00b"}
	err := d.inTx(t.Context(), func(tx pgx.Tx) error {
		_, err := w.Write(t.Context(), tx, order("a", ""), bad)
		if !errors.Is(err, outbox.ErrNUL) {
			t.Errorf("Write() error = %v, want ErrNUL", err)
		}
		var one int
		return tx.QueryRow(t.Context(), "SELECT 1").Scan(&one) // the transaction still works
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(d.rows()); n != 0 {
		t.Errorf("rows = %d, want 0", n)
	}
}

func TestCollector(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	c := d.writer().Collect()
	var ids []outbox.EventID
	for i := range 3 {
		id, err := c.Add(order([]string{"b", "a", "b"}[i], fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if _, err := c.Add(outbox.Message{}); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("Add() of an empty message = %v, want ErrInvalid", err)
	}
	err := d.inTx(t.Context(), func(tx pgx.Tx) error {
		written, err := c.Flush(t.Context(), tx)
		for i := range written {
			if written[i].EventID != ids[i] {
				t.Errorf("message %d was written as %s, Add said %s", i, written[i].EventID, ids[i])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(d.rows()); n != 3 || d.holes() != 0 {
		t.Errorf("rows = %d with %d holes, want 3 without", n, d.holes())
	}
	if _, err := c.Add(order("a", "")); !errors.Is(err, outbox.ErrFlushed) {
		t.Errorf("Add() after Flush() = %v, want ErrFlushed", err)
	}
	if _, err := c.Flush(context.Background(), nil); !errors.Is(err, outbox.ErrFlushed) {
		t.Errorf("second Flush() = %v, want ErrFlushed", err)
	}
}

func TestCollectorOverDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	db := stdlib.OpenDBFromPool(d.Pool())
	defer func() { _ = db.Close() }()
	c := d.writer().Collect()
	if _, err := c.Add(order("a", "")); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.FlushSQL(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.FlushSQL(t.Context(), tx); !errors.Is(err, outbox.ErrFlushed) {
		t.Errorf("second FlushSQL() = %v, want ErrFlushed", err)
	}
	if n := len(d.rows()); n != 1 {
		t.Errorf("rows = %d, want 1", n)
	}
}
