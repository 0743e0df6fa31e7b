package rabbitmq

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// blockedGrace is how long answers are waited for after the broker has stopped reading from the connection.
const blockedGrace = time.Second

// state is how far a message of a call has come.
type state uint8

const (
	waiting  state = iota // not sent
	inFlight              // sent, not answered
	settled               // its confirmation stands
)

// call is one Publish. One goroutine drives it; the caller takes the results when it is over or when its context ends,
// whichever is first.
type call struct {
	publisher *Publisher
	batch     []message.Message
	over      chan struct{}   // closed when the goroutine has ended
	lastCall  <-chan struct{} // closed when nothing more is begun
	next      []int32         // the next message of the same key, -1 at the last
	ready     []int           // may be sent
	byTag     map[uint64]int
	byID      map[string]int // in flight
	ids       []string       // by message
	targets   []target       // by message
	returned  []bool         // by message

	mu      sync.Mutex
	taken   bool // the caller has the results; nothing more is sent
	states  []state
	results []broker.Confirmation
	open    int
	blocked bool
}

func newCall(p *Publisher, batch []message.Message) *call {
	c := &call{
		publisher: p, batch: batch, over: make(chan struct{}), next: make([]int32, len(batch)),
		byTag: make(map[uint64]int), byID: make(map[string]int), ids: make([]string, len(batch)),
		states: make([]state, len(batch)), results: make([]broker.Confirmation, len(batch)),
		targets: make([]target, len(batch)), returned: make([]bool, len(batch)),
	}
	last := make(map[string]int, len(batch))
	for i := range batch {
		c.next[i] = -1
		if before, ok := last[batch[i].OrderingKey]; ok && !p.publish.Unordered {
			c.next[before] = int32(i)
		} else {
			c.ready = append(c.ready, i)
		}
		last[batch[i].OrderingKey] = i
	}
	return c
}

// abandon gives all messages one confirmation.
func (c *call) abandon(all broker.Confirmation) []broker.Confirmation {
	for i := range c.results {
		c.states[i], c.results[i] = settled, all
	}
	return c.results
}

// run sends and settles until all messages are settled, the connection ends, or the caller has taken the results.
func (c *call) run(ctx context.Context, s *session) {
	defer close(c.over)
	if s.main == nil {
		var err error
		if s.main, err = s.conn.openLane(c.publisher.publish.Window); err != nil {
			c.abandonRest(broker.Postpone(broker.ReasonUnreachable, "the broker opened no channel"))
			return
		}
	}
	for {
		if !c.send(ctx, s) {
			return
		}
		if c.idle() {
			return
		}
		if !c.wait(s) {
			return
		}
	}
}

// wait takes the next word of the broker. It says false when there is nothing more to wait for.
func (c *call) wait(s *session) bool {
	var late <-chan time.Time
	if s.conn.held.Load() {
		timer := time.NewTimer(blockedGrace)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case confirmed, ok := <-s.main.confirms:
		if !ok {
			return c.closed(s)
		}
		c.drainReturns(s.main)
		c.confirm(s.conn, confirmed)
	case b := <-s.conn.blocked:
		c.hold(s, b.Active)
	case <-late:
		return false // finish gives the rest their words
	}
	return true
}

// hold notes that the broker has stopped reading from the connection, or goes on: what was not sent waits for better
// times.
func (c *call) hold(s *session, blocked bool) {
	s.conn.held.Store(blocked)
	if !blocked {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked = true
	for i := range c.batch {
		if c.states[i] == waiting {
			c.settleLocked(i, blockedConfirmation())
		}
	}
	c.ready = nil
}

func blockedConfirmation() broker.Confirmation {
	return broker.Postpone(
		broker.ReasonBlocked,
		"the broker has blocked publishing: look at its memory and disk alarms",
	)
}

// send sends what is ready as far as the window allows. It says false when the results have been taken or the channel
// is closed.
func (c *call) send(ctx context.Context, s *session) bool {
	for len(c.ready) > 0 {
		i := c.ready[0]
		publishing, to, ok := c.begin(i)
		if !ok {
			return !c.isTaken()
		}
		c.ready = c.ready[1:]
		if publishing == nil {
			continue // refused
		}
		size := len(publishing.Body)
		if !c.publisher.proven.has(to, size) {
			if !c.prove(ctx, s, i, to, *publishing) {
				return false
			}
			continue
		}
		c.byTag[s.main.GetNextPublishSeqNo()] = i
		c.byID[publishing.MessageId] = i
		if err := s.main.PublishWithContext(ctx, to.exchange, to.routingKey, true, false, *publishing); err != nil {
			return c.closed(s)
		}
	}
	return true
}

func (c *call) isTaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// begin takes a place in the window and builds what goes onto the wire; nil where the message is refused. It says false
// where there is no place, or the results have been taken.
func (c *call) begin(i int) (*amqp.Publishing, target, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken || c.open >= c.publisher.publish.Window {
		return nil, target{}, false
	}
	select {
	case <-c.lastCall:
		c.settleLocked(i, broker.NoTime())
		return nil, target{}, true
	default:
	}
	publishing, to, refusal := c.build(i)
	if refusal != nil {
		c.settleLocked(i, *refusal)
		return nil, to, true
	}
	c.states[i], c.targets[i], c.ids[i] = inFlight, to, publishing.MessageId
	c.open++
	return publishing, to, true
}

// build returns what goes onto the wire for a message and where to, or why it never will.
func (c *call) build(i int) (*amqp.Publishing, target, *broker.Confirmation) {
	m := &c.batch[i]
	cfg := &c.publisher.publish
	_, allowed := c.publisher.destinations.Resolve(m)
	to, ok := cfg.target(m)
	if !ok {
		r := broker.Reject(broker.ReasonInvalidDestination,
			"the destination is not routing-key or exchange/routing-key, or is an exchange of the broker's own")
		return nil, to, &r
	}
	if !allowed {
		r := broker.Reject(broker.ReasonNotAllowed,
			"the destination is not in destination.allowed: add it, or correct the row")
		return nil, to, &r
	}
	rec, refusal := broker.Encode(m, cfg.Format, message.AMQPBinding)
	if refusal != nil {
		return nil, to, refusal
	}
	return wirePublishing(m, &rec, cfg.Format), to, nil
}

// wirePublishing returns the record as AMQP carries it. The event id is the message id: a return is matched by it.
func wirePublishing(m *message.Message, rec *message.Record, format message.Format) *amqp.Publishing {
	headers := make(amqp.Table, len(rec.Headers))
	for _, h := range rec.Headers {
		headers[h.Name] = h.Value
	}
	contentType := m.ContentType
	if format == message.CloudEventsStructured { // the body is the event
		contentType, _ = rec.Header(message.HeaderContentType)
	}
	return &amqp.Publishing{
		Headers: headers, ContentType: shortText(contentType), DeliveryMode: amqp.Persistent, MessageId: m.ID.String(),
		Timestamp: m.OccurredAt, Type: shortText(m.Type), Body: rec.Body,
	}
}

// shortText bounds a text to AMQP's short string; the header beside it holds the whole.
func shortText(s string) string {
	if len(s) > maxNameBytes {
		return ""
	}
	return s
}

// prove sends one message alone on a channel of its own: to a destination, or of a size, that the broker has not taken
// before. It says false when the connection has ended.
func (c *call) prove(ctx context.Context, s *session, i int, to target, publishing amqp.Publishing) bool {
	if err := c.publisher.find(s.conn, to.exchange); err != nil {
		if s.conn.IsClosed() {
			return c.closed(s)
		}
		c.settle(i, c.notFound(to, err))
		return true
	}
	alone, err := s.conn.openLane(1)
	if err != nil {
		return c.closed(s)
	}
	if err := alone.PublishWithContext(ctx, to.exchange, to.routingKey, true, false, publishing); err != nil {
		return c.closed(s)
	}
	for {
		select {
		case confirmed, ok := <-alone.confirms:
			if !ok {
				return c.refused(s, i, to, alone)
			}
			select {
			case <-alone.returns:
				c.returned[i] = true
			default:
			}
			if confirmed.Ack && !c.returned[i] {
				c.publisher.proven.add(to, len(publishing.Body))
			}
			c.settle(i, c.word(s.conn, i, confirmed.Ack))
			_ = alone.Close()
			return true
		case b := <-s.conn.blocked:
			c.hold(s, b.Active)
			if b.Active {
				return c.awaitBlocked(s.conn, i, alone)
			}
		}
	}
}

// awaitBlocked waits for the word on a message that the broker has perhaps read before it blocked the connection.
func (c *call) awaitBlocked(by *conn, i int, alone *lane) bool {
	timer := time.NewTimer(blockedGrace)
	defer timer.Stop()
	select {
	case confirmed, ok := <-alone.confirms:
		if ok {
			c.settle(i, c.word(by, i, confirmed.Ack))
		}
	case <-timer.C:
	}
	return false
}

// notFound is for a message whose exchange cannot be used.
func (c *call) notFound(to target, err error) broker.Confirmation {
	state, ok := errors.AsType[*broker.Error](err)
	if ok && state.Reason == broker.ReasonStreamMissing && to.exchange != c.publisher.publish.Exchange {
		return broker.Reject(
			broker.ReasonUnroutable,
			"the row's exchange does not exist: declare it, or correct the row",
		)
	}
	return unavailable(err)
}

// refused settles a message for which the broker closed its channel. It says false when the connection has ended.
func (c *call) refused(s *session, i int, to target, alone *lane) bool {
	said := <-alone.closed
	if s.conn.IsClosed() || said == nil {
		return c.closed(s)
	}
	own := to == c.publisher.publish.own()
	switch {
	case said.Code == amqp.PreconditionFailed:
		c.settle(i, broker.Reject(broker.ReasonTooLarge, "the message exceeds the broker's max_message_size"))
	case said.Code == amqp.AccessRefused && own:
		c.settle(i, broker.Postpone(broker.ReasonPermissionDenied, "the user may not write to the exchange: grant it"))
	case said.Code == amqp.AccessRefused:
		c.settle(i, broker.Refuse(broker.ReasonPermissionDenied, "the user may not write to the row's destination"))
	case said.Code == amqp.NotFound:
		c.settle(i, c.notFound(to, &broker.Error{Reason: broker.ReasonStreamMissing, Detail: "the exchange is gone"}))
	default:
		c.settle(
			i,
			broker.Doubt(broker.ReasonBrokerError, "the broker closed the channel ("+strconv.Itoa(said.Code)+")"),
		)
	}
	return true
}

// drainReturns notes what came back before the confirmation at hand.
func (c *call) drainReturns(l *lane) {
	for {
		select {
		case r, ok := <-l.returns:
			if !ok {
				return
			}
			if i, known := c.byID[r.MessageId]; known {
				c.returned[i] = true
			}
		default:
			return
		}
	}
}

// confirm settles the message of a confirmation.
func (c *call) confirm(by *conn, confirmed amqp.Confirmation) {
	i, ok := c.byTag[confirmed.DeliveryTag]
	if !ok {
		return // of a call before
	}
	delete(c.byTag, confirmed.DeliveryTag)
	delete(c.byID, c.ids[i])
	c.settle(i, c.word(by, i, confirmed.Ack))
}

// word says what the broker's confirmation means for a message. RabbitMQ tells no place: the position names the
// confirmation.
func (c *call) word(by *conn, i int, ack bool) broker.Confirmation {
	switch {
	case !ack:
		return broker.Postpone(broker.ReasonStreamFull,
			"the broker has not taken the message: a queue is full and rejects, or its leader is away")
	case c.returned[i] && c.targets[i] == c.publisher.publish.own():
		return broker.Postpone(broker.ReasonStreamMissing, c.publisher.publish.unbound())
	case c.returned[i]:
		return broker.Reject(broker.ReasonUnroutable, "no queue is bound for the row's destination: bind one")
	}
	return broker.Confirmation{
		Outcome:  broker.Confirmed,
		Position: c.targets[i].String() + "#" + by.id + "." + strconv.FormatUint(by.confirmed.Add(1), 10),
	}
}

// closed settles everything after the channel or the connection has ended, and says false.
func (c *call) closed(s *session) bool {
	if !s.conn.IsClosed() {
		s.conn.cut() // a channel that was closed for one of many: begin anew
	}
	c.publisher.proven.forget()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.batch {
		switch c.states[i] {
		case inFlight:
			c.settleLocked(i, broker.Doubt(broker.ReasonNoAnswer, "the channel ended before the answer"))
		case waiting:
			c.settleLocked(i, broker.Postpone(broker.ReasonUnreachable, "the connection to RabbitMQ ended"))
		case settled:
		}
	}
	return false
}

// abandonRest gives all messages that have none yet one confirmation.
func (c *call) abandonRest(all broker.Confirmation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.batch {
		if c.states[i] != settled {
			c.settleLocked(i, all)
		}
	}
}

func (c *call) settle(i int, r broker.Confirmation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked(i, r)
}

// settleLocked gives a message its confirmation, and lets the next of its key go, or gives all behind it theirs. The
// lock is held.
func (c *call) settleLocked(i int, r broker.Confirmation) {
	if c.taken || c.states[i] == settled {
		return
	}
	if c.states[i] == inFlight {
		c.open--
	}
	c.states[i], c.results[i] = settled, r
	n := c.next[i]
	if r.Outcome == broker.Confirmed {
		if n >= 0 && c.blocked {
			c.settleLocked(int(n), blockedConfirmation())
		} else if n >= 0 {
			c.ready = append(c.ready, int(n))
		}
		return
	}
	for ; n >= 0; n = c.next[n] {
		if c.states[n] != settled {
			c.states[n], c.results[n] = settled, broker.Behind()
		}
	}
}

func (c *call) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open == 0 && len(c.ready) == 0
}

// ended says whether all messages are settled; the results are then the caller's.
func (c *call) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.states {
		if st != settled {
			return false
		}
	}
	c.taken = true
	return true
}

// finish takes the results after the connection was cut: what has no answer is Unknown, what was not sent is not.
func (c *call) finish() []broker.Confirmation {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.batch {
		switch {
		case c.states[i] == inFlight && c.blocked:
			c.results[i] = broker.Doubt(broker.ReasonBlocked,
				"the broker blocked publishing before it answered: look at its memory and disk alarms")
		case c.states[i] == inFlight:
			c.results[i] = broker.Doubt(broker.ReasonNoAnswer, "no answer in time")
		case c.states[i] == waiting:
			c.results[i] = broker.NoTime()
		}
	}
	c.taken = true
	return c.results
}
