package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// ear is a pool that listens to "orders" with the payload "shop".
type ear struct {
	heard, told chan struct{}
	done        chan error
}

func listen(t *testing.T, cfg config.Postgres) *ear {
	t.Helper()
	return listenOver(t, open(t, cfg, postgres.Options{KeepStatements: true}))
}

func listenOver(t *testing.T, pool *postgres.Pool) *ear {
	t.Helper()
	e := &ear{heard: make(chan struct{}, 10), told: make(chan struct{}, 1000), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.done <- pool.Listen(ctx, "orders", "shop",
			func() { e.heard <- struct{}{} }, func() { e.told <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return e
}

func awaitSignal[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: nothing in 30 seconds", what)
		panic("not reached")
	}
}

func TestAListenerIsToldOfCommitsAndOfNothingElse(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	e := listen(t, db.Ordinary().Config())
	awaitSignal(t, "the proof", e.heard)

	conn := db.Connect()
	for _, statement := range []string{
		"BEGIN", "SELECT pg_notify('orders', 'shop')", "ROLLBACK", // nobody is told
		"SELECT pg_notify('orders', 'another schema')",
		"SELECT pg_notify('payments', 'shop')",
		"BEGIN", "SELECT pg_notify('orders', 'shop')", "SELECT pg_notify('orders', 'shop')",
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(e.told); n != 0 {
		t.Errorf("told %d times before the commit", n)
	}
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	awaitSignal(t, "the commit", e.told)
	// In the order of commits: what came before this one would have been told of by now.
	if _, err := conn.Exec(t.Context(), "SELECT pg_notify('orders', 'shop')"); err != nil {
		t.Fatal(err)
	}
	awaitSignal(t, "the next commit", e.told)
	if n := len(e.told); n != 0 {
		t.Errorf("told %d times more", n)
	}
}

func TestAListenerSaysThatAPoolerPassesNothingOn(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	role := db.Ordinary()
	pooler := testkit.PgBouncer(t, brokers.PgBouncerConfig{
		Host: db.Host, Port: db.Port, Users: map[string]string{role.User: role.Password}, PoolSize: 4,
	})
	cfg := role.Config()
	cfg.Port = int32(pooler.Port())
	e := listen(t, cfg)
	if err := awaitSignal(t, "the end", e.done); !errors.Is(err, postgres.ErrNotTold) {
		t.Errorf("Listen() = %v, want %v", err, postgres.ErrNotTold)
	}
}

func TestAListenerEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	proxy := testkit.Proxy(t, db.Addr())
	cfg := db.At(proxy.Host, proxy.Port).Ordinary().Config()
	e := listen(t, cfg)
	awaitSignal(t, "the proof", e.heard)
	proxy.Reset()
	if err := awaitSignal(t, "the end", e.done); err == nil || errors.Is(err, postgres.ErrNotTold) {
		t.Errorf("Listen() = %v, want the broken connection", err)
	}
}

// The connection that listens is one of the old password: it goes with the others.
func TestAListenerEndsWhenCredentialsChange(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	user, cfg := mountedLogin(t, db, "one")
	pool := open(t, cfg, postgres.Options{})
	e := listenOver(t, pool)
	awaitSignal(t, "the proof", e.heard)
	db.Exec(fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", user, canary))
	writeSecret(t, cfg.CredentialsDir, "v2", user, canary)
	if err := awaitSignal(t, "the end", e.done); err == nil {
		t.Error("Listen() ends without an error")
	}
	again := listenOver(t, pool)
	awaitSignal(t, "the proof with the new password", again.heard)
}
