package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// place is a test's queue, and a channel beside the receivers'.
type place struct {
	t       *testing.T
	server  *testkit.RabbitBroker
	channel *amqp.Channel
	cfg     Config
}

func newPlace(t *testing.T) *place {
	t.Helper()
	server := testkit.RabbitMQ(t)
	return &place{t: t, server: server, channel: server.Channel(), cfg: testConfig(t, server, server.Addr())}
}

// singleActive makes a queue that delivers to one consumer at a time.
func (p *place) singleActive() {
	p.t.Helper()
	p.declare(amqp.Table(QueueArguments(true)))
}

func (p *place) declare(arguments amqp.Table) {
	p.t.Helper()
	if _, err := p.channel.QueueDeclare("q", true, false, false, false, arguments); err != nil {
		p.t.Fatal(err)
	}
}

// send puts messages into the queue whose bodies are the numbers from one to the other, both included.
func (p *place) send(from, to int) {
	p.t.Helper()
	for i := from; i <= to; i++ {
		if err := p.channel.PublishWithContext(p.t.Context(), "", "q", true, false, amqp.Publishing{
			Body: fmt.Append(nil, i), MessageId: fmt.Sprint(i), DeliveryMode: amqp.Persistent,
		}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *place) receiver(prefetch int, change ...func(*ReceiverConfig)) *Receiver {
	p.t.Helper()
	receive := ReceiverConfig{Queue: "q", Prefetch: prefetch}
	for _, c := range change {
		c(&receive)
	}
	return newReceiver(p.t, p.cfg, receive)
}

func singleActive(c *ReceiverConfig) { c.SingleActive = true }

func topology(to Topology) func(*ReceiverConfig) {
	return func(c *ReceiverConfig) { c.Topology = to }
}

// next returns the next n deliveries.
func next(t *testing.T, r *Receiver, n int) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var got []broker.Delivery
	for len(got) < n {
		batch, err := r.Receive(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d deliveries came: %v", len(got), n, err)
		}
		if err != nil {
			wait(ctx, 10*time.Millisecond) // the environment is not ready
		}
		got = append(got, batch...)
	}
	return got
}

func bodies(deliveries []broker.Delivery) string {
	texts := make([]string, len(deliveries))
	for i := range deliveries {
		texts[i] = string(deliveries[i].Body)
	}
	return strings.Join(texts, " ")
}

func wantBodies(t *testing.T, what string, got []broker.Delivery, want string) {
	t.Helper()
	if bodies(got) != want {
		t.Errorf("%s: %s came, want %s", what, bodies(got), want)
	}
}

func ack(t *testing.T, deliveries ...broker.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Ack(t.Context()); err != nil {
			t.Errorf("ack of %s: %v", d.Position, err)
		}
	}
}

func release(t *testing.T, pause time.Duration, deliveries ...broker.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Release(t.Context(), pause); err != nil {
			t.Errorf("release of %s: %v", d.Position, err)
		}
	}
}

// failure waits until Receive fails for the reason, and returns the error.
func failure(t *testing.T, r *Receiver, reason broker.Reason) *broker.Error {
	t.Helper()
	var e *broker.Error
	testkit.Eventually(t, 2*time.Minute, "Receive fails with "+string(reason), func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := r.Receive(ctx)
		return errors.As(err, &e) && e.Reason == reason
	})
	return e
}

func (r *Receiver) subscribed() *subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sub
}

// left is how many messages the queue holds that nobody has been given.
func (p *place) left() int {
	p.t.Helper()
	q, err := p.channel.QueueDeclarePassive("q", true, false, false, false, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return q.Messages
}

// Acknowledgements come in any order, and one word may acknowledge all below it: never what is still open.
func TestOnlyWhatIsAcknowledgedLeavesTheQueue(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.declare(amqp.Table(QueueArguments(false)))
	p.send(0, 9)
	r := p.receiver(100)
	got := next(t, r, 10)
	for _, i := range []int{9, 1, 0, 5, 4, 2, 8} { // 3 is released for long, 6 and 7 stay open
		ack(t, got[i])
	}
	release(t, time.Hour, got[3])
	closeWithin(t, r)
	rest := next(t, p.receiver(100), 3)
	wantBodies(t, "after the receiver closed", rest, "3 6 7")
	ack(t, got...) // of a receiver that is no more
	ack(t, rest...)
	testkit.Eventually(t, time.Minute, "nothing is left", func() bool { return p.left() == 0 })
}

// With a single active consumer the queue's order is the contract: what is given back comes again before all that
// follows it, here or at the next consumer.
func TestWhatASingleActiveConsumerGivesBackComesInItsOrder(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.singleActive()
	p.send(1, 9)
	r := p.receiver(4, singleActive)
	got := next(t, r, 4)
	wantBodies(t, "at first", got, "1 2 3 4")
	ack(t, got[0])
	release(t, 0, got[2], got[1], got[3])
	again := next(t, r, 4)
	wantBodies(t, "given back", again, "2 3 4 5")
	standby := p.receiver(100, singleActive)
	ack(t, again[0])
	release(t, time.Hour, again[1]) // and does not subscribe again for as long
	wantBodies(t, "at the next consumer", next(t, standby, 7), "3 4 5 6 7 8 9")
}

// What is handed out when its connection ends stays with the caller and comes again. Both together are bounded.
func TestPrefetchCountsWhatOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	proxy := testkit.Proxy(t, p.server.Addr())
	p.cfg.Hosts = []string{proxy.Addr()}
	p.declare(amqp.Table(QueueArguments(false)))
	p.send(1, 6)
	r := p.receiver(4)
	held := next(t, r, 4)
	for range 3 {
		before := r.subscribed()
		proxy.Reset()
		testkit.Eventually(t, 2*time.Minute, "it subscribes again", func() bool {
			now := r.subscribed()
			return now != nil && now != before
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if got, _ := r.Receive(ctx); len(got) > 0 {
		t.Errorf("%s beyond the prefetch", bodies(got))
	}
	ack(t, held...)
	again := next(t, r, 4)
	wantBodies(t, "again", again, "1 2 3 4")
	if again[0].Deliveries < 2 || again[0].Position != held[0].Position {
		t.Errorf("again it is %s, time %d; first it was %s", again[0].Position, again[0].Deliveries, held[0].Position)
	}
	ack(t, again...)
	wantBodies(t, "the rest", next(t, r, 2), "5 6")
}

func TestAMissingQueueIsAConditionWithItsCommand(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	r := p.receiver(10, singleActive)
	e := failure(t, r, broker.ReasonStreamMissing)
	if !strings.Contains(e.Detail, "rabbitmqadmin declare queue name=q durable=true arguments='") ||
		!strings.Contains(e.Detail, `"x-single-active-consumer":true}'`) {
		t.Errorf("detail %q", e.Detail)
	}
	if _, err := r.Check(t.Context()); !errors.As(err, &e) || e.Reason != broker.ReasonStreamMissing {
		t.Errorf("Check() error = %v", err)
	}
	made := p.receiver(10, singleActive, topology(Declare))
	if _, err := made.Check(t.Context()); err != nil {
		t.Errorf("the queue was not made: %v", err)
	}
	p.singleActive() // fails where it was made otherwise
	closeWithin(t, made)
	p.send(1, 1)
	ack(t, next(t, r, 1)...)
}

func TestAQueueThatWasMadeOtherwiseIsNotReadUnderDeclare(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		made amqp.Table
		says string
	}{
		"a classic one":                     {nil, "x-"},
		"one that delivers to many at once": {amqp.Table(QueueArguments(false)), argSingleActive},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.declare(tc.made)
			p.send(1, 1)
			e := failure(t, p.receiver(1, singleActive, topology(Declare)), broker.ReasonStreamMismatch)
			if !strings.Contains(e.Detail, tc.says) {
				t.Errorf("detail %q does not name %s", e.Detail, tc.says)
			}
			asItIs := p.receiver(1, singleActive)
			wantBodies(t, "as it is", next(t, asItIs, 1), "1")
			warnings, err := asItIs.Check(t.Context())
			if err != nil || len(warnings) != 1 || warnings[0].Reason != broker.WarnUnchecked {
				t.Errorf("Check() = %v, %v: nobody is told that it was not checked", warnings, err)
			}
		})
	}
}

func TestAQueueIsBoundUnderDeclare(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	r := p.receiver(10, topology(Declare), func(c *ReceiverConfig) {
		c.Bindings = []Binding{{testExchange, "orders.#"}, {testExchange, "invoices.*"}}
	})
	e := failure(t, r, broker.ReasonStreamMissing)
	if !strings.Contains(e.Detail, "rabbitmqadmin declare exchange name="+testExchange) {
		t.Errorf("detail %q", e.Detail)
	}
	declare(t, p.server)
	testkit.Eventually(t, time.Minute, "the queue is bound", func() bool {
		_, err := r.Check(t.Context())
		return err == nil
	})
	for _, key := range []string{"orders.eu.paid", "other.eu", "invoices.eu"} {
		if err := p.channel.PublishWithContext(t.Context(), testExchange, key, false, false,
			amqp.Publishing{Body: []byte(key)}); err != nil {
			t.Fatal(err)
		}
	}
	wantBodies(t, "through two bindings", next(t, r, 2), "orders.eu.paid invoices.eu")
}

func TestADeletedQueueIsToldAndReadAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.declare(amqp.Table(QueueArguments(false)))
	p.send(1, 2)
	r := p.receiver(10)
	held := next(t, r, 2)
	if _, err := p.channel.QueueDelete("q", false, false, false); err != nil {
		t.Fatal(err)
	}
	_ = failure(t, r, broker.ReasonStreamMissing)
	ack(t, held...)
	p.declare(amqp.Table(QueueArguments(false)))
	p.send(3, 3)
	wantBodies(t, "in the new queue", next(t, r, 1), "3")
}

func TestAStreamIsNoQueueToConsume(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.declare(amqp.Table{argQueueType: "stream"})
	r := p.receiver(10)
	if _, err := r.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.send(1, 1)
	_ = failure(t, r, broker.ReasonStreamMismatch)
}

// A pulled cable ends no connection: the silence of the heartbeats does.
func TestASilentConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.declare(amqp.Table(QueueArguments(false)))
	proxy := testkit.Proxy(t, p.server.Addr())
	p.cfg.Hosts, p.cfg.Heartbeat = []string{proxy.Addr()}, 4*time.Second
	r := p.receiver(10)
	if _, err := r.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.HalfOpen()
	_ = failure(t, r, broker.ReasonUnreachable)
	proxy.Resume()
	p.send(1, 1)
	ack(t, next(t, r, 1)...)
}

func TestWhatKeepsAReceiverFromItsQueue(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.declare(amqp.Table(QueueArguments(false)))
	user, password := p.server.User()
	reader := "reader-" + p.server.VirtualHost
	p.server.MustEval(fmt.Sprintf(`rabbit_auth_backend_internal:add_user(<<"%[2]s">>, <<"%[3]s">>, <<"test">>), `+
		`rabbit_auth_backend_internal:set_permissions(<<"%[2]s">>, <<"%[1]s">>, <<"^$">>, <<"^$">>, <<"^other$">>, `+
		`<<"test">>)`, p.server.VirtualHost, reader, password))
	t.Cleanup(func() {
		p.server.MustEval(fmt.Sprintf(`rabbit_auth_backend_internal:delete_user(<<"%s">>, <<"test">>)`, reader))
	})
	cases := map[string]struct {
		change func(*Config)
		reason broker.Reason
		says   string
	}{
		"a wrong password": {
			func(c *Config) { c.CredentialsDir = testkit.SecretDir(t, user, "canary-4711") },
			broker.ReasonAuthFailed, "check the Secret",
		},
		"a Secret that is not there": {
			func(c *Config) { c.CredentialsDir = "/none" }, broker.ReasonNoCredentials, "create the Secret",
		},
		"a virtual host that is not there": {
			func(c *Config) { c.VirtualHost = "nowhere" }, broker.ReasonPermissionDenied, "correct its name",
		},
		"a user who may not read the queue": {
			func(c *Config) { c.CredentialsDir = testkit.SecretDir(t, reader, password) },
			broker.ReasonPermissionDenied, "grant it read on the queue",
		},
		"a host where nobody listens": {
			func(c *Config) { c.Hosts = []string{"127.0.0.1:1"} }, broker.ReasonUnreachable, "check host, port",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := p.cfg
			tc.change(&cfg)
			e := failure(t, newReceiver(t, cfg, ReceiverConfig{Queue: "q"}), tc.reason)
			if !strings.Contains(e.Detail, tc.says) || strings.Contains(e.Error(), "canary") {
				t.Errorf("error %q does not say %q", e, tc.says)
			}
		})
	}
}

// One server for what no other test can bear: an alarm, and a short time for acknowledgements.
func TestAlarmsAndTimeoutsOfTheBroker(t *testing.T) {
	t.Parallel()
	server := testkit.RabbitMQServer(t, brokers.RabbitMQConfig{})
	server.MustEval("application:set_env(rabbit, channel_tick_interval, 1000)") // how often it looks for a time-out
	p := &place{t: t, server: server, channel: server.Channel(), cfg: testConfig(t, server, server.Addr())}
	p.declare(nil)
	p.send(1, 3)
	r := p.receiver(2)
	held := next(t, r, 2)
	server.MustEval("vm_memory_monitor:set_vm_memory_high_watermark(0.000001)")
	ack(t, held...) // a blocked broker reads from those who publish nothing
	held = next(t, r, 1)
	wantBodies(t, "while the broker is blocked", held, "3")
	ack(t, held...)
	server.MustEval("vm_memory_monitor:set_vm_memory_high_watermark(0.8)")
	closeWithin(t, r)

	server.MustEval("application:set_env(rabbit, consumer_timeout, 2000)")
	p.send(4, 4)
	r = p.receiver(2)
	held = next(t, r, 1)
	testkit.Eventually(t, 2*time.Minute, "the broker's time-out is told", func() bool {
		warnings, _ := r.Check(t.Context())
		return slices.ContainsFunc(warnings, func(w broker.Warning) bool { return w.Reason == broker.WarnStalled })
	})
	ack(t, held...) // of a subscription that is no more
	wantBodies(t, "after the time-out", next(t, r, 1), "4")
}

func TestAConfigurationThatContradictsItself(t *testing.T) {
	t.Parallel()
	cfg := Config{Hosts: []string{"mq"}, CredentialsDir: "/c", TLS: endpoint.TLS{Mode: endpoint.Insecure}}
	for name, receive := range map[string]ReceiverConfig{
		"no queue":                {Topology: Verify},
		"a queue of the broker":   {Queue: "amq.gen-1", Topology: Verify},
		"a queue with a space":    {Queue: "a b", Topology: Verify},
		"a queue's name too long": {Queue: strings.Repeat("q", 256), Topology: Verify},
		"no topology":             {Queue: "q"},
	} {
		if _, err := NewReceiver(t.Context(), cfg, receive); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestWhatWaitsIsCountedAndLeftWhereItIs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	if _, err := Waiting(t.Context(), p.cfg, "q"); !strings.Contains(fmt.Sprint(err), "queue q is missing") {
		t.Errorf("Waiting() error = %v of a queue that is not there", err)
	}
	p.declare(amqp.Table(QueueArguments(false)))
	p.send(1, 3)
	for range 2 {
		testkit.Eventually(t, time.Minute, "three messages wait", func() bool {
			n, err := Waiting(t.Context(), p.cfg, "q")
			return err == nil && n == 3
		})
	}
}
