package nats

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	natsgo "github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// state is how far a message of a call has come.
type state uint8

const (
	waiting   state = iota // not sent
	inFlight               // sent, not answered
	verifying              // answered as a duplicate; the message at the answer's sequence is being read
	unrouted               // nobody listens on its subject; whether the stream is gone is not known yet
	settled                // its confirmation stands
)

// event is what a call waits for: an answer to one message, or a refused subject.
type event struct {
	index        int
	msg          *natsgo.Msg
	verification bool
	denied       *denied
}

// call is one Publish: a window of messages under way, at most one of each key. One goroutine drives it; the caller
// takes the results when it is over or when its context ends, whichever is first.
type call struct {
	publisher *Publisher
	batch     []message.Message
	id        uint64
	reply     string // answers to message i come to reply + i
	events    chan event
	over      chan struct{}   // closed when all are settled
	lastCall  <-chan struct{} // closed when nothing more is begun
	next      []int32         // the next message of the same key, -1 at the last

	mu       sync.Mutex
	taken    bool // the caller has the results; nothing more is sent
	states   []state
	results  []broker.Confirmation
	subjects []string // where message i was sent
	reads    []read   // of duplicates, to be sent
	open     int      // in flight or verifying
	foreign  bool     // something answers that is not our stream
}

// read is a look at what the stream holds for a message that JetStream calls a duplicate.
type read struct {
	index    int
	sequence uint64
}

func newCall(p *Publisher, batch []message.Message) *call {
	return &call{
		publisher: p, batch: batch,
		// Each message is answered once, or twice with its verification; refusals of subjects come on top.
		events: make(chan event, 2*len(batch)+16),
		over:   make(chan struct{}),
		next:   chain(batch, p.cfg.Unordered),
		states: make([]state, len(batch)), results: make([]broker.Confirmation, len(batch)),
		subjects: make([]string, len(batch)),
	}
}

// chain links the messages of each key.
func chain(batch []message.Message, unordered bool) []int32 {
	next := make([]int32, len(batch))
	last := make(map[string]int, len(batch))
	for i := range batch {
		next[i] = -1
		if unordered {
			continue
		}
		if before, ok := last[batch[i].OrderingKey]; ok {
			next[before] = int32(i)
		}
		last[batch[i].OrderingKey] = i
	}
	return next
}

// heads returns the first message of each key, in the batch's order.
func (c *call) heads() []int {
	followers := make([]bool, len(c.batch))
	for _, n := range c.next {
		if n >= 0 {
			followers[n] = true
		}
	}
	heads := make([]int, 0, len(c.batch))
	for i := range c.batch {
		if !followers[i] {
			heads = append(heads, i)
		}
	}
	return heads
}

// abandon gives all messages one confirmation.
func (c *call) abandon(all broker.Confirmation) []broker.Confirmation {
	for i := range c.results {
		c.results[i] = all
	}
	return c.results
}

// tell never blocks: what finds no room is a repeated answer of somebody else's.
func (c *call) tell(e event) {
	select {
	case c.events <- e:
	default:
	}
}

// run sends and settles until all messages are settled or the session or the context ends.
func (c *call) run(ctx context.Context, s *session) {
	defer close(c.over)
	ready := c.heads()
	for {
		ready = c.send(s, ready)
		if c.idle() {
			break
		}
		select {
		case e := <-c.events:
			ready = append(ready, c.handle(e)...)
		case <-s.done:
			c.sessionEnded()
			return
		case <-ctx.Done():
			return // finish gives the rest their words
		}
		for drained := false; !drained; {
			select {
			case e := <-c.events:
				ready = append(ready, c.handle(e)...)
			default:
				drained = true
			}
		}
		c.sendReads(s)
	}
	c.settleUnrouted(ctx, s)
}

func (c *call) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open == 0
}

// send sends what is ready as far as the window allows, and returns the rest.
func (c *call) send(s *session, ready []int) []int {
	for len(ready) > 0 {
		i := ready[0]
		msg, ok := c.begin(s, i)
		if !ok {
			return ready
		}
		ready = ready[1:]
		if msg == nil {
			continue // refused
		}
		if err := s.nc.PublishMsg(msg); err != nil { // outside the lock: it may block
			c.settle(i, sendError(err))
		}
	}
	return nil
}

// begin takes a place in the window and builds what goes onto the wire; nil where the message is refused. It says
// false where there is no place, or the results have been taken: from then on the batch is the caller's again.
func (c *call) begin(s *session, i int) (*natsgo.Msg, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken || c.open >= c.publisher.cfg.Window {
		return nil, false
	}
	select {
	case <-c.lastCall:
		c.settleLocked(i, broker.NoTime())
		return nil, true
	default:
	}
	msg, refusal := c.build(s, i)
	if refusal != nil {
		c.settleLocked(i, *refusal)
		return nil, true
	}
	c.states[i], c.subjects[i] = inFlight, msg.Subject
	c.open++
	return msg, true
}

// build returns what goes onto the wire for a message, or why it never will.
func (c *call) build(s *session, i int) (*natsgo.Msg, *broker.Confirmation) {
	m := &c.batch[i]
	subject, ok := c.publisher.destinations.Resolve(m)
	switch {
	case m.Destination != "" && !validSubject(m.Destination):
		r := rejected(broker.ReasonInvalidDestination,
			"the destination is not a subject: no spaces, wildcards, $ or _INBOX in front")
		return nil, &r
	case !ok:
		r := rejected(
			broker.ReasonNotAllowed,
			"the destination is not in destination.allowed: add it, or correct the row",
		)
		return nil, &r
	}
	rec, refusal := broker.Encode(m, c.publisher.cfg.Format, message.NATSBinding)
	if refusal != nil {
		return nil, refusal
	}
	msg := wireMessage(&rec, c.publisher.transportID(m), c.publisher.conn.cfg.Stream)
	if size := wireSize(msg); size > s.maxPayload {
		r := rejected(broker.ReasonTooLarge, "the message with its headers is "+strconv.FormatInt(size, 10)+
			" bytes, the server's max_payload is "+strconv.FormatInt(s.maxPayload, 10))
		return nil, &r
	}
	msg.Subject = subject
	msg.Reply = c.reply + strconv.FormatInt(int64(i), 36)
	return msg, nil
}

// sendError says what an error of natsgo means: the message did not leave the process.
func sendError(err error) broker.Confirmation {
	if errors.Is(err, natsgo.ErrMaxPayload) {
		return rejected(broker.ReasonTooLarge, "the message exceeds the server's max_payload")
	}
	if errors.Is(err, natsgo.ErrConnectionClosed) || errors.Is(err, natsgo.ErrConnectionDraining) {
		return unavailable(broker.ReasonUnreachable, "the connection to NATS ended")
	}
	if errors.Is(err, natsgo.ErrHeadersNotSupported) {
		return unavailable(broker.ReasonStreamMissing, "the server is too old: it knows no headers")
	}
	return unknown("writing to NATS ended early") // part of the bytes may have arrived
}

// settle gives a message a confirmation other than Confirmed.
func (c *call) settle(i int, r broker.Confirmation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked(i, r)
}

// settleLocked gives a message its confirmation, and its followers theirs unless it is confirmed. It returns the next
// of the key where that may go now.
func (c *call) settleLocked(i int, r broker.Confirmation) []int {
	if c.taken || c.states[i] == settled {
		return nil
	}
	if c.states[i] == inFlight || c.states[i] == verifying {
		c.open--
	}
	c.states[i], c.results[i] = settled, r
	n := c.next[i]
	if r.Outcome == broker.Confirmed {
		if n < 0 {
			return nil
		}
		return []int{int(n)}
	}
	for ; n >= 0; n = c.next[n] {
		c.states[n] = settled
		c.results[n] = unavailable(broker.ReasonNotSent, "an earlier message of the key was not confirmed")
	}
	return nil
}

// handle takes an event and returns which message may go now.
func (c *call) handle(e event) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.taken:
		return nil
	case e.denied != nil:
		c.handleDenied(e.denied)
		return nil
	case e.verification:
		if c.states[e.index] != verifying {
			return nil
		}
		return c.settleLocked(e.index, c.verified(e.index, e.msg))
	case c.states[e.index] != inFlight:
		return nil
	}
	return c.handleAnswer(e.index, e.msg)
}

func (c *call) handleAnswer(i int, msg *natsgo.Msg) []int {
	stream := c.publisher.conn.cfg.Stream
	if noResponders(msg) {
		c.states[i] = unrouted // its followers wait for the same word
		c.open--
		return nil
	}
	ack, ok := parseAck(msg.Data, stream)
	switch {
	case !ok:
		// Not JetStream, or another stream: somebody else listens on the subject and answers. Ours may answer yet.
		c.foreign = true
		return nil
	case ack.Error != nil && ack.Error.ErrorCode == codeStreamMismatch:
		return c.settleLocked(i, c.elsewhere(i))
	case ack.Error != nil:
		return c.settleLocked(i, publishError(ack.Error))
	case ack.Duplicate:
		// A change of leaders can remember an id and lose its message: look before believing it.
		c.publisher.stats.duplicates.Add(1)
		c.states[i] = verifying
		c.results[i].Position = position(stream, ack.Sequence)
		c.reads = append(c.reads, read{index: i, sequence: ack.Sequence})
		return nil
	}
	return c.settleLocked(i, confirmed(stream, ack.Sequence))
}

// elsewhere is for a subject that belongs to another stream.
func (c *call) elsewhere(i int) broker.Confirmation {
	if c.subjects[i] == c.publisher.cfg.Subject {
		return unavailable(broker.ReasonStreamMismatch, "nats.subject belongs to another stream than nats.stream")
	}
	return rejected(broker.ReasonUnroutable, "the destination belongs to another stream than nats.stream")
}

// sendReads asks the stream what it holds at the sequences that duplicate answers named.
func (c *call) sendReads(s *session) {
	c.mu.Lock()
	reads := c.reads
	c.reads = nil
	c.mu.Unlock()
	for _, r := range reads {
		err := s.nc.PublishMsg(&natsgo.Msg{
			Subject: c.getSubject(), Reply: c.reply + verificationMark + strconv.FormatInt(int64(r.index), 36),
			Data: []byte(`{"seq":` + strconv.FormatUint(r.sequence, 10) + `}`),
		})
		if err != nil {
			c.settle(r.index, unknown("the connection ended before a duplicate could be verified"))
		}
	}
}

func (c *call) getSubject() string { return "$JS.API.STREAM.MSG.GET." + c.publisher.conn.cfg.Stream }

// verified says what the read of a duplicate's sequence shows.
func (c *call) verified(i int, msg *natsgo.Msg) broker.Confirmation {
	m := &c.batch[i]
	id, found := parseStored(msg.Data)
	if found && id == m.ID.String() {
		return broker.Confirmation{Outcome: broker.Confirmed, Position: c.results[i].Position}
	}
	return c.unverified(i, broker.ReasonDuplicateLost,
		"JetStream remembers the id but does not show the message: sent again under a new transport id")
}

// unverified is for a duplicate that was not seen: it goes again under an id that JetStream does not remember.
func (c *call) unverified(i int, reason broker.Reason, detail string) broker.Confirmation {
	c.publisher.forgetTransportID(c.batch[i].ID)
	return broker.Doubt(reason, detail)
}

// handleDenied settles what waits for a subject that the server refuses.
func (c *call) handleDenied(d *denied) {
	if d.subscribe {
		for i := range c.batch {
			if c.states[i] == inFlight || c.states[i] == verifying {
				c.settleLocked(i, broker.Confirmation{
					Outcome: broker.Unknown, Reason: broker.ReasonPermissionDenied,
					Detail: "the user may not subscribe to _INBOX.>, where confirmations arrive: allow it",
				})
			}
		}
		return
	}
	for i := range c.batch {
		switch {
		case c.states[i] == inFlight && c.subjects[i] == d.subject:
			c.settleLocked(i, c.mayNot(d.subject))
		case c.states[i] == verifying && d.subject == c.getSubject():
			c.settleLocked(i, c.unverified(i, broker.ReasonPermissionDenied, "the user may not publish to "+d.subject+
				", by which a duplicate is looked at: allow it"))
		}
	}
}

// mayNot is for a subject that the user may not publish to. The relay's own is nothing that another row could mend.
func (c *call) mayNot(subject string) broker.Confirmation {
	if subject == c.publisher.cfg.Subject {
		return unavailable(broker.ReasonPermissionDenied, "the user may not publish to nats.subject: allow it")
	}
	return broker.Refuse(broker.ReasonPermissionDenied, "the user may not publish to the row's destination")
}

// settleUnrouted finds out, once for all, why nobody listens on some messages' subjects.
func (c *call) settleUnrouted(ctx context.Context, s *session) {
	c.mu.Lock()
	var left []int
	for i, st := range c.states {
		if st == unrouted {
			left = append(left, i)
		}
	}
	c.mu.Unlock()
	if len(left) == 0 {
		return
	}
	subjects, err := c.publisher.streamSubjects(ctx, s)
	for _, i := range left {
		c.settle(i, c.whyUnrouted(c.subjects[i], subjects, err))
	}
}

func (c *call) whyUnrouted(subject string, subjects []string, err error) broker.Confirmation {
	switch {
	case err != nil:
		r := unavailableFrom(err)
		if r.Reason != broker.ReasonUnreachable {
			r.Reason = broker.ReasonStreamMissing
		}
		return r
	case anyCovers(subjects, subject):
		return unavailable(broker.ReasonBrokerError, "the stream takes no messages at the moment")
	case !anyCovers(subjects, c.publisher.cfg.Subject):
		return unavailable(broker.ReasonStreamMismatch,
			"the stream does not hold nats.subject: add it to the stream's subjects")
	default:
		return rejected(
			broker.ReasonUnroutable,
			"the stream does not hold the destination: add it to the stream's subjects",
		)
	}
}

// sessionEnded settles what was under way when the connection ended.
func (c *call) sessionEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.batch {
		switch c.states[i] {
		case inFlight, verifying:
			c.settleLocked(i, unknown("the connection ended before the answer"))
		case waiting:
			c.settleLocked(i, unavailable(broker.ReasonUnreachable, "the connection to NATS ended"))
		case unrouted:
			c.settleLocked(i, unavailable(broker.ReasonStreamMissing, "nobody listens on the subject"))
		case settled:
		}
	}
}

// finish takes the results: what has no answer is Unknown, what was not sent is not. Sent says that some is unanswered.
func (c *call) finish() (results []broker.Confirmation, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.batch {
		switch c.states[i] {
		case inFlight, verifying:
			sent = true
			c.results[i] = c.unanswered()
		case waiting:
			c.results[i] = broker.NoTime()
		case unrouted:
			c.results[i] = unavailable(broker.ReasonStreamMissing, "nobody listens on the subject")
		case settled:
		}
	}
	c.taken = true
	return c.results, sent
}

func (c *call) unanswered() broker.Confirmation {
	r := unknown("no answer in time")
	if c.foreign {
		r.Reason = broker.ReasonStreamMissing
		r.Detail = "something else than the stream answers on the subject: check nats.stream and nats.subject"
	}
	return r
}

func confirmed(stream string, sequence uint64) broker.Confirmation {
	return broker.Confirmation{Outcome: broker.Confirmed, Position: position(stream, sequence)}
}

func position(stream string, sequence uint64) string {
	return stream + "@" + strconv.FormatUint(sequence, 10)
}

func noResponders(msg *natsgo.Msg) bool {
	return len(msg.Data) == 0 && strings.HasPrefix(msg.Header.Get("Status"), "503")
}
