package local_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// soon bounds what must happen.
const soon = 20 * time.Second

// startPostgres starts a server that is stopped with the test.
func startPostgres(t *testing.T, cfg local.PostgresConfig) *local.Postgres {
	t.Helper()
	p, err := local.StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatalf("StartPostgres() error = %v", err)
	}
	t.Cleanup(func() { stop(t, p) })
	return p
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(withoutCancel(t)) }) // the server may have ended before
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, statement string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

func execute(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func TestStartPostgres(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"": "17.6", local.Postgres18: "18.6"} {
		t.Run("version "+want, func(t *testing.T) {
			t.Parallel()
			p := startPostgres(t, local.PostgresConfig{
				Version: version, Parameters: map[string]string{"wal_level": "logical"},
			})
			conn := connect(t, p.URL("postgres"))
			for setting, value := range map[string]string{
				"server_version":   want,
				"server_encoding":  "UTF8",
				"fsync":            "on", // what tests say of crashes must be true
				"wal_level":        "logical",
				"listen_addresses": "127.0.0.1", // nothing outside this machine can connect
			} {
				if got := query[string](t, conn, "SELECT current_setting($1)", setting); got != value {
					t.Errorf("%s = %q, want %q", setting, got, value)
				}
			}
		})
	}
}

func TestStartPostgresWantsThePassword(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, local.PostgresConfig{})
	for name, password := range map[string]string{"a wrong one": "wrong", "the usual one": "postgres", "none": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := strings.Replace(p.URL("postgres"), p.Password(), password, 1)
			_, err := pgx.Connect(t.Context(), url)
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "28P01" {
				t.Errorf("Connect() error = %v, want password refused", err)
			}
		})
	}
}

func TestPostgresRestart(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, local.PostgresConfig{})
	conn := connect(t, p.URL("postgres"))
	execute(t, conn, "CREATE TABLE kept AS SELECT 42 AS n")
	execute(t, conn, "BEGIN; INSERT INTO kept VALUES (43)") // never committed
	port := p.Port()

	if err := p.Kill(t.Context()); err != nil {
		t.Fatalf("Kill() error = %v", err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the connection survived kill -9")
	}
	if _, err := pgx.Connect(t.Context(), p.URL("postgres")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting to the killed server: %v, want a refusal", err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatalf("Start() error = %v", err)
	}
	if p.Port() != port {
		t.Errorf("the port moved from %d to %d", port, p.Port())
	}
	conn = connect(t, p.URL("postgres"))
	if got := query[int](t, conn, "SELECT sum(n) FROM kept"); got != 42 {
		t.Errorf("after the crash the sum is %d, want 42: what was committed and nothing else", got)
	}
	for range 3 {
		if err := p.Restart(t.Context()); err != nil {
			t.Fatalf("Restart() error = %v", err)
		}
	}
	select {
	case <-p.Lost():
		t.Errorf("a restart counts as a loss: %v", p.Err())
	default:
	}
}

func TestPostgresKeepsItsFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testkit.SharedDir(t), "pg")
	first := startPostgres(t, local.PostgresConfig{Dir: dir})
	execute(t, connect(t, first.URL("postgres")), "CREATE TABLE kept AS SELECT 42 AS n")
	stop(t, first)
	second := startPostgres(t, local.PostgresConfig{Dir: dir})
	if got := query[int](t, connect(t, second.URL("postgres")), "SELECT n FROM kept"); got != 42 {
		t.Errorf("n = %d, want 42", got)
	}
}

func TestPostgresRemovesItsOwnFolder(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, local.PostgresConfig{})
	dir := filepath.Dir(p.LogFile())
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	stop(t, p)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestPostgresTellsThatItWasLost(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, local.PostgresConfig{})
	content, err := os.ReadFile(filepath.Join(filepath.Dir(p.LogFile()), "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Lost():
	case <-time.After(soon):
		t.Fatal("nobody noticed that the server ended")
	}
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "fast shutdown request") {
		t.Errorf("Err() = %v, want the end of the log", err)
	}
}

func TestEnsureDatabase(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, local.PostgresConfig{})
	owner := local.Login{Name: `o"wner`, Password: `it's "secret" \ $1`}
	database := local.Database{Name: `sh"op`, Owner: &owner}
	for range 2 { // a second time changes nothing
		if err := p.EnsureDatabase(t.Context(), database); err != nil {
			t.Fatalf("EnsureDatabase() error = %v", err)
		}
	}
	cfg, err := pgx.ParseConfig(p.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Database, cfg.User, cfg.Password = database.Name, owner.Name, owner.Password
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("the owner cannot log in: %v", err)
	}
	defer conn.Close(withoutCancel(t)) //nolint:errcheck // nothing is pending
	execute(t, conn, "CREATE SCHEMA own CREATE TABLE t (n int)")

	owner.Password = "changed"
	if err := p.EnsureLogin(t.Context(), owner); err != nil {
		t.Fatalf("EnsureLogin() error = %v", err)
	}
	if _, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		t.Error("the old password still works")
	}
	if err := p.EnsureDatabase(t.Context(), local.Database{Name: "plain"}); err != nil {
		t.Fatalf("EnsureDatabase() without an owner: %v", err)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	address, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("not a TCP address")
	}
	for name, start := range map[string]func() error{
		"PostgreSQL": func() error {
			_, err := local.StartPostgres(t.Context(), local.PostgresConfig{Port: address.Port})
			return err
		},
		"NATS": func() error {
			_, err := local.StartNATS(t.Context(), local.NATSConfig{Port: address.Port})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := start()
			var taken *local.PortInUseError
			if !errors.As(err, &taken) || taken.Port != address.Port || taken.Server != name {
				t.Fatalf("error = %v, want a PortInUseError", err)
			}
			if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "choose another port") {
				t.Errorf("%q is not one line that says what to do", err)
			}
		})
	}
}

// stop stops a server for good; a second time does nothing.
func stop(t *testing.T, server interface{ Stop(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(withoutCancel(t), soon)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		t.Errorf("Stop() error = %v", err)
	}
}

// withoutCancel is the test's context for its cleanups, when its own has ended.
func withoutCancel(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}
