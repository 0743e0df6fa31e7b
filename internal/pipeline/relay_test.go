package pipeline_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// orders is a place for a relay.
type orders struct {
	t      *testing.T
	db     *testkit.DB
	broker *testkit.Broker
	log    *testkit.Log
	cfg    config.Relay
}

func newOrders(t *testing.T, on ...testkit.PostgresOption) *orders {
	t.Helper()
	o := &orders{t: t, db: testkit.Postgres(t, on...), broker: testkit.NATS(t), log: testkit.NewLog(t)}
	names := postgres.Names{Schema: o.db.Schema, Outbox: "message_outbox"}
	options := schema.Options{Components: []schema.Component{schema.Outbox}, Shards: 4}
	if err := schema.Apply(t.Context(), o.db.Pool(), names, options); err != nil {
		t.Fatal(err)
	}
	nats := o.broker.Config(o.broker.Stream(jetstream.StreamConfig{}))
	o.cfg = config.Relay{
		Version:   config.Version,
		Resource:  config.Resource{Namespace: "shop", Name: "orders", UID: "uid-1", Generation: 1},
		RunPolicy: config.RunPolicyRun, Source: o.db.Config(), NATS: &nats, Ordering: config.OrderingPerKey,
		OnDeadLetter: config.BlockKey,
		Budget: config.Budget{
			MaxAttempts: 10, MaxElapsed: config.Duration(time.Hour), RetryPercent: 20, MinRetriesPerSecond: 10,
		},
		Outbox: config.Outbox{Table: "message_outbox", Shards: 4, PublishedRetention: config.Duration(time.Hour)},
		Lease:  config.Duration(6 * time.Second),
		Batch: config.Batch{
			MaxMessages: 100, MaxBytes: 1 << 20, PollInterval: config.Duration(20 * time.Millisecond),
			PublishTimeout: config.Duration(500 * time.Millisecond),
		},
		Backoff:    config.Backoff{Initial: config.Duration(50 * time.Millisecond), Max: config.Duration(time.Second)},
		StatusTick: config.Duration(time.Second),
	}
	return o
}

func (o *orders) start(cfg config.Relay) (*pipeline.Relay, *life) {
	o.t.Helper()
	r, err := pipeline.NewRelay(cfg, pipeline.Options{
		Log: o.log.Logger(), Registry: prometheus.NewRegistry(), AllowLoopback: true,
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return r, run(o.t, r)
}

// write commits so many messages.
func (o *orders) write(n int) {
	o.t.Helper()
	writer, err := outbox.New(outbox.Config{Source: "shop", Schema: o.db.Schema})
	if err != nil {
		o.t.Fatal(err)
	}
	tx, err := o.db.Pool().Begin(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = outbox.Message{
			Type:        "order.paid",
			OrderingKey: "order-" + strconv.Itoa(i%9),
			Payload:     []byte("{}"),
		}
	}
	if _, err := writer.Write(o.t.Context(), tx, messages...); err != nil {
		o.t.Fatal(err)
	}
	if err := tx.Commit(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

// published waits until so many rows are in the archive.
func (o *orders) published(n int) {
	o.t.Helper()
	testkit.Eventually(o.t, patience, strconv.Itoa(n)+" rows are published", func() bool {
		return testkit.Value[int](o.db, "SELECT count(*) FROM message_outbox_published") == n
	})
}

// held counts the leases that are held.
func (o *orders) held() int {
	o.t.Helper()
	return testkit.Value[int](o.db,
		"SELECT count(*) FROM message_outbox_lease WHERE holder IS NOT NULL AND held_until > clock_timestamp()")
}

func TestAKilledRelayReleasesNothingAndAnotherGoesOn(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	first, life := o.start(o.cfg)
	o.write(50)
	o.published(50)
	first.Kill()
	if err := life.end(); err == nil {
		t.Error("Run() = nil after Kill")
	}
	if n := o.held(); n != 4 {
		t.Errorf("%d leases are held after Kill, want all 4: a dead process releases nothing", n)
	}
	o.write(50)
	_, second := o.start(o.cfg)
	o.published(100)
	if err := second.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	if n := o.held(); n != 0 {
		t.Errorf("%d leases are held after the drain", n)
	}
}

func TestASecondRelayOnATableSaysWhoseItIs(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	o.start(o.cfg)
	o.write(10)
	o.published(10)

	other := o.cfg
	other.Resource.Name, other.Resource.UID = "intruder", "uid-2"
	_, second := o.start(other)
	second.becomes("TableInUse", "True InUse")
	o.write(10)
	o.published(20)
	if r := second.report(t.Context()); r.Relay == nil || r.Relay.PublishedTotal != 0 {
		t.Errorf("the second relay published: %+v", r.Relay)
	}
}

func TestAnIdleRelaySaysThatTheBrokerIsThere(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	_, life := o.start(o.cfg)
	life.becomes("BrokerReachable", "True Reachable")
	life.becomes("DatabaseReachable", "True Reachable")
	life.becomes("SchemaReady", "True SchemaCurrent")
}

func TestARelayTakesANewConfigOverInPlace(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	relay, life := o.start(o.cfg)
	o.write(10)
	o.published(10)

	drained := o.cfg
	drained.RunPolicy, drained.Resource.Generation = config.RunPolicyDrain, 2
	if err := relay.Reconfigure(drained); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, "all shards are given back", func() bool { return o.held() == 0 })

	longer := o.cfg
	longer.Lease, longer.Resource.Generation = config.Duration(20*time.Second), 3
	if err := relay.Reconfigure(longer); err != nil {
		t.Fatal(err)
	}
	o.write(10)
	o.published(20)
	if r := life.report(t.Context()); r.Generation != 3 || r.RunPolicy != config.RunPolicyRun {
		t.Errorf("report = %+v", r)
	}

	fewer := longer
	fewer.Outbox.Shards, fewer.Resource.Generation = 2, 4
	if err := relay.Reconfigure(fewer); err != nil {
		t.Fatal(err)
	}
	life.becomes("SchemaReady", "False SchemaInvalid")
	if err := relay.Reconfigure(longer); err != nil {
		t.Fatal(err)
	}
	o.write(10)
	o.published(30)

	other := longer
	other.Resource.Name = "other"
	if err := relay.Reconfigure(other); err == nil {
		t.Error("a process took another resource over")
	}
}

// P12: a database that may lose what it committed is told of.
func TestADatabaseThatMayLoseCommitsIsTold(t *testing.T) {
	t.Parallel()
	o := newOrders(t, testkit.OwnDatabase(map[string]string{"synchronous_commit": "off"}))
	_, life := o.start(o.cfg)
	life.becomes("NonDurableDatabase", "True SettingsOff")
	life.becomes("DatabaseReachable", "True Reachable")
	if !o.log.Contains("synchronous_commit = off") {
		t.Error("the log does not name the setting")
	}
}

// A9: a broker that answers near the publish timeout is told of, before what it takes too long for is in doubt.
func TestASlowBrokerIsTold(t *testing.T) {
	t.Parallel()
	const timeout, oneWay = 4 * time.Second, 1100 * time.Millisecond
	o := newOrders(t)
	way := testkit.Proxy(t, o.broker.Addr())
	nats := *o.cfg.NATS
	nats.Servers = []string{"nats://" + way.Addr()}
	o.cfg.NATS, o.cfg.Batch.PublishTimeout, o.cfg.Lease = &nats, config.Duration(timeout), config.Duration(3*timeout)
	_, life := o.start(o.cfg)
	o.write(1)
	o.published(1)
	way.Delay(oneWay)
	for n := 2; n <= 5; n++ {
		o.write(1)
		o.published(n)
	}
	life.becomes("PublishSlow", "True NearTimeout")
	life.becomes("BrokerReachable", "True Reachable")
}
