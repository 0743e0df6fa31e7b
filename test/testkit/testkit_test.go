package testkit_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

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
