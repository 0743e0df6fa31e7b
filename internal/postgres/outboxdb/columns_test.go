package outboxdb

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/message"
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

const (
	rowsNotDue = 50_000 // two hundred thousand in the relay's own test
	steps100   = 4*claimed100 + 1000
	// pagesAStep is what a step may look at: the index, the row, and the index of gates, with room for deeper ones.
	pagesAStep = 6
)

// columnsWindow are the arguments of a claim of a lane that has read so far.
func columnsWindow(read int64, byKey bool) []any {
	return []any{int16(0), int64(0), read, claimed100, int64(1 << 20), claimed100, byKey, int64(0)}
}

// notDue writes rows of as many keys that may be sent in an hour.
func (o *outbox) notDue(rows int) {
	o.t.Helper()
	o.Exec(`INSERT INTO outbox_event (event_id, aggregate_id, aggregate_version, topic, payload, available_at)
		SELECT gen_random_uuid(), 'later-' || i, 1, 'orders', '{}', now() + '1 h' FROM generate_series(1, $1) i`, rows)
	o.Exec(`ANALYZE outbox_event`)
}

// planned is a node of a plan that was run.
type planned struct {
	Type  string `json:"Node Type"`
	Table string `json:"Relation Name"`
	Hit   int    `json:"Shared Hit Blocks"`
	Read  int    `json:"Shared Read Blocks"`
	Plans []planned
}

// plan runs a statement and returns how it was run.
func (o *outbox) plan(statement string, args ...any) planned {
	o.t.Helper()
	var plan []byte
	err := pgx.BeginTxFunc(o.t.Context(), o.Pool(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		args = append([]any{pgx.QueryExecModeExec}, args...)
		return tx.QueryRow(o.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement, args...).Scan(&plan)
	})
	if err != nil {
		o.t.Fatalf("explain: %v", err)
	}
	var out []struct{ Plan planned }
	if err := json.Unmarshal(plan, &out); err != nil {
		o.t.Fatal(err)
	}
	return out[0].Plan
}

// pages counts the pages that were looked at.
func (p planned) pages() int { return p.Hit + p.Read }

// whole says whether a table was read as a whole.
func (p planned) whole(table string) bool {
	return p.Type == "Seq Scan" && p.Table == table ||
		slices.ContainsFunc(p.Plans, func(q planned) bool { return q.whole(table) })
}

// However many keys may not be sent yet, a claim passes over so many of them and no more, above what was read and below it,
// and so does the look for idle lanes, which leaves such a shard to its lane.
func TestAClaimOfATeamsTablePassesOverSoManyRowsThatAreNotDue(t *testing.T) {
	t.Parallel()
	o, s := newTeamOutbox(t, testkit.ClassicTable())
	o.notDue(rowsNotDue)
	for name, read := range map[string]int64{"above what was read": 0, "below what was read": 1 << 62} {
		pages := o.plan(s.sql.claim, columnsWindow(read, true)...).pages()
		if most := steps100 * pagesAStep; pages > most {
			t.Errorf("a claim looks at %d pages %s, want %d at most", pages, name, most)
		}
	}
	pages := o.plan(s.sql.waiting, []int16{0}, []int64{0}).pages()
	if most := lookSteps * pagesAStep; pages > most {
		t.Errorf("the look for idle lanes looks at %d pages, want %d at most", pages, most)
	}
	work, err := s.Waiting(t.Context(), []int16{0}, []message.Position{0})
	if err != nil || len(work.Shards) != 1 {
		t.Errorf("Waiting() = %+v, %v, want the shard: its lane looks on", work, err)
	}
}

// A claim of many rows that may be sent stops at the last that it wants, and does not walk on to count.
func TestAClaimOfATeamsTableStopsAtTheLastRowThatItWants(t *testing.T) {
	t.Parallel()
	o, s := newTeamOutbox(t, testkit.ClassicTable())
	o.notDue(5000)
	o.Exec(`UPDATE outbox_event SET available_at = now() - interval '1 s'`)
	o.Exec(`ANALYZE outbox_event`)
	for name, read := range map[string]int64{"above what was read": 0, "below what was read": 1 << 62} {
		// Each row that is found is also read whole, and the table has dead rows now.
		pages := o.plan(s.sql.claim, columnsWindow(read, true)...).pages()
		if most := 3 * claimed100 * pagesAStep; pages > most {
			t.Errorf("a claim looks at %d pages %s, want %d at most", pages, name, most)
		}
	}
}

// Claims that go on where the one before stopped see each key once a round.
func TestClaimsOfATeamsTableGoOnWhereTheOneBeforeStopped(t *testing.T) {
	t.Parallel()
	const rows = 5000
	const round = rows/steps100 + 1
	o, s := newTeamOutbox(t, testkit.ClassicTable())
	o.notDue(rows)
	w := wide()
	for i := range round {
		c := claimed(t, s, w)
		if c.Look.Reached <= w.Read || c.Look.Stopped == 0 || !c.Look.Long || !c.Cut {
			t.Fatalf("claim from %d = %+v, want one that went on and stopped", w.Read, c)
		}
		if top := c.Look.Stopped != c.Look.Reached; top != (i == round-1) {
			t.Fatalf("claim %d = %+v, want that %d see all above", i+1, c.Look, round)
		}
		w.Read, w.Next = c.Look.Reached, c.Look.Stopped
	}

	o.Exec(`UPDATE outbox_event SET available_at = now() WHERE aggregate_id IN ('later-7', 'later-77')`)
	found := map[message.Position]int{}
	for range round {
		c := claimed(t, s, w)
		for _, p := range c.Below {
			found[p]++
		}
		w.Next = c.Look.Stopped
	}
	if len(found) != 2 {
		t.Errorf("%d claims found the rows %v below, want both that are due", round, found)
	}
}

// A claim that could see all says so, and a lane of few rows rests on the common look.
func TestAClaimOfATeamsTableThatSeesAllStopsNowhere(t *testing.T) {
	t.Parallel()
	o, s := newTeamOutbox(t, testkit.ClassicTable())
	o.notDue(lookSteps - 1)
	c := claimed(t, s, wide())
	top := c.Look.Reached
	if diff := cmp.Diff(shard.Look{Reached: top}, c.Look); diff != "" || top == 0 || c.Cut {
		t.Errorf("claim = %+v", c)
	}
	if work, err := s.Waiting(t.Context(), []int16{0}, []message.Position{0}); err != nil || len(work.Shards) != 0 {
		t.Errorf("Waiting() = %+v, %v, want nothing", work, err)
	}
	o.notDueMore()
	w := wide()
	w.Read = top
	if c = claimed(t, s, w); !c.Look.Long || c.Look.Stopped != 0 || c.Cut {
		t.Errorf("claim of one row more = %+v", c)
	}
}

// notDueMore writes one key more that is not due.
func (o *outbox) notDueMore() {
	o.t.Helper()
	o.Exec(`INSERT INTO outbox_event (event_id, aggregate_id, aggregate_version, topic, payload, available_at)
		VALUES (gen_random_uuid(), 'one more', 1, 'orders', '{}', now() + interval '1 h')`)
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

// However many gates there are, a claim and the look for idle lanes ask for one at a time: to read them all into memory is
// what the planner may do for NOT EXISTS.
func TestNoLookAtATeamsTableReadsAllGates(t *testing.T) {
	t.Parallel()
	o, s := newTeamOutbox(t, testkit.DebeziumTable())
	o.Exec(`INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)
		SELECT gen_random_uuid(), 'order', 'down', 'OrderPaid', '{}' FROM generate_series(1, $1) i`, rowsNotDue)
	o.Exec(`INSERT INTO outboxevent_gate (shard, ordering_key, state, due)
		SELECT 0, id::text, 'Retry', now() + '1 h' FROM outboxevent`)
	o.Exec(`ANALYZE outboxevent`)
	o.Exec(`ANALYZE outboxevent_gate`)
	claim := o.plan(s.sql.claim, columnsWindow(0, false)...)
	look := o.plan(s.sql.waiting, []int16{0}, []int64{0})
	for name, plan := range map[string]planned{"claim": claim, "look for idle lanes": look} {
		if plan.whole("outboxevent_gate") {
			t.Errorf("the %s reads all gates", name)
		}
	}
	if most := steps100 * (pagesAStep + 4); claim.pages() > most {
		t.Errorf("a claim looks at %d pages, want %d at most", claim.pages(), most)
	}
}
