package pipeline_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// slow is for a broker's first connection on a busy machine.
const slow = config.Duration(5 * time.Second)

// elsewhere runs a relay to another broker than NATS: each committed row is published at a position of that broker.
func (o *orders) elsewhere(prefix string, change func(*config.Relay)) {
	o.t.Helper()
	cfg := o.cfg
	cfg.NATS = nil
	cfg.Lease, cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	change(&cfg)
	_, life := o.start(cfg)
	o.write(90)
	o.published(90)
	for _, position := range testkit.Values[string](o.db, "SELECT broker_position FROM message_outbox_published") {
		if !strings.HasPrefix(position, prefix) {
			o.t.Fatalf("a row is published at %q, want %s…", position, prefix)
		}
	}
	if err := life.drain(); err != nil {
		o.t.Errorf("Run() = %v", err)
	}
}

// toKafka is the configuration of a relay to a topic, over plain connections.
func (o *orders) toKafka(topic string, addresses ...string) config.Relay {
	cfg := o.cfg
	cfg.NATS = nil
	cfg.Lease, cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	cfg.Kafka = &config.Kafka{
		BootstrapServers: addresses, Topic: topic, TLS: config.TLS{Mode: config.TLSInsecure}, Compression: "None",
	}
	return cfg
}

func TestARelayPublishesToKafka(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	server := testkit.Kafka(t)
	topic := server.Topic(3, nil)
	user, password := server.User()
	o.elsewhere(topic+"/", func(cfg *config.Relay) {
		cfg.Kafka = &config.Kafka{
			BootstrapServers: []string{server.SASLAddr()},
			Mechanism:        "ScramSHA512",
			CredentialsDir:   testkit.SecretDir(t, user, password),
			TLS:              config.TLS{Mode: config.TLSVerifyFull, CAFile: server.PKI().CA},
			Topic:            topic,
			Compression:      "Zstd",
		}
	})
	o.arrived(inTopic(server, topic))
}

func TestARelaySaysThatItsTopicHasOtherPartitions(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	server := testkit.Kafka(t)
	topic := server.Topic(2, nil)
	_, life := o.start(o.toKafka(topic, server.Addr()))
	o.write(9)
	o.published(9)
	const told = "PartitionCountChanged"
	if got, ok := life.condition(told); ok {
		t.Errorf("before: %+v", got)
	}
	server.SetPartitions(topic, 7)
	life.becomes(told, "True KeysMoved")
	if got, _ := life.condition(told); !strings.HasPrefix(got.Message, "topic "+topic+" has 7 partitions and had 2: ") {
		t.Errorf("it is told as %q", got.Message)
	}
	o.write(90)
	o.published(99)
	if n := testkit.Value[int](o.db, `SELECT max(n) FROM (SELECT count(*) FILTER (WHERE at <> before) AS n FROM (
		SELECT ordering_key, split_part(broker_position, '@', 1) AS at, lag(split_part(broker_position, '@', 1))
		  OVER (PARTITION BY ordering_key ORDER BY aggregate_version) AS before FROM message_outbox_published) x
		GROUP BY ordering_key) y`); n != 1 {
		t.Errorf("a key has moved %d times, want once", n)
	}
	if err := life.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// arrived checks that exactly the events of the archive are among those at the broker. More than once is lawful: a broker
// may be too slow for an answer, on a busy machine too.
func (o *orders) arrived(events []string) {
	o.t.Helper()
	committed := testkit.Values[string](o.db, "SELECT event_id::text FROM message_outbox_published ORDER BY 1")
	slices.Sort(events)
	if got := slices.Compact(events); !slices.Equal(got, committed) {
		o.t.Errorf("%d events are at the broker, want the %d that were committed", len(got), len(committed))
	}
}

// inTopic returns the ids of the events in a topic.
func inTopic(server *testkit.KafkaBroker, topic string) []string {
	var events []string
	for _, r := range server.Records(topic) {
		for _, h := range r.Headers {
			if h.Key == message.HeaderEventID {
				events = append(events, string(h.Value))
			}
		}
	}
	return events
}

// inQueue takes what is in a queue, and returns the ids of the events.
func inQueue(t *testing.T, channel *amqp.Channel, queue string) []string {
	t.Helper()
	var events []string
	for {
		d, more, err := channel.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return events
		}
		events = append(events, d.MessageId)
	}
}

// through is how long the whole way may take on a busy machine, with a dead process whose partitions wait for its session
// to end.
const through = 4 * time.Minute

// effects waits until so many effects are there.
func (b *billing) effects(want int) {
	b.t.Helper()
	testkit.Eventually(b.t, through, strconv.Itoa(want)+" effects are there", func() bool {
		return testkit.Value[int](b.db, "SELECT count(*) FROM effect") >= want
	})
}

// fromKafka makes the tables and reads the topic instead of a stream, without the help of versions.
func (b *billing) fromKafka(server *testkit.KafkaBroker, topic string) {
	b.t.Helper()
	b.tables()
	b.db.Exec(`ALTER TABLE effect ADD COLUMN at bigint GENERATED ALWAYS AS IDENTITY`)
	user, password := server.User()
	b.cfg.NATS = nil
	b.cfg.Kafka = &config.Kafka{
		BootstrapServers: []string{server.SASLAddr()}, Mechanism: "ScramSHA512",
		CredentialsDir: testkit.SecretDir(b.t, user, password),
		TLS:            config.TLS{Mode: config.TLSVerifyFull, CAFile: server.PKI().CA},
		Topics:         []string{topic}, Group: topic, OffsetReset: config.OffsetResetFail,
	}
	b.cfg.Ordering.Versions = config.VersionsUnchecked
	b.cfg.Concurrency.Prefetch = 20
}

// inOrder checks that each effect came once, and those of a key in the order of their versions.
func (b *billing) inOrder(want int) {
	b.t.Helper()
	if n := testkit.Value[int](b.db, "SELECT count(*) FROM effect"); n != want {
		b.t.Errorf("%d effects, want %d", n, want)
	}
	if n := testkit.Value[int](b.db, `SELECT count(*) FROM (
		SELECT version, lag(version, 1, 0::bigint) OVER (PARTITION BY key ORDER BY at) AS before FROM effect) x
		WHERE version <> before + 1`); n != 0 {
		b.t.Errorf("%d effects are out of their key's order", n)
	}
	if n := testkit.Value[int](b.db, "SELECT count(*) FROM message_failure"); n != 0 {
		b.t.Errorf("%d dead letters", n)
	}
}

// G4, G5: from one table through Kafka into another, while consumers come, die and leave.
func TestMessagesGoThroughKafkaOnceAndInOrder(t *testing.T) {
	t.Parallel()
	for name, fencing := range map[string]bool{"as they come": false, "in transactions of their shards": true} {
		t.Run(name, func(t *testing.T) { t.Parallel(); throughKafka(t, fencing) })
	}
}

func throughKafka(t *testing.T, fencing bool) {
	t.Helper()
	server := testkit.Kafka(t)
	topic := server.Topic(6, nil)
	o := newOrders(t)
	relay := o.toKafka(topic, server.Addr())
	relay.Kafka.TransactionalFencing = fencing
	o.start(relay)
	b := newBilling(t)
	b.fromKafka(server, topic)

	first, firstLife := b.start()
	o.write(300)
	b.effects(20)
	_, second := b.start() // a rebalance while messages are under way
	written := 300
	testkit.Eventually(t, through, "the second has its share", func() bool {
		o.write(10) // until it has: what is there when it comes may all be the first one's
		written += 10
		r := second.report(t.Context())
		return r.Consumer != nil && r.Consumer.AppliedTotal > 0
	})
	o.write(300)
	written += 300
	first.Kill()
	if err := firstLife.end(); err == nil {
		t.Error("Run() = nil after Kill")
	}
	_, third := b.start()
	b.effects(written)
	if err := second.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	o.write(90)
	written += 90
	b.effects(written)
	third.becomes("SourceReachable", "True Reachable")
	testkit.Eventually(t, through, "nothing is left in the topic", func() bool {
		r := third.report(t.Context())
		return r.Consumer != nil && r.Consumer.Lag != nil && r.Consumer.Lag.Messages == 0
	})
	if r := third.report(t.Context()); r.Consumer.Source != "kafka/"+topic {
		t.Errorf("source %q", r.Consumer.Source)
	}
	b.inOrder(written)
}

func TestAConsumerTellsWhatIsWrongWithItsTopic(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	b := newBilling(t)
	b.fromKafka(server, topic)
	there := b.cfg.Kafka.Topics
	b.cfg.Kafka.Topics = []string{topic + "-later"}
	c, life := b.start()
	life.becomes("SourceReachable", "False StreamMissing")
	changed := b.cfg
	kafka := *b.cfg.Kafka
	kafka.Topics = there
	changed.Kafka, changed.Resource.Generation = &kafka, 2
	if err := c.Reconfigure(changed); err != nil {
		t.Fatal(err)
	}
	life.becomes("SourceReachable", "True Reachable")
}

// rabbit reaches the virtual host over TLS.
func rabbit(t *testing.T, server *testkit.RabbitBroker) config.RabbitMQ {
	t.Helper()
	user, password := server.User()
	return config.RabbitMQ{
		Hosts:          []string{server.TLSAddr()},
		VirtualHost:    server.VirtualHost,
		CredentialsDir: testkit.SecretDir(t, user, password),
		TLS:            config.TLS{Mode: config.TLSVerifyFull, CAFile: server.PKI().CA},
		Topology:       config.TopologyVerify,
	}
}

// exchange makes the exchange that relays publish to, and returns a channel beside theirs.
func exchange(t *testing.T, server *testkit.RabbitBroker) *amqp.Channel {
	t.Helper()
	channel := server.Channel()
	if err := channel.ExchangeDeclare("shop", amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return channel
}

func TestARelayPublishesToRabbitMQ(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	server := testkit.RabbitMQ(t)
	channel := exchange(t, server)
	if _, err := channel.QueueDeclare("orders", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind("orders", "orders.#", "shop", false, nil); err != nil {
		t.Fatal(err)
	}
	o.elsewhere("shop/orders.events#", func(cfg *config.Relay) {
		to := rabbit(t, server)
		to.Exchange, to.RoutingKey = "shop", "orders.events"
		cfg.RabbitMQ = &to
	})
	o.arrived(inQueue(t, channel, "orders"))
}

// What one service writes through RabbitMQ another applies, once each and in order per key, though its consumer dies on
// the way.
func TestWhatIsWrittenIsAppliedThroughRabbitMQ(t *testing.T) {
	t.Parallel()
	for name, ordering := range map[string]config.Ordering{
		"in the order of versions": {Versions: config.VersionsEnforce, Delivery: config.DeliveryShared},
		"in the queue's order":     {Versions: config.VersionsIgnoreOlder, Delivery: config.DeliverySingleActive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.RabbitMQ(t)
			channel := exchange(t, server)
			b := newBilling(t)
			b.tables()
			b.db.Exec("ALTER TABLE effect ADD COLUMN at bigint GENERATED ALWAYS AS IDENTITY")
			from := rabbit(t, server)
			from.Topology, from.Queue = config.TopologyDeclare, "billing"
			from.Bindings = []config.Binding{{Exchange: "shop", RoutingKey: "orders.#"}}
			b.cfg.NATS, b.cfg.RabbitMQ = nil, &from
			b.cfg.Ordering.Versions, b.cfg.Ordering.Delivery = ordering.Versions, ordering.Delivery
			b.cfg.Concurrency.Prefetch, b.cfg.Concurrency.MaxBatchMessages = 40, 10
			first, life := b.start()
			life.becomes("SourceReachable", "True Reachable")

			o := newOrders(t)
			to := rabbit(t, server)
			to.Exchange, to.RoutingKey = "shop", "orders.events"
			cfg := o.cfg
			cfg.NATS, cfg.RabbitMQ = nil, &to
			cfg.Lease, cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
			o.start(cfg)
			o.write(300)
			b.effects(20)
			first.Kill()
			if err := life.end(); err == nil {
				t.Error("Run() = nil after Kill")
			}
			_, second := b.start()
			o.write(60)
			b.effects(360)
			b.inOrder(360)
			testkit.Eventually(t, through, "nothing is left in the queue", func() bool {
				r := second.report(t.Context()).Consumer
				return r != nil && r.Source == "rabbitmq/billing" && r.Lag != nil && r.Lag.Messages == 0
			})
			if err := second.drain(); err != nil {
				t.Errorf("Run() = %v", err)
			}
			testkit.Eventually(t, through, "the queue is left without messages and consumers", func() bool {
				queue, err := channel.QueueDeclarePassive("billing", true, false, false, false, nil)
				if err != nil {
					t.Fatal(err)
				}
				return queue.Messages == 0 && queue.Consumers == 0 // the node notices the end of a connection by itself
			})
		})
	}
}
