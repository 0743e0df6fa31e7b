package rabbitmq

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
)

const (
	// subscribeTimeout bounds what a broker takes to answer all that comes before the first delivery.
	subscribeTimeout = 10 * time.Second
	// farewellTimeout bounds the last words to a broker.
	farewellTimeout = 5 * time.Second
	// steady is how long a subscription lasts before the pause after it is a first one again.
	steady = 10 * time.Second
	// firstReturn and longestReturn bound our own pause before a message is returned that came before.
	firstReturn, longestReturn = 100 * time.Millisecond, 5 * time.Second
)

// errReleased ends a subscription whose caller gives back what it holds.
var errReleased = errors.New("the subscription is given back")

// subscription is one consumer at the broker, on a channel of its own. Its lock is the receiver's.
type subscription struct {
	r       *Receiver
	conn    *conn
	channel *amqp.Channel
	arrive  <-chan amqp.Delivery
	cancels chan string
	closed  chan *amqp.Error

	buffer  []*delivery // arrived, not handed out
	open    []*delivery // unsettled at the broker, in the order of their tags
	acked   []*delivery // to be acknowledged
	waiting []*delivery // to be returned when they are due
	dead    bool        // nothing more is said about its deliveries
	given   bool        // the caller gave something back that may not be returned alone
	until   time.Time   // when a subscription that was given back may be followed by another
}

// run subscribes again and again until the receiver is closed.
func (r *Receiver) run(ctx context.Context) {
	defer close(r.over)
	pause := r.receive.FirstPause
	for ctx.Err() == nil {
		began := r.now()
		err := r.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if r.now().Sub(began) > steady {
			pause = r.receive.FirstPause
		}
		least := r.ended(ctx, err)
		wait(ctx, max(least, pause/10+rand.N(pause))) //nolint:gosec // jitter is no secret
		pause = min(2*pause, r.receive.LongestPause)
	}
}

// ended tells of the end of a subscription, and returns how long to wait at least.
func (r *Receiver) ended(ctx context.Context, err error) time.Duration {
	r.mu.Lock()
	s := r.sub
	r.sub, r.conn = nil, nil
	if s != nil {
		s.dead, s.buffer = true, nil
	}
	r.mu.Unlock()
	if errors.Is(err, errReleased) {
		return s.until.Sub(r.now())
	}
	r.fail(err)
	r.log.DebugContext(ctx, "Not subscribed to the queue", "queue", r.receive.Queue, "err", err)
	return 0
}

// serve works on one subscription until it ends, and says why. It returns nil only when the context has ended.
func (r *Receiver) serve(ctx context.Context) error {
	c, state := dial(ctx, &r.cfg, "", r.now)
	if state != nil {
		return state
	}
	defer c.cut()
	r.mu.Lock()
	r.conn = c
	r.mu.Unlock()
	s, err := r.subscribe(ctx, c)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.sub = s
	if !r.unfit {
		r.err = nil
	}
	r.wake()
	r.mu.Unlock()
	err = s.loop(ctx)
	s.farewell()
	return err
}

// subscribe makes sure of the queue and starts a consumer. What gets no answer in time is cut.
func (r *Receiver) subscribe(ctx context.Context, c *conn) (*subscription, error) {
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, c.cut)
	s, err := r.consume(c)
	if !stop() {
		return nil, noAnswer(ctx)
	}
	return s, err
}

func (r *Receiver) consume(c *conn) (*subscription, error) {
	if err := r.ensureQueue(c); err != nil {
		return nil, err
	}
	channel, err := c.Channel()
	if err != nil {
		return nil, lost(err)
	}
	s := &subscription{
		r: r, conn: c, channel: channel,
		cancels: channel.NotifyCancel(make(chan string, 1)), closed: channel.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if err := channel.Qos(r.receive.Prefetch, 0, false); err != nil {
		return nil, lost(err)
	}
	// The library makes up a tag where none is given.
	s.arrive, err = channel.Consume(r.receive.Queue, "", false, false, false, false, nil)
	if err != nil {
		return nil, r.receive.queueError(err)
	}
	return s, nil
}

// loop takes what comes and sends what waits.
func (s *subscription) loop(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		next, err := s.send()
		if err != nil {
			return err
		}
		due.Reset(next)
		select {
		case raw, ok := <-s.arrive:
			if !ok {
				return s.why()
			}
			if err := s.take(raw); err != nil {
				return err
			}
		case <-s.r.kick:
		case <-due.C:
		case <-s.conn.blocked: // said to connections that publish, and this one never does: acknowledgements go on
		case <-ctx.Done():
			return nil
		}
	}
}

// take keeps what has come, and all that came with it.
func (s *subscription) take(raw amqp.Delivery) error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for more := true; more; {
		if _, stream := raw.Headers[headerStreamOffset]; stream {
			s.r.unfit = true
			return s.r.receive.mismatch(
				"is a stream, which keeps what is acknowledged: bind a quorum queue and consume that one",
			)
		}
		if s.r.unfit {
			s.r.unfit, s.r.err = false, nil
		}
		d := &delivery{sub: s, raw: raw, tag: raw.DeliveryTag, deliveries: deliveriesOf(s.r.receive.Queue, &raw)}
		s.buffer, s.open = append(s.buffer, d), append(s.open, d)
		select {
		case raw, more = <-s.arrive:
		default:
			more = false
		}
	}
	s.r.wake()
	return nil
}

// why says why nothing more comes: the broker cancelled the consumer, or closed the channel or the connection.
func (s *subscription) why() error {
	select {
	case <-s.cancels:
		return &broker.Error{
			Reason: broker.ReasonBrokerError,
			Detail: broker.Bounded("RabbitMQ cancelled the consumer of queue " + s.r.receive.Queue +
				": the queue was deleted, or the node that holds it is away"),
		}
	case said := <-s.closed:
		if said != nil && said.Code == amqp.PreconditionFailed && strings.Contains(said.Reason, "timed out") {
			s.r.note(broker.WarnStalled, "a message was not acknowledged within RabbitMQ's consumer_timeout and the "+
				"subscription was made again: look at what holds the consumer back, or allow more time")
		}
		return lost(said)
	}
}

// idle is how long a subscription without anything to return sleeps.
const idle = time.Minute

// send sends what waits, and returns how long nothing is to be returned to the queue. The error is errReleased when the
// subscription is given back.
func (s *subscription) send() (next time.Duration, err error) {
	acked, all, returned, next := s.words()
	for _, d := range acked {
		if d.tag < all {
			continue // the word about the last one is about this one, too
		}
		if err := s.channel.Ack(d.tag, d.tag == all); err != nil {
			return 0, lost(err)
		}
	}
	for _, d := range returned {
		if err := s.channel.Nack(d.tag, false, true); err != nil {
			return 0, lost(err)
		}
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for _, d := range returned {
		d.settled = true
	}
	if s.given {
		return 0, errReleased
	}
	return next, nil
}

// words returns what is to be acknowledged, the highest tag up to which everything is, what is to be returned now, and
// how long nothing else is.
func (s *subscription) words() (acked []*delivery, all uint64, returned []*delivery, next time.Duration) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	acked, s.acked = s.acked, nil
	s.open = slices.DeleteFunc(s.open, func(d *delivery) bool { return d.settled })
	for _, d := range acked {
		if len(s.open) == 0 || d.tag < s.open[0].tag {
			all = max(all, d.tag)
		}
	}
	now := s.r.now()
	next = idle
	s.waiting = slices.DeleteFunc(s.waiting, func(d *delivery) bool {
		wait := d.due.Sub(now)
		if wait <= 0 {
			returned = append(returned, d)
			return true
		}
		next = min(next, wait)
		return false
	})
	return acked, all, returned, next
}

// farewell says the last words. What is not acknowledged goes back to its place in the queue with the channel.
func (s *subscription) farewell() {
	late := time.AfterFunc(farewellTimeout, s.conn.cut)
	defer late.Stop()
	s.r.mu.Lock()
	killed := s.dead
	s.dead, s.waiting = true, nil
	s.r.mu.Unlock()
	if killed || s.conn.IsClosed() {
		return
	}
	_, _ = s.send()
	_ = s.channel.Close()
	_ = s.conn.Close()
}

// wait waits for a time or the context's end.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
