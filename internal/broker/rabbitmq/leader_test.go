package rabbitmq

import (
	"context"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// A quorum queue loses its leader: the broker takes messages for it and answers nothing. They are unknown, neither
// confirmed nor refused, and come again in order when there is a leader.
func TestAQuorumQueueWithoutALeaderConfirmsNothing(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	channel := server.Channel()
	if err := channel.ExchangeDeclare(testExchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	quorum := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	if _, err := channel.QueueDeclare(testQueue, true, false, false, false, quorum); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(testQueue, "#", testExchange, false, nil); err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, testConfig(t, server, server.Addr()), PublisherConfig{
		Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify,
	})
	first := brokertest.Message("order-7", 1)
	want(t, "with a leader", publish(t, p, first)[0], broker.Confirmed, "")

	leader := func(do string) {
		t.Helper()
		server.MustEval(fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup({resource, <<"%s">>, queue, <<"%s">>}), `+
			`ok = ra:%s(quorum_queues, amqqueue:get_pid(Q))`, server.VirtualHost, testQueue, do))
	}
	leader("stop_server")
	batch := []message.Message{
		brokertest.Message("order-7", 2), brokertest.Message("order-7", 3), brokertest.Message("order-8", 1),
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		got := p.Publish(ctx, batch)
		cancel()
		for i, c := range got {
			if c.Outcome != broker.Unknown && c.Outcome != broker.Unavailable {
				t.Errorf("message %d without a leader: %+v", i, c)
			}
		}
	}

	leader("restart_server")
	brokertest.PublishAll(t, p, batch...)
	brokertest.WantInOrder(t, stored(t, server), append([]message.Message{first}, batch...), true)
}

// An exchange of another kind, or with other arguments, is somebody's: it is used as it is.
func TestAnExchangeThatWasMadeOtherwiseIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQ(t)
	channel := server.Channel()
	if err := channel.ExchangeDeclare(testExchange, amqp.ExchangeFanout, true, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(testQueue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(testQueue, "", testExchange, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, topology := range []Topology{Verify, Declare} {
		p := newPublisher(t, testConfig(t, server, server.Addr()), PublisherConfig{
			Exchange: testExchange, RoutingKey: testRoutingKey, Topology: topology,
		})
		want(t, string(topology), publish(t, p, brokertest.Message("a", 1))[0], broker.Confirmed, "")
		if _, err := p.Check(t.Context()); err != nil {
			t.Errorf("%s: Check() = %v", topology, err)
		}
	}
	if got := stored(t, server); len(got) != 2 {
		t.Errorf("%d messages in the queue, want 2", len(got))
	}
}

// A12: neither goroutines nor sockets.
func TestReconnectsLeaveNothingBehind(t *testing.T) { //nolint:paralleltest // counts what the process holds
	server := testkit.RabbitMQ(t)
	declare(t, server)
	proxy := testkit.Proxy(t, server.Addr())
	cfg := testConfig(t, server, proxy.Addr())
	p := newPublisher(t, cfg, PublisherConfig{Exchange: testExchange, RoutingKey: testRoutingKey, Topology: Verify})
	r := newReceiver(t, cfg, ReceiverConfig{Queue: testQueue, Prefetch: 10})
	through := func() {
		t.Helper()
		brokertest.PublishAll(t, p, brokertest.Message("a", 1))
		for _, d := range next(t, r, 1) {
			_ = d.Ack(t.Context()) // its connection may be gone
		}
	}
	through()
	shrinks := testkit.Footprint(t)
	for range 30 {
		proxy.Reset()
		through()
	}
	shrinks(10)
}
