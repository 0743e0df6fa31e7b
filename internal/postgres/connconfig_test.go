package postgres

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/config"
)

func testSettings(t *testing.T) config.Postgres {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"username": "app", "password": canary})
	return config.Postgres{
		Hosts: []string{"db-1", "db-2"}, Port: 6543, Database: "orders", Schema: "public", CredentialsDir: dir,
		TLS: config.TLS{Mode: "VerifyFull"}, MaxConnections: 3,
	}
}

// shape is what of a configuration can be compared.
func shape(t *testing.T, cfg config.Postgres) string {
	t.Helper()
	pc, err := poolConfig(cfg, Options{ApplicationName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c := pc.ConnConfig
	if err := pc.BeforeConnect(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	fallbacks := make([]string, 0, len(c.Fallbacks))
	for _, f := range c.Fallbacks {
		fallbacks = append(
			fallbacks,
			fmt.Sprint(f.Host, f.Port, f.TLSConfig != nil && f.TLSConfig.ServerName == f.Host),
		)
	}
	b, err := json.Marshal(map[string]any{
		"host":        c.Host,
		"port":        c.Port,
		"db":          c.Database,
		"user":        c.User,
		"password":    c.Password,
		"fallbacks":   fallbacks,
		"tls":         c.TLSConfig != nil,
		"params":      c.RuntimeParams,
		"timeout":     c.ConnectTimeout,
		"mode":        c.DefaultQueryExecMode,
		"min":         c.MinProtocolVersion,
		"max":         c.MaxProtocolVersion,
		"binding":     c.ChannelBinding,
		"auth":        c.RequireAuth,
		"negotiation": c.SSLNegotiation,
		"certMode":    c.SSLCertMode,
		"conns":       pc.MaxConns,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEnvironmentAndFilesHaveNoSay(t *testing.T) {
	cfg := testSettings(t)
	want := shape(t, cfg)

	home := t.TempDir()
	t.Setenv("HOME", home)
	writeFiles(t, home, map[string]string{
		".pgpass":          "*:*:*:*:stolen",
		".pg_service.conf": "[evil]\nhost=evil\nuser=evil\n",
	})
	writeFiles(
		t,
		filepath.Join(home, ".postgresql"),
		map[string]string{"postgresql.crt": "x", "postgresql.key": "x", "root.crt": "x"},
	)
	for _, kv := range []string{
		"PGHOST=evil", "PGPORT=1", "PGDATABASE=evil", "PGUSER=evil", "PGPASSWORD=evil", "PGPASSFILE=" + home + "/.pgpass",
		"PGAPPNAME=evil", "PGCONNECT_TIMEOUT=77", "PGSSLMODE=verify-full", "PGSSLKEY=/nowhere", "PGSSLCERT=/nowhere",
		"PGSSLCERTMODE=require", "PGSSLSNI=0", "PGSSLROOTCERT=/nowhere", "PGSSLPASSWORD=evil", "PGSSLNEGOTIATION=direct",
		"PGTARGETSESSIONATTRS=standby", "PGSERVICE=missing", "PGSERVICEFILE=" + home + "/.pg_service.conf", "PGTZ=evil",
		"PGOPTIONS=-c search_path=evil", "PGMINPROTOCOLVERSION=3.2", "PGMAXPROTOCOLVERSION=latest",
		"PGCHANNELBINDING=require", "PGREQUIREAUTH=none",
	} {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	if got := shape(t, cfg); got != want {
		t.Errorf("with an environment:\n%s\nwithout:\n%s", got, want)
	}
}

func TestPoolConfig(t *testing.T) {
	t.Parallel()
	cfg := testSettings(t)
	pc, err := poolConfig(cfg, Options{ApplicationName: "postrider-relay shop/orders"})
	if err != nil {
		t.Fatal(err)
	}
	c := pc.ConnConfig
	if err := pc.BeforeConnect(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c.Host != "db-1" || len(c.Fallbacks) != 1 || c.Fallbacks[0].Host != "db-2" || c.Fallbacks[0].Port != 6543 {
		t.Errorf("hosts are %s and %v, want db-1, then db-2", c.Host, c.Fallbacks)
	}
	if c.TLSConfig.ServerName != "db-1" || c.Fallbacks[0].TLSConfig.ServerName != "db-2" {
		t.Error("a certificate is expected for another host than the one dialled")
	}
	if c.DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe {
		t.Errorf("query mode is %v: named statements break behind a pooler", c.DefaultQueryExecMode)
	}
	if len(c.RuntimeParams) != 1 || c.RuntimeParams["application_name"] != "postrider-relay shop/orders" {
		t.Errorf("session parameters are %v, want only the application's name", c.RuntimeParams)
	}
	if strings.Contains(pc.ConnString(), canary) {
		t.Error("the connection string holds the password")
	}
}

func TestKeepConnection(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		err  pgconn.PgError
		want bool
	}{
		"an ordinary error keeps the connection": {
			pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505"},
			true,
		},
		"a fatal error ends it": {
			pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"},
			false,
		},
		"a fatal error in another language ends it": {
			pgconn.PgError{Severity: "FATALE", SeverityUnlocalized: "FATAL"},
			false,
		},
		"a server that turned read-only is looked for anew": {
			pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "25006"},
			false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := keepConnection(nil, &tc.err); got != tc.want {
				t.Errorf("keepConnection() = %t, want %t", got, tc.want)
			}
		})
	}
}

func TestValidateSettings(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change  func(*config.Postgres)
		wantErr string
	}{
		"typed settings are good": {func(*config.Postgres) {}, ""},
		"a URL is not a host": {
			func(c *config.Postgres) { c.Hosts = []string{"postgres://u:" + canary + "@h"} },
			"hosts",
		},
		"a socket directory is not a host": {
			func(c *config.Postgres) { c.Hosts = []string{"/var/run/postgresql"} },
			"hosts",
		},
		"a list in one field is refused": {func(c *config.Postgres) { c.Hosts = []string{"a,b"} }, "hosts"},
		"a parameter in a host is refused": {
			func(c *config.Postgres) { c.Hosts = []string{"a passfile=/x"} },
			"hosts",
		},
		"no host is refused":                  {func(c *config.Postgres) { c.Hosts = nil }, "hosts"},
		"six hosts are refused":               {func(c *config.Postgres) { c.Hosts = make([]string, 6) }, "hosts"},
		"port 0 is refused":                   {func(c *config.Postgres) { c.Port = 0 }, "port"},
		"no database is refused":              {func(c *config.Postgres) { c.Database = "" }, "database"},
		"no credentials are refused":          {func(c *config.Postgres) { c.CredentialsDir = "" }, "credentialsDir"},
		"no connection at all is refused":     {func(c *config.Postgres) { c.MaxConnections = 0 }, "maxConnections"},
		"a mode that falls back is not known": {func(c *config.Postgres) { c.TLS.Mode = "prefer" }, "tls.mode"},
		"an unset mode is not plain text":     {func(c *config.Postgres) { c.TLS.Mode = "" }, "tls.mode"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testSettings(t)
			tc.change(&cfg)
			_, err := Open(t.Context(), cfg, Options{})
			if tc.wantErr == "" {
				err = validate(cfg)
			}
			if (err == nil) != (tc.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tc.wantErr)) {
				t.Fatalf("error = %v, want %q", err, tc.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("error %q quotes the setting", err)
			}
		})
	}
}

func TestTLSTemplate(t *testing.T) {
	t.Parallel()

	if tc, err := tlsTemplate(config.TLS{Mode: "Insecure"}, material{}); err != nil || tc != nil {
		t.Errorf("Insecure: %v, %v, want plain text", tc, err)
	}
	full, err := tlsTemplate(config.TLS{Mode: "VerifyFull"}, material{})
	if err != nil || full.InsecureSkipVerify || full.MinVersion < 0x0303 {
		t.Errorf("VerifyFull does not verify, or allows old protocols: %v", err)
	}
	if _, err := tlsTemplate(
		config.TLS{Mode: "VerifyFull", CAFile: "/ca"},
		material{ca: []byte("no PEM")},
	); err == nil {
		t.Error("a CA file without a certificate is accepted")
	}
	_, err = tlsTemplate(
		config.TLS{Mode: "VerifyFull", ClientCertificateDir: "/c"},
		material{cert: []byte(canary), key: []byte(canary)},
	)
	if err == nil || strings.Contains(SafeError(err), canary) {
		t.Errorf("a broken client certificate: %v", err)
	}
}
