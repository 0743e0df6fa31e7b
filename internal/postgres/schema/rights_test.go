package schema_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

// loginPool is a pool of the role itself.
func loginPool(t *testing.T, db *testkit.DB, role string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.User, cfg.ConnConfig.Password = role, "secret"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// step is one call of a store.
type step struct {
	name string
	call func(ctx context.Context) error
}

func runSteps(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		if err := s.call(t.Context()); err != nil {
			t.Fatalf("%s: %s", s.name, postgres.SafeError(err))
		}
	}
}

// Everything the relay's store does works with the printed grants alone.
func TestRelayRoleIsEnoughForItsStore(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := roles(t, db)
	pool := loginPool(t, db, names[schema.RoleRelay])
	store, err := outboxdb.New(pool, outboxdb.Config{
		Names: namesOf(db), Relay: "shop/orders", RelayUID: "uid", Holder: uuid.New(), Shards: schema.DefaultShards,
		QueryTimeout: 10 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ids := testkit.Values[string](db, `SELECT (message_outbox_write('k', 'order.paid', 'x', 'shop')).id::text
	  FROM generate_series(1, 4)`)
	n := testkit.Value[int16](db, "SELECT shard FROM message_outbox LIMIT 1")
	parsed := make([]message.ID, len(ids))
	for i, id := range ids {
		if parsed[i], err = message.ParseID(id); err != nil {
			t.Fatal(err)
		}
	}
	var held lease.Lease
	runSteps(t, []step{
		{"Preflight", store.Preflight},
		{"Join", func(ctx context.Context) error { _, err := store.Join(ctx, time.Minute); return err }},
		{"AdoptSource", func(ctx context.Context) error { _, err := store.AdoptSource(ctx, "shop"); return err }},
		{"Look", func(ctx context.Context) error { _, _, err := store.Look(ctx); return err }},
		{"Acquire", func(ctx context.Context) (err error) {
			held, _, err = store.Acquire(ctx, n, time.Minute)
			return err
		}},
	})
	runSteps(t, laneSteps(store, held, parsed))
	desk := outboxdb.NewDesk(pool, namesOf(db), 10*time.Second)
	runSteps(t, []step{
		{"Republish", func(ctx context.Context) error {
			chosen, _, err := desk.Archived(ctx, outboxdb.Selection{Limit: 1})
			if err != nil {
				return err
			}
			done, err := desk.Republish(ctx, chosen, outboxdb.Decision{Actor: "ada", Why: "a test"})
			if err == nil && done.Moved != 1 {
				err = fmt.Errorf("%+v: the rights were not tried", done)
			}
			return err
		}},
		{"TurnRing", func(ctx context.Context) error {
			turned, err := store.TurnRing(ctx, time.Microsecond)
			if err == nil && !turned {
				err = fmt.Errorf("the ring did not turn: its rights were not tried")
			}
			return err
		}},
		{"GiveBack", func(ctx context.Context) error { return store.GiveBack(ctx, held) }},
		{"Leave", store.Leave},
	})
}

func laneSteps(store *outboxdb.Store, held lease.Lease, ids []message.ID) []step {
	window := shard.Window{MaxMessages: 10, MaxBytes: 1 << 20, MaxBelow: 10}
	refused := []shard.Refusal{{ID: ids[1], Gate: "k", Attempts: 1, Code: "TooLarge"}}
	shards := []int16{held.Shard}
	return []step{
		{"Renew", func(ctx context.Context) error { return store.Renew(ctx, held, time.Minute) }},
		{"Claim", func(ctx context.Context) error { _, err := store.Claim(ctx, held, window); return err }},
		{"Fetch", func(ctx context.Context) error {
			_, _, err := store.Fetch(ctx, held, []message.Position{1}, 1<<20)
			return err
		}},
		{"Waiting", func(ctx context.Context) error {
			_, err := store.Waiting(ctx, shards, []message.Position{0})
			return err
		}},
		{"Settle", func(ctx context.Context) error {
			_, err := store.Settle(ctx, held, ids[:1], []string{"ORDERS@1"})
			return err
		}},
		{"Settle again", func(ctx context.Context) error {
			_, err := store.Settle(ctx, held, ids[:1], []string{"ORDERS@1"})
			return err
		}},
		{"Refuse", func(ctx context.Context) error { return store.Refuse(ctx, held, refused, ids[2:]) }},
		{"Hold", func(ctx context.Context) error { _, err := store.Hold(ctx, held, ids[2:]); return err }},
		{"Load", func(ctx context.Context) error { _, err := store.Load(ctx, held, ids, 1<<20); return err }},
		{"Due", func(ctx context.Context) error { _, err := store.Due(ctx, held, 10, 10); return err }},
		{"Postpone", func(ctx context.Context) error {
			return store.Postpone(ctx, held, []shard.Delay{{Gate: "k", Wait: time.Millisecond}})
		}},
		{"SettleDue", func(ctx context.Context) error {
			_, _, err := store.SettleDue(ctx, held, ids[1:2], []string{"ORDERS@2"}, []string{"k"}, 1)
			return err
		}},
		{"Release", func(ctx context.Context) error {
			_, err := store.Release(ctx, held, []string{"k"}, 10)
			return err
		}},
		{"Backlog", func(ctx context.Context) error { _, err := store.Backlog(ctx, shards); return err }},
	}
}

// What the consumer's store does beside the handler works with the printed grants alone, and the store agrees that the
// role may not do too much.
func TestConsumerRoleIsEnoughForItsStore(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	names := roles(t, db)
	store := inboxdb.New(
		loginPool(t, db, names[schema.RoleConsumer]),
		postgres.Names{Schema: db.Schema},
		"shop/billing",
	)
	job := verdict.Job{
		Rules: verdict.Rules{}, HandlerTimeout: time.Second,
		Pause: func(int, time.Duration) time.Duration { return time.Millisecond },
	}
	admit := func(message.Record, string) *verdict.Item { return &verdict.Item{} }
	runSteps(t, []step{
		{"Check", func(ctx context.Context) error { return store.Check(ctx, []string{"SELECT $1::text"}) }},
		{"Claim", func(ctx context.Context) error {
			return store.Claim(ctx, verdict.Owner{Resource: "shop/billing", UID: "uid", Lease: time.Minute})
		}},
		{"Finish", func(ctx context.Context) error { return store.Finish(ctx, "ORDERS", 7) }},
		{"Finished", func(ctx context.Context) error { _, _, err := store.Finished(ctx); return err }},
		{"Apply", func(ctx context.Context) error {
			item := &verdict.Item{
				Envelope: message.Envelope{EventID: "e", Type: "order.paid", Source: "shop", OrderingKey: "k"},
				Record:   message.Record{Body: []byte("{}")}, Digest: message.Digest("order.paid", "k", []byte("{}")),
				Position: "ORDERS@1", Statement: &verdict.Statement{SQL: "SELECT $1::text", Args: []any{"x"}},
			}
			decisions, err := store.Apply(ctx, job, []*verdict.Item{item})
			if err == nil && (len(decisions) != 1 || !strings.EqualFold(decisions[0].Action.String(), "applied")) {
				err = fmt.Errorf("Apply() = %v", decisions)
			}
			return err
		}},
		{"Drain", func(ctx context.Context) error { _, err := store.Drain(ctx, job, admit); return err }},
		{"Rearm", store.Rearm},
		{"Counts", func(ctx context.Context) error { _, err := store.Counts(ctx); return err }},
		{"Purge", func(ctx context.Context) error { _, err := store.Purge(ctx, 0); return err }},
	})
}
