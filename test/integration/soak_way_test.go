package integration

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/kafka"
	"github.com/postrider/postrider/internal/broker/rabbitmq"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// carrier is a broker of a line's own.
type carrier struct {
	name   string
	server killable
	// proxy is between the workers and the broker; nil where the broker names its own address to its clients.
	proxy *testkit.Faulty
}

// newLine makes a bank on the databases' servers whose messages go over the broker that prepare chooses.
func newLine(t *testing.T, databases *databases, prepare func(*testing.T, bankOptions) (*bank, carrier)) *line {
	t.Helper()
	b, broker := prepare(t, bankOptions{
		orders:  []testkit.PostgresOption{testkit.OnServer(databases.orders.Postgres), testkit.OwnDatabase(nil)},
		billing: []testkit.PostgresOption{testkit.OnServer(databases.billing.Postgres), testkit.OwnDatabase(nil)},
	})
	return &line{bank: b, carrier: broker, databases: databases}
}

func overNATS(t *testing.T, o bankOptions) (*bank, carrier) {
	t.Helper()
	o.broker = testkit.NATSServer(t, local.NATSConfig{})
	b := newBank(t, o)
	proxy := testkit.Proxy(t, o.broker.Addr())
	b.relay.NATS.Servers = []string{"nats://" + proxy.Addr()}
	b.consumer.NATS.Servers = b.relay.NATS.Servers
	b.js = o.broker.JetStream(nats.MaxReconnects(-1))
	return b, carrier{name: "over NATS", server: o.broker.Server, proxy: proxy}
}

func overKafka(t *testing.T, o bankOptions) (*bank, carrier) {
	t.Helper()
	server := testkit.KafkaServer(t, brokers.KafkaConfig{})
	b := newBank(t, o)
	insecure := config.TLS{Mode: config.TLSInsecure}
	topic := server.Topic(4, nil)
	b.relay.NATS, b.relay.Kafka = nil, &config.Kafka{
		BootstrapServers: []string{server.Addr()}, TLS: insecure, Topic: topic, Compression: "None",
	}
	b.consumer.NATS, b.consumer.Kafka = nil, &config.Kafka{
		BootstrapServers: []string{server.Addr()}, TLS: insecure, Topics: []string{topic}, Group: topic,
		OffsetReset: config.OffsetResetFail,
	}
	b.consumer.Ordering.Versions = config.VersionsUnchecked
	b.way = way{
		look: func(r *verify.Relay, c *verify.Consumer) {
			r.Stream = verify.Stream{Kafka: kafkaReader(t, server.Addr(), topic), Name: "topic " + topic}
			c.Stream, c.Durable = r.Stream, topic
		},
		done: func() bool {
			lags, err := server.Admin().Lag(t.Context(), topic)
			group := lags[topic]
			return err == nil && group.Error() == nil && group.Lag.Total() == 0
		},
	}
	return b, carrier{name: "over Kafka", server: server.Kafka}
}

func kafkaReader(t *testing.T, addr, topic string) *kafka.Reader {
	t.Helper()
	reader, err := kafka.NewReader(kafka.Config{
		BootstrapServers: []string{addr}, Name: "soak", TLS: endpoint.TLS{Mode: endpoint.Insecure},
	}, []string{topic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	return reader
}

func overRabbitMQ(t *testing.T, o bankOptions) (*bank, carrier) {
	t.Helper()
	server := testkit.RabbitMQServer(t, brokers.RabbitMQConfig{})
	b := newBank(t, o)
	proxy := testkit.Proxy(t, server.Addr())
	user, password := server.User()
	reach := config.RabbitMQ{
		Hosts: []string{proxy.Addr()}, VirtualHost: server.VirtualHost, Topology: config.TopologyVerify,
		CredentialsDir: testkit.SecretDir(t, user, password), TLS: config.TLS{Mode: config.TLSInsecure},
	}
	const exchange, queue = "bank", "billing"
	declareQueue(t, server, exchange, queue)
	to, from := reach, reach
	to.Exchange, to.RoutingKey = exchange, "sales"
	from.Queue = queue
	b.relay.NATS, b.relay.RabbitMQ = nil, &to
	b.consumer.NATS, b.consumer.RabbitMQ = nil, &from
	waiting := func(ctx context.Context) (int64, error) {
		return rabbitmq.Waiting(ctx, rabbitmq.Config{
			Hosts: reach.Hosts, VirtualHost: reach.VirtualHost, CredentialsDir: reach.CredentialsDir, Name: "soak",
			TLS: endpoint.TLS{Mode: endpoint.Insecure},
		}, queue)
	}
	b.way = way{
		look: func(r *verify.Relay, c *verify.Consumer) {
			r.Stream = verify.Stream{Unreadable: "RabbitMQ shows nobody what it holds"}
			c.Queue = &verify.Queue{
				Name: queue, Waiting: waiting, Bindings: []verify.Binding{{Exchange: exchange, RoutingKey: "#"}},
				Outboxes: []verify.Outbox{{Pool: r.Pool, Tables: r.Tables}},
			}
		},
		done: func() bool {
			n, err := waiting(t.Context())
			return err == nil && n == 0
		},
		partly: true,
	}
	return b, carrier{name: "over RabbitMQ", server: server.RabbitMQ, proxy: proxy}
}

// declareQueue makes an exchange and a quorum queue that gets all of it.
func declareQueue(t *testing.T, server *testkit.RabbitBroker, exchange, queue string) {
	t.Helper()
	channel := server.Channel()
	if err := channel.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	_, err := channel.QueueDeclare(queue, true, false, false, false, rabbitmq.QueueArguments(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(queue, "#", exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	server.Sync()
}
