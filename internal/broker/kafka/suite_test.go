package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// testConfig reaches the server, by way of the proxy where there is one.
func testConfig(server *testkit.KafkaBroker, proxy *testkit.Faulty) Config {
	cfg := Config{
		BootstrapServers: []string{server.Addr()}, TLS: endpoint.TLS{Mode: endpoint.Insecure}, Name: "test",
	}
	if proxy != nil {
		cfg.redirect = func(string) string { return proxy.Addr() }
	}
	return cfg
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

// stored reads what is in topics now.
func stored(t *testing.T, server *testkit.KafkaBroker, names ...string) []brokertest.Stored {
	t.Helper()
	records := server.Records(names...)
	all := make([]brokertest.Stored, len(records))
	for i, r := range records {
		all[i] = brokertest.Stored{Sequence: uint64(r.Offset), Destination: r.Topic, Record: recordOf(r)}
	}
	return all
}

// suiteServer is the shared server. Only the cases that kill one get a server of their own.
func suiteServer(t *testing.T) (server *testkit.KafkaBroker, own bool) {
	t.Helper()
	if strings.Contains(t.Name(), "killed") {
		return testkit.KafkaServer(t, brokers.KafkaConfig{}), true
	}
	return testkit.Kafka(t), false
}

func TestKafkaPublisherKeepsTheContract(t *testing.T) {
	t.Parallel()
	brokertest.RunPublisher(t, newSubject)
}

// newSubject is the suite's view of two topics. Clients go through a proxy, the test's own do not.
func newSubject(t *testing.T) *brokertest.Subject {
	t.Helper()
	server, own := suiteServer(t)
	events := server.Topic(3, nil)
	allowed := events + ".eu"
	server.CreateTopic(allowed, 1, nil)
	proxy := testkit.Proxy(t, server.Addr())
	cfg := testConfig(server, proxy)
	var made *Publisher
	formatted := func(t *testing.T, format message.Format) broker.Publisher {
		t.Helper()
		made = newPublisher(t, cfg, PublisherConfig{Topic: events, Allowed: []string{events + ".*"}, Format: format})
		return made
	}
	s := &brokertest.Subject{
		Allowed:    allowed,
		Unroutable: events + ".nobody",
		Refusing: func(t *testing.T) string {
			t.Helper()
			name := events + ".tiny"
			server.CreateTopic(name, 1, map[string]string{settingMaxBytes: "200"})
			// Else we refuse what the broker is to refuse.
			made.topics.keep(map[string]topic{name: {at: time.Now(), maxBytes: 1 << 20, partitions: 1}})
			return name
		},
		MaxPayload: 1 << 19,
		Resends:    true,
		Publisher:  func(t *testing.T) broker.Publisher { t.Helper(); return formatted(t, message.Native) },
		Formatted:  formatted,
		Stored: func(t *testing.T) []brokertest.Stored {
			t.Helper()
			return stored(t, server, events, allowed)
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
	return s
}
