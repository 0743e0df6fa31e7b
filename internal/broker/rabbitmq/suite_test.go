package rabbitmq

import (
	"context"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// The test's exchange, the queue that keeps what it is sent under its bindings, and the relay's own routing key.
const (
	testExchange   = "events"
	testQueue      = "all"
	testRoutingKey = "orders.events"
)

// testConfig reaches the virtual host at the address.
func testConfig(t *testing.T, server *testkit.RabbitBroker, address string) Config {
	t.Helper()
	user, password := server.User()
	return Config{
		Hosts: []string{address}, VirtualHost: server.VirtualHost, TLS: endpoint.TLS{Mode: endpoint.Insecure},
		CredentialsDir: testkit.SecretDir(t, user, password), Name: "test",
	}
}

// declare makes the exchange, and the queue with a binding for all of orders.
func declare(t *testing.T, server *testkit.RabbitBroker) {
	t.Helper()
	channel := server.Channel()
	if err := channel.ExchangeDeclare(testExchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(testQueue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(testQueue, "orders.#", testExchange, false, nil); err != nil {
		t.Fatal(err)
	}
	server.Sync()
}

func newPublisher(t *testing.T, cfg Config, publish PublisherConfig) *Publisher {
	t.Helper()
	p, err := NewPublisher(cfg, publish)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.WithoutCancel(t.Context())) })
	return p
}

// stored looks at the queue and leaves everything in it: what is not acknowledged goes back to its place.
func stored(t *testing.T, server *testkit.RabbitBroker) []brokertest.Stored {
	t.Helper()
	channel := server.Channel()
	var all []brokertest.Stored
	for {
		got, ok, err := channel.Get(testQueue, false)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		rec := message.Record{Body: got.Body}
		for name, value := range got.Headers {
			text, _ := value.(string)
			rec.Headers = append(rec.Headers, message.Header{Name: name, Value: text})
		}
		all = append(all, brokertest.Stored{
			Sequence: uint64(len(all)), Destination: got.RoutingKey, Record: rec,
		})
	}
	if err := channel.Close(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRabbitMQPublisherKeepsTheContract(t *testing.T) {
	t.Parallel()
	brokertest.RunPublisher(t, func(t *testing.T) *brokertest.Subject {
		t.Helper()
		s, _, _ := newSubject(t)
		return s
	})
}

// newSubject is the suite's view of one queue, with its server and the configuration of clients. They go through a
// proxy, the test's own do not. Only the cases that kill a server get one of their own.
func newSubject(t *testing.T) (*brokertest.Subject, *testkit.RabbitBroker, Config) {
	t.Helper()
	var server *testkit.RabbitBroker
	own := strings.Contains(t.Name(), "killed")
	if own {
		server = testkit.RabbitMQServer(t, brokers.RabbitMQConfig{})
	} else {
		server = testkit.RabbitMQ(t)
	}
	declare(t, server)
	proxy := testkit.Proxy(t, server.Addr())
	cfg := testConfig(t, server, proxy.Addr())
	formatted := func(t *testing.T, format message.Format) broker.Publisher {
		t.Helper()
		return newPublisher(t, cfg, PublisherConfig{
			Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify,
			Allowed: []string{"orders.*", "nobody.*"}, Format: format,
		})
	}
	s := &brokertest.Subject{
		Allowed:    "orders.eu",
		Unroutable: "nobody.eu",
		Refusing:   func(*testing.T) string { return "nobody.eu" },
		MaxPayload: 1 << 20,
		Publisher:  func(t *testing.T) broker.Publisher { t.Helper(); return formatted(t, message.Native) },
		Formatted:  formatted,
		Stored: func(t *testing.T) []brokertest.Stored {
			t.Helper()
			return stored(t, server)
		},
		Silence:    proxy.HalfOpen,
		Slow:       proxy.Delay,
		Restore:    proxy.Resume,
		Cut:        proxy.Reset,
		LoseAnswer: proxy.LoseAnswer,
	}
	if own {
		s.MayKill(server)
	}
	return s, server, cfg
}
