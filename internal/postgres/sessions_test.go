package postgres_test

import (
	"testing"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// kept counts the statements that a session has planned for good.
const kept = "SELECT count(*) FROM pg_prepared_statements"

func mustAsk[T comparable](t *testing.T, pool *postgres.Pool, statement string, want T) {
	t.Helper()
	got, err := ask[T](t.Context(), pool, statement)
	if err != nil || got != want {
		t.Fatalf("%s is %v, %v; want %v", statement, got, err, want)
	}
}

func TestASessionOfTheServerKeepsItsStatements(t *testing.T) {
	t.Parallel()
	cfg := testkit.Postgres(t).Ordinary().Config()
	cfg.MaxConnections = 1

	pool := open(t, cfg, postgres.Options{KeepStatements: true})
	mustAsk(t, pool, kept, 1) // itself
	mustAsk(t, pool, "SHOW enable_seqscan", "off")
	mustAsk(t, pool, kept, 2)

	plain := open(t, cfg, postgres.Options{})
	mustAsk(t, plain, kept, 0)
	mustAsk(t, plain, "SHOW enable_seqscan", "on")
}

func TestBehindAPoolerNothingIsLeftInASession(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	role := db.Ordinary()
	cfg := role.Config()
	pooler := testkit.PgBouncer(t, brokers.PgBouncerConfig{
		Host: db.Host, Port: db.Port, Users: map[string]string{role.User: role.Password}, PoolSize: 2,
	})
	cfg.Port = int32(pooler.Port())
	pool := open(t, cfg, postgres.Options{KeepStatements: true})
	for range 20 {
		mustAsk(t, pool, kept, 0)
		mustAsk(t, pool, "SHOW enable_seqscan", "on")
	}
}

// A pooler may pass on the server's process id: then a statement that another session keeps is the sign.
func TestAStatementThatIsMissingIsTheLastOneKept(t *testing.T) {
	t.Parallel()
	cfg := testkit.Postgres(t).Ordinary().Config()
	cfg.MaxConnections = 1
	pool := open(t, cfg, postgres.Options{KeepStatements: true})
	mustAsk(t, pool, kept, 1)
	if _, err := pool.Exec(t.Context(), "DEALLOCATE ALL"); err != nil {
		t.Fatal(err)
	}
	_, err := ask[int](t.Context(), pool, kept)
	if class, reason, state := postgres.Classify(
		err,
	); class != postgres.ClassRetry ||
		reason != postgres.ReasonCachedPlan {
		t.Fatalf("a missing statement is %v %s %s (%v)", class, reason, state, err)
	}
	for range 3 {
		mustAsk(t, pool, kept, 0)
	}
}
