package testkit_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec("CREATE TABLE here (n int)")
	const schemaSQL = "SELECT schemaname::text FROM pg_tables WHERE tablename = 'here' AND schemaname = $1"
	if got := testkit.Value[string](db, schemaSQL, db.Schema); got != db.Schema {
		t.Errorf("the table is in schema %q, want %q", got, db.Schema)
	}
	for setting, want := range map[string]string{"fsync": "on", "wal_level": "logical", "server_version": "17.6"} {
		if got := testkit.Value[string](db, "SELECT current_setting($1)", setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
}

func TestSerializable(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.Serializable())
	if got := testkit.Value[string](db, "SHOW transaction_isolation"); got != "serializable" {
		t.Errorf("transaction_isolation = %q, want serializable", got)
	}
}

func TestNATS(t *testing.T) {
	t.Parallel()
	broker := testkit.NATS(t)
	stream := broker.Stream(jetstream.StreamConfig{})
	ack, err := broker.JetStream().Publish(t.Context(), stream.Subject("a"), []byte("x"))
	if err != nil {
		t.Fatalf("publishing: %v", err)
	}
	if ack.Stream != stream.Name || ack.Sequence != 1 {
		t.Errorf("published to %s at %d, want %s at 1", ack.Stream, ack.Sequence, stream.Name)
	}
}

func TestPostgresConnect(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	var schema string
	if err := db.Connect().QueryRow(t.Context(), "SELECT current_schema()::text").Scan(&schema); err != nil {
		t.Fatal(err)
	}
	if schema != db.Schema {
		t.Errorf("current schema = %q, want %q", schema, db.Schema)
	}
}

func TestPostgresServer(t *testing.T) {
	t.Parallel()
	server := testkit.PostgresServer(t, local.PostgresConfig{})
	db := testkit.Postgres(t, testkit.OnServer(server))
	db.Exec("CREATE TABLE kept AS SELECT 1 AS n")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(
		t,
		soon,
		"the pool has new connections",
		func() bool { return db.Pool().Ping(t.Context()) == nil },
	)
	if got := testkit.Values[int](db, "SELECT n FROM kept"); !slices.Equal(got, []int{1}) {
		t.Errorf("rows = %v, want [1]", got)
	}
}

func TestNATSServer(t *testing.T) {
	t.Parallel()
	broker := testkit.NATSServer(t, local.NATSConfig{})
	stream := broker.Stream(jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}})
	if got := stream.Subject("a"); got != "orders.a" {
		t.Errorf("Subject() = %q, want orders.a", got)
	}
	if err := broker.Server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.JetStream().Publish(t.Context(), stream.Subject("a"), nil); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestConfigReachesTheServer(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	cfg := db.Config()
	credentials := map[string]string{}
	for _, name := range []string{"username", "password"} {
		content, err := os.ReadFile(filepath.Join(cfg.CredentialsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		credentials[name] = string(content)
	}
	url := fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=disable", credentials["username"], credentials["password"],
		cfg.Hosts[0], cfg.Port, cfg.Database)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is pending
	var schemas int
	err = conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", cfg.Schema).Scan(&schemas)
	if err != nil || schemas != 1 {
		t.Errorf("found %d schemas %q, %v, want one", schemas, cfg.Schema, err)
	}
}

func TestSchemasAreDropped(t *testing.T) { //nolint:tparallel // the one subtest must have ended below
	t.Parallel()
	admin := testkit.Postgres(t)
	var used, database string
	t.Run("a test", func(t *testing.T) {
		db := testkit.Postgres(t)
		db.Exec("CREATE TABLE here (n int)")
		used = db.Schema
		database = testkit.Postgres(t, testkit.OwnDatabase(nil)).Database
	})
	if n := testkit.Value[int](admin, "SELECT count(*) FROM pg_namespace WHERE nspname = $1", used); n != 0 {
		t.Errorf("the schema %s is left", used)
	}
	if n := testkit.Value[int](admin, "SELECT count(*) FROM pg_database WHERE datname = $1", database); n != 0 {
		t.Errorf("the database %s is left", database)
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	log.Logger().DebugContext(t.Context(), "Something happened", "secret", "canary")
	if !log.Contains("canary") || log.Contains("another") {
		t.Errorf("the log is %q", log)
	}
}
