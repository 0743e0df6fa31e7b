package schema_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/testkit"
)

func both() schema.Options {
	return schema.Options{Components: []schema.Component{schema.Outbox, schema.Inbox}}
}

func only(c schema.Component) schema.Options {
	return schema.Options{Components: []schema.Component{c}}
}

func namesOf(db *testkit.DB) postgres.Names {
	return postgres.Names{Schema: db.Schema, Outbox: "message_outbox"}
}

func apply(t *testing.T, db *testkit.DB, o schema.Options) {
	t.Helper()
	if err := schema.Apply(t.Context(), db.Pool(), namesOf(db), o); err != nil {
		t.Fatal(err)
	}
}

// catalog describes everything in a schema that a migration could make differently.
func catalog(db *testkit.DB) []string {
	all := testkit.Values[string](db, `
	  SELECT format('%s %s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated)
	    || coalesce(' ' || pg_get_expr(d.adbin, d.adrelid), '')
	  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
	  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE c.relnamespace = current_schema()::regnamespace
	  UNION ALL SELECT pg_get_indexdef(c.oid) FROM pg_class c WHERE c.relkind IN ('i', 'I') AND c.relnamespace = current_schema()::regnamespace
	  UNION ALL SELECT pg_get_functiondef(p.oid) || coalesce(p.proacl::text, '') FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace
	  UNION ALL SELECT conrelid::regclass || pg_get_constraintdef(oid) FROM pg_constraint
	    WHERE connamespace = current_schema()::regnamespace AND contype = 'c'
	  UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
	    WHERE c.relnamespace = current_schema()::regnamespace AND NOT t.tgisinternal
	  UNION ALL SELECT format('%s %s %s', component, name, version) FROM message_schema_version ORDER BY 1`)
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], db.Schema, "schema")
	}
	return all
}

func TestApplyTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	apply(t, db, both())
	before := catalog(db)
	apply(t, db, both())
	apply(t, db, only(schema.Outbox))
	if after := catalog(db); !slices.Equal(before, after) {
		t.Errorf("a second Apply changed the catalog")
	}
	if len(before) < 100 {
		t.Errorf("the catalog has %d lines: the tables are not there", len(before))
	}
}

// Both processes of a first start, and many at a time, whatever the database's default isolation.
func TestConcurrentAppliesMakeTheTablesOnce(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"by default":      nil,
		"SERIALIZABLE":    {"default_transaction_isolation": "serializable"},
		"REPEATABLE READ": {"default_transaction_isolation": "repeatable read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t, testkit.OwnDatabase(settings))
			group, ctx := errgroup.WithContext(t.Context())
			for range 8 {
				group.Go(func() error { return schema.Apply(ctx, db.Pool(), namesOf(db), both()) })
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			if n := testkit.Value[int64](db, "SELECT count(*) FROM message_outbox_owner"); n != 1 {
				t.Errorf("owner rows = %d, want 1", n)
			}
		})
	}
}

func TestApplyMakesAMissingSchema(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := postgres.Names{Schema: "New_Schema", Outbox: "orders_outbox"}
	if err := schema.Apply(t.Context(), db.Pool(), names, both()); err != nil {
		t.Fatal(err)
	}
	db.Exec(`SELECT "New_Schema".orders_outbox_write('k', 'order.paid', 'x', 'shop')`)
	if n := testkit.Value[int64](db, `SELECT count(*) FROM "New_Schema".orders_outbox`); n != 1 {
		t.Errorf("rows = %d, want 1", n)
	}
}

func TestTwoOutboxesShareASchema(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	long := strings.Repeat("o", 40) // the longest name: none of its indexes may be cut into another's
	for table, shards := range map[string]int32{"message_outbox": 8, long: 16} {
		names := postgres.Names{Schema: db.Schema, Outbox: table}
		o := schema.Options{Components: []schema.Component{schema.Outbox}, Shards: shards}
		if err := schema.Apply(t.Context(), db.Pool(), names, o); err != nil {
			t.Fatal(err)
		}
		if err := schema.Verify(
			t.Context(),
			db.Pool(),
			names,
			schema.Expected{Options: o, Role: schema.RoleRelay},
		); err != nil {
			t.Errorf("Verify(%s) = %v", table, err)
		}
	}
}

func TestShardsNeverChange(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	apply(t, db, both())
	o := both()
	o.Shards = 16
	if err := schema.Apply(t.Context(), db.Pool(), namesOf(db), o); !errors.Is(err, schema.ErrShardsDiffer) {
		t.Errorf("Apply() with other shards = %v, want ErrShardsDiffer", err)
	}
}

func TestApplyIsAllOrNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec("CREATE TABLE message_outbox_ring (slot int)") // someone else's table in the way
	if err := schema.Apply(t.Context(), db.Pool(), namesOf(db), both()); err == nil {
		t.Fatal("Apply() took over a table that it did not make")
	}
	if got := testkit.Values[string](
		db,
		"SELECT relname::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'",
	); len(
		got,
	) != 1 {
		t.Errorf("tables after a failed Apply: %v, want only the one that was there", got)
	}
}

func TestNewerTablesAreLeftAlone(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	apply(t, db, both())
	db.Exec("INSERT INTO message_schema_version (component, name, version) VALUES ('outbox', 'message_outbox', 999)")
	apply(t, db, both())
	if err := schema.Verify(t.Context(), db.Pool(), namesOf(db), schema.Expected{Options: both()}); err != nil {
		t.Errorf("Verify() of newer tables = %v", err)
	}
}

// What a person runs by hand is what Apply does, on each major version; Verify agrees with both.
func TestPrintedStatementsDoWhatApplyDoes(t *testing.T) {
	t.Parallel()
	server := testkit.PostgresServer(t, local.PostgresConfig{Version: local.Postgres18})
	servers := map[string][]testkit.PostgresOption{
		"PostgreSQL 17": {testkit.OwnDatabase(nil)},
		"PostgreSQL 18": {testkit.OnServer(server), testkit.OwnDatabase(nil)},
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			applied, printed := testkit.Postgres(t, servers[name]...), testkit.Postgres(t, servers[name]...)
			apply(t, applied, both())
			var script bytes.Buffer
			if err := schema.Print(&script, namesOf(printed), both()); err != nil {
				t.Fatal(err)
			}
			runScript(t, printed, script.String())
			if a, p := catalog(applied), catalog(printed); !slices.Equal(a, p) {
				t.Errorf(
					"Apply made\n%s\nthe printed statements made\n%s",
					strings.Join(a, "\n"),
					strings.Join(p, "\n"),
				)
			}
			for _, role := range []schema.Role{schema.RoleApplication, schema.RoleRelay, schema.RoleConsumer} {
				if err := schema.Verify(
					t.Context(),
					printed.Pool(),
					namesOf(printed),
					schema.Expected{Options: both(), Role: role},
				); err != nil {
					t.Errorf("Verify() as %s = %v", role, err)
				}
			}
		})
	}
}

func runScript(t *testing.T, db *testkit.DB, script string) {
	t.Helper()
	if _, err := db.Connect().Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v in\n%s", err, script)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	good := postgres.Names{Schema: "public", Outbox: "message_outbox"}

	cases := map[string]struct {
		names postgres.Names
		o     schema.Options
	}{
		"no component is refused":         {good, schema.Options{}},
		"an unknown component is refused": {good, only("ledger")},
		"too many shards are refused":     {good, schema.Options{Components: both().Components, Shards: 65}},
		"negative shards are refused":     {good, schema.Options{Components: both().Components, Shards: -1}},
		"an outbox needs a name":          {postgres.Names{Schema: "public"}, both()},
		"an injected name is refused":     {postgres.Names{Schema: "public", Outbox: "outbox; drop table x"}, both()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := schema.Print(&out, tc.names, tc.o); err == nil || out.Len() != 0 {
				t.Errorf("Print() = %v with %d bytes written, want an error and none", err, out.Len())
			}
			if err := schema.Apply(t.Context(), nil, tc.names, tc.o); err == nil {
				t.Error("Apply() takes it")
			}
		})
	}
}
