// Package outbox writes messages into an outbox table inside your own database transaction: when the
// transaction commits, Postrider's relay publishes them; when it rolls back, they never were.
//
//	writer, err := outbox.New(outbox.Config{Source: "shop"})
//	…
//	tx, err := pool.Begin(ctx)
//	… // your business statements
//	written, err := writer.Write(ctx, tx, outbox.Message{
//		Type: "order.paid", OrderingKey: "order-42", Payload: body,
//	})
//	… // return err if there is one: the transaction must then be rolled back
//	err = tx.Commit(ctx)
//
// Messages of one (source, destination, ordering key) are numbered densely from 1 and published in the order in
// which their transactions commit. For that, a write locks the key until the transaction ends. Write late in the
// transaction and once, or gather messages with a Collector and flush it before the commit: transactions that write
// the same keys in several calls in opposite order deadlock (SQLSTATE 40P01). Under REPEATABLE READ and SERIALIZABLE
// a key that another transaction wrote meanwhile ends in SQLSTATE 40001. Both are retried by running the whole
// transaction again.
//
// It works with pgx (Write) and with database/sql over any PostgreSQL driver (WriteSQL). It starts no goroutine,
// keeps no connection and logs nothing.
package outbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The defaults of Config.
const (
	DefaultSchema          = "public"
	DefaultTable           = "message_outbox"
	DefaultMaxPayloadBytes = 1 << 20
)

// The bounds of a write and its messages.
const (
	// MaxMessages is the largest number of messages of one call.
	MaxMessages = 10_000
	// MaxOwnVersions is the largest number of messages of a call in which any brings a version of its own.
	MaxOwnVersions = 1_000
	// MaxKeyBytes is the largest length of an ordering key.
	MaxKeyBytes = 1024
	// MaxTextBytes is the largest length of a source and of a destination.
	MaxTextBytes = 512
	// MaxHeaders is the largest number of headers.
	MaxHeaders = 64
	// MaxHeaderBytes is the largest sum of the names and values of headers. Of a value, each byte that is not
	// printable ASCII counts three times, as it travels.
	MaxHeaderBytes = 32 << 10
)

// maxPayloadLimit bounds MaxPayloadBytes: a message of PostgreSQL's protocol holds less than 1 GiB.
const maxPayloadLimit = 256 << 20

// Config says where messages go and whose they are.
type Config struct {
	// Schema is the schema of the outbox table; "public" where empty.
	Schema string
	// Table is the outbox table; "message_outbox" where empty.
	Table string
	// Source is the one name of this outbox's writer, such as "shop", 1 to 512 bytes. All writers of one table
	// use the same: consumers tell messages apart by source and id.
	Source string
	// MaxPayloadBytes is the largest payload; 1 MiB where 0. The broker's limit is the one to keep below.
	MaxPayloadBytes int
}

// Writer writes messages. It has no state that changes and may be used by many goroutines.
type Writer struct {
	source     string
	maxPayload int
	// plain numbers keys itself; given also takes versions of the caller's own.
	plain, given string

	now    func() time.Time
	random io.Reader
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// New returns a writer.
func New(cfg Config) (*Writer, error) {
	if cfg.Schema == "" {
		cfg.Schema = DefaultSchema
	}
	if cfg.Table == "" {
		cfg.Table = DefaultTable
	}
	if cfg.MaxPayloadBytes == 0 {
		cfg.MaxPayloadBytes = DefaultMaxPayloadBytes
	}
	switch {
	case !identifier.MatchString(cfg.Schema):
		return nil, fmt.Errorf("outbox: schema %q is not a plain identifier", cfg.Schema)
	case !identifier.MatchString(cfg.Table):
		return nil, fmt.Errorf("outbox: table %q is not a plain identifier", cfg.Table)
	case cfg.MaxPayloadBytes < 0 || cfg.MaxPayloadBytes > maxPayloadLimit:
		return nil, fmt.Errorf("outbox: MaxPayloadBytes is %d, want 0 to %d", cfg.MaxPayloadBytes, maxPayloadLimit)
	case cfg.Source == "":
		return nil, errors.New("outbox: Source is missing")
	}
	if problem := textProblem(cfg.Source, MaxTextBytes); problem != nil {
		return nil, fmt.Errorf("outbox: Source %s", problem.text)
	}
	table := strings.NewReplacer(
		"{outbox}", pgx.Identifier{cfg.Schema, cfg.Table}.Sanitize(),
		"{sequence}", pgx.Identifier{cfg.Schema, cfg.Table + "_sequence"}.Sanitize(),
	)
	return &Writer{
		source:     cfg.Source,
		maxPayload: cfg.MaxPayloadBytes,
		plain:      table.Replace(strings.ReplaceAll(writeSQL, "{numbered}", numberedSQL)),
		given:      table.Replace(strings.ReplaceAll(writeSQL, "{numbered}", givenSQL)),
		now:        time.Now,
		random:     rand.Reader,
	}, nil
}
