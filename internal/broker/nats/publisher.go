package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	natsgo "github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// PublisherConfig says what a Publisher sends where.
type PublisherConfig struct {
	// Subject is the destination of rows that name none.
	Subject string
	// Allowed lists the subjects that rows may name: see broker.NewDestinations.
	Allowed []string
	// Window bounds the messages of one Publish that are sent and not answered. Defaults to 512.
	Window int
	// Unordered sends the messages of one key side by side (ordering.mode None).
	Unordered bool
	// Format is how messages are laid out. Defaults to message.Native.
	Format message.Format
}

const (
	defaultWindow = 512
	maxResent     = 1024 // event ids whose next transport id is remembered

	republishMark = "~" // between an event id and the number of the request that sends it again
	resentMark    = "/" // before the number of a further transport id

	verificationMark = "V" // before a message's number in the subject of a read; no digit to base 36
)

// Publisher is a broker.Publisher to one stream. It is safe for concurrent use; the caller never has messages of one
// key in two calls at once.
type Publisher struct {
	conn         *Conn
	cfg          PublisherConfig
	destinations broker.Destinations
	stats        stats

	preparing sync.Mutex // held while a session is prepared

	mu       sync.Mutex
	session  *session // the one that inbox listens on
	inbox    string   // prefix of the subjects that answers come to
	verified bool     // the stream was found, or made, since the session began
	deaf     bool     // the server does not let us subscribe to the inbox
	calls    map[uint64]*call
	lastCall uint64
	resent   map[message.ID]int // transport ids that JetStream has confirmed without keeping the message
}

type stats struct {
	duplicates, cuts atomic.Int64
}

// Stats counts what happened since the start, for tests. What a person should see of it has a reason of its own, which the
// relay counts: a duplicate that JetStream does not hold is broker.ReasonDuplicateLost, a cut broker.ReasonNoAnswer.
type Stats struct {
	// Duplicates counts messages that JetStream called duplicates: retries inside its window.
	Duplicates int64
	// Cuts counts connections cut because nothing was answered by the deadline.
	Cuts int64
}

// NewPublisher returns a publisher over the connection. It sends nothing and waits for nothing.
func NewPublisher(conn *Conn, cfg PublisherConfig) (*Publisher, error) {
	if !validSubject(cfg.Subject) {
		return nil, errors.New(
			"nats.subject is not a subject to publish to: no spaces, wildcards, $ or _INBOX in front",
		)
	}
	destinations, err := broker.NewDestinations(cfg.Subject, cfg.Allowed)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if err := cfg.Format.Validate(); err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if cfg.Window <= 0 {
		cfg.Window = defaultWindow
	}
	return &Publisher{
		conn: conn, cfg: cfg, destinations: destinations,
		calls: make(map[uint64]*call), resent: make(map[message.ID]int),
	}, nil
}

// Stats returns the counts so far.
func (p *Publisher) Stats() Stats {
	return Stats{Duplicates: p.stats.duplicates.Load(), Cuts: p.stats.cuts.Load()}
}

// Publish implements broker.Publisher. The payloads of the batch must not be changed afterwards.
func (p *Publisher) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	c := newCall(p, batch)
	s, err := p.bind(ctx, c)
	if err != nil {
		return c.abandon(unavailableFrom(err))
	}
	defer p.unbind(c)
	before := s.answers.Load()
	sending, cancel := broker.LastCall(ctx)
	defer cancel()
	c.lastCall = sending.Done()
	go c.run(ctx, s)
	select {
	case <-c.over:
	case <-ctx.Done():
	}
	results, sent := c.finish()
	if sent {
		p.distrust(s)
	}
	if sent && errors.Is(ctx.Err(), context.DeadlineExceeded) && s.answers.Load() == before {
		// Nothing at all was answered since the first message went out. What still sits in buffers must not arrive long
		// after the deadline, when another relay may be at work; and the next connection may lead somewhere alive.
		p.stats.cuts.Add(1)
		s.cut()
	}
	return results
}

// bind makes sure that the answers to a call arrive, and that the stream was found in this session.
func (p *Publisher) bind(ctx context.Context, c *call) (*session, error) {
	s, err := p.conn.live(ctx)
	if err != nil {
		return nil, err
	}
	if !p.prepared(s) {
		prepared := make(chan error, 1)
		go func() { prepared <- p.prepare(ctx, s) }() // natsgo's lock knows no context
		select {
		case err := <-prepared:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, &broker.Error{
				Reason: broker.ReasonNotSent,
				Detail: "the deadline came before the stream was found",
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != s {
		return nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the connection to NATS ended"}
	}
	p.lastCall++
	c.id = p.lastCall
	c.reply = p.inbox + "." + strconv.FormatUint(c.id, 36) + "."
	p.calls[c.id] = c
	return s, nil
}

func (p *Publisher) prepared(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session == s && p.verified && !p.deaf
}

// distrust has the next Publish look at the stream again.
func (p *Publisher) distrust(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == s {
		p.verified = false
	}
}

func (p *Publisher) unbind(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, c.id)
}

// prepare listens for answers in a new session and looks at the stream.
func (p *Publisher) prepare(ctx context.Context, s *session) error {
	p.preparing.Lock()
	defer p.preparing.Unlock()
	if p.prepared(s) {
		return nil
	}
	if err := p.listen(s); err != nil {
		return stateError("subscribe to the inbox", err)
	}
	if err := p.ensure(ctx, s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deaf {
		return &broker.Error{
			Reason: broker.ReasonPermissionDenied,
			Detail: "the user may not subscribe to _INBOX.>, where confirmations arrive: allow it",
		}
	}
	if p.session == s {
		p.verified = true
	}
	return nil
}

// listen subscribes to the answers of a new session.
func (p *Publisher) listen(s *session) error {
	p.mu.Lock()
	same := p.session == s && !p.deaf
	p.mu.Unlock()
	if same {
		return nil
	}
	inbox := s.nc.NewInbox()
	p.mu.Lock()
	p.session, p.inbox, p.verified, p.deaf = s, inbox, false, false
	p.mu.Unlock()
	s.watch(p.denied)
	sub, err := s.nc.Subscribe(inbox+".>", func(msg *natsgo.Msg) {
		s.answers.Add(1)
		p.route(msg)
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	// Answers are small and as many as we sent: nothing to drop.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// route hands an answer to its call: the last two tokens of the subject are the call and the message's place in it.
func (p *Publisher) route(msg *natsgo.Msg) {
	rest, index, ok := cutLast(msg.Subject)
	if !ok {
		return
	}
	_, id, _ := cutLast(rest)
	callID, err := strconv.ParseUint(id, 36, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	c := p.calls[callID]
	p.mu.Unlock()
	if c == nil {
		return // its deadline has passed
	}
	verification := strings.HasPrefix(index, verificationMark)
	n, err := strconv.ParseUint(strings.TrimPrefix(index, verificationMark), 36, 31)
	if err != nil || n >= uint64(len(c.batch)) {
		return
	}
	c.tell(event{index: int(n), msg: msg, verification: verification})
}

func cutLast(subject string) (before, last string, ok bool) {
	at := strings.LastIndexByte(subject, '.')
	if at < 0 {
		return "", "", false
	}
	return subject[:at], subject[at+1:], true
}

// denied tells all calls of a subject that the server does not let us use.
func (p *Publisher) denied(d denied) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.subscribe {
		if !strings.HasPrefix(d.subject, p.inbox) {
			return
		}
		p.deaf = true
	}
	for _, c := range p.calls {
		c.tell(event{index: -1, denied: &d})
	}
}

// transportID returns what JetStream dedupes by: the event id, or a new one where the message is sent again on purpose,
// or where JetStream once lost it and kept the id.
func (p *Publisher) transportID(m *message.Message) string {
	p.mu.Lock()
	n := p.resent[m.ID]
	p.mu.Unlock()
	id := m.ID.String()
	if m.RepublishID != 0 {
		id += republishMark + strconv.FormatInt(m.RepublishID, 10)
	}
	if n != 0 {
		id += resentMark + strconv.Itoa(n)
	}
	return id
}

// forgetTransportID has the message sent under a new transport id from now on.
func (p *Publisher) forgetTransportID(id message.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.resent[id]; !known && len(p.resent) >= maxResent {
		for other := range p.resent { // any one: it costs one more Unknown
			delete(p.resent, other)
			break
		}
	}
	p.resent[id]++
}
