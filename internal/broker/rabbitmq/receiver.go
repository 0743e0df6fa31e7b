package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
)

// ReceiverConfig says what a Receiver reads and how much at once.
type ReceiverConfig struct {
	// Queue is what it reads; processes that read one queue share its messages.
	Queue string
	// Topology says whether a missing queue is made: see QueueArguments for what is made. An existing one is never changed.
	Topology Topology
	// Bindings are added to the queue under Declare, and none is ever taken away.
	Bindings []Binding
	// SingleActive wants a queue that delivers to one consumer at a time, in its order. Nothing is returned to it alone
	// then: see Receiver.
	SingleActive bool
	// Prefetch bounds the deliveries that are handed out or ready to be, and not settled, 1 to 65535. Defaults to 1000.
	// RabbitMQ cannot bound their bytes.
	Prefetch int
	// FirstPause and LongestPause bound the pauses between tries to subscribe. They default to 100ms and 5s.
	FirstPause, LongestPause time.Duration
}

// Binding says which messages of an exchange a queue gets.
type Binding struct {
	Exchange string
	// RoutingKey may be a pattern where the exchange is a topic exchange: * stands for one word, # for any number.
	RoutingKey string
}

const (
	defaultPrefetch     = 1000
	maxPrefetch         = 65535 // AMQP's
	defaultFirstPause   = 100 * time.Millisecond
	defaultLongestPause = 5 * time.Second
)

func (c ReceiverConfig) withDefaults() ReceiverConfig {
	if c.Prefetch <= 0 {
		c.Prefetch = defaultPrefetch
	}
	c.Prefetch = min(c.Prefetch, maxPrefetch)
	if c.FirstPause <= 0 {
		c.FirstPause = defaultFirstPause
	}
	c.LongestPause = max(c.LongestPause, c.FirstPause)
	if c.LongestPause == c.FirstPause {
		c.LongestPause = max(defaultLongestPause, c.FirstPause)
	}
	return c
}

// Validate says what is wrong with the configuration, naming the field.
func (c ReceiverConfig) Validate() error {
	if !validQueue(c.Queue) {
		return errors.New("rabbitMQ.queue is not a queue's name: 1 to 255 bytes of printable ASCII without spaces; " +
			"names that begin with amq. are the broker's own")
	}
	for i, b := range c.Bindings {
		if !validExchange(b.Exchange) || len(b.RoutingKey) > maxNameBytes || strings.ContainsFunc(b.RoutingKey, odd) {
			return fmt.Errorf("rabbitMQ.bindings[%d] is not an exchange's name and a routing key or pattern", i)
		}
	}
	switch {
	case c.Topology == Declare, c.Topology == Verify && len(c.Bindings) == 0:
		return nil
	case c.Topology == Verify:
		return fmt.Errorf("rabbitMQ.bindings are made under topology %s only", Declare)
	default:
		return fmt.Errorf("rabbitMQ.topology is neither %s nor %s", Verify, Declare)
	}
}

// validQueue says whether a name can be that of a queue of ours.
func validQueue(name string) bool {
	return name != "" && len(name) <= maxNameBytes && !strings.HasPrefix(name, "amq.") &&
		!strings.ContainsFunc(name, odd)
}

// odd says of a character that it is not printable ASCII, or a space.
func odd(c rune) bool { return c <= ' ' || c > '~' }

// Receiver is a broker.Receiver on a queue, with a connection of its own. One goroutine subscribes, takes what comes and
// sends acknowledgements, so that neither Receive nor Ack waits for a socket.
//
// RabbitMQ does not answer acknowledgements: one that is lost with its connection only brings the message again, which
// the inbox recognises. What is handed out when a connection ends stays with the caller, its settlement then says nothing
// to the broker, and it still counts against Prefetch, so that a broker that comes and goes does not fill the memory of a
// process whose database is away.
//
// A message that is released stays unacknowledged for its pause, at least a growing one of ours where it came before, and
// is then returned. With SingleActive that would let later messages of its key pass: the whole subscription is given up
// instead, everything unacknowledged goes back to its place in the queue, and the next active consumer, perhaps this one,
// begins there.
type Receiver struct {
	cfg     Config
	receive ReceiverConfig
	log     *slog.Logger
	now     func() time.Time
	stop    context.CancelFunc
	over    chan struct{} // closed when the goroutine has ended
	kick    chan struct{} // holds one: there is something to send
	asking  chan struct{} // holds one: a question to the broker is open

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when Receive may go on
	err     error         // why nothing comes
	closed  bool
	sub     *subscription // nil while there is none
	conn    *conn         // nil while there is none
	unfit   bool          // what the queue delivered last says that it is none: err holds until it says otherwise
	out     int           // handed out and not settled, of all subscriptions
	notes   broker.Notes
}

var errClosed = errors.New("receiver is closed")

// NewReceiver returns a receiver that connects and subscribes in the background until Close. The context gives values
// only.
func NewReceiver(ctx context.Context, cfg Config, receive ReceiverConfig) (*Receiver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := receive.Validate(); err != nil {
		return nil, err
	}
	r := &Receiver{
		cfg: cfg, receive: receive.withDefaults(), log: cfg.Log, now: time.Now,
		over: make(chan struct{}), kick: make(chan struct{}, 1),
		asking: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	go r.run(ctx)
	return r, nil
}

// Receive implements broker.Receiver.
func (r *Receiver) Receive(ctx context.Context) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err //nolint:wrapcheck // the caller's own
		}
		r.mu.Lock()
		got, err, changed := r.take(), r.err, r.changed
		if r.closed {
			err = errClosed
		}
		r.mu.Unlock()
		switch {
		case len(got) > 0:
			return got, nil
		case err != nil:
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// take hands out what has arrived, as far as the prefetch allows beside what the caller still holds of subscriptions
// that ended. The lock is held.
func (r *Receiver) take() []broker.Delivery {
	if r.sub == nil || r.closed {
		return nil
	}
	n := min(len(r.sub.buffer), r.receive.Prefetch-r.out)
	if n <= 0 {
		return nil
	}
	got := make([]broker.Delivery, n)
	for i, d := range r.sub.buffer[:n] {
		got[i] = broker.Delivery{
			Acknowledger: d, Record: recordOf(&d.raw), Position: positionOf(r.receive.Queue, &d.raw),
			Deliveries: d.deliveries,
		}
		d.raw = amqp.Delivery{}
		d.out = true
	}
	r.sub.buffer = slices.Delete(r.sub.buffer, 0, n)
	r.out += n
	return got
}

// Close sends the acknowledgements that wait, gives back everything else, and ends. What takes longer than the context
// allows is cut off; with a context that has ended, nothing more is said at all.
func (r *Receiver) Close(ctx context.Context) error {
	if ctx.Err() == nil {
		r.end()
	}
	select {
	case <-ctx.Done():
		r.Kill()
		return fmt.Errorf("close the RabbitMQ receiver: %w", ctx.Err())
	case <-r.over:
		return nil
	}
}

// Kill ends the receiver as a crash would: the connection is cut, and nothing more is said.
func (r *Receiver) Kill() {
	r.mu.Lock()
	c := r.conn
	if r.sub != nil {
		r.sub.dead = true
	}
	r.mu.Unlock()
	if c != nil {
		c.cut()
	}
	r.end()
	<-r.over
}

func (r *Receiver) end() {
	r.mu.Lock()
	r.closed = true
	r.wake()
	r.mu.Unlock()
	r.stop()
}

// wake lets Receive look again. The lock is held.
func (r *Receiver) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Receiver) nudge() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// fail says why nothing comes; nil says that it may.
func (r *Receiver) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	r.wake()
}

// note keeps an event as a warning for a while.
func (r *Receiver) note(reason broker.WarningReason, detail string) {
	r.notes.Add(reason, detail, r.now())
}
