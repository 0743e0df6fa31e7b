package pipeline_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/verify"
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
			o := newOrders(t)
			table := tc.table
			table.Change = func(c *config.Columns) { c.Destination = "" }
			names := postgres.Names{Schema: o.db.Schema, Outbox: table.Name}
			o.cfg.Outbox.Table, o.cfg.Outbox.Columns = table.Name, table.Columns()
			if table.Unordered() {
				o.cfg.Ordering = config.OrderingNone
			}
			look := mapped.Table{
				Names: names, Map: *table.Columns(), Unordered: table.Unordered(), Shards: 4,
				Relay: o.cfg.Resource.String(),
			}
			o.db.Exec(table.DDL)
			if err := schema.Apply(t.Context(), o.db.Pool(), names, schema.Options{
				Components: []schema.Component{schema.Outbox}, Shards: 4,
				Columns: table.Columns(), Unordered: table.Unordered(),
			}); err != nil {
				t.Fatal(err)
			}
			o.db.Exec(testkit.IndexSQL(look.Index()))
			_, life := o.start(o.cfg)
			for i := range 20 {
				key := []string{"a", "b"}[i%2]
				if _, err := o.db.Pool().Exec(t.Context(), table.WriteSQL, uuid.New(), key); err != nil {
					t.Fatal(err)
				}
			}
			testkit.Eventually(t, patience, "every row is settled", func() bool {
				return testkit.Value[int](o.db, tc.left) == 0
			})
			if err := life.drain(); err != nil {
				t.Errorf("Run() = %v", err)
			}
			read, err := mapped.Read(t.Context(), o.db.Pool(), look)
			if err != nil {
				t.Fatal(err)
			}
			stream, err := o.broker.JetStream().Stream(t.Context(), o.cfg.NATS.Stream)
			if err != nil {
				t.Fatal(err)
			}
			if n := stream.CachedInfo().State.Msgs; n != 20 {
				t.Errorf("the stream holds %d messages, want 20", n)
			}
			report, err := verify.Run(t.Context(), verify.Input{Grace: time.Minute, Relays: []verify.Relay{{
				Name: "relay", Pool: o.db.Pool(), Tables: names, Columns: read,
				Stream: verify.Stream{JS: o.broker.JetStream(), Name: o.cfg.NATS.Stream},
			}}})
			if err != nil || !report.OK() {
				t.Errorf("verify = %v, %+v", err, report)
			}
		})
	}
}
