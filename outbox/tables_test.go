package outbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" //nolint:depguard // a second driver, to show that WriteSQL depends on none

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// tables are the outbox tables of one test on a real PostgreSQL.
type tables struct {
	*testkit.DB
	t *testing.T
}

func newTables(t *testing.T, options ...testkit.PostgresOption) *tables {
	t.Helper()
	db := testkit.Postgres(t, options...)
	err := schema.Apply(t.Context(), db.Pool(), postgres.Names{Schema: db.Schema, Outbox: "message_outbox"},
		schema.Options{Components: []schema.Component{schema.Outbox}, Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	return &tables{DB: db, t: t}
}

func (d *tables) writer() *outbox.Writer {
	d.t.Helper()
	w, err := outbox.New(outbox.Config{Schema: d.Schema, Source: "shop"})
	if err != nil {
		d.t.Fatal(err)
	}
	return w
}

// inTx runs f in a transaction and commits it when f returns no error.
func (d *tables) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, d.Pool(), f)
}

// write writes messages in a transaction of their own.
func (d *tables) write(w *outbox.Writer, msgs ...outbox.Message) ([]outbox.Written, error) {
	d.t.Helper()
	var written []outbox.Written
	err := d.inTx(d.t.Context(), func(tx pgx.Tx) (err error) {
		written, err = w.Write(d.t.Context(), tx, msgs...)
		return err
	})
	return written, err
}

// row is what a test looks at of a written row.
type row struct {
	Position int64
	EventID  string
	Key      string
	Version  *int64
	Payload  []byte
}

func (d *tables) rows() []row {
	d.t.Helper()
	rows, err := d.Pool().Query(d.t.Context(),
		`SELECT position, event_id::text, ordering_key, aggregate_version, payload FROM message_outbox ORDER BY position`)
	if err != nil {
		d.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		d.t.Fatal(err)
	}
	return all
}

// holes counts keys whose versions are not 1..n in the order of their positions.
func (d *tables) holes() int64 {
	d.t.Helper()
	return testkit.Value[int64](d.DB, `SELECT count(*) FROM (
	  SELECT aggregate_version, row_number() OVER (PARTITION BY destination, ordering_key ORDER BY position) n
	  FROM message_outbox WHERE aggregate_version IS NOT NULL) v WHERE aggregate_version <> n`)
}

func order(key string, payload string) outbox.Message {
	return outbox.Message{Type: "order.paid", OrderingKey: key, Payload: []byte(payload)}
}

// driver writes through one way of talking to PostgreSQL.
type driver func(t *testing.T, d *tables, w *outbox.Writer, msgs ...outbox.Message) ([]outbox.Written, error)

func drivers() map[string]driver {
	all := map[string]driver{
		"database/sql with pgx": func(t *testing.T, d *tables, w *outbox.Writer, m ...outbox.Message) ([]outbox.Written, error) {
			t.Helper()
			return writeSQL(t, stdlib.OpenDBFromPool(d.Pool()), w, m...)
		},
		"database/sql with lib/pq": func(t *testing.T, d *tables, w *outbox.Writer, m ...outbox.Message) ([]outbox.Written, error) {
			t.Helper()
			db, err := sql.Open("postgres", d.URL())
			if err != nil {
				t.Fatal(err)
			}
			return writeSQL(t, db, w, m...)
		},
	}
	for name, mode := range map[string]pgx.QueryExecMode{
		"pgx with cached statements":    pgx.QueryExecModeCacheStatement,
		"pgx with cached descriptions":  pgx.QueryExecModeCacheDescribe,
		"pgx describing each statement": pgx.QueryExecModeDescribeExec,
		"pgx executing undescribed":     pgx.QueryExecModeExec,
		"pgx with the simple protocol":  pgx.QueryExecModeSimpleProtocol,
	} {
		all[name] = func(t *testing.T, d *tables, w *outbox.Writer, m ...outbox.Message) ([]outbox.Written, error) {
			t.Helper()
			return writePgx(t, d, mode, w, m...)
		}
	}
	return all
}

func writePgx(
	t *testing.T, d *tables, mode pgx.QueryExecMode, w *outbox.Writer, msgs ...outbox.Message,
) (written []outbox.Written, err error) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(d.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		written, err = w.Write(t.Context(), tx, msgs...)
		return err
	})
	return written, err
}

func writeSQL(t *testing.T, db *sql.DB, w *outbox.Writer, msgs ...outbox.Message) ([]outbox.Written, error) {
	t.Helper()
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	written, err := w.WriteSQL(t.Context(), tx, msgs...)
	if err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return written, tx.Commit()
}
