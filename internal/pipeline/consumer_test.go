package pipeline_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/test/testkit"
)

const patience = 30 * time.Second

// effectSQL is the handler's statement of these tests.
const effectSQL = `INSERT INTO effect (event_id, key, version) VALUES (@event_id, @ordering_key, @aggregate_version)`

// billing is a place for a consumer: a database without tables, and a broker without a stream.
type billing struct {
	t      *testing.T
	db     *testkit.DB // as superuser
	role   *testkit.DB
	broker *testkit.Broker
	cfg    config.Consumer
}

func newBilling(t *testing.T) *billing {
	t.Helper()
	b := &billing{t: t, db: testkit.Postgres(t), broker: testkit.NATS(t)}
	b.role = b.db.Ordinary()
	b.cfg = config.Consumer{
		Version:   config.Version,
		Resource:  config.Resource{Namespace: "shop", Name: "billing", UID: "uid-1", Generation: 1},
		RunPolicy: config.RunPolicyRun, ConsumerName: "shop/billing",
		Inbox: config.Inbox{
			Postgres: b.role.Config(), Retention: config.Duration(time.Hour), ReplayHorizon: config.Duration(time.Hour),
		},
		SQL: &config.SQLHandler{
			OnUnmatched: config.UnmatchedIgnore,
			Routes:      []config.SQLRoute{{EventTypes: []string{"order.paid"}, Statement: effectSQL}},
		},
		Ordering: config.Ordering{
			Mode: config.OrderingPerKey, Versions: config.VersionsEnforce, Delivery: config.DeliveryShared,
			GapTimeout: config.Duration(time.Minute), OnGapTimeout: config.GapHold,
		},
		Validation: config.Validation{MaxBytes: 1 << 20, MaxDepth: 64},
		Concurrency: config.Concurrency{
			Lanes: 2, Prefetch: 100, MaxBatchMessages: 50, HandlerTimeout: config.Duration(10 * time.Second),
		},
		Backoff:    config.Backoff{Initial: config.Duration(100 * time.Millisecond), Max: config.Duration(time.Second)},
		StatusTick: config.Duration(time.Second),
	}
	nats := b.broker.Config(testkit.Stream{Name: "ORDERS_" + b.db.Schema, Prefix: b.db.Schema})
	nats.Subject, nats.Durable = "", "billing"
	b.cfg.NATS = &nats
	return b
}

// tables makes the inbox and the table of effects.
func (b *billing) tables() {
	b.t.Helper()
	names := postgres.Names{Schema: b.db.Schema}
	options := schema.Options{Components: []schema.Component{schema.Inbox}}
	if err := schema.Apply(b.t.Context(), b.db.Pool(), names, options); err != nil {
		b.t.Fatal(err)
	}
	b.db.Exec(`CREATE TABLE effect (event_id text PRIMARY KEY, key text NOT NULL, version bigint)`)
}

// stream makes the stream.
func (b *billing) stream() {
	b.t.Helper()
	b.broker.Stream(jetstream.StreamConfig{Name: b.cfg.NATS.Stream, Subjects: []string{b.db.Schema + ".>"}})
}

// publish sends the versions from..to of a key.
func (b *billing) publish(key string, from, to int) {
	b.t.Helper()
	js := b.broker.JetStream()
	for version := from; version <= to; version++ {
		msg := natsgo.NewMsg(b.db.Schema + ".events")
		id := message.ID{byte(version), key[0], key[len(key)-1], 1}
		for name, value := range map[string]string{
			"event-id": id.String(), "event-type": "order.paid", "schema-version": "1", "ordering-key": key,
			"aggregate-version": strconv.Itoa(version), "source": "shop", "content-type": "application/json",
			"occurred-at": "2026-01-02T03:04:05Z", "stream": "",
		} {
			msg.Header[name] = []string{value}
		}
		msg.Data = []byte(`{"paid": true}`)
		if _, err := js.PublishMsg(b.t.Context(), msg); err != nil {
			b.t.Fatal(err)
		}
	}
}

// applied waits until so many effects are there.
func (b *billing) applied(want int) {
	b.t.Helper()
	testkit.Eventually(b.t, patience, strconv.Itoa(want)+" effects are there", func() bool {
		return testkit.Value[int](b.db, "SELECT count(*) FROM effect") == want
	})
}

// life is a pipeline that runs.
type life struct {
	t      *testing.T
	ended  chan error
	stop   context.CancelFunc
	report func(context.Context) statusz.Report
}

type runnable interface {
	Run(ctx context.Context) error
	Report(ctx context.Context) statusz.Report
}

func run(t *testing.T, p runnable) *life {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &life{t: t, ended: make(chan error, 1), stop: stop, report: p.Report}
	go func() { r.ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		r.stop()
		if err := <-r.ended; err != nil {
			t.Logf("Run() = %v", err) // killed, or asked for before
		}
	})
	return r
}

// drain ends the pipeline as SIGTERM does.
func (r *life) drain() error {
	r.t.Helper()
	r.stop()
	return r.end()
}

// end waits for the pipeline's end.
func (r *life) end() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err // the cleanup waits for it, too
		return err
	case <-time.After(patience):
		r.t.Fatal("the pipeline does not end")
		return nil
	}
}

// becomes waits until a condition is "Status Reason".
func (r *life) becomes(name, want string) {
	r.t.Helper()
	var got string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%s is %q", name, got)
		}
	}()
	testkit.Eventually(r.t, patience, name+" is "+want, func() bool {
		got = ""
		if c, ok := r.condition(name); ok {
			got = c.Status + " " + c.Reason
		}
		return got == want
	})
}

// condition returns a condition as it is now, and false where there is none.
func (r *life) condition(name string) (statusz.Condition, bool) {
	r.t.Helper()
	all := r.report(r.t.Context()).Conditions
	i := slices.IndexFunc(all, func(c statusz.Condition) bool { return c.Type == name })
	if i < 0 {
		return statusz.Condition{}, false
	}
	return all[i], true
}

func (b *billing) start() (*pipeline.Consumer, *life) {
	b.t.Helper()
	c, err := pipeline.NewConsumer(b.cfg, pipeline.Options{
		Log: testkit.Logger(b.t), Registry: prometheus.NewRegistry(), AllowLoopback: true,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return c, run(b.t, c)
}

func TestAConsumerStartsBeforeItsEnvironmentAndRecovers(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	password := filepath.Join(b.cfg.Inbox.Postgres.CredentialsDir, "password")
	if err := os.Remove(password); err != nil {
		t.Fatal(err)
	}
	c, r := b.start()
	r.becomes("DatabaseReachable", "False SecretNotFound")

	write(t, password, "wrong")
	c.Refresh()
	r.becomes("DatabaseReachable", "False AuthFailed")

	write(t, password, b.role.Password)
	c.Refresh()
	r.becomes("SchemaReady", "False SchemaMissing")

	b.tables()
	r.becomes("SchemaReady", "True SchemaCurrent")
	r.becomes("SourceReachable", "False StreamMissing")

	b.stream()
	b.publish("order-1", 1, 3)
	b.applied(3)
	r.becomes("SourceReachable", "True Reachable")
	if err := r.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAConsumerTakesANewConfigOverInPlace(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	b.tables()
	b.stream()
	c, r := b.start()
	b.publish("order-1", 1, 2)
	b.applied(2)

	changed := b.cfg
	changed.Resource.Generation = 2
	changed.Inbox.Postgres.Hosts = []string{"nowhere.invalid"}
	if err := c.Reconfigure(changed); err != nil {
		t.Fatal(err)
	}
	r.becomes("DatabaseReachable", "False Unreachable")
	if got := r.report(t.Context()); got.Generation != 2 {
		t.Errorf("generation = %d, want that of the config that does not work", got.Generation)
	}

	b.cfg.Resource.Generation = 3
	b.cfg.Concurrency.Lanes = 4
	if err := c.Reconfigure(b.cfg); err != nil {
		t.Fatal(err)
	}
	b.publish("order-1", 3, 4)
	b.applied(4)
	testkit.Eventually(t, patience, "the third generation counts what it has applied", func() bool { // after the commit
		got := r.report(t.Context())
		return got.Generation == 3 && got.Consumer != nil && got.Consumer.AppliedTotal == 2
	})

	renamed := b.cfg
	renamed.ConsumerName = "shop/other"
	if err := c.Reconfigure(renamed); err == nil {
		t.Error("another consumer name was taken over: everything would be applied again")
	}
}

func TestAKilledConsumerAcknowledgesNothingMore(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	b.tables()
	b.stream()
	c, r := b.start()
	b.publish("order-1", 1, 2)
	b.applied(2)

	c.Kill()
	if err := r.end(); err == nil {
		t.Error("Run() = nil after Kill")
	}
	b.publish("order-1", 3, 5)
	_, second := b.start()
	b.applied(5)
	if err := second.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// L24: the stream was deleted with what nobody had read. Nobody else would ever tell.
func TestAStreamThatWasMadeAgainIsToldOf(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	b.tables()
	b.stream()
	_, first := b.start()
	b.publish("order-1", 1, 2)
	b.applied(2)
	if err := first.drain(); err != nil {
		t.Fatal(err)
	}
	b.db.Exec(`UPDATE message_inbox_owner SET stream = $1 || '@2020-01-02T03:04:05Z', finished_sequence = 40`,
		b.cfg.NATS.Stream)
	if err := b.broker.JetStream().DeleteConsumer(t.Context(), b.cfg.NATS.Stream, b.cfg.NATS.Durable); err != nil {
		t.Fatal(err)
	}
	log := testkit.NewLog(t)
	c, err := pipeline.NewConsumer(b.cfg, pipeline.Options{Log: log.Logger(), AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	run(t, c)
	b.publish("order-1", 3, 3)
	b.applied(3) // from the start: what is finished in the old stream says nothing about this one
	if !log.Contains("The stream was made again") {
		t.Error("nothing is told of what is gone")
	}
}
