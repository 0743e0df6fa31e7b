package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// ReceiverConfig says what a Receiver reads and how much at once.
type ReceiverConfig struct {
	// Durable names the consumer at the broker: processes with one name share its messages.
	Durable string
	// FilterSubjects are what it reads of the stream; empty means all.
	FilterSubjects []string
	// Prefetch bounds the deliveries that are handed out or ready to be, and not settled. Defaults to 1000.
	Prefetch int
	// PrefetchBytes bounds their size; a single larger message still comes, alone. Defaults to 16 MiB.
	PrefetchBytes int
	// AckWait is how long the broker waits before it delivers again what a dead process held. It counts when the durable
	// is made; an existing one keeps its own. Defaults to 30s. While a process lives it extends what it holds.
	AckWait time.Duration
	// MaxAckPending bounds what all processes together hold unsettled, when the durable is made. Defaults to ten times
	// Prefetch, so that one process does not leave the others without.
	MaxAckPending int
	// StartSequence returns the first sequence to deliver when the durable has to be made, and false where nothing was
	// read before of this incarnation of the stream, as Finished names it. It runs outside of Receive.
	StartSequence func(ctx context.Context, stream string) (uint64, bool, error)
	// Heartbeat is how often the broker shows that it still knows our request. Defaults to 5s.
	Heartbeat time.Duration
	// StallTimeout is how long nothing may come while the broker holds messages for us. Defaults to 30s.
	StallTimeout time.Duration
}

const (
	defaultPrefetch      = 1000
	defaultPrefetchBytes = 16 << 20
	defaultAckWait       = 30 * time.Second
	defaultHeartbeat     = 5 * time.Second
	defaultStallTimeout  = 30 * time.Second
	ackPendingFactor     = 10
)

func (c ReceiverConfig) withDefaults() ReceiverConfig {
	if c.Prefetch <= 0 {
		c.Prefetch = defaultPrefetch
	}
	if c.PrefetchBytes <= 0 {
		c.PrefetchBytes = defaultPrefetchBytes
	}
	if c.AckWait <= 0 {
		c.AckWait = defaultAckWait
	}
	if c.MaxAckPending <= 0 {
		c.MaxAckPending = ackPendingFactor * c.Prefetch
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.StallTimeout <= 0 {
		c.StallTimeout = defaultStallTimeout
	}
	return c
}

// Receiver is a broker.Receiver on a durable pull consumer. One goroutine of its own pulls, sends acknowledgements and
// extends what is held, so that neither Receive nor Ack waits for a socket.
//
// Acknowledgements are not themselves acknowledged: one that is lost only brings the message again, which the inbox
// recognises. Close waits until the server has read them all.
type Receiver struct {
	conn   *Conn
	cfg    ReceiverConfig
	now    func() time.Time
	cancel context.CancelFunc
	over   chan struct{} // closed when the goroutine has ended
	kick   chan struct{} // tells it that there is something to send or room to pull

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when Receive may go on
	err      error         // why nothing comes
	closed   bool
	buffer   []*delivery          // arrived, not handed out
	held     map[uint64]*delivery // buffered or handed out, and not settled
	heldSize int
	replies  []reply   // acknowledgements to be sent, in order
	made     time.Time // when the durable was made whose deliveries are held
	pull     pull
	notes    broker.Notes
}

// reply is a word to the broker on one delivery.
type reply struct {
	subject string
	body    []byte
}

// pull is the one request for messages that is open at the broker, and what we know of its life.
type pull struct {
	subject  string // where its end is told; messages come under their own subjects
	left     int    // messages it may still bring
	brought  int
	alone    bool      // the next request asks for one message of any size
	starved  bool      // the next message does not fit before something is settled
	signs    time.Time // when the broker last showed that it knows the request
	message  time.Time // when a message came last, or the first request was made
	broken   error     // what the broker says is wrong with requests
	silences int       // how often in a row no sign came in time
}

// NewReceiver returns a receiver that connects and pulls in the background until Close. The context gives values only.
func NewReceiver(ctx context.Context, conn *Conn, cfg ReceiverConfig) (*Receiver, error) {
	if !validStream.MatchString(cfg.Durable) {
		return nil, errors.New("nats.durable is not a durable's name: no spaces, dots, wildcards or slashes")
	}
	for i, filter := range cfg.FilterSubjects {
		if filter == "" || strings.ContainsAny(filter, " \t\r\n\x00") {
			return nil, fmt.Errorf("nats.filterSubjects[%d] is not a subject", i)
		}
	}
	r := &Receiver{
		conn: conn, cfg: cfg.withDefaults(), now: time.Now,
		over: make(chan struct{}), kick: make(chan struct{}, 1), changed: make(chan struct{}),
		held: make(map[uint64]*delivery),
	}
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go r.run(ctx)
	return r, nil
}

// Receive implements broker.Receiver.
func (r *Receiver) Receive(ctx context.Context) ([]broker.Delivery, error) {
	for {
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
			return nil, ctx.Err() //nolint:wrapcheck // the caller's own
		}
	}
}

var errClosed = errors.New("receiver is closed")

// take empties the buffer, lowest sequence first. The lock is held.
func (r *Receiver) take() []broker.Delivery {
	if len(r.buffer) == 0 || r.closed {
		return nil
	}
	slices.SortStableFunc(r.buffer, func(a, b *delivery) int {
		switch {
		case a.sequence < b.sequence:
			return -1
		case a.sequence > b.sequence:
			return 1
		default:
			return 0
		}
	})
	got := make([]broker.Delivery, len(r.buffer))
	for i, d := range r.buffer {
		got[i] = broker.Delivery{
			Acknowledger: d, Record: recordOf(d.msg), Position: position(r.conn.cfg.Stream, d.sequence),
			Sequence: d.sequence, Deliveries: d.deliveries,
		}
		d.msg = nil
	}
	r.buffer = r.buffer[:0]
	return got
}

// recordOf returns the message as a record. NATS has no record key. Headers are sorted: natsgo holds them in a map.
func recordOf(msg *natsgo.Msg) message.Record {
	rec := message.Record{Body: msg.Data}
	if len(msg.Header) == 0 {
		return rec
	}
	rec.Headers = make([]message.Header, 0, len(msg.Header))
	for name, values := range msg.Header {
		for _, value := range values {
			rec.Headers = append(rec.Headers, message.Header{Name: name, Value: value})
		}
	}
	slices.SortStableFunc(rec.Headers, func(a, b message.Header) int { return strings.Compare(a.Name, b.Name) })
	return rec
}

// Close stops pulling, gives back what was not handed out, sends the acknowledgements that wait, and ends. What was
// handed out and is not settled comes again after AckWait.
func (r *Receiver) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	for _, d := range r.buffer {
		r.replies = append(r.replies, reply{d.reply, []byte("-NAK")})
		delete(r.held, d.sequence)
	}
	r.buffer = nil
	r.wake()
	r.mu.Unlock()
	r.cancel()
	select {
	case <-r.over:
	case <-ctx.Done():
		return fmt.Errorf("close NATS receiver: %w", ctx.Err())
	}
	s, err := r.conn.live(ctx)
	if err != nil {
		return nil //nolint:nilerr // not connected: what was held comes again after AckWait
	}
	return s.flush(ctx)
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

func (r *Receiver) state() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// note keeps an event as a warning for a while.
func (r *Receiver) note(reason broker.WarningReason, detail string) {
	r.notes.Add(reason, detail, r.now())
}

// delivery is one message in our hands.
type delivery struct {
	r          *Receiver
	msg        *natsgo.Msg // until it is handed out
	reply      string
	sequence   uint64
	deliveries int
	size       int
	extended   time.Time // when the broker last counted AckWait anew
}

// Ack implements broker.Acknowledger. It is sent soon; see Receiver for one that is lost.
func (d *delivery) Ack(context.Context) error { return d.settle([]byte("+ACK")) }

// Release implements broker.Acknowledger.
func (d *delivery) Release(_ context.Context, pause time.Duration) error {
	body := []byte("-NAK")
	if pause > 0 {
		body = fmt.Appendf(body, ` {"delay": %d}`, pause.Nanoseconds())
	}
	return d.settle(body)
}

// InProgress implements broker.Acknowledger. The receiver extends by itself what it holds; this does so at once.
func (d *delivery) InProgress(context.Context) error {
	r := d.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[d.sequence] == d {
		d.extend(r.now())
		r.nudge()
	}
	return nil
}

// extend queues a word that the delivery is being worked on. The receiver's lock is held.
func (d *delivery) extend(now time.Time) {
	d.extended = now
	d.r.replies = append(d.r.replies, reply{d.reply, []byte("+WPI")})
}

// settle queues the last word on the delivery, once. For one of a durable that is no more it does nothing: the
// sequence may be another message's by now.
func (d *delivery) settle(body []byte) error {
	r := d.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[d.sequence] != d {
		return nil
	}
	select {
	case <-r.over:
		return errClosed
	default:
	}
	delete(r.held, d.sequence)
	r.heldSize -= d.size
	r.pull.starved = false
	r.replies = append(r.replies, reply{d.reply, body})
	r.nudge()
	return nil
}
