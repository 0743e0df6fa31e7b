package outbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// batch holds messages by column, as the statement takes them. A nil element is a NULL.
type batch struct {
	ids, types, destinations, contentTypes []string
	keys, headers, traceparents            []*string
	versions                               []*int64
	schemaVersions                         []int32
	payloads                               [][]byte
	occurred, expires                      []*time.Time
	ownVersions                            bool
}

func newBatch(msgs []Message) (*batch, error) {
	b := &batch{}
	for i := range msgs {
		m := &msgs[i]
		headers, err := headersText(m.Headers)
		if err != nil {
			return nil, err
		}
		b.ids = append(b.ids, m.ID.String())
		b.types = append(b.types, m.Type)
		b.destinations = append(b.destinations, m.Destination)
		b.contentTypes = append(b.contentTypes, m.ContentType)
		b.keys = append(b.keys, unlessZero(m.OrderingKey))
		b.headers = append(b.headers, headers)
		b.traceparents = append(b.traceparents, unlessZero(m.Traceparent))
		b.versions = append(b.versions, unlessZero(m.Version))
		b.schemaVersions = append(b.schemaVersions, m.SchemaVersion)
		b.payloads = append(b.payloads, m.Payload)
		b.occurred = append(b.occurred, unlessZeroTime(m.OccurredAt))
		b.expires = append(b.expires, unlessZeroTime(m.ExpiresAt))
		b.ownVersions = b.ownVersions || m.Version > 0
	}
	return b, nil
}

func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func unlessZeroTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// pgxRunner hands the columns to pgx as slices.
type pgxRunner struct{ tx Tx }

func (r pgxRunner) exec(ctx context.Context, statement string) error {
	_, err := r.tx.Exec(ctx, statement)
	return err
}

func (r pgxRunner) versions(ctx context.Context, statement, source string, b *batch) (map[int64]int64, error) {
	rows, err := r.tx.Query(ctx, statement, source, b.ids, b.keys, b.versions, b.types, b.schemaVersions,
		b.destinations, b.contentTypes, b.payloads, b.headers, b.traceparents, b.occurred, b.expires)
	if err != nil {
		return nil, err
	}
	versions := make(map[int64]int64, len(b.ids))
	var ord, version int64
	_, err = pgx.ForEachRow(rows, []any{&ord, &version}, func() error {
		versions[ord] = version
		return nil
	})
	return versions, err
}

// sqlRunner hands the columns to database/sql as array literals: drivers differ in how they take arrays, but all
// take a text.
type sqlRunner struct{ tx SQLTx }

func (r sqlRunner) exec(ctx context.Context, statement string) error {
	_, err := r.tx.ExecContext(ctx, statement)
	return err
}

func (r sqlRunner) versions(ctx context.Context, statement, source string, b *batch) (map[int64]int64, error) {
	rows, err := r.tx.QueryContext(ctx, statement, source, array(b.ids, text), array(b.keys, nullable(text)),
		array(b.versions, nullable(integer[int64])), array(b.types, text), array(b.schemaVersions, integer[int32]),
		array(b.destinations, text), array(b.contentTypes, text), array(b.payloads, bytea),
		array(b.headers, nullable(text)), array(b.traceparents, nullable(text)),
		array(b.occurred, nullable(timestamp)), array(b.expires, nullable(timestamp)))
	if err != nil {
		return nil, err
	}
	return collectVersions(rows, len(b.ids))
}

func collectVersions(rows *sql.Rows, n int) (versions map[int64]int64, err error) {
	defer func() {
		if closeErr := rows.Close(); err == nil {
			err = closeErr
		}
	}()
	versions = make(map[int64]int64, n)
	for rows.Next() {
		var ord, version int64
		if err := rows.Scan(&ord, &version); err != nil {
			return nil, fmt.Errorf("read versions: %w", err)
		}
		versions[ord] = version
	}
	return versions, rows.Err()
}

// array writes values as an array literal.
func array[T any](values []T, element func(*strings.Builder, T)) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		element(&b, v)
	}
	b.WriteByte('}')
	return b.String()
}

func nullable[T any](element func(*strings.Builder, T)) func(*strings.Builder, *T) {
	return func(b *strings.Builder, v *T) {
		if v == nil {
			b.WriteString("NULL")
			return
		}
		element(b, *v)
	}
}

// text writes a quoted element. A backslash and a quote are the only characters with a meaning inside.
func text(b *strings.Builder, s string) {
	b.WriteByte('"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('"')
}

func integer[T int32 | int64](b *strings.Builder, v T) {
	b.WriteString(strconv.FormatInt(int64(v), 10))
}

func bytea(b *strings.Builder, v []byte) {
	b.Grow(2*len(v) + len(`"\\x"`))
	b.WriteString(`"\\x`)
	b.WriteString(hex.EncodeToString(v))
	b.WriteByte('"')
}

func timestamp(b *strings.Builder, t time.Time) {
	text(b, t.UTC().Format("2006-01-02T15:04:05.999999Z07:00"))
}
