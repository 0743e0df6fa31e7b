package testkit

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/test/brokers"
)

// RabbitBroker is a test's place on a real RabbitMQ: a virtual host of its own.
type RabbitBroker struct {
	*brokers.RabbitMQ

	// VirtualHost is the test's.
	VirtualHost string

	t testing.TB
}

// sharedRabbitMQ is the server of this test binary, started by the first test that asks. It ends with the process.
var sharedRabbitMQ = sync.OnceValues(func() (*brokers.RabbitMQ, error) {
	ctx, cancel := context.WithTimeout(context.Background(), firstStart)
	defer cancel()
	return brokers.StartRabbitMQ(ctx, brokers.RabbitMQConfig{})
})

// RabbitMQ gives the test a virtual host on the RabbitMQ of this test binary, deleted when the test ends.
func RabbitMQ(t testing.TB) *RabbitBroker {
	t.Helper()
	server, err := sharedRabbitMQ()
	if err != nil {
		t.Fatalf("starting RabbitMQ for tests: %v", err)
	}
	b := newVirtualHost(t, server)
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		if _, err := server.Eval(
			ctx,
			fmt.Sprintf(`rabbit_vhost:delete(<<"%s">>, <<"test">>)`, b.VirtualHost),
		); err != nil {
			t.Errorf("deleting the virtual host: %v", err)
		}
	})
	return b
}

// RabbitMQServer starts a RabbitMQ for this test alone, which may be killed and restarted.
func RabbitMQServer(t testing.TB, cfg brokers.RabbitMQConfig) *RabbitBroker {
	t.Helper()
	server, err := brokers.StartRabbitMQ(t.Context(), cfg)
	if err != nil {
		t.Fatalf("starting RabbitMQ: %v", err)
	}
	t.Cleanup(func() { stopWithin(t, server.Stop) })
	return newVirtualHost(t, server)
}

func newVirtualHost(t testing.TB, server *brokers.RabbitMQ) *RabbitBroker {
	t.Helper()
	b := &RabbitBroker{RabbitMQ: server, VirtualHost: uniqueName("vhost"), t: t}
	user, _ := server.User()
	b.MustEval(fmt.Sprintf(`rabbit_vhost:add(<<"%[1]s">>, <<"test">>), `+
		`rabbit_auth_backend_internal:set_permissions(<<"%[2]s">>, <<"%[1]s">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>)`,
		b.VirtualHost, user))
	return b
}

// MustEval runs Erlang in the server: see brokers.RabbitMQ.Eval.
func (b *RabbitBroker) MustEval(expression string) string {
	b.t.Helper()
	ctx, cancel := cleanupContext(b.t)
	defer cancel()
	result, err := b.Eval(ctx, expression)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// Sync returns when what was declared is on disk. The node says that a queue or a binding is made some time before: one
// that is killed at once may have lost it.
func (b *RabbitBroker) Sync() {
	b.t.Helper()
	b.MustEval(`mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()]`)
}

// URL is where clients of the virtual host connect.
func (b *RabbitBroker) URL() string {
	user, password := b.User()
	u := url.URL{Scheme: "amqp", User: url.UserPassword(user, password), Host: b.Addr(), Path: "/" + b.VirtualHost}
	return u.String()
}

// Channel returns a channel over a connection of its own, closed when the test ends.
func (b *RabbitBroker) Channel() *amqp.Channel {
	b.t.Helper()
	conn, err := amqp.Dial(b.URL())
	if err != nil {
		b.t.Fatalf("connecting to RabbitMQ: %v", err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		b.t.Fatalf("opening a channel: %v", err)
	}
	return channel
}
