package testkit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
)

// maxPoolConnections bounds the pool of one test; maxServerConnections those of all tests of all packages.
const (
	maxPoolConnections   = 16
	maxServerConnections = 500
)

// PostgresParameters are the settings of the servers that tests share: logical decoding possible, room for many
// connections. Durability is as in production: fsync stays on.
func PostgresParameters() map[string]string {
	return map[string]string{
		"wal_level":             "logical",
		"max_wal_senders":       "50",
		"max_replication_slots": "50",
		"max_connections":       strconv.Itoa(maxServerConnections),
	}
}

// DB is one test's place on a real PostgreSQL: a schema of its own, dropped when the test ends.
type DB struct {
	Host     string
	Port     int
	Database string
	Schema   string
	User     string // a superuser
	Password string

	t    testing.TB
	pool *pgxpool.Pool
}

// PostgresOption changes what Postgres gives.
type PostgresOption func(*postgresOptions)

type postgresOptions struct {
	server      *local.Postgres
	ownDatabase bool
	settings    map[string]string
}

// OnServer uses the given server instead of the shared one.
func OnServer(s *local.Postgres) PostgresOption {
	return func(o *postgresOptions) { o.server = s }
}

// OwnDatabase gives the test a database of its own, with the given settings as the defaults of all its sessions.
func OwnDatabase(settings map[string]string) PostgresOption {
	return func(o *postgresOptions) {
		o.ownDatabase = true
		o.settings = maps.Clone(settings)
	}
}

// Serializable gives the test a database of its own whose transactions are SERIALIZABLE unless they say otherwise.
func Serializable() PostgresOption {
	return OwnDatabase(map[string]string{"default_transaction_isolation": "serializable"})
}

// sharedPostgres is the server of this test binary, started by the first test that asks. No one stops it: it ends
// with the process.
var sharedPostgres = sync.OnceValues(func() (*local.Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // the first start ever downloads
	defer cancel()
	return local.StartPostgres(ctx, local.PostgresConfig{Parameters: PostgresParameters()})
})

// Postgres gives the test a schema of its own on a real PostgreSQL 17.
func Postgres(t testing.TB, options ...PostgresOption) *DB {
	t.Helper()
	var o postgresOptions
	for _, option := range options {
		option(&o)
	}
	admin, err := adminConfig(o.server)
	if err != nil {
		t.Fatalf("starting PostgreSQL for tests: %v", err)
	}
	db := &DB{
		Host:     admin.Host,
		Port:     int(admin.Port),
		Database: admin.Database,
		Schema:   uniqueName("test"),
		User:     admin.User,
		Password: admin.Password,
		t:        t,
	}
	if o.ownDatabase {
		db.Database = uniqueName("db")
		createDatabase(t, admin, db.Database, o.settings)
	}
	own := admin.Copy()
	own.Database = db.Database
	run(t, own, "CREATE SCHEMA "+pgx.Identifier{db.Schema}.Sanitize())
	if !o.ownDatabase {
		t.Cleanup(func() { db.dropSchema(own) })
	}
	db.pool = newPool(t, db.URL())
	return db
}

// ServerDir returns a folder for a server's data that the account it runs as gets through to. It goes when the test ends.
func ServerDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "postrider-test-data-") //nolint:usetesting // its parent keeps others out
	if err = errors.Join(err, os.Chmod(dir, 0o711)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// ForPostgres gives a file or a folder to the account that PostgreSQL runs as, which is another than ours where we are
// root.
func ForPostgres(t testing.TB, path string) {
	t.Helper()
	const nobody = 65534
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

// PostgresServer starts a server for this test alone, which may be killed and restarted.
func PostgresServer(t testing.TB, cfg local.PostgresConfig) *local.Postgres {
	t.Helper()
	parameters := PostgresParameters()
	maps.Copy(parameters, cfg.Parameters)
	cfg.Parameters = parameters
	server, err := local.StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Errorf("stopping PostgreSQL: %v", err)
		}
	})
	return server
}

// adminConfig says how to connect as superuser to the given server, the one hack/servers runs, or the binary's own.
func adminConfig(server *local.Postgres) (*pgx.ConnConfig, error) {
	if server == nil {
		if named := os.Getenv(PostgresVariable); named != "" {
			return pgx.ParseConfig(named)
		}
		var err error
		if server, err = sharedPostgres(); err != nil {
			return nil, err
		}
	}
	return pgx.ParseConfig(server.URL("postgres"))
}

func createDatabase(t testing.TB, admin *pgx.ConnConfig, name string, settings map[string]string) {
	t.Helper()
	quoted := pgx.Identifier{name}.Sanitize()
	run(t, admin, "CREATE DATABASE "+quoted+" TEMPLATE template0")
	t.Cleanup(func() { runCleanup(t, admin, "DROP DATABASE "+quoted+" WITH (FORCE)") })
	for setting, value := range settings {
		run(t, admin, fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", quoted, setting, value))
	}
}

// dropSchema drops the schema. What still locks it after the test has ended was forgotten by the test.
func (db *DB) dropSchema(cfg *pgx.ConnConfig) {
	cfg = cfg.Copy()
	cfg.RuntimeParams["lock_timeout"] = "10s"
	runCleanup(db.t, cfg, "DROP SCHEMA "+pgx.Identifier{db.Schema}.Sanitize()+" CASCADE")
}

func run(t testing.TB, cfg *pgx.ConnConfig, statement string) {
	t.Helper()
	if err := execute(t.Context(), cfg, statement); err != nil {
		t.Fatalf("preparing PostgreSQL for the test: %v", err)
	}
}

func runCleanup(t testing.TB, cfg *pgx.ConnConfig, statement string) {
	t.Helper()
	ctx, cancel := cleanupContext(t)
	defer cancel()
	err := execute(ctx, cfg, statement)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "55P03" {
		t.Errorf("the test left a session behind that holds locks in its schema: %v", err)
		return
	}
	if err != nil {
		t.Errorf("cleaning up PostgreSQL after the test: %v", err)
	}
}

func execute(ctx context.Context, cfg *pgx.ConnConfig, statement string) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is pending
	_, err = conn.Exec(ctx, statement)
	return err
}

// newPool connects lazily and is closed when the test ends.
func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("making a pool: %v", err)
	}
	cfg.MaxConns = maxPoolConnections
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("making a pool: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		ctx, cancel := cleanupContext(t)
		defer cancel()
		select {
		case <-closed:
		case <-ctx.Done():
			t.Error("the test never gave a connection of the pool back")
		}
	})
	return pool
}

// URL is the connection string, with the schema as search path.
func (db *DB) URL() string { return db.URLAt(db.Host, db.Port) }

// URLAt is the connection string through another address, such as a Proxy's.
func (db *DB) URLAt(host string, port int) string {
	return fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable&search_path=%s&application_name=%s",
		db.User, db.Password, net.JoinHostPort(host, strconv.Itoa(port)), db.Database, db.Schema, db.Schema)
}

// At is the same place at another address, such as that of a server which took over.
func (db *DB) At(host string, port int) *DB {
	db.t.Helper()
	other := *db
	other.Host, other.Port = host, port
	other.pool = newPool(db.t, other.URL())
	return &other
}

// Addr is the server's address, the upstream for a Proxy.
func (db *DB) Addr() string { return net.JoinHostPort(db.Host, strconv.Itoa(db.Port)) }

// Pool returns a pool whose search path is the schema. It is closed when the test ends.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Connect returns a connection of its own, closed when the test ends.
func (db *DB) Connect() *pgx.Conn {
	db.t.Helper()
	conn, err := pgx.Connect(db.t.Context(), db.URL())
	if err != nil {
		db.t.Fatalf("connecting to PostgreSQL: %v", err)
	}
	db.t.Cleanup(func() {
		ctx, cancel := cleanupContext(db.t)
		defer cancel()
		_ = conn.Close(ctx) // a test may have cut it
	})
	return conn
}

// Config is what a worker's configuration says to reach this place, with the credentials in files.
func (db *DB) Config() config.Postgres {
	db.t.Helper()
	dir := db.t.TempDir()
	for name, content := range map[string]string{"username": db.User, "password": db.Password} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			db.t.Fatalf("writing the credentials: %v", err)
		}
	}
	return config.Postgres{
		Hosts:          []string{db.Host},
		Port:           int32(db.Port),
		Database:       db.Database,
		Schema:         db.Schema,
		CredentialsDir: dir,
		TLS:            config.TLS{Mode: "Insecure"},
		MaxConnections: maxPoolConnections,
	}
}

// Exec runs a statement and fails the test when it is refused. It returns the number of affected rows.
func (db *DB) Exec(statement string, args ...any) int64 {
	db.t.Helper()
	tag, err := db.pool.Exec(db.t.Context(), statement, args...)
	if err != nil {
		db.t.Fatalf("running %q: %v", statement, err)
	}
	return tag.RowsAffected()
}

// QueryRow reads one row into the targets and fails the test when there is none.
func (db *DB) QueryRow(statement string, args []any, into ...any) {
	db.t.Helper()
	if err := db.pool.QueryRow(db.t.Context(), statement, args...).Scan(into...); err != nil {
		db.t.Fatalf("reading %q: %v", statement, err)
	}
}

// Uncounted fails the test where something counts against a message of its outbox, or did before the message was
// published, or where one is given up.
func (db *DB) Uncounted() {
	db.t.Helper()
	counted := Value[int](db, `SELECT count(*) FROM (
		SELECT attempts, unknowns, first_failed_at FROM message_outbox
		UNION ALL SELECT attempts, unknowns, first_failed_at FROM message_outbox_published) x
		WHERE attempts > 0 OR unknowns > 0 OR first_failed_at IS NOT NULL`)
	letters := Value[int](db, "SELECT count(*) FROM message_failure")
	if counted != 0 || letters != 0 {
		db.t.Fatalf("something counts against %d messages, and %d are dead letters", counted, letters)
	}
}

// Value reads one value.
func Value[T any](db *DB, statement string, args ...any) T {
	db.t.Helper()
	var v T
	db.QueryRow(statement, args, &v)
	return v
}

// Values reads one column.
func Values[T any](db *DB, statement string, args ...any) []T {
	db.t.Helper()
	rows, err := db.pool.Query(db.t.Context(), statement, args...)
	if err != nil {
		db.t.Fatalf("reading %q: %v", statement, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		db.t.Fatalf("reading %q: %v", statement, err)
	}
	return values
}
