package consumer_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/consumer/handler/sql"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

const (
	// patience is how long a test waits for what must happen.
	patience = 30 * time.Second
	// applyStatement is the handler's statement of most tests: an effect that could not happen twice unseen.
	applyStatement = `INSERT INTO effect (event_id, key, version, data)
		VALUES (@event_id, @ordering_key, @aggregate_version, @data)`
	consumerName = "shop/billing"
	durable      = "billing"
)

// shop is a broker in memory before a real database.
type shop struct {
	*testkit.DB // as superuser, to arrange and to look
	t           *testing.T
	own         *testkit.DB // as the consumer's role
	broker      *brokertest.Fake
}

func newShop(t *testing.T, options ...testkit.PostgresOption) *shop {
	t.Helper()
	db := testkit.Postgres(t, options...)
	err := schema.Apply(t.Context(), db.Pool(), postgres.Names{Schema: db.Schema}, schema.Options{
		Components: []schema.Component{schema.Inbox},
	})
	if err != nil {
		t.Fatalf("applying the schema: %v", err)
	}
	db.Exec(`CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY, event_id text, key text NOT NULL,
		version bigint, data jsonb)`)
	return &shop{
		DB: db, t: t, own: db.Ordinary(),
		broker: brokertest.NewFake(brokertest.FakeConfig{Stream: "ORDERS", AckWait: 2 * time.Second}),
	}
}

// worker is one running consumer process.
type worker struct {
	*consumer.Consumer
	s        *shop
	receiver *brokertest.FakeReceiver
	hooks    *hooks
	metrics  *prometheus.Registry
	log      *testkit.Log
	stop     context.CancelFunc
	ended    chan struct{}
}

// options change what a worker is made of.
type options struct {
	config   consumer.Config
	postgres config.Postgres
	routes   []sql.Route
	refuse   bool
	prefetch int
	store    func(consumer.Store) consumer.Store
	random   func() float64
	receiver broker.Receiver // in place of the broker in memory
}

func (s *shop) options() options {
	return options{
		config: consumer.Config{
			Name: consumerName, Resource: "shop/billing", UID: "1", Broker: "fake", Source: "fake/ORDERS",
			RunPolicy: consumer.Run, PerKey: true, MaxBytes: 1 << 20, Lanes: 4, MaxBatch: 200,
			HandlerTimeout: 10 * time.Second, Retention: 24 * time.Hour, Heartbeat: 500 * time.Millisecond,
			Backoff: retry.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond},
		},
		postgres: s.own.Config(),
		routes:   []sql.Route{{EventTypes: []string{"order.*"}, Statement: applyStatement}},
		prefetch: 1000,
	}
}

// start runs a worker until the test ends, it is stopped, or it is killed.
func (s *shop) start(change ...func(*options)) *worker {
	s.t.Helper()
	o := s.options()
	for _, f := range change {
		f(&o)
	}
	pool, err := postgres.Open(s.t.Context(), o.postgres, postgres.Options{
		ApplicationName: s.Schema, AllowLoopback: true,
	})
	if err != nil {
		s.t.Fatalf("opening a pool: %v", err)
	}
	h, err := sql.New(sql.Config{Routes: o.routes, MaxDepth: 64, RefuseUnmatched: o.refuse})
	if err != nil {
		s.t.Fatalf("making the handler: %v", err)
	}
	w := &worker{
		s: s, hooks: &hooks{}, metrics: prometheus.NewRegistry(), log: testkit.NewLog(s.t), ended: make(chan struct{}),
		receiver: s.broker.Receiver(durable, o.prefetch),
	}
	if o.receiver == nil {
		o.receiver = &hooked{w.receiver, w.hooks}
	}
	metrics, err := consumer.NewMetrics(w.metrics)
	if err != nil {
		s.t.Fatalf("registering metrics: %v", err)
	}
	var store consumer.Store = inboxdb.New(pool.Pool, postgres.Names{Schema: s.Schema}, o.config.Name)
	if o.store != nil {
		store = o.store(store)
	}
	w.Consumer, err = consumer.New(o.config, consumer.Parts{
		Store: store, Handler: h, Receiver: o.receiver, Metrics: metrics,
		Log: w.log.Logger(), Random: o.random,
	})
	if err != nil {
		s.t.Fatalf("making the consumer: %v", err)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	w.stop = stop
	go func() {
		defer close(w.ended)
		_ = w.Run(ctx) // its error only says that it was killed
		w.receiver.Close()
		pool.Close()
	}()
	s.t.Cleanup(w.end)
	return w
}

// end drains the worker and waits for it.
func (w *worker) end() {
	w.stop()
	<-w.ended
}

// crash ends the worker as kill -9 does and waits until its connections are gone.
func (w *worker) crash() {
	w.Kill()
	<-w.ended
}

// hooks are called around the broker's calls.
type hooks struct {
	mu     sync.Mutex
	ack    func(d *broker.Delivery) error // before an acknowledgement; an error loses it
	beaten int
}

func (h *hooks) onAck(f func(*broker.Delivery) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ack = f
}

func (h *hooks) beats() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.beaten
}

// hooked puts hooks around a receiver.
type hooked struct {
	*brokertest.FakeReceiver
	hooks *hooks
}

func (h *hooked) Receive(ctx context.Context) ([]broker.Delivery, error) {
	got, err := h.FakeReceiver.Receive(ctx)
	for i := range got {
		got[i].Acknowledger = &hookedAck{got[i].Acknowledger, h.hooks, &got[i]}
	}
	return got, err
}

type hookedAck struct {
	broker.Acknowledger
	hooks    *hooks
	delivery *broker.Delivery
}

func (a *hookedAck) Ack(ctx context.Context) error {
	a.hooks.mu.Lock()
	f := a.hooks.ack
	a.hooks.mu.Unlock()
	if f != nil {
		if err := f(a.delivery); err != nil {
			return err
		}
	}
	return a.Acknowledger.Ack(ctx)
}

func (a *hookedAck) InProgress(ctx context.Context) error {
	a.hooks.mu.Lock()
	a.hooks.beaten++
	a.hooks.mu.Unlock()
	return a.Acknowledger.InProgress(ctx)
}

// event is a message as a relay publishes it.
type event struct {
	id, key string
	version int64
	kind    string // order.paid where empty
	data    string // {"n":1} where empty
}

func (e event) record() message.Record {
	if e.kind == "" {
		e.kind = "order.paid"
	}
	if e.data == "" {
		e.data = `{"n":1}`
	}
	r := message.Record{Key: []byte(e.key), Body: []byte(e.data), Headers: []message.Header{
		{Name: message.HeaderEventID, Value: e.id},
		{Name: message.HeaderEventType, Value: e.kind},
		{Name: message.HeaderSource, Value: "shop"},
		{Name: message.HeaderOrderingKey, Value: e.key},
	}}
	if e.version > 0 {
		r.Headers = append(r.Headers, message.Header{
			Name: message.HeaderAggregateVersion, Value: strconv.FormatInt(e.version, 10),
		})
	}
	return r
}

// publish stores events in the broker and returns the last sequence.
func (s *shop) publish(events ...event) (last uint64) {
	for _, e := range events {
		last = s.broker.Append("orders", e.record())
	}
	return last
}

// ev makes an event whose id names its key and version.
func ev(key string, version int64) event {
	return event{id: fmt.Sprintf("%s-%d", key, version), key: key, version: version}
}

// effects returns key@version in the order of the effects.
func (s *shop) effects() []string {
	s.t.Helper()
	return testkit.Values[string](s.DB, `SELECT key || '@' || version FROM effect ORDER BY n`)
}

func (s *shop) countEffects() int64 {
	s.t.Helper()
	return testkit.Value[int64](s.DB, `SELECT count(*) FROM effect`)
}

// failures returns event id and reason of the dead letters.
func (s *shop) failures() []string {
	s.t.Helper()
	return testkit.Values[string](s.DB, `SELECT event_id || ' ' || reason FROM message_failure ORDER BY failure_id`)
}

// acked waits until the workers have acknowledged n deliveries in all.
func (s *shop) acked(n int, workers ...*worker) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, fmt.Sprintf("%d deliveries are acknowledged", n), func() bool {
		sum := 0
		for _, w := range workers {
			sum += len(w.receiver.Acked())
		}
		return sum >= n
	})
}

// applied waits until n effects are there.
func (s *shop) applied(n int64) {
	s.t.Helper()
	testkit.Eventually(
		s.t,
		patience,
		fmt.Sprintf("%d effects are there", n),
		func() bool { return s.countEffects() >= n },
	)
}

// once fails the test where an effect happened twice, or a key's versions are not in order.
func (s *shop) once() {
	s.t.Helper()
	if twice := testkit.Values[string](
		s.DB,
		`SELECT event_id FROM effect GROUP BY 1 HAVING count(*) > 1`,
	); len(
		twice,
	) > 0 {
		s.t.Errorf("effects happened more than once: %v", twice)
	}
	wrong := testkit.Values[string](s.DB, `SELECT key || '@' || version FROM (
		SELECT key, version, lag(version) OVER (PARTITION BY key ORDER BY n) before FROM effect) x WHERE version <= before`)
	if len(wrong) > 0 {
		s.t.Errorf("effects are out of order: %v", wrong)
	}
}

// tidy fails the test where tables contradict each other.
func (s *shop) tidy() {
	s.t.Helper()
	for what, statement := range map[string]string{
		"a parked outcome without a parked message": `SELECT count(*) FROM message_inbox i WHERE outcome = 'P' AND NOT EXISTS
			(SELECT FROM message_parked p WHERE (p.consumer_name, p.source, p.event_id) = (i.consumer_name, i.source, i.event_id))`,
		"a parked message without a parked outcome": `SELECT count(*) FROM message_parked p WHERE NOT EXISTS
			(SELECT FROM message_inbox i WHERE (p.consumer_name, p.source, p.event_id) = (i.consumer_name, i.source, i.event_id)
			AND outcome = 'P')`,
		"a parked message of an open key": `SELECT count(*) FROM message_parked p JOIN message_inbox_key k USING (key_hash)
			WHERE k.state = 'O'`,
		"an open key that is due": `SELECT count(*) FROM message_inbox_key WHERE state = 'O' AND due_at IS NOT NULL`,
		"a retry without a time":  `SELECT count(*) FROM message_inbox_key WHERE state = 'R' AND due_at IS NULL`,
	} {
		if n := testkit.Value[int64](s.DB, statement); n > 0 {
			s.t.Errorf("%d times %s", n, what)
		}
	}
}

// keyState returns the state of a key.
func (s *shop) keyState(key string) string {
	s.t.Helper()
	return testkit.Value[string](
		s.DB,
		`SELECT coalesce((SELECT state::text FROM message_inbox_key WHERE key_hash = $1), '')`,
		keyHash(key),
	)
}

func keyHash(key string) [16]byte { return verdict.KeyHash(consumerName, "shop", "", key) }

// condition returns a condition of the worker's report.
func (w *worker) condition(kind string) statusz.Condition {
	_, conditions := w.Report(w.s.t.Context())
	for _, c := range conditions {
		if c.Type == kind {
			return c
		}
	}
	return statusz.Condition{}
}

// says waits for a condition.
func (w *worker) says(kind, status, reason string) statusz.Condition {
	w.s.t.Helper()
	var c statusz.Condition
	testkit.Eventually(w.s.t, patience, kind+" is "+status+" for "+reason, func() bool {
		c = w.condition(kind)
		return c.Status == status && c.Reason == reason
	})
	return c
}

// metric returns the value of a counter.
func (w *worker) metric(name string, label ...string) float64 {
	w.s.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.s.t.Fatalf("gathering metrics: %v", err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(label) == 0 || (len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label[0]) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// blocked waits until sessions of the schema wait for a lock.
func (s *shop) blocked(n int64) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, fmt.Sprintf("%d sessions wait for a lock", n), func() bool {
		return testkit.Value[int64](s.DB, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1
			AND wait_event_type = 'Lock'`, s.Schema) >= n
	})
}

// undrained is a store that never finds parked messages.
type undrained struct{ consumer.Store }

func (undrained) Drain(
	context.Context,
	verdict.Job,
	func(message.Record, string) *verdict.Item,
) (verdict.Drained, error) {
	return verdict.Drained{}, nil
}

func withoutDrain(o *options) {
	o.store = func(s consumer.Store) consumer.Store { return undrained{s} }
}
