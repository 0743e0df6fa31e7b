package rabbitmq

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// answerTime is for an answer on a busy machine.
const answerTime = 30 * time.Second

func publish(t *testing.T, p *Publisher, batch ...message.Message) []broker.Confirmation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	got := p.Publish(ctx, batch)
	if len(got) != len(batch) {
		t.Fatalf("%d answers to %d messages", len(got), len(batch))
	}
	return got
}

func want(t *testing.T, what string, got broker.Confirmation, outcome broker.Outcome, reason broker.Reason) {
	t.Helper()
	if got.Outcome != outcome || got.Reason != reason {
		t.Errorf("%s: %s %s (%s), want %s %s", what, got.Outcome, got.Reason, got.Detail, outcome, reason)
	}
}

func to(destination string) message.Message {
	m := brokertest.Message("key-"+destination, 1)
	m.Destination = destination
	return m
}

// One bad destination closes the channel it is sent on: its neighbours must not be under way there.
func TestABadDestinationTakesNoNeighbourDown(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	declare(t, server)
	p := newPublisher(t, testConfig(t, server, server.Addr()), PublisherConfig{
		Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify,
		Allowed: []string{"orders.*", "nobody.*", "gone/orders.*", "amq.topic/orders.>"},
	})
	got := publish(t, p, to(""), to("gone/orders.eu"), to("orders.eu"), to("nobody.eu"), to("amq.topic/orders.eu"),
		to("orders.us"))
	for i, c := range []struct {
		outcome broker.Outcome
		reason  broker.Reason
	}{
		{broker.Confirmed, ""},
		{broker.Rejected, broker.ReasonUnroutable},
		{broker.Confirmed, ""},
		{broker.Rejected, broker.ReasonUnroutable},
		{broker.Rejected, broker.ReasonInvalidDestination},
		{broker.Confirmed, ""},
	} {
		want(t, "message "+string(rune('0'+i)), got[i], c.outcome, c.reason)
	}
}

func TestTheMissingExchangeIsAConditionWithItsCommand(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	cfg := testConfig(t, server, server.Addr())
	publishTo := PublisherConfig{Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify}
	p := newPublisher(t, cfg, publishTo)
	got := publish(t, p, to(""))[0]
	want(t, "a message", got, broker.Unavailable, broker.ReasonStreamMissing)
	if !strings.Contains(got.Detail, "rabbitmqadmin declare exchange name=events") {
		t.Errorf("detail %q", got.Detail)
	}
	_, err := p.Check(t.Context())
	if state, ok := errors.AsType[*broker.Error](err); !ok || state.Reason != broker.ReasonStreamMissing {
		t.Errorf("Check() error = %v", err)
	}
	publishTo.Topology = Declare
	want(t, "made by us, with no queue", publish(t, newPublisher(t, cfg, publishTo), to(""))[0],
		broker.Unavailable, broker.ReasonStreamMissing)
	declare(t, server) // fails where the exchange was made otherwise
	want(t, "with a queue", publish(t, p, to(""))[0], broker.Confirmed, "")
}

// L06: an exchange that was proven may go, as when a broker is set up anew. That is a state, and not the messages' fault.
func TestAnExchangeThatGoesAwayIsAState(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	declare(t, server)
	p := newPublisher(t, testConfig(t, server, server.Addr()), PublisherConfig{
		Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify,
	})
	want(t, "while it is there", publish(t, p, to(""))[0], broker.Confirmed, "")
	if err := server.Channel().ExchangeDelete(testExchange, false, false); err != nil {
		t.Fatal(err)
	}
	if got := publish(t, p, to(""))[0]; got.Outcome != broker.Unknown && got.Outcome != broker.Unavailable {
		t.Errorf("what was under way is %v %s, want it unknown or postponed", got.Outcome, got.Reason)
	}
	// The connection may have gone with the channel: until there is another one, that is what is told.
	testkit.Eventually(t, answerTime, "it is told", func() bool {
		got := publish(t, p, to(""))[0]
		if got.Outcome != broker.Unavailable && got.Outcome != broker.Unknown {
			t.Fatalf("without the exchange a message is %v %s", got.Outcome, got.Reason)
		}
		return got.Outcome == broker.Unavailable && got.Reason == broker.ReasonStreamMissing
	})
	declare(t, server)
	testkit.Eventually(t, answerTime, "messages flow when it is made again", func() bool {
		return publish(t, p, to(""))[0].Outcome == broker.Confirmed
	})
}

// The broker confirms what it drops since no queue is bound. Where that is the relay's own destination, no message is
// to blame, whether the destination was proven before or not; where a row names it, that row is.
func TestADestinationWithoutAQueueIsAState(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	declare(t, server)
	p := newPublisher(t, testConfig(t, server, server.Addr()), PublisherConfig{
		Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify, Allowed: []string{"nobody.*"},
	})
	want(t, "while a queue is bound", publish(t, p, to(""))[0], broker.Confirmed, "")
	channel := server.Channel()
	if err := channel.QueueUnbind(testQueue, "orders.#", testExchange, nil); err != nil {
		t.Fatal(err)
	}
	named := to(testRoutingKey)
	named.OrderingKey = "named"
	for range 2 { // first the destination is one that was proven, then one that has to be
		got := publish(t, p, to(""), named, to("nobody.eu"))
		for i, what := range []string{"a message", "a row that names the same"} {
			want(t, what, got[i], broker.Unavailable, broker.ReasonStreamMissing)
			if !strings.Contains(got[i].Detail, "declare binding source="+testExchange) {
				t.Errorf("detail %q", got[i].Detail)
			}
		}
		want(t, "a row that names another", got[2], broker.Rejected, broker.ReasonUnroutable)
		p.proven.forget()
	}
	if err := channel.QueueBind(testQueue, "orders.#", testExchange, false, nil); err != nil {
		t.Fatal(err)
	}
	want(t, "once it is bound again", publish(t, p, to(""))[0], broker.Confirmed, "")
	if got := stored(t, server); len(got) != 2 {
		t.Errorf("%d messages in the queue, want the two that are confirmed", len(got))
	}
}

func TestAFullQueueCountsNoAttempt(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	channel := server.Channel()
	if err := channel.ExchangeDeclare(testExchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(testQueue, true, false, false, false, amqp.Table{
		"x-max-length": 1, "x-overflow": "reject-publish",
	}); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(testQueue, "#", testExchange, false, nil); err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, testConfig(t, server, server.Addr()), PublisherConfig{
		Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify,
	})
	testkit.Eventually(t, answerTime, "the queue is full", func() bool {
		c := publish(t, p, brokertest.Message("a", 1))[0]
		if c.Outcome != broker.Confirmed {
			want(t, "a message", c, broker.Unavailable, broker.ReasonStreamFull)
		}
		return c.Outcome != broker.Confirmed
	})
}

// Q1: an alarm stops the broker from reading: what was not sent waits, nothing is rejected, and all flows again.
func TestABlockedBrokerIsAStateAndHeals(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQServer(t, brokers.RabbitMQConfig{})
	declare(t, server)
	p := newPublisher(t, testConfig(t, server, server.Addr()), PublisherConfig{
		Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify,
	})
	for _, alarm := range []struct{ resource, raise, clear string }{
		{
			"memory", "vm_memory_monitor:set_vm_memory_high_watermark(0.000001)",
			"vm_memory_monitor:set_vm_memory_high_watermark(0.8)",
		},
		{
			"disk", "rabbit_disk_monitor:set_disk_free_limit(1 bsl 60)",
			"rabbit_disk_monitor:set_disk_free_limit(1)",
		},
	} {
		want(t, "before the alarm of "+alarm.resource, publish(t, p, to(""))[0], broker.Confirmed, "")
		server.MustEval(alarm.raise)
		testkit.Eventually(t, answerTime, "there is an alarm of "+alarm.resource, func() bool {
			raised := server.MustEval("rabbit_alarm:get_alarms()")
			return strings.Contains(raised, "{resource_limit, "+alarm.resource+",")
		})
		testkit.Eventually(t, answerTime, "the broker is seen to be blocked by "+alarm.resource, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			blocked := false
			for _, c := range p.Publish(ctx, []message.Message{to(""), brokertest.Message("b", 1)}) {
				if c.Outcome == broker.Rejected || c.Outcome == broker.Ambiguous {
					t.Errorf("a message of a broker that %s blocks is %s %s", alarm.resource, c.Outcome, c.Reason)
				}
				blocked = blocked || c.Reason == broker.ReasonBlocked
			}
			return blocked
		})
		server.MustEval(alarm.clear)
		testkit.Eventually(t, answerTime, "messages flow again after "+alarm.resource, func() bool {
			return publish(t, p, to(""))[0].Outcome == broker.Confirmed
		})
	}
}

func TestLogins(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	declare(t, server)
	user, password := server.User()
	good, bad := testkit.SecretDir(t, user, password), testkit.SecretDir(t, user, "canary-4711")
	trust := endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: server.PKI().CA}
	mutual := trust
	mutual.ClientCertificateDir = server.PKI().ClientDir
	plain := endpoint.TLS{Mode: endpoint.Insecure}
	cases := map[string]struct {
		address, virtualHost, dir string
		tls                       endpoint.TLS
		outcome                   broker.Outcome
		reason                    broker.Reason
	}{
		"TLS":                  {server.TLSAddr(), server.VirtualHost, good, trust, broker.Confirmed, ""},
		"a client certificate": {server.TLSAddr(), server.VirtualHost, good, mutual, broker.Confirmed, ""},
		"an unknown authority": {
			server.TLSAddr(), server.VirtualHost, good,
			endpoint.TLS{Mode: endpoint.VerifyFull},
			broker.Unavailable, broker.ReasonTLSFailed,
		},
		"a wrong password": {
			server.Addr(), server.VirtualHost, bad, plain, broker.Unavailable, broker.ReasonAuthFailed,
		},
		"a Secret that is not there": {
			server.Addr(), server.VirtualHost, "/none", plain, broker.Unavailable, broker.ReasonNoCredentials,
		},
		"a virtual host that is not there": {
			server.Addr(), "nowhere", good, plain, broker.Unavailable, broker.ReasonPermissionDenied,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t, Config{
				Hosts: []string{tc.address}, VirtualHost: tc.virtualHost, CredentialsDir: tc.dir, TLS: tc.tls,
			}, PublisherConfig{Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify})
			got := publish(t, p, brokertest.Message("a", 1))[0]
			want(t, name, got, tc.outcome, tc.reason)
			if strings.Contains(got.Detail, "canary") {
				t.Errorf("the detail holds the password: %q", got.Detail)
			}
		})
	}
}
