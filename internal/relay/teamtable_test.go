package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// newTeamWorld is a world whose outbox is a table that a team already has (layout StatusColumns).
func newTeamWorld(t *testing.T, table testkit.TeamTable, shards int, options ...testkit.PostgresOption) *world {
	t.Helper()
	db := testkit.Postgres(t, options...)
	w := &world{
		DB: db, t: t, shards: shards, names: postgres.Names{Schema: db.Schema, Outbox: table.Name},
		broker: newLedger(), team: &team{TeamTable: table},
	}
	db.Exec(table.DDL)
	wanted := schema.Options{
		Components: []schema.Component{schema.Outbox}, Shards: int32(shards),
		Columns: table.Columns(), Unordered: table.Unordered(),
	}
	if err := schema.Apply(t.Context(), db.Pool(), w.names, wanted); err != nil {
		t.Fatalf("apply the schema: %v", err)
	}
	look := mapped.Table{Names: w.names, Map: *table.Columns(), Unordered: table.Unordered(), Shards: shards}
	db.Exec(testkit.IndexSQL(look.Index()))
	read, err := mapped.Verify(t.Context(), db.Pool(), look)
	if err != nil {
		t.Fatalf("look at the team's table: %v", err)
	}
	w.team.columns = read
	return w
}

// team is a team's own table in a world.
type team struct {
	testkit.TeamTable

	columns *mapped.Table
}

// pending says in SQL that a row is neither settled nor a dead letter.
func (tm *team) pending() string {
	if tm.columns.Deletes() {
		return "true"
	}
	values := tm.columns.Map.Values
	return fmt.Sprintf("%s NOT IN ('%s', '%s')", tm.columns.Map.Status, values.Published, values.Failed)
}

// write writes one message of a key as the world's writers do.
func (w *world) write(ctx context.Context, q querier, key string) (message.Message, error) {
	if w.team == nil {
		return write(ctx, q, key)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return message.Message{}, err
	}
	m := message.Message{ID: message.ID(id), OrderingKey: key}
	err = q.QueryRow(ctx, w.team.WriteSQL, id, key).Scan(&m.AggregateVersion)
	return m, err
}

// A relay that sent a message and stood still until another had its shard settles nothing.
func TestAZombieSettlesNothingOfATeamsTable(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	sent := w.put("k", 1)
	old, next := w.process(options{}), w.process(options{})
	join := func(p *process) lease.Lease {
		t.Helper()
		if _, err := p.store.Join(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		l, ok, err := p.store.Acquire(t.Context(), 0, time.Minute)
		if err != nil || !ok {
			t.Fatalf("Acquire() = %v, %v", ok, err)
		}
		return l
	}
	zombie := join(old)
	w.Exec(w.names.SQL(`UPDATE {outbox_lease} SET held_until = clock_timestamp() - interval '1 s'`))
	current := join(next)
	ids, places := []message.ID{sent[0].ID}, []string{"ORDERS@1"}
	if _, err := old.store.Settle(t.Context(), zombie, ids, places); !errors.Is(err, lease.ErrLost) {
		t.Errorf("Settle() of a zombie = %v, want %v", err, lease.ErrLost)
	}
	if w.left() != 1 {
		t.Error("the zombie settled the row")
	}
	for _, want := range []shard.Settlement{{Moved: 1}, {Already: 1}} {
		got, err := next.store.Settle(t.Context(), current, ids, places)
		if err != nil || got != want {
			t.Errorf("Settle() = %+v, %v, want %+v", got, err, want)
		}
	}
}

// The order of a key holds when two relays take turns and the one that held the shard is killed.
func TestRelaysThatAreKilledKeepTheOrderOfATeamsTable(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 2)
	short := options{config: func(c *relay.Config) {
		c.LeaseDuration, c.LeaseMargin = 600*time.Millisecond, 100*time.Millisecond
		c.Batch.PublishTimeout, c.Batch.MaxMessages = 300*time.Millisecond, 3
	}}
	first := w.start(short)
	w.put("a", 20)
	w.put("b", 20)
	first.kill()
	w.start(short)
	w.put("a", 10)
	w.awaitEmpty()
	for key, n := range map[string]int{"a": 30, "b": 20} {
		if diff := cmp.Diff(upTo(n), once(w.broker.versions(key))); diff != "" {
			t.Errorf("first deliveries of %s (-want +got):\n%s", key, diff)
		}
	}
}

func TestATeamsOwnTableIsPublishedAndSettledInPlace(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		table   testkit.TeamTable
		settled string
		typ     string
	}{
		"the classic table": {
			testkit.ClassicTable(), `SELECT count(*) FROM outbox_event
				WHERE status = 'published' AND published_at IS NOT NULL AND attempts = 0`, "orders",
		},
		"Debezium's outbox": {
			testkit.DebeziumTable(), `SELECT 30 - count(*) FROM outboxevent`, "OrderPaid",
		},
		"Open Outbox": {
			testkit.OpenOutboxTable(), `SELECT count(*) FROM openoutbox_events
				WHERE status = 'DELIVERED' AND delivered_at IS NOT NULL`, "order.paid",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTeamWorld(t, tc.table, 3)
			w.put("a", 10)
			p := w.start(options{})
			w.put("b", 20)
			w.awaitEmpty()
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			if n := testkit.Value[int64](w.DB, tc.settled); n != 30 {
				t.Errorf("%d rows are settled, want 30", n)
			}
			if n := w.broker.count(); n != 30 {
				t.Errorf("%d messages arrived, want each once", n)
			}
			if !tc.table.Unordered() {
				w.inOrder("a", 10)
				w.inOrder("b", 20)
			}
			m := w.broker.kept[0]
			if m.Type != tc.typ || len(m.Payload) == 0 || m.Source != "shop/orders" || m.OccurredAt.IsZero() {
				t.Errorf("message = %+v", m)
			}
		})
	}
}

// A refused message holds up its key and nothing else, however much waits behind it, and nothing of that is rewritten.
func TestARefusedMessageOfATeamsTableHoldsItsKey(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.OrderingKey == "bad" {
			return rejected, false
		}
		return confirmed, true
	})
	w.put("bad", 50)
	w.put("good", 5)
	p := w.start(options{})
	w.awaitSQL("the good key is done and the bad one counted", `(SELECT count(*) FROM outbox_event
		WHERE aggregate_id = 'good' AND status = 'published') = 5 AND (SELECT attempts >= 2 AND last_error = 'TooLarge'
		FROM outbox_event WHERE aggregate_id = 'bad' AND aggregate_version = 1)`)
	backlog, err := p.store.Backlog(t.Context(), []int16{0})
	if err != nil || backlog.Retrying != 50 || backlog.Ready != 0 {
		t.Errorf("Backlog() = %+v, %v, want 50 messages behind the refused one", backlog, err)
	}
	if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM outbox_event WHERE aggregate_id = 'bad'
		AND (status <> 'pending' OR (aggregate_version > 1 AND (attempts > 0 OR xmax <> 0)))`); n != 0 {
		t.Errorf("%d rows behind the refused one were touched", n)
	}
	w.broker.script(nil)
	w.awaitEmpty()
	w.inOrder("bad", 50)
	if n := testkit.Value[int64](w.DB, `SELECT (SELECT count(*) FROM outbox_event_gate)
		+ (SELECT count(*) FROM outbox_event_failing)`); n != 0 {
		t.Errorf("%d gates and notes are left", n)
	}
}
