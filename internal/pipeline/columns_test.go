package pipeline_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// A relay on a table of the team's own makes nothing by itself (schemaPolicy: Verify): it says what is missing, and
// works from the moment on when it is there. `schema verify` prints the statements.
func TestARelayOnATeamsTableSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	table := testkit.ClassicTable()
	table.Change = func(c *config.Columns) { c.Destination = "" } // all of it goes to the default destination
	o.cfg.Outbox.Table, o.cfg.Outbox.Columns = table.Name, table.Columns()
	wanted := schema.Options{Components: []schema.Component{schema.Outbox}, Shards: 4, Columns: table.Columns()}
	names := postgres.Names{Schema: o.db.Schema, Outbox: table.Name}

	relay, life := o.start(o.cfg)
	life.becomes("SchemaReady", "False SchemaMissing")
	o.db.Exec(table.DDL)
	if err := schema.Apply(t.Context(), o.db.Pool(), names, wanted); err != nil {
		t.Fatal(err)
	}
	relay.Refresh()
	life.becomes("SchemaReady", "False SchemaInvalid") // the index
	look := mapped.Table{Names: names, Map: *table.Columns(), Shards: 4}
	o.db.Exec(testkit.IndexSQL(look.Index()))
	relay.Refresh()
	life.becomes("SchemaReady", "True SchemaCurrent")

	for range 10 {
		if _, err := o.db.Pool().Exec(t.Context(), table.WriteSQL, uuid.New(), "order-1"); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, patience, "every row is published", func() bool {
		return testkit.Value[int](o.db, `SELECT count(*) FROM outbox_event WHERE status = 'published'`) == 10
	})
	got := testkit.Value[string](o.db, `SELECT mapping -> 'columns' ->> 'id' FROM outbox_event_owner`)
	if got != "event_id" {
		t.Errorf("the mapping that is noted names %q as the id", got)
	}
}

// The tables of three projects, as each defines its own, with what their own writers insert: published to a real
// broker, and proved from outside.
func TestTheTablesOfOtherProjectsArePublishedAndVerified(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		table testkit.TeamTable
		left  string // rows that are not settled
	}{
		"the classic table": {testkit.ClassicTable(), `SELECT count(*) FROM outbox_event WHERE status <> 'published'`},
		"Debezium's outbox": {testkit.DebeziumTable(), `SELECT count(*) FROM outboxevent`},
		"Open Outbox": {
			testkit.OpenOutboxTable(), `SELECT count(*) FROM openoutbox_events WHERE status <> 'DELIVERED'`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newTeam(t, tc.table)
			_, life := o.start(o.cfg)
			for i := range 20 {
				if err := o.insert([]string{"a", "b"}[i%2]); err != nil {
					t.Fatal(err)
				}
			}
			o.settled(tc.left)
			if err := life.drain(); err != nil {
				t.Errorf("Run() = %v", err)
			}
			o.kept(20)
		})
	}
}

// team is a place for a relay whose outbox is a table that a team already has.
type team struct {
	*orders

	table testkit.TeamTable
	look  mapped.Table
}

func newTeam(t *testing.T, table testkit.TeamTable, on ...testkit.PostgresOption) *team {
	t.Helper()
	o := &team{orders: newOrders(t, on...), table: table}
	o.table.Change = func(c *config.Columns) { c.Destination = "" }
	columns, names := o.table.Columns(), postgres.Names{Schema: o.db.Schema, Outbox: table.Name}
	o.cfg.Outbox.Table, o.cfg.Outbox.Columns = table.Name, columns
	if table.Unordered() {
		o.cfg.Ordering = config.OrderingNone
	}
	o.look = mapped.Table{
		Names: names, Map: *columns, Unordered: table.Unordered(), Shards: 4, Relay: o.cfg.Resource.String(),
	}
	o.db.Exec(table.DDL)
	if err := schema.Apply(t.Context(), o.db.Pool(), names, schema.Options{
		Components: []schema.Component{schema.Outbox}, Shards: 4, Columns: columns, Unordered: table.Unordered(),
	}); err != nil {
		t.Fatal(err)
	}
	o.db.Exec(testkit.IndexSQL(o.look.Index()))
	return o
}

// insert writes one message of a key as the project's own writers do.
func (o *team) insert(key string) error {
	_, err := o.db.Pool().Exec(o.t.Context(), o.table.WriteSQL, uuid.New(), key)
	return err
}

// insertRounds writes so many messages of each of some keys, side by side.
func (o *team) insertRounds(keys, rounds int) {
	o.t.Helper()
	var writers errgroup.Group
	for k := range keys {
		writers.Go(func() error {
			for range rounds {
				if err := o.insert("order-" + strconv.Itoa(k)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := writers.Wait(); err != nil {
		o.t.Fatal(err)
	}
}

// settled waits until the count of rows that are left is 0.
func (o *team) settled(left string) {
	o.t.Helper()
	testkit.Eventually(o.t, patience, "every row is settled", func() bool {
		return testkit.Value[int](o.db, left) == 0
	})
}

// kept checks that the stream holds so many messages, each once, and holds the table to it.
func (o *team) kept(n int) {
	o.t.Helper()
	read, err := mapped.Read(o.t.Context(), o.db.Pool(), o.look)
	if err != nil {
		o.t.Fatal(err)
	}
	stream, err := o.broker.JetStream().Stream(o.t.Context(), o.cfg.NATS.Stream)
	if err != nil {
		o.t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Msgs; got != uint64(n) {
		o.t.Errorf("the stream holds %d messages, want %d", got, n)
	}
	report, err := verify.Run(o.t.Context(), verify.Input{Grace: time.Minute, Relays: []verify.Relay{{
		Name: "relay", Pool: o.db.Pool(), Tables: o.look.Names, Columns: read,
		Stream: verify.Stream{JS: o.broker.JetStream(), Name: o.cfg.NATS.Stream},
	}}})
	if err != nil || !report.OK() {
		o.t.Errorf("verify = %v, %+v", err, report)
	}
}

// P11: two relays share a team's own table over a pooler in transaction mode, with fewer connections to the server than
// they have to it, and one of them leaves meanwhile: each row is there once, and those of a key in order.
func TestATeamsTableBehindAPoolerIsPublishedInOrder(t *testing.T) {
	t.Parallel()
	const keys, rounds, connections = 12, 20, 3
	o := newTeam(t, testkit.ClassicTable(), testkit.OwnDatabase(nil))
	pooler := testkit.PgBouncer(t, brokers.PgBouncerConfig{
		Host: o.db.Host, Port: o.db.Port, Users: map[string]string{o.db.User: o.db.Password}, PoolSize: connections,
	})
	o.cfg.Source.Port = int32(pooler.Port())
	o.cfg.Lease, o.cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	_, first := o.start(o.cfg)
	_, second := o.start(o.cfg)
	shared := func() bool {
		a, b := first.report(t.Context()).Relay, second.report(t.Context()).Relay
		return a != nil && b != nil && len(a.HeldShards) == 2 && len(b.HeldShards) == 2
	}
	testkit.Eventually(t, 2*patience, "each relay has its share", shared)
	o.insertRounds(keys, rounds)
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND application_name LIKE 'postrider relay %'`); n == 0 || n > connections {
		t.Errorf("the relays have %d sessions, want at most the pooler's %d", n, connections)
	}
	if err := first.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	o.insertRounds(keys, rounds)
	o.settled(`SELECT count(*) FROM outbox_event WHERE status <> 'published'`)
	second.becomes("DatabaseReachable", "True Reachable")
	second.becomes("SchemaReady", "True SchemaCurrent")
	o.kept(2 * keys * rounds)
	ids := testkit.Values[string](o.db, `SELECT event_id::text FROM outbox_event WHERE attempts = 0`)
	if others := o.orderedBut(ids); len(others) != 0 || len(ids) != 2*keys*rounds {
		t.Errorf("%d rows failed no attempt, want all, and %d messages are of no such row", len(ids), len(others))
	}
}
