package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// PublisherConfig says what a Publisher sends where.
type PublisherConfig struct {
	// Exchange and RoutingKey are the destination of rows that name none. The default exchange, "", is refused.
	Exchange, RoutingKey string
	// Allowed lists what rows may name, "routing-key" or "exchange/routing-key": see broker.NewDestinations.
	Allowed []string
	// Topology says whether a missing exchange is made.
	Topology Topology
	// Window bounds the messages of one Publish that are sent and not answered. Defaults to 512.
	Window int
	// Unordered sends the messages of one key side by side (ordering.mode None).
	Unordered bool
	// Format is how messages are laid out. Defaults to message.Native.
	Format message.Format
}

// own is the destination of rows that name none.
func (c *PublisherConfig) own() target { return target{c.Exchange, c.RoutingKey} }

// unbound says what to do where no queue is bound for the relay's own destination. That is no fault of any message, as
// little as a missing exchange is.
func (c *PublisherConfig) unbound() string {
	return broker.Bounded("no queue is bound for the destination: rabbitmqadmin declare binding source=" + c.Exchange +
		" destination=QUEUE routing_key=" + c.RoutingKey)
}

// target returns where a message goes, and whether that can be anyone's destination.
func (c *PublisherConfig) target(m *message.Message) (target, bool) {
	if m.Destination == "" {
		return c.own(), true
	}
	return parseTarget(m.Destination, c.Exchange)
}

const (
	defaultWindow = 512
	maxIdle       = 16 // connections kept for the next Publish

	// surelyTaken is a size that every broker takes; above it, a message that is larger than those taken so far goes alone.
	surelyTaken = 128 << 10
)

// Publisher is a broker.Publisher to one virtual host. It is safe for concurrent use; the caller never has messages of
// one key in two calls at once.
//
// Each Publish has a connection to itself, so that what gets no answer is cut off without touching what others have
// under way. On it, messages fly together on one channel, at most one of each key. A destination or a size that the
// broker has not taken before is tried on a channel of its own first: what the broker refuses closes the channel, and
// takes down all that fly on it.
type Publisher struct {
	cfg          Config
	publish      PublisherConfig
	destinations broker.Destinations
	unit         string // of rows that name no destination
	now          func() time.Time
	cuts         atomic.Int64
	dials        atomic.Int64
	proven       proven

	mu     sync.Mutex
	idle   []*session
	open   map[*session]struct{} // idle or in use
	closed bool
}

// session is a connection with its channel.
type session struct {
	conn *conn
	main *lane
}

// NewPublisher returns a publisher. It sends nothing and waits for nothing.
func NewPublisher(cfg Config, publish PublisherConfig) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !validExchange(publish.Exchange) {
		return nil, errors.New("rabbitMQ.exchange is not an exchange's name: letters, digits, dots, dashes, " +
			"underscores and colons; the default exchange is refused")
	}
	if !validRoutingKey(publish.RoutingKey) {
		return nil, errors.New("rabbitMQ.routingKey is not a routing key: printable ASCII without spaces, * and #")
	}
	switch publish.Topology {
	case Verify, Declare:
	default:
		return nil, fmt.Errorf("rabbitMQ.topology is neither %s nor %s", Verify, Declare)
	}
	if err := publish.Format.Validate(); err != nil {
		return nil, fmt.Errorf("rabbitMQ: %w", err)
	}
	if publish.Window <= 0 {
		publish.Window = defaultWindow
	}
	destinations, err := broker.NewDestinations(publish.RoutingKey, publish.Allowed)
	if err != nil {
		return nil, fmt.Errorf("rabbitMQ: %w", err)
	}
	return &Publisher{
		cfg: cfg, publish: publish, destinations: destinations, unit: publish.own().String(), now: time.Now,
		proven: proven{targets: make(map[target]bool), bytes: surelyTaken}, open: make(map[*session]struct{}),
	}, nil
}

// take returns a connection that nobody else uses.
func (p *Publisher) take(ctx context.Context) (*session, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the publisher is closed"}
	}
	for len(p.idle) > 0 {
		s := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if !s.conn.IsClosed() {
			p.mu.Unlock()
			return s, nil
		}
		delete(p.open, s)
	}
	p.mu.Unlock()
	id := strconv.FormatInt(p.now().Unix(), 36) + "-" + strconv.FormatInt(p.dials.Add(1), 10)
	c, state := dial(ctx, &p.cfg, id, p.now)
	if state != nil {
		return nil, state
	}
	s := &session{conn: c}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.cut()
		return nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the publisher is closed"}
	}
	p.open[s] = struct{}{}
	return s, nil
}

// drop cuts a connection off.
func (p *Publisher) drop(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, s)
	s.conn.cut()
}

// give keeps a connection that has nothing under way for the next Publish.
func (p *Publisher) give(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= maxIdle || s.conn.IsClosed() {
		delete(p.open, s)
		s.conn.cut()
		return
	}
	p.idle = append(p.idle, s)
}

// Close cuts all connections. What is under way is Unknown to its caller.
func (p *Publisher) Close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.idle = true, nil
	for s := range p.open {
		s.conn.cut()
	}
	clear(p.open)
	return nil
}

// Cuts counts the calls whose connection was cut because their deadline passed or the broker had blocked it.
func (p *Publisher) Cuts() int64 { return p.cuts.Load() }

// Publish implements broker.Publisher. The payloads of the batch must not be changed afterwards.
func (p *Publisher) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	c := newCall(p, batch)
	if len(batch) == 0 {
		return c.results
	}
	if ctx.Err() != nil {
		return c.abandon(broker.Postpone(broker.ReasonNotSent, "the deadline had passed"))
	}
	s, err := p.take(ctx)
	if err != nil {
		return c.abandon(unavailable(err))
	}
	sending, cancel := broker.LastCall(ctx)
	defer cancel()
	c.lastCall = sending.Done()
	go c.run(ctx, s)
	select {
	case <-c.over:
	case <-ctx.Done():
	}
	if c.ended() {
		p.give(s)
		return c.results
	}
	// What still sits in buffers must not arrive long after the deadline, when another relay may be at work.
	p.drop(s)
	p.cuts.Add(1)
	return c.finish()
}

var _ broker.Router = (*Publisher)(nil)

// Unit implements broker.Router: an exchange with a routing key leads to queues of its own, which can be full or without
// a leader.
func (p *Publisher) Unit(m *message.Message) string {
	if m.Destination == "" {
		return p.unit
	}
	to, ok := p.publish.target(m)
	if !ok {
		return p.unit // the row is refused, whatever works
	}
	return to.String()
}

// Units implements broker.Router.
func (p *Publisher) Units() []string {
	if len(p.publish.Allowed) > 0 {
		return nil // rows name destinations as they like
	}
	return []string{p.unit}
}

// Check says whether the relay's own exchange is usable. The error is *broker.Error.
func (p *Publisher) Check(ctx context.Context) ([]broker.Warning, error) {
	s, err := p.take(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.conn.cut)
	defer stop()
	err = p.find(s.conn, p.publish.Exchange)
	if !stop() {
		p.drop(s)
		return nil, &broker.Error{Reason: broker.ReasonNoAnswer, Detail: "no answer in time", Err: ctx.Err()}
	}
	p.give(s)
	return nil, err
}

// find makes sure that an exchange exists, on a channel of its own, which the broker closes where it does not.
func (p *Publisher) find(c *conn, exchange string) error {
	err := passive(c, exchange)
	var said *amqp.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &said):
		return &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the connection to RabbitMQ ended"}
	case said.Code != amqp.NotFound:
		return &broker.Error{
			Reason: broker.ReasonBrokerError,
			Detail: "the broker refuses to show the exchange (" + strconv.Itoa(said.Code) + ")",
		}
	case exchange != p.publish.Exchange || p.publish.Topology != Declare:
		return &broker.Error{Reason: broker.ReasonStreamMissing, Detail: broker.Bounded("exchange " + exchange +
			" is missing: rabbitmqadmin declare exchange name=" + exchange + " type=topic durable=true")}
	}
	channel, err := c.Channel()
	if err == nil {
		err = channel.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil)
	}
	if err != nil {
		return &broker.Error{
			Reason: broker.ReasonPermissionDenied,
			Detail: broker.Bounded("the user may not declare exchange " + exchange),
		}
	}
	return channel.Close()
}

func passive(c *conn, exchange string) error {
	channel, err := c.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	// The kind is not looked at where the declaration is passive.
	if err := channel.ExchangeDeclarePassive(exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return fmt.Errorf("look up the exchange: %w", err)
	}
	return channel.Close() //nolint:wrapcheck // classified by the caller
}

// maxProven bounds the memory of destinations: rows may name many.
const maxProven = 4096

// proven is what the broker has taken before: it does not close a channel for it.
type proven struct {
	mu      sync.Mutex
	targets map[target]bool
	bytes   int
}

// has says whether a message of that size to the target needs no channel of its own.
func (v *proven) has(t target, size int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.targets[t] && size <= v.bytes
}

func (v *proven) add(t target, size int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.targets) >= maxProven {
		clear(v.targets)
	}
	v.targets[t] = true
	v.bytes = max(v.bytes, size)
}

// forget has everything proven again, after the broker closed a channel for something that it had taken before.
func (v *proven) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.targets)
	v.bytes = surelyTaken
}

// unavailable turns a state into a message's confirmation.
func unavailable(err error) broker.Confirmation {
	if e, ok := errors.AsType[*broker.Error](err); ok {
		return broker.Postpone(e.Reason, e.Detail)
	}
	return broker.Postpone(broker.ReasonUnreachable, "not connected to RabbitMQ")
}
