package schema_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// roles makes roles of this test's own, with the printed grants, and returns their names. The migrator applies.
func roles(t *testing.T, db *testkit.DB) schema.RoleNames {
	t.Helper()
	names := schema.RoleNames{}
	for _, role := range []schema.Role{schema.RoleApplication, schema.RoleRelay, schema.RoleConsumer, schema.RoleMigrator} {
		name := fmt.Sprintf("%s_%s", role, db.Schema)
		names[role] = name
		db.Exec("CREATE ROLE " + name + " LOGIN PASSWORD 'secret'")
		t.Cleanup(func() { dropRole(t, db, name) })
	}
	db.Exec("GRANT CREATE, USAGE ON SCHEMA " + db.Schema + " TO " + names[schema.RoleMigrator])
	if err := schema.Apply(t.Context(), login(t, db, names[schema.RoleMigrator]), namesOf(db), both()); err != nil {
		t.Fatalf("Apply() as the migrator: %v", err)
	}
	var script bytes.Buffer
	if err := schema.Roles(&script, namesOf(db), both(), names); err != nil {
		t.Fatal(err)
	}
	runScript(t, db, script.String())
	runScript(t, db, script.String()) // it may be run again
	return names
}

func dropRole(t *testing.T, db *testkit.DB, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL())
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "DROP OWNED BY "+name+" CASCADE; DROP ROLE "+name); err != nil {
		t.Error(err)
	}
}

// login connects as the role itself: its settings are then in force, unlike after SET ROLE.
func login(t *testing.T, db *testkit.DB, role string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Password = role, "secret"
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func TestRolesMayDoTheirPartAndNoMore(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := roles(t, db)
	const row = `(event_id, event_type, source, ordering_key, payload, occurred_at`
	const values = `(gen_random_uuid(), 't', 's', 'k', '', now()`

	cases := map[schema.Role]struct{ may, mayNot []string }{
		schema.RoleApplication: {
			may: []string{
				`SELECT message_outbox_write('k', 'order.paid', 'x', 'shop', headers => '{"a":"b"}')`,
				`SELECT message_outbox_write('k', 'order.paid', 'x', 'shop', aggregate_version => 9)`,
				`SELECT message_outbox_write(NULL, 'mail.send', 'x', 'shop', expires_at => now())`,
				"INSERT INTO message_outbox " + row + ") VALUES " + values + ")",
			},
			mayNot: []string{
				"SELECT * FROM message_outbox",
				"SELECT payload FROM message_outbox_published",
				"DELETE FROM message_outbox",
				"UPDATE message_outbox SET payload = ''",
				"INSERT INTO message_outbox " + row + ", held) VALUES " + values + ", true)",
				"INSERT INTO message_outbox " + row + ", position) VALUES " + values + ", 1)",
				"INSERT INTO message_outbox " + row + ", attempts) VALUES " + values + ", 9)",
				"UPDATE message_outbox_sequence SET ordering_key = 'x'",
				"DELETE FROM message_outbox_sequence",
				"SELECT * FROM message_outbox_lease",
				"SELECT * FROM message_failure",
				"SELECT * FROM message_inbox",
				"TRUNCATE message_outbox",
				"CREATE TABLE mine ()",
				"SELECT nextval('message_outbox_position_seq')",
			},
		},
		schema.RoleRelay: {
			may: []string{
				"SELECT * FROM message_outbox",
				"UPDATE message_outbox SET held = true, attempts = 1, failure_id = NULL, failing_for = '1 s'",
				"WITH gate AS (INSERT INTO message_outbox_gate SELECT s, 'k', 'Blocked', NULL FROM generate_series(0, 63) s) " +
					"INSERT INTO message_outbox " + row + ", position, held, failure_id) VALUES " + values + ", 1, true, 1)",
				"INSERT INTO message_audit (actor, action, origin, origin_name, event_id, why) VALUES ('a', 'b', 'c', 'd', 'e', 'f')",
				"SELECT 1 FROM message_outbox_lease FOR NO KEY UPDATE",
				"SELECT 1 FROM message_outbox_owner FOR NO KEY UPDATE",
				"SELECT pg_sequence_last_value('message_outbox_position_seq')",
				"INSERT INTO message_outbox_gate VALUES (0, 'k', 'Blocked', NULL)",
				"DELETE FROM message_outbox",
				"TRUNCATE message_outbox_published_5",
				"DELETE FROM message_outbox_published", // what is sent again
				"SELECT slot FROM message_outbox_ring WHERE current FOR UPDATE",
				"SELECT * FROM message_failure",
				"SELECT * FROM message_schema_version",
			},
			mayNot: []string{
				"UPDATE message_outbox SET payload = ''",
				"UPDATE message_outbox SET position = 1",
				"INSERT INTO message_outbox " + row + ", attempts) VALUES " + values + ", 9)",
				"DELETE FROM message_audit",
				"TRUNCATE message_outbox",
				"DELETE FROM message_outbox_owner",
				"DELETE FROM message_failure",
				"UPDATE message_outbox_sequence SET last = 0",
				"SELECT * FROM message_inbox",
				"CREATE TABLE mine ()",
				"SELECT message_outbox_write('k', 'order.paid', 'x', 'shop')",
				"INSERT INTO message_schema_version VALUES ('a', 'b', 1)",
			},
		},
		schema.RoleConsumer: {
			may: []string{
				"INSERT INTO message_inbox VALUES ('c', 's', 'e', '', 'A')",
				"DELETE FROM message_inbox",
				"SELECT * FROM message_parked FOR UPDATE SKIP LOCKED",
				"INSERT INTO message_inbox_key (key_hash, consumer_name) VALUES (gen_random_uuid(), 'c')",
				"DELETE FROM message_parked",
				"INSERT INTO message_inbox_owner VALUES ('c', 'r', 'u', now())",
				"SELECT * FROM message_failure",
				"SELECT * FROM message_schema_version",
			},
			mayNot: []string{
				"SELECT * FROM message_outbox",
				"SELECT message_outbox_write('k', 'order.paid', 'x', 'shop')",
				"DELETE FROM message_failure",
				"TRUNCATE message_inbox",
				"CREATE TABLE mine ()",
				"DELETE FROM message_inbox_owner",
				"SELECT * FROM message_outbox_lease",
			},
		},
	}
	for role, tc := range cases {
		conn := login(t, db, names[role])
		for _, statement := range tc.may {
			if err := tryOut(t, conn, statement); err != nil {
				t.Errorf("%s may not %s: %v", role, statement, err)
			}
		}
		for _, statement := range tc.mayNot {
			var refused *pgconn.PgError
			if err := tryOut(t, conn, statement); !errors.As(err, &refused) || refused.Code != "42501" {
				t.Errorf("%s may %s: %v", role, statement, err)
			}
		}
		if err := schema.Verify(
			t.Context(),
			conn,
			namesOf(db),
			schema.Expected{Options: optionsOf(role), Role: role},
		); err != nil {
			t.Errorf("Verify() as the %s = %v", role, err)
		}
		if err := schema.VerifyPowers(t.Context(), conn); err != nil {
			t.Errorf("VerifyPowers() of the %s = %v", role, err)
		}
	}
}

func optionsOf(role schema.Role) schema.Options {
	if role == schema.RoleConsumer {
		return only(schema.Inbox)
	}
	return only(schema.Outbox)
}

func tryOut(t *testing.T, conn *pgx.Conn, statement string) error {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), statement)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return err
}

// The library needs no more than the printed grants, on its plain path and with versions of one's own.
func TestApplicationRoleIsEnoughForTheLibrary(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := roles(t, db)
	conn := login(t, db, names[schema.RoleApplication])
	w, err := outbox.New(outbox.Config{Schema: db.Schema, Source: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []int64{0, 7, 0} {
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			_, err := w.Write(t.Context(), tx,
				outbox.Message{Type: "order.paid", OrderingKey: "k", Payload: []byte("x"), Version: version},
				outbox.Message{Type: "mail.send", Unordered: true, Payload: []byte("x")})
			return err
		})
		if err != nil {
			t.Errorf("Write() with version %d: %v", version, err)
		}
	}
	if got := testkit.Values[int64](
		db,
		"SELECT aggregate_version FROM message_outbox WHERE aggregate_version IS NOT NULL ORDER BY position",
	); fmt.Sprint(
		got,
	) != "[1 7 8]" {
		t.Errorf("versions = %v, want 1 7 8", got)
	}
}

func TestRolesCarryTheirTimeouts(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := roles(t, db)
	for role, want := range map[schema.Role]string{
		schema.RoleRelay: "5s 30s 1min", schema.RoleConsumer: "5s 1min 1min", schema.RoleMigrator: "10s 15min 1min", schema.RoleApplication: "0 0 1min",
	} {
		var got string
		err := login(t, db, names[role]).QueryRow(t.Context(), `SELECT current_setting('lock_timeout') || ' ' ||
		  current_setting('statement_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout')`).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s: timeouts = %s, %v, want %s", role, got, err, want)
		}
	}
}

func TestVerifyNamesRightsThatAreLacking(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := roles(t, db)
	relay := names[schema.RoleRelay]
	conn := login(t, db, relay)
	verify := func() error {
		return schema.Verify(
			t.Context(),
			conn,
			namesOf(db),
			schema.Expected{Options: only(schema.Outbox), Role: schema.RoleRelay},
		)
	}
	db.Exec("REVOKE UPDATE (held) ON message_outbox FROM " + relay)
	db.Exec("REVOKE TRUNCATE ON message_outbox_published_2 FROM " + relay)
	var lacking *schema.Error
	if err := verify(); !errors.As(err, &lacking) || lacking.Reason != postgres.ReasonPermissionDenied ||
		strings.Count(lacking.DDL, "GRANT") != 2 || !strings.Contains(lacking.Message, relay) {
		t.Fatalf("Verify() = %v, want PermissionDenied with two grants", err)
	}
	runScript(t, db, lacking.DDL)
	if err := verify(); err != nil {
		t.Errorf("after the printed grants Verify() = %v", err)
	}
	db.Exec("REVOKE USAGE ON SCHEMA " + db.Schema + " FROM " + relay)
	if err := verify(); !errors.As(err, &lacking) || lacking.Reason != postgres.ReasonPermissionDenied {
		t.Errorf("Verify() without the schema = %v, want PermissionDenied", err)
	}
}

func TestPowerfulRolesAreRefused(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := roles(t, db)
	consumer := names[schema.RoleConsumer]
	for _, grant := range []string{
		"ALTER ROLE %s CREATEROLE", "GRANT pg_execute_server_program TO %s", "GRANT pg_read_server_files TO %s", "ALTER ROLE %s SUPERUSER",
	} {
		db.Exec(fmt.Sprintf(grant, consumer))
		err := schema.VerifyPowers(t.Context(), login(t, db, consumer))
		if _, reason, _ := postgres.Classify(err); reason != postgres.ReasonOverPrivileged {
			t.Errorf("%s: VerifyPowers() = %v, want OverPrivilegedRole", grant, err)
		}
		db.Exec("ALTER ROLE " + consumer + " NOSUPERUSER NOCREATEROLE")
		db.Exec("REVOKE pg_execute_server_program, pg_read_server_files FROM " + consumer)
	}
}
