package inboxdb_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// consumerName is the one name of these tests; schemas keep them apart.
const consumerName = "shop/billing"

// inbox is a schema with inbox tables, an effect table and an ordinary role.
type inbox struct {
	*testkit.DB // as superuser, to arrange and to look
	t           *testing.T
	own         *testkit.DB // as the consumer's role
	pool        *pgxpool.Pool
}

func newInbox(t *testing.T, options ...testkit.PostgresOption) *inbox {
	t.Helper()
	db := testkit.Postgres(t, options...)
	err := schema.Apply(t.Context(), db.Pool(), postgres.Names{Schema: db.Schema}, schema.Options{
		Components: []schema.Component{schema.Inbox},
	})
	if err != nil {
		t.Fatalf("applying the schema: %v", err)
	}
	db.Exec(`CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY, event_id text PRIMARY KEY, key text NOT NULL,
		version bigint, data jsonb)`)
	in := &inbox{DB: db, t: t, own: db.Ordinary()}
	in.pool = in.open(in.own.Config())
	return in
}

// open returns a pool of the ordinary role, made as workers make theirs.
func (in *inbox) open(cfg config.Postgres) *pgxpool.Pool {
	in.t.Helper()
	pool, err := postgres.Open(in.t.Context(), cfg, postgres.Options{ApplicationName: in.Schema, AllowLoopback: true})
	if err != nil {
		in.t.Fatalf("opening a pool: %v", err)
	}
	in.t.Cleanup(pool.Close)
	return pool.Pool
}

// store returns a store as one process has it.
func (in *inbox) store() *inboxdb.Store {
	return inboxdb.New(in.pool, postgres.Names{Schema: in.Schema}, consumerName)
}

const insertEffect = `INSERT INTO effect (event_id, key, version, data) VALUES (($1::text), ($2::text), ($3::int8), ($4::jsonb))`

// order returns a keyed message that inserts an effect.
func order(id, key string, version int64) *verdict.Item {
	it := &verdict.Item{
		Envelope: message.Envelope{
			EventID:          id,
			Type:             "order.paid",
			SchemaVersion:    1,
			Source:           "shop",
			OrderingKey:      key,
			AggregateVersion: version,
			Data:             []byte(`{"n":1}`),
		},
		Position: "ORDERS@" + id, Keyed: true, Key: verdict.KeyHash(consumerName, "shop", "", key),
	}
	it.Record = message.Record{
		Key: []byte(key), Body: it.Data,
		Headers: []message.Header{
			{Name: "event-id", Value: id},
			{Name: "event-type", Value: "order.paid"},
			{Name: "source", Value: "shop"},
			{Name: "ordering-key", Value: key},
			{Name: "aggregate-version", Value: fmt.Sprint(version)},
		},
	}
	it.Digest = message.Digest(it.Type, key, it.Data)
	it.Statement = &verdict.Statement{SQL: insertEffect, Args: []any{id, key, version, it.Data}}
	return it
}

// admit reads a parked record again, as the consumer does.
func admit(r message.Record, position string) *verdict.Item {
	e, err := message.Decode(&r)
	if err != nil {
		panic(err) // only this file's own records are parked here
	}
	it := order(e.EventID, e.OrderingKey, e.AggregateVersion)
	it.Record, it.Position = r, position
	return it
}

func job(rules verdict.Rules) verdict.Job {
	return verdict.Job{
		Rules: rules, HandlerTimeout: 10 * time.Second,
		Pause: func(int, time.Duration) time.Duration { return 0 },
	}
}

func (in *inbox) effects() []string {
	in.t.Helper()
	return testkit.Values[string](in.DB, `SELECT key || '@' || version FROM effect ORDER BY n`)
}

func actions(ds []verdict.Decision) []string {
	names := make([]string, len(ds))
	for i, d := range ds {
		names[i] = d.Action.String()
		if d.Reason != "" {
			names[i] += " " + string(d.Reason)
		}
	}
	return names
}
