package pipeline_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/test/testkit"
)

// rows returns a digest of each table of the place, but of those that say which process holds what.
func rows(db *testkit.DB) map[string]string {
	digests := make(map[string]string)
	for _, table := range testkit.Values[string](db,
		`SELECT tablename::text FROM pg_tables WHERE schemaname = $1`, db.Schema) {
		held := strings.HasSuffix(table, "_lease") || strings.HasSuffix(table, "_member") ||
			strings.HasSuffix(table, "_owner")
		digests[table] = "is there"
		if !held {
			digests[table] = testkit.Value[string](db, fmt.Sprintf(
				`SELECT count(*) || ' rows ' || md5(coalesce(string_agg(t::text, ' ' ORDER BY t::text), '')) FROM %q t`,
				table,
			))
		}
	}
	return digests
}

// declareNATS has the relay make the stream and the consumer its durable. The returned function says what is there.
func declareNATS(t *testing.T, o *orders, b *billing) func() string {
	t.Helper()
	stream := testkit.Stream{Name: "END_" + o.db.Schema, Prefix: o.db.Schema}
	to := o.broker.Config(stream)
	to.Topology = config.TopologyDeclare
	from := to
	from.Subject, from.Durable = "", "billing"
	o.cfg.NATS, b.cfg.NATS = &to, &from
	js := o.broker.JetStream()
	t.Cleanup(func() { _ = js.DeleteStream(context.WithoutCancel(t.Context()), stream.Name) })
	return func() string {
		held, err := js.Stream(t.Context(), stream.Name)
		if err != nil {
			return err.Error()
		}
		durable, err := held.Consumer(t.Context(), "billing")
		if err != nil {
			return err.Error()
		}
		how, err := json.Marshal([]any{held.CachedInfo().Config, durable.CachedInfo().Config})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d wait, %d stored, %s", durable.CachedInfo().NumPending, held.CachedInfo().State.Msgs, how)
	}
}

// declareRabbitMQ has the relay make the exchange, and the consumer its queue with a binding.
func declareRabbitMQ(t *testing.T, o *orders, b *billing) func() string {
	t.Helper()
	server := testkit.RabbitMQ(t)
	to := rabbit(t, server)
	to.Topology, to.Exchange, to.RoutingKey = config.TopologyDeclare, "shop", "orders.events"
	o.cfg.NATS, o.cfg.RabbitMQ = nil, &to
	from := rabbit(t, server)
	from.Topology, from.Queue = config.TopologyDeclare, "billing"
	from.Bindings = []config.Binding{{Exchange: "shop", RoutingKey: "orders.#"}}
	b.cfg.NATS, b.cfg.RabbitMQ = nil, &from
	channel := server.Channel()
	return func() string {
		queue, err := channel.QueueDeclarePassive("billing", true, false, false, false, nil)
		if err == nil {
			err = channel.ExchangeDeclarePassive("shop", amqp.ExchangeTopic, true, false, false, false, nil)
		}
		return fmt.Sprintf("%d wait, %v", queue.Messages, err)
	}
}

// L23: where a resource is deleted, its processes are told to end and do not come back. Of what they have made and moved,
// at the broker and in both databases, all stays as it is; and whoever takes its place goes on from there.
func TestAnEndForGoodDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, declare := range map[string]func(*testing.T, *orders, *billing) func() string{
		"NATS": declareNATS, "RabbitMQ": declareRabbitMQ,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); endForGood(t, declare) })
	}
}

func endForGood(t *testing.T, declare func(*testing.T, *orders, *billing) func() string) {
	t.Helper()
	o, b := newOrders(t), newBilling(t)
	b.tables()
	atBroker := declare(t, o, b)
	o.cfg.Lease, o.cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	_, relaying := o.start(o.cfg)
	relaying.becomes("BrokerReachable", "True Reachable")
	_, consuming := b.start()
	consuming.becomes("SourceReachable", "True Reachable")
	o.write(30)
	b.effects(30)

	applied := rows(b.db)
	if err := consuming.drain(); err != nil {
		t.Errorf("the consumer's Run() = %v", err)
	}
	if diff := cmp.Diff(applied, rows(b.db)); diff != "" {
		t.Errorf("the consumer's database at its end (-before +after):\n%s", diff)
	}
	o.write(20) // nobody consumes them: what the consumer has made has to be there still, to keep them
	o.published(50)
	if err := relaying.drain(); err != nil {
		t.Errorf("the relay's Run() = %v", err)
	}
	var there string
	testkit.Eventually(t, patience, "the broker holds what nobody has consumed", func() bool {
		there = atBroker()
		return strings.HasPrefix(there, "20 wait")
	})

	idle := o.cfg
	idle.RunPolicy = config.RunPolicyPause // so that rows wait at the end
	_, idling := o.start(idle)
	testkit.Eventually(t, patience, "the relay that is paused holds its shards", func() bool { return o.held() == 4 })
	o.write(10)
	waiting := rows(o.db)
	if err := idling.drain(); err != nil {
		t.Errorf("the paused relay's Run() = %v", err)
	}
	if diff := cmp.Diff(waiting, rows(o.db)); diff != "" {
		t.Errorf("the relay's database at its end (-before +after):\n%s", diff)
	}
	if after := atBroker(); after != there {
		t.Errorf("at the broker there was %s\nand after the end %s", there, after)
	}

	o.start(o.cfg)
	b.start()
	b.effects(60)
}
