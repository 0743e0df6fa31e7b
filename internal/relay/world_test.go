package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/test/testkit"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// world is an outbox on a real PostgreSQL, and a broker that remembers what it was given.
type world struct {
	*testkit.DB
	t      *testing.T
	names  postgres.Names
	shards int
	broker *ledger
	team   *team // nil: an outbox of our own
}

func newWorld(t *testing.T, shards int, options ...testkit.PostgresOption) *world {
	t.Helper()
	db := testkit.Postgres(t, options...)
	w := &world{
		DB: db, t: t, shards: shards, names: postgres.Names{Schema: db.Schema, Outbox: "message_outbox"},
		broker: newLedger(),
	}
	wanted := schema.Options{Components: []schema.Component{schema.Outbox}, Shards: int32(shards)}
	if err := schema.Apply(t.Context(), db.Pool(), w.names, wanted); err != nil {
		t.Fatalf("apply the schema: %v", err)
	}
	return w
}

// config is a config whose pauses are short enough for a test.
func (w *world) config() relay.Config {
	return relay.Config{
		Unordered: w.team != nil && w.team.Unordered(),
		Holder:    uuid.New(), Shards: w.shards, Broker: "test", Destination: "test/orders", Unit: "ORDERS",
		LeaseDuration: 10 * time.Second, LeaseMargin: time.Second, QueryTimeout: 5 * time.Second,
		Retention: 24 * time.Hour, DrainTimeout: 10 * time.Second, RunPolicy: relay.Run,
		Batch: relay.Batch{
			MaxMessages: 100, MaxBytes: 1 << 20, PollInterval: 10 * time.Millisecond, PublishTimeout: 5 * time.Second,
		},
		Backoff: retry.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		Budget: retry.Budget{
			MaxAttempts: 1000,
			MaxElapsed:  time.Hour,
		},
		Share: retry.Share{Percent: 20, MinPerSecond: 1000},
	}
}

// process is one relay process of a test.
type process struct {
	*relay.Relay
	w     *world
	cfg   relay.Config
	store *outboxdb.Store

	registry *prometheus.Registry
	cancel   context.CancelFunc
	done     chan struct{}
	err      error
}

// options change a process before it is made.
type options struct {
	config    func(*relay.Config)
	publisher broker.Publisher
	wrap      func(relay.Store) relay.Store
	relay     string // its name
	log       *slog.Logger
	pool      *pgxpool.Pool
	watchdog  relay.Watchdog
	skip      bool // ordering.onDeadLetter: SkipMessage
}

// process makes a relay process without starting it.
func (w *world) process(o options) *process {
	w.t.Helper()
	p := &process{w: w, cfg: w.config(), done: make(chan struct{}), registry: prometheus.NewRegistry()}
	if o.config != nil {
		o.config(&p.cfg)
	}
	if o.relay == "" {
		o.relay = "shop/orders"
	}
	if o.publisher == nil {
		o.publisher = w.broker
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	if o.pool == nil {
		o.pool = w.Pool()
	}
	var err error
	cfg := outboxdb.Config{
		Names: w.names, Relay: o.relay, RelayUID: o.relay + "-uid", Holder: p.cfg.Holder, Shards: w.shards,
		Unordered: p.cfg.Unordered, SkipDeadLetters: o.skip, QueryTimeout: p.cfg.QueryTimeout,
	}
	if w.team != nil {
		cfg.Columns = w.team.columns
		p.cfg.NoDeadLetters = !w.team.columns.Buries()
	}
	p.store, err = outboxdb.New(o.pool, cfg)
	if err != nil {
		w.t.Fatalf("make a store: %v", err)
	}
	store := relay.Store(p.store)
	if o.wrap != nil {
		store = o.wrap(store)
	}
	p.Relay, err = relay.New(p.cfg, store, o.publisher, relay.NewMetrics(p.registry), &relay.Clock{}, o.log,
		o.watchdog)
	if err != nil {
		w.t.Fatalf("make a relay: %v", err)
	}
	return p
}

// start makes a relay process and runs it until it is stopped or the test ends.
func (w *world) start(o options) *process {
	w.t.Helper()
	p := w.process(o)
	p.run(w.t.Context())
	w.t.Cleanup(func() {
		p.Crash()
		<-p.done
	})
	return p
}

func (p *process) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	go func() {
		defer close(p.done)
		defer cancel()
		p.err = p.Run(ctx)
	}()
}

// stop drains the process and returns what Run returned.
func (p *process) stop() error {
	p.w.t.Helper()
	p.cancel()
	return p.wait()
}

// kill ends the process at once.
func (p *process) kill() {
	p.w.t.Helper()
	p.Crash()
	if err := p.wait(); !errors.Is(err, relay.ErrCrashed) && err != nil {
		p.w.t.Errorf("Run() after a crash = %v", err)
	}
}

func (p *process) wait() error {
	p.w.t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		p.w.t.Fatal("Run did not return")
		return nil
	}
}

// held returns the shards the process holds.
func (p *process) held() []int16 {
	r, _ := p.Report(p.w.t.Context())
	return r.HeldShards
}

// condition returns a condition's status, reason and message, or "" where it is not reported.
func (p *process) condition(name string) string {
	_, conditions := p.Report(p.w.t.Context())
	for _, c := range conditions {
		if c.Type == name {
			return c.Status + " " + c.Reason + " " + c.Message
		}
	}
	return ""
}

// poolAt returns a pool that reaches the database through another address.
func (w *world) poolAt(host string, port int) *pgxpool.Pool {
	w.t.Helper()
	pool, err := pgxpool.New(w.t.Context(), w.URLAt(host, port))
	if err != nil {
		w.t.Fatalf("make a pool: %v", err)
	}
	w.t.Cleanup(pool.Close)
	return pool
}

// dog is a watchdog that can be asked.
type dog struct {
	mu  sync.Mutex
	due map[string]time.Time
}

func newDog() *dog { return &dog{due: make(map[string]time.Time)} }

func (d *dog) Step(loop string, within time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due[loop] = time.Now().Add(within)
}

func (d *dog) Done(loop string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.due, loop)
}

// overdue says that a loop's step is late by more than the scheduler explains.
func (d *dog) overdue(loop string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	due, known := d.due[loop]
	return known && time.Since(due) > time.Second
}

func (d *dog) loops() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.due))
}

// writeSQL writes one message as every writer of ours does: the sequence row of the key serialises its writers.
const writeSQL = `
WITH s AS (
  INSERT INTO message_outbox_sequence AS q (source, destination, ordering_key, last) VALUES ('shop', $3, $2, 1)
  ON CONFLICT (source, destination, ordering_key) DO UPDATE SET last = q.last + 1 RETURNING last)
INSERT INTO message_outbox
  (event_id, event_type, source, ordering_key, destination, aggregate_version, payload, occurred_at)
SELECT $1, 'order.paid', 'shop', $2, $3, last, convert_to('{"n":' || last || '}', 'UTF8'), clock_timestamp() FROM s
RETURNING position, aggregate_version`

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, statement string, args ...any) pgx.Row
}

// write writes one message of a key.
func write(ctx context.Context, q querier, key string) (message.Message, error) {
	return writeTo(ctx, q, key, "")
}

// writeTo writes one message of a key to a destination.
func writeTo(ctx context.Context, q querier, key, destination string) (message.Message, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return message.Message{}, err
	}
	m := message.Message{ID: message.ID(id), OrderingKey: key, Destination: destination}
	err = q.QueryRow(ctx, writeSQL, id, key, destination).Scan(&m.Position, &m.AggregateVersion)
	return m, err
}

// put writes n committed messages of a key.
func (w *world) put(key string, n int) []message.Message {
	w.t.Helper()
	out := make([]message.Message, n)
	for i := range out {
		var err error
		if out[i], err = w.write(w.t.Context(), w.Pool(), key); err != nil {
			w.t.Fatalf("write a message: %v", err)
		}
	}
	return out
}

// left returns how many rows wait.
func (w *world) left() int64 {
	w.t.Helper()
	if w.team != nil {
		return testkit.Value[int64](w.DB, `SELECT count(*) FROM `+w.team.Name+` WHERE `+w.team.pending())
	}
	return testkit.Value[int64](w.DB, `SELECT count(*) FROM message_outbox`)
}

// awaitEmpty waits until every row is archived, for as long as something moves.
func (w *world) awaitEmpty() {
	w.t.Helper()
	type progress struct {
		left int64
		kept int
	}
	for last := (progress{}); ; {
		now := progress{}
		testkit.Eventually(w.t, patience, "every row is archived", func() bool {
			now = progress{w.left(), w.broker.count()}
			return now.left == 0 || now != last
		})
		if last = now; now.left == 0 {
			return
		}
	}
}

// awaitSQL waits until a condition holds in the database.
func (w *world) awaitSQL(what, condition string, args ...any) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, what, func() bool {
		is := testkit.Value[*bool](w.DB, "SELECT "+condition, args...)
		return is != nil && *is // NULL is what an aggregate over no rows gives
	})
}

// orphans counts held rows without a gate: nothing would ever send them.
func (w *world) orphans() int64 {
	w.t.Helper()
	return testkit.Value[int64](w.DB, `SELECT count(*) FROM message_outbox o WHERE o.held AND NOT EXISTS (
		SELECT 1 FROM message_outbox_gate g WHERE g.ordering_key IN (o.ordering_key, o.event_id::text))`)
}

// ledger is a broker that keeps what it is given in order and answers as told.
type ledger struct {
	mu sync.Mutex
	// answer decides about one message; nil confirms all. delivered says whether the broker keeps the message.
	answer func(m message.Message) (c broker.Confirmation, delivered bool)
	kept   []message.Message
	calls  int
}

func newLedger() *ledger { return &ledger{} }

// script sets what the broker answers from now on.
func (l *ledger) script(answer func(m message.Message) (broker.Confirmation, bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = answer
}

// Publish implements broker.Publisher as adapters do: in order, and nothing of a key after its first failure.
func (l *ledger) Publish(_ context.Context, batch []message.Message) []broker.Confirmation {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	got := make([]broker.Confirmation, len(batch))
	closed := make(map[string]bool)
	for i, m := range batch {
		if closed[m.OrderingKey] {
			got[i] = broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonNotSent}
			continue
		}
		c, delivered := broker.Confirmation{Outcome: broker.Confirmed}, true
		if l.answer != nil {
			c, delivered = l.answer(m)
		}
		if delivered {
			l.kept = append(l.kept, m)
		}
		if c.Outcome == broker.Confirmed {
			c.Position = fmt.Sprintf("ORDERS@%d", len(l.kept))
		} else {
			closed[m.OrderingKey] = true
		}
		got[i] = c
	}
	return got
}

// versions returns the versions of a key in the order in which they were kept.
func (l *ledger) versions(key string) []int64 {
	var out []int64
	for _, m := range l.all(key) {
		out = append(out, m.AggregateVersion)
	}
	return out
}

// all returns the messages of a key in the order in which they were kept.
func (l *ledger) all(key string) []message.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []message.Message
	for _, m := range l.kept {
		if m.OrderingKey == key {
			out = append(out, m)
		}
	}
	return out
}

// publishes returns how often the broker was given a batch.
func (l *ledger) publishes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.kept)
}

// The answers of scripts.
var (
	confirmed   = broker.Confirmation{Outcome: broker.Confirmed}
	rejected    = broker.Confirmation{Outcome: broker.Rejected, Reason: broker.ReasonTooLarge}
	unknown     = broker.Confirmation{Outcome: broker.Unknown, Reason: broker.ReasonNoAnswer}
	unavailable = broker.Confirmation{
		Outcome: broker.Unavailable,
		Reason:  broker.ReasonUnreachable,
		Detail:  "no server answers",
	}
)

// upTo returns 1, 2, … n.
func upTo(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i + 1)
	}
	return out
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }
