package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
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

// What a team's own table cannot do, and what it costs, is said where it is checked.
func TestSchemaVerifySaysWhatATeamsTableCannotDo(t *testing.T) {
	t.Parallel()
	const million = "with a million of them in a shard a new message is found after up to half a minute, " +
		"or two while nothing else is sent.\n"
	cases := map[string]struct {
		table testkit.TeamTable
		flags []string
		want  []string
	}{
		"the classic table": {
			testkit.ClassicTable(),
			[]string{"--preset", "Postrider", "--table", "outbox_event"},
			[]string{
				"Note: Of a key one row is sent at a time: the next one after the one before it is settled.\n",
				"Note: Looks for messages pass over all keys whose first row may not be sent yet, since its time " +
					"has not come or the key waits for another try: " + million,
				"Note: Published rows stay in the table: delete old ones yourself.\n",
			},
		},
		"Debezium's outbox": {
			testkit.DebeziumTable(),
			[]string{"--preset", "DebeziumOutbox", "--table", "outboxevent", "--ordering", "None"},
			[]string{
				"Note: No order is kept: ordering mode None. Of a key, rows are sent side by side.\n",
				"Note: Looks for messages pass over all rows that may not be sent yet, " +
					"since they wait for another try: " + million,
				"Note: Nothing becomes a dead letter: no status says so (values.failed). ",
			},
		},
		"Open Outbox": {
			testkit.OpenOutboxTable(),
			[]string{"--preset", "OpenOutbox", "--table", "openoutbox_events", "--ordering", "None"},
			[]string{
				"Note: Looks for messages pass over all rows that may not be sent yet, since their time has not come " +
					"or they wait for another try: " + million,
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			db.Exec(tc.table.DDL)
			index := mapped.Table{
				Names: postgres.Names{Schema: db.Schema, Outbox: tc.table.Name}, Map: *tc.table.Columns(),
				Unordered: tc.table.Unordered(),
			}
			db.Exec(testkit.IndexSQL(index.Index()))
			if code, _, stderr := schemaCall(t, db, append([]string{"apply", "outbox"}, tc.flags...)...); code != 0 {
				t.Fatalf("apply = %d, %q", code, stderr)
			}
			code, stdout, stderr := schemaCall(t, db, append([]string{"verify", "outbox"}, tc.flags...)...)
			if code != 0 {
				t.Fatalf("verify = %d, %q", code, stderr)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout, want) {
					t.Errorf("verify does not say %q:\n%s", want, stdout)
				}
			}
		})
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
