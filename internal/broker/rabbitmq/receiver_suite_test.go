package rabbitmq

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/test/testkit"
)

// farewell is for the last words of a receiver on a busy machine.
const farewell = 20 * time.Second

func newReceiver(t *testing.T, cfg Config, receive ReceiverConfig) *Receiver {
	t.Helper()
	if receive.Topology == "" {
		receive.Topology = Verify
	}
	receive.FirstPause, receive.LongestPause = 10*time.Millisecond, 200*time.Millisecond
	r, err := NewReceiver(t.Context(), cfg, receive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, r) })
	return r
}

// closeWithin closes a receiver also after the test's own context has ended.
func closeWithin(t *testing.T, r *Receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), farewell)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		t.Logf("closing: %v", err) // the server may be cut off
	}
}

// queue makes a queue that gets all of orders.
func queue(t *testing.T, server *testkit.RabbitBroker, name string, arguments amqp.Table) {
	t.Helper()
	channel := server.Channel()
	if _, err := channel.QueueDeclare(name, true, false, false, false, arguments); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(name, "orders.#", testExchange, false, nil); err != nil {
		t.Fatal(err)
	}
}

func TestRabbitMQReceiverKeepsTheContract(t *testing.T) {
	t.Parallel()
	for kind, arguments := range map[string]amqp.Table{"quorum": QueueArguments(false), "classic": nil} {
		t.Run("a "+kind+" queue", func(t *testing.T) {
			t.Parallel()
			brokertest.RunReceiver(t, func(t *testing.T) *brokertest.Subject {
				t.Helper()
				s, server, cfg := newSubject(t)
				s.Unnumbered, s.TellsRedelivery = true, kind == "classic"
				for _, durable := range []string{"d", "one", "two"} {
					queue(t, server, durable, arguments)
				}
				server.Sync()
				s.Receiver = func(t *testing.T, durable string, prefetch int) brokertest.Receiver {
					t.Helper()
					r := newReceiver(t, cfg, ReceiverConfig{Queue: durable, Prefetch: prefetch})
					return brokertest.Receiver{Receiver: r, Close: func() { closeWithin(t, r) }, Crash: r.Kill}
				}
				return s
			})
		})
	}
}
