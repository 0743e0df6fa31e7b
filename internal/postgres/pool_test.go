package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/testkit"
)

const canary = "canary-secret-4711"

func open(t *testing.T, cfg config.Postgres, o postgres.Options) *postgres.Pool {
	t.Helper()
	o.AllowLoopback = true
	o.ApplicationName = "pool test"
	pool, err := postgres.Open(t.Context(), cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// ask runs a statement that every user may run, within a deadline of its own.
func ask[T any](ctx context.Context, pool *postgres.Pool, statement string) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = pool.QueryRow(ctx, statement).Scan(&v)
	return v, err
}

func reasonOf(err error) postgres.Reason {
	_, reason, _ := postgres.Classify(err)
	return reason
}

// writeSecret replaces the files of a mounted Secret as the kubelet does: all at once, by one link.
func writeSecret(t *testing.T, dir, version, username, password string) {
	t.Helper()
	at := filepath.Join(dir, version)
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"username": username, "password": password} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "..link")
	if err := os.Symlink(version, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"username", "password"} {
		err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

// newLogin makes a user of this test's own.
func newLogin(t *testing.T, db *testkit.DB, password string) string {
	t.Helper()
	user := "user_" + db.Schema
	db.Exec(fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", user, password))
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.WithoutCancel(t.Context()), db.URL())
		if err != nil {
			t.Error(err)
			return
		}
		ctx := context.WithoutCancel(t.Context())
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, "DROP ROLE "+user); err != nil {
			t.Error(err)
		}
	})
	return user
}

// mountedLogin makes a user of this test's own, whose password is in a mounted Secret.
func mountedLogin(t *testing.T, db *testkit.DB, password string) (user string, cfg config.Postgres) {
	t.Helper()
	user, cfg = newLogin(t, db, password), db.Config()
	cfg.CredentialsDir = t.TempDir()
	writeSecret(t, cfg.CredentialsDir, "v1", user, password)
	return user, cfg
}

func TestOpenIsAskedByItsName(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	pool := open(t, db.Config(), postgres.Options{RuntimeParams: map[string]string{"lock_timeout": "7s"}})
	got, err := ask[string](
		t.Context(),
		pool,
		"SELECT current_setting('application_name') || ', ' || current_setting('lock_timeout')",
	)
	if err != nil || got != "pool test, 7s" {
		t.Errorf("session = %q, %v", got, err)
	}
}

// P18: the password is changed in the database and in the mounted Secret; nothing is restarted.
func TestRotatedCredentialsReplaceConnections(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	user, cfg := mountedLogin(t, db, "one")
	log := testkit.NewLog(t)
	pool := open(t, cfg, postgres.Options{Log: log.Logger()})
	const backend = "SELECT pg_backend_pid()"
	before, err := ask[int](t.Context(), pool, backend)
	if err != nil {
		t.Fatal(err)
	}

	// The file is ahead of the database: what works goes on working, and the log says so.
	writeSecret(t, cfg.CredentialsDir, "v2", user, canary)
	testkit.Eventually(t, 10*time.Second, "the refusal is logged", func() bool { return log.Contains("AuthFailed") })
	if now, err := ask[int](t.Context(), pool, backend); err != nil || now != before {
		t.Fatalf("backend = %d, %v, want the old connection %d", now, err, before)
	}
	db.Exec(fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", user, canary))
	testkit.Eventually(t, 20*time.Second, "the connection is replaced", func() bool {
		now, err := ask[int](t.Context(), pool, backend)
		return err == nil && now != before
	})
	if log.Contains(canary) {
		t.Error("the log holds the password")
	}
}

func TestWrongCredentialsAreNamedAndMended(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	user := newLogin(t, db, "right")
	cfg := db.Config()
	cfg.CredentialsDir = t.TempDir()
	pool := open(t, cfg, postgres.Options{})

	_, err := ask[int](t.Context(), pool, "SELECT 1")
	if reasonOf(err) != postgres.ReasonCredentialsInvalid || !strings.Contains(postgres.SafeError(err), "username") {
		t.Errorf("without files: %v", postgres.SafeError(err))
	}
	writeSecret(t, cfg.CredentialsDir, "v1", user, canary)
	_, err = ask[int](t.Context(), pool, "SELECT 1")
	if reasonOf(err) != postgres.ReasonAuthFailed || strings.Contains(err.Error()+postgres.SafeError(err), canary) {
		t.Errorf("with a wrong password: %v", postgres.SafeError(err))
	}
	writeSecret(t, cfg.CredentialsDir, "v2", user, "right")
	if _, err := ask[int](t.Context(), pool, "SELECT 1"); err != nil {
		t.Errorf("with the right password, at once: %v", err)
	}
}

func TestWhatCannotBeReachedIsNamed(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := closed.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}

	cases := map[string]struct {
		change func(*config.Postgres)
		want   postgres.Reason
	}{
		"nobody listens": {func(c *config.Postgres) { c.Port = int32(free) }, postgres.ReasonUnreachable},
		"a host that does not exist": {
			func(c *config.Postgres) { c.Hosts = []string{"no-such-host.invalid"} },
			postgres.ReasonUnreachable,
		},
		"a database that is not there": {
			func(c *config.Postgres) { c.Database = "nowhere" },
			postgres.ReasonDatabaseMissing,
		},
		"a server without TLS": {
			func(c *config.Postgres) { c.TLS.Mode = "VerifyFull" },
			postgres.ReasonTLSFailed,
		},
		"the metadata service": {
			func(c *config.Postgres) { c.Hosts = []string{"169.254.169.254"} },
			postgres.ReasonAddressRefused,
		},
		"the metadata service by hex": {
			func(c *config.Postgres) { c.Hosts = []string{"0xa9fea9fe"} },
			postgres.ReasonUnreachable,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := db.Config()
			tc.change(&cfg)
			_, err := ask[int](t.Context(), open(t, cfg, postgres.Options{}), "SELECT 1")
			class, reason, _ := postgres.Classify(err)
			if class != postgres.ClassEnvironment || reason != tc.want {
				t.Errorf("error = %s %s (%v), want environment %s", class, reason, err, tc.want)
			}
			if safe := postgres.SafeError(err); strings.Contains(safe, db.Password) || len(safe) > 256 {
				t.Errorf("SafeError() = %q", safe)
			}
		})
	}
}

func TestLoopbackIsRefusedInAPod(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	for _, host := range []string{"127.0.0.1", "localhost"} {
		cfg := db.Config()
		cfg.Hosts = []string{host}
		pool, err := postgres.Open(t.Context(), cfg, postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask[int](t.Context(), pool, "SELECT 1"); reasonOf(err) != postgres.ReasonAddressRefused {
			t.Errorf("%s: %v, want it refused", host, err)
		}
		pool.Close()
	}
}

func TestConnectGivesOneConnection(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	conn, err := postgres.Connect(t.Context(), db.Config(), postgres.Options{AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := postgres.Connect(t.Context(), config.Postgres{}, postgres.Options{}); err == nil {
		t.Error("Connect() takes no settings at all")
	}
}

// P2: packets are dropped and nobody says so. The statement ends at its deadline, its outcome unknown, and the pool
// finds a connection that works without anyone restarting anything.
func TestHalfOpenConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	proxy := testkit.Proxy(t, db.Addr())
	cfg := db.Config()
	cfg.Port = int32(proxy.Port)
	pool := open(t, cfg, postgres.Options{})
	if _, err := ask[int](t.Context(), pool, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	proxy.HalfOpen()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := pool.Exec(ctx, "SELECT 1")
	if class, reason, _ := postgres.Classify(err); class != postgres.ClassUnknown || reason != postgres.ReasonNoAnswer {
		t.Errorf("error = %s %s (%v), want unknown NoAnswer", class, reason, err)
	}
	proxy.Resume()
	testkit.Eventually(t, 20*time.Second, "the pool works again", func() bool {
		_, err := ask[int](t.Context(), pool, "SELECT 1")
		return err == nil
	})
}

func TestCutConnectionLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	proxy := testkit.Proxy(t, db.Addr())
	cfg := db.Config()
	cfg.Port = int32(proxy.Port)
	pool := open(t, cfg, postgres.Options{})
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	started := make(chan error, 1)
	pid := conn.Conn().PgConn().PID()
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(30)")
		started <- err
	}()
	testkit.Eventually(t, 10*time.Second, "the statement runs", func() bool {
		return testkit.Value[bool](
			db,
			"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND query LIKE '%pg_sleep%')",
			int64(pid),
		)
	})
	proxy.Reset()
	if class, reason, _ := postgres.Classify(
		<-started,
	); class != postgres.ClassUnknown ||
		reason != postgres.ReasonConnectionLost {
		t.Errorf("error = %s %s, want unknown ConnectionLost", class, reason)
	}
}

// P1: a server that lost its role answers 25006. The connection is dropped and the writable host found.
func TestReadOnlyServerIsLeftForTheWritableOne(t *testing.T) {
	t.Parallel()
	first := testkit.PostgresServer(t, local.PostgresConfig{})
	second := testkit.PostgresServer(t, local.PostgresConfig{})
	oldDB := testkit.Postgres(t, testkit.OnServer(first))
	newDB := testkit.Postgres(t, testkit.OnServer(second))
	cfg := oldDB.Config()
	writeSecretFiles(t, cfg.CredentialsDir, map[string]string{"username": oldDB.User, "password": oldDB.Password})
	if oldDB.Password != newDB.Password {
		newDB.Exec("ALTER ROLE " + newDB.User + " PASSWORD '" + oldDB.Password + "'")
	}
	// Two hosts of one name, and one port for both: proxies on two loopback addresses stand for the two machines.
	cfg.Hosts, cfg.Port = hostsFor(t, oldDB, newDB)
	pool := open(t, cfg, postgres.Options{})
	if at, err := ask[string](
		t.Context(),
		pool,
		"SELECT current_setting('port')",
	); err != nil ||
		at != fmt.Sprint(oldDB.Port) {
		t.Fatalf("connected to port %s, %v, want the first host's server at %d", at, err, oldDB.Port)
	}
	// Demotion: sessions that exist turn read-only, new ones begin so.
	readOnly(t, oldDB, "on")
	testkit.Eventually(t, 20*time.Second, "a write meets 25006 and then the writable server", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS public.written (n int)")
		return err == nil && testkit.Value[bool](newDB, "SELECT to_regclass('public.written') IS NOT NULL")
	})
	readOnly(t, newDB, "on")
	testkit.Eventually(t, 20*time.Second, "no writable server is reported as ReadOnly", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := pool.Exec(ctx, "DROP TABLE public.written")
		return reasonOf(err) == postgres.ReasonReadOnly && pool.Stat().TotalConns() == 0
	})
	readOnly(t, oldDB, "off")
	readOnly(t, newDB, "off")
}

// readOnly sets how all sessions of a server begin their transactions, those that exist included.
func readOnly(t *testing.T, db *testkit.DB, value string) {
	t.Helper()
	conn := db.Connect()
	for _, statement := range []string{
		"SET default_transaction_read_only = off", "ALTER SYSTEM SET default_transaction_read_only = " + value, "SELECT pg_reload_conf()",
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, 20*time.Second, "the server has taken over read-only "+value, func() bool {
		return testkit.Value[string](db, "SHOW default_transaction_read_only") == value
	})
}

func writeSecretFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// hostsFor forwards one port on two loopback addresses to the two servers.
func hostsFor(t *testing.T, dbs ...*testkit.DB) (hosts []string, port int32) {
	t.Helper()
	for i, db := range dbs {
		host := fmt.Sprintf("127.0.0.%d", i+1)
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if err != nil {
			t.Fatal(err)
		}
		port = int32(ln.Addr().(*net.TCPAddr).Port)
		hosts = append(hosts, host)
		forward(t, ln, db.Addr(), nil)
	}
	return hosts, port
}

// P9: a table changes under a description that the connection has kept.
func TestAlteredTableUnderAKeptDescription(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec("CREATE TABLE things (n int)")
	db.Exec("INSERT INTO things VALUES (1)")
	cfg := db.Config()
	cfg.MaxConnections = 1
	pool := open(t, cfg, postgres.Options{})
	statement := "SELECT n FROM " + db.Schema + ".things"
	if _, err := ask[int](t.Context(), pool, statement); err != nil {
		t.Fatal(err)
	}
	db.Exec("ALTER TABLE things ALTER COLUMN n TYPE bigint")
	failed := 0
	testkit.Eventually(t, 10*time.Second, "the statement works again", func() bool {
		_, err := ask[int64](t.Context(), pool, statement)
		if err != nil {
			failed++
		}
		return err == nil
	})
	if failed > 1 {
		t.Errorf("failed %d times, want at most one", failed)
	}
}
