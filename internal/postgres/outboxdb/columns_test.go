package outboxdb

import (
	"testing"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// newTeamOutbox makes an outbox of one shard whose table is a team's own, with a store of it.
func newTeamOutbox(t *testing.T, table testkit.TeamTable) (*outbox, *Store) {
	t.Helper()
	db := testkit.Postgres(t)
	o := &outbox{DB: db, t: t, names: postgres.Names{Schema: db.Schema, Outbox: table.Name}}
	db.Exec(table.DDL)
	wanted := schema.Options{
		Components: []schema.Component{schema.Outbox}, Shards: 1,
		Columns: table.Columns(), Unordered: table.Unordered(),
	}
	if err := schema.Apply(t.Context(), db.Pool(), o.names, wanted); err != nil {
		t.Fatalf("apply the schema: %v", err)
	}
	look := mapped.Table{Names: o.names, Map: *table.Columns(), Unordered: table.Unordered(), Shards: 1}
	db.Exec(testkit.IndexSQL(look.Index()))
	read, err := mapped.Verify(t.Context(), db.Pool(), look)
	if err != nil {
		t.Fatalf("look at the team's table: %v", err)
	}
	return o, o.store(func(c *Config) { c.Columns, c.Unordered = read, table.Unordered() })
}

// The floor of a lane of such a table stays at the bottom, since rows may appear at any place: no transaction is one with
// which it may rise.
func TestNoWriteRaisesTheFloorOfATeamsTable(t *testing.T) {
	t.Parallel()
	o, s := newTeamOutbox(t, testkit.ClassicTable())
	if _, err := s.Join(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	l := o.acquire(s)
	xid, err := s.PutAside(t.Context(), l, []shard.Delay{{Gate: "k", Wait: patience}}, nil)
	if err != nil || xid != 0 {
		t.Errorf("PutAside() = %d, %v, want 0", xid, err)
	}
	held, err := s.Hold(t.Context(), l, nil)
	if err != nil || held.Xid != 0 {
		t.Errorf("Hold() = %+v, %v, want transaction 0", held, err)
	}
}
