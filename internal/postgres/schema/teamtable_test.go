package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/testkit"
)

// A team's own table is found wanting with the statement that mends it, which is for its owner to run, and is in order
// after that.
func TestVerifyPrintsTheIndexThatATeamsTableNeeds(t *testing.T) {
	t.Parallel()
	for _, table := range []testkit.TeamTable{
		testkit.ClassicTable(), testkit.DebeziumTable(), testkit.OpenOutboxTable(),
	} {
		t.Run(table.Preset, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			names := postgres.Names{Schema: db.Schema, Outbox: table.Name}
			o := schema.Options{
				Components: []schema.Component{schema.Outbox}, Columns: table.Columns(), Unordered: table.Unordered(),
			}
			verify := func(o schema.Options) error {
				return schema.Verify(t.Context(), db.Pool(), names, schema.Expected{Options: o, Role: schema.RoleRelay})
			}
			wrong := func(o schema.Options, want string) (ddl string) {
				t.Helper()
				var invalid *schema.Error
				if err := verify(o); !errors.As(err, &invalid) || !strings.Contains(invalid.Message, want) {
					t.Fatalf("Verify() = %v, want %q", err, want)
				}
				return invalid.DDL
			}
			if err := schema.Apply(t.Context(), db.Pool(), names, o); err != nil {
				t.Fatal(err)
			}
			wrong(o, "does not exist")
			db.Exec(table.DDL)
			db.Exec(testkit.IndexSQL(wrong(o, "no index that finds the first pending row")))
			if err := verify(o); err != nil {
				t.Errorf("Verify() after its own DDL = %v", err)
			}
			other := o
			columns := *o.Columns
			other.Columns = &columns
			columns.EventType, columns.Headers = "no_such_column", columns.Payload
			wrong(other, "column no_such_column (eventType) is missing")
			columns = *o.Columns
			columns.Status, columns.Values = columns.ID, config.StatusValues{Pending: "a", Published: "b"}
			wrong(other, "(status) is uuid, not text or an enumeration")
		})
	}
}
