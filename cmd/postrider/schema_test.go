package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/postrider/postrider/test/testkit"
)

// at names a database for schema's commands.
func at(db *testkit.DB) []string {
	cfg := db.Config()
	return []string{
		"--host",
		cfg.Hosts[0],
		"--port",
		strconv.Itoa(int(cfg.Port)),
		"--database",
		cfg.Database,
		"--schema",
		cfg.Schema,
		"--credentials-dir",
		cfg.CredentialsDir,
		"--tls-mode",
		"Insecure",
	}
}

func schemaCall(t *testing.T, db *testkit.DB, words ...string) (code int, stdout, stderr string) {
	t.Helper()
	return call(t, append(append([]string{"schema"}, words...), at(db)...)...)
}

func TestSchemaApplyAndVerify(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)

	code, stdout, stderr := schemaCall(t, db, "verify", "outbox")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "postrider schema apply") ||
		!strings.Contains(stderr, `CREATE TABLE "`+db.Schema+`"."message_outbox" (`) {
		t.Errorf("verify without tables = %d, %q, %q, want the missing statements", code, stdout, stderr)
	}
	for range 2 {
		code, stdout, stderr = schemaCall(t, db, "apply", "outbox", "inbox")
		if code != 0 || stdout != "OK: schema "+db.Schema+" has the outbox and inbox tables\n" || stderr != "" {
			t.Fatalf("apply = %d, %q, %q", code, stdout, stderr)
		}
	}
	code, stdout, stderr = schemaCall(t, db, "verify", "outbox", "inbox", "--role", "relay")
	if code != 0 || !strings.HasPrefix(stdout, "OK: ") || stderr != "" {
		t.Errorf("verify = %d, %q, %q", code, stdout, stderr)
	}
}

func TestSchemaRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if code, _, stderr := schemaCall(t, db, "apply", "outbox", "inbox"); code != 0 {
		t.Fatalf("apply = %d, %q", code, stderr)
	}
	code, _, stderr := schemaCall(t, db, "verify", "inbox", "--role", "consumer")
	if code != 1 || !strings.Contains(stderr, "superuser") {
		t.Errorf("verify of a superuser as consumer = %d, %q", code, stderr)
	}
	code, _, stderr = schemaCall(t, db, "apply", "outbox", "--shards", "16")
	if code != 1 || !strings.Contains(stderr, "message_outbox has 8, asked for 16") {
		t.Errorf("apply with other shards = %d, %q", code, stderr)
	}
}

func TestSchemaPrint(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	_, stdout, _ := call(t, "schema", "print", "--schema", db.Schema, "--table", "orders_outbox", "outbox")
	db.Exec(stdout)
	if n := testkit.Value[int](
		db,
		"SELECT count(*) FROM pg_class WHERE relname LIKE 'message\\_inbox%' AND relnamespace = $1::regnamespace",
		db.Schema,
	); n != 0 {
		t.Errorf("asked for the outbox alone, got %d inbox tables", n)
	}
	db.Exec("SELECT orders_outbox_write('k', 'order.paid', 'x', 'shop')")

	code, stdout, _ := call(t, "schema", "print", "--roles", "--relay-role", "shop_relay")
	for _, want := range []string{
		`GRANT SELECT, DELETE ON "public"."message_outbox" TO "shop_relay";`, `TO "postrider_consumer";`,
		`ALTER ROLE "shop_relay" SET lock_timeout = '5s';`,
	} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("print --roles = %d without %s", code, want)
		}
	}
}

func TestSchemaSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)

	type wrongCall struct {
		args []string
		code int
		want string
	}
	// changed puts other flags behind the good ones: the last one counts.
	changed := func(code int, want string, words ...string) wrongCall {
		return wrongCall{
			args: append(append([]string{"schema", words[0], "outbox"}, at(db)...), words[1:]...),
			code: code,
			want: want,
		}
	}
	cases := map[string]wrongCall{
		"a component is needed": {[]string{"schema", "apply"}, 2, "requires at least 1 arg"},
		"an unknown component":  {[]string{"schema", "print", "ledger"}, 2, `"ledger"`},
		"an injected table": {
			[]string{"schema", "print", "--table", "o; drop table x"},
			2,
			"is not an identifier",
		},
		"no shards":       {[]string{"schema", "print", "--shards", "0"}, 2, "want 1 to 64"},
		"too many shards": {[]string{"schema", "print", "--shards", "65"}, 2, "want 1 to 64"},
		"a host is needed": {
			[]string{"schema", "apply", "outbox"},
			2,
			"--host, --database, --credentials-dir",
		},
		"a database is needed":           {[]string{"status", "--host", "h"}, 2, "give --database, --credentials-dir,"},
		"an unknown role":                changed(2, "--role", "verify", "--role", "owner"),
		"a database that does not exist": changed(1, "DatabaseMissing", "apply", "--database", "nowhere"),
		"a server without TLS":           changed(1, "TLSFailed", "apply", "--tls-mode", "VerifyFull"),
		"credentials that are not there": changed(
			1,
			"username does not exist",
			"apply",
			"--credentials-dir",
			"/nowhere",
		),
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := call(t, tc.args...)
			if code != tc.code || stdout != "" || !strings.Contains(stderr, tc.want) {
				t.Errorf("%v = %d, %q, %q, want %d and %q", tc.args, code, stdout, stderr, tc.code, tc.want)
			}
			if strings.Count(stderr, "\n") != 1 {
				t.Errorf("stderr = %q, want one line", stderr)
			}
		})
	}
}
