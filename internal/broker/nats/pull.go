package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/broker"
)

const (
	pullExpires    = 30 * time.Second
	minKeepAlive   = 50 * time.Millisecond
	maxServePause  = 5 * time.Second
	serveBasePause = 100 * time.Millisecond
	maxSilences    = 2 // missed signs of life before the subscription is made again
)

var (
	// errStalled ends a subscription that brings nothing though it should.
	errStalled = errors.New("the broker delivers nothing")
	// errSessionEnded ends a subscription whose connection is gone.
	errSessionEnded = errors.New("the connection ended")
)

// run serves one subscription after another until the receiver is closed.
func (r *Receiver) run(ctx context.Context) {
	defer close(r.over)
	pause := serveBasePause
	for ctx.Err() == nil {
		s, connErr, changed := r.conn.look()
		if s == nil || s.ended() {
			if connErr != nil {
				r.fail(connErr)
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		began := r.now()
		err := r.serve(ctx, s)
		if errors.Is(err, errStalled) || errors.Is(err, errSessionEnded) || ctx.Err() != nil {
			continue
		}
		r.fail(err)
		if r.now().Sub(began) > maxServePause {
			pause = serveBasePause
		}
		wait(ctx, pause/2+rand.N(pause/2+1)) //nolint:gosec // jitter is no secret
		pause = min(2*pause, maxServePause)
	}
}

// serve works on one subscription until it ends, and says why.
func (r *Receiver) serve(ctx context.Context, s *session) error {
	d, err := r.ensureDurable(ctx, s)
	if err != nil {
		return err
	}
	inbox := s.nc.NewInbox()
	r.adopt(d)
	sub, err := s.nc.Subscribe(inbox+".*", r.arrive)
	if err != nil {
		return stateError("subscribe", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	drained := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(drained) })
	if err := sub.SetPendingLimits(-1, -1); err != nil { // our own requests bound it
		return stateError("subscribe", err)
	}
	r.fail(nil)
	w := &server{r: r, s: s, d: d, inbox: inbox}
	if err := w.loop(ctx); ctx.Err() == nil {
		return err
	}
	// Closed by us: end the open request first, or what is given back would be delivered to it, and wait for what was on
	// its way here, to give that back, too.
	if err := sub.Drain(); err == nil {
		select {
		case <-drained:
		case <-s.done:
		case <-time.After(apiTimeout):
		}
	}
	return w.send()
}

// adopt begins anew for a subscription, and forgets what was held of an earlier durable of the name: its sequences may
// mean other messages now.
func (r *Receiver) adopt(d durable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.made.Equal(d.created) {
		r.made = d.created
		clear(r.held)
		r.heldSize, r.buffer, r.replies = 0, nil, nil
	}
	r.pull = pull{alone: r.pull.alone, message: r.now()}
}

// server is the loop over one subscription.
type server struct {
	r       *Receiver
	s       *session
	d       durable
	inbox   string
	pulls   uint64
	looking bool // the durable is being looked at
}

func (w *server) loop(ctx context.Context) error {
	keepAlive := time.NewTicker(max(w.ackWait()/3, minKeepAlive))
	defer keepAlive.Stop()
	signs := time.NewTicker(w.r.cfg.Heartbeat)
	defer signs.Stop()
	looks := make(chan error, 1)
	for {
		if err := w.send(); err != nil {
			return err
		}
		select {
		case <-w.r.kick:
		case <-keepAlive.C:
			w.extend()
		case <-signs.C:
			if err := w.watch(ctx, looks); err != nil {
				return err
			}
		case err := <-looks:
			w.looking = false
			if err != nil {
				return err
			}
		case <-w.s.done:
			return errSessionEnded
		case <-ctx.Done():
			return nil
		}
	}
}

// ackWait is how long the broker waits at least before it delivers again.
func (w *server) ackWait() time.Duration {
	wait := w.d.cfg.AckWait
	for _, b := range w.d.cfg.BackOff {
		wait = min(wait, b)
	}
	return wait
}

// send sends the words that wait, and a request for messages where there is room.
func (w *server) send() error {
	r := w.r
	r.mu.Lock()
	broken := r.pull.broken
	replies := r.replies
	r.replies = nil
	var request []byte
	if broken == nil && !r.closed {
		request = w.request()
	}
	subject := r.pull.subject
	r.mu.Unlock()
	for i := range replies {
		if err := w.s.nc.Publish(replies[i].subject, replies[i].body); err != nil {
			w.requeue(replies[i:])
			return errSessionEnded
		}
	}
	if broken != nil {
		return broken
	}
	if request == nil {
		return nil
	}
	to := "$JS.API.CONSUMER.MSG.NEXT." + r.conn.cfg.Stream + "." + r.cfg.Durable
	if err := w.s.nc.PublishRequest(to, subject, request); err != nil {
		return errSessionEnded
	}
	return nil
}

// requeue keeps the words that were not sent for the next session: they still hold there.
func (w *server) requeue(replies []reply) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.replies = append(replies, w.r.replies...)
}

// request returns the next request for messages, nil while one is open or there is no room. The receiver's lock is
// held.
func (w *server) request() []byte {
	r := w.r
	p := &r.pull
	room := r.cfg.Prefetch - len(r.held)
	bytes := r.cfg.PrefetchBytes - r.heldSize
	if p.left > 0 || room <= 0 || p.starved || (bytes <= 0 && len(r.held) > 0) {
		return nil
	}
	if limit := w.d.cfg.MaxRequestBatch; limit > 0 {
		room = min(room, limit)
	}
	expires := pullExpires
	if limit := w.d.cfg.MaxRequestExpires; limit > 0 {
		expires = min(expires, limit)
	}
	body := struct {
		Expires   time.Duration `json:"expires"`
		Batch     int           `json:"batch"`
		MaxBytes  int           `json:"max_bytes,omitempty"`
		Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
	}{expires, room, bytes, min(r.cfg.Heartbeat, expires/2)}
	if limit := w.d.cfg.MaxRequestMaxBytes; limit > 0 {
		body.MaxBytes = min(body.MaxBytes, limit)
	}
	if p.alone {
		body.Batch, body.MaxBytes, p.alone = 1, 0, false
	}
	b, err := json.Marshal(body)
	if err != nil {
		p.broken = fmt.Errorf("encode pull request: %w", err)
		return nil
	}
	w.pulls++
	p.subject = w.inbox + "." + strconv.FormatUint(w.pulls, 36)
	p.left, p.brought, p.signs = body.Batch, 0, r.now()
	return b
}

// extend tells the broker that what is held is being worked on.
func (w *server) extend() {
	r := w.r
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, d := range r.held {
		if now.Sub(d.extended) >= w.ackWait()/3-minKeepAlive {
			d.extend(now)
		}
	}
}

// watch looks whether the request is still known to the broker, and whether it brings what the broker holds.
func (w *server) watch(ctx context.Context, looks chan<- error) error {
	r := w.r
	r.mu.Lock()
	now := r.now()
	p := &r.pull
	if p.left > 0 && now.Sub(p.signs) > 2*r.cfg.Heartbeat+r.cfg.Heartbeat/2 {
		p.silences++
		p.left = 0 // asked again: the request was lost, or its answers
	}
	silent := p.silences >= maxSilences
	look := !w.looking && p.left > 0 && len(r.held) == 0 && now.Sub(p.message) > r.cfg.StallTimeout
	r.mu.Unlock()
	if silent {
		r.note(broker.WarnStalled, "no sign of life from the broker: the subscription was made again")
		return errStalled
	}
	if look {
		w.looking = true
		go func() { looks <- w.look(ctx) }()
	}
	return nil
}

// look asks the durable whether it holds messages that do not come.
func (w *server) look(ctx context.Context) error {
	r := w.r
	info, err := r.consumerInfo(ctx, w.s)
	if err != nil {
		return stateError("look up durable "+r.cfg.Durable, err)
	}
	if !info.Created.Equal(w.d.created) {
		return errStalled // another durable of the name: begin anew
	}
	if info.NumPending == 0 || info.NumAckPending >= info.Config.MaxAckPending && info.Config.MaxAckPending > 0 {
		return nil // nothing is there, or others hold all that may be out (see Check)
	}
	r.mu.Lock()
	quiet := len(r.held) == 0 && r.now().Sub(r.pull.message) > r.cfg.StallTimeout
	r.mu.Unlock()
	if !quiet {
		return nil
	}
	r.note(broker.WarnStalled, "the broker held messages and delivered none: the subscription was made again")
	return errStalled
}

// arrive takes what the subscription brings: messages, and words about the request.
func (r *Receiver) arrive(msg *natsgo.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := msg.Header.Get("Status")
	if status != "" && len(msg.Data) == 0 && !strings.HasPrefix(msg.Reply, "$JS.ACK.") {
		r.statusArrived(msg.Subject, status, msg.Header.Get("Description"))
		return
	}
	from, ok := parseReply(msg.Reply)
	if !ok || from.stream != r.conn.cfg.Stream || from.consumer != r.cfg.Durable {
		return // not the durable's
	}
	if r.pull.left > 0 {
		r.pull.left--
	}
	r.pull.brought++
	r.pull.message, r.pull.signs, r.pull.silences = r.now(), r.now(), 0
	if r.closed {
		r.replies = append(r.replies, reply{msg.Reply, []byte("-NAK")})
		return
	}
	if d := r.held[from.sequence]; d != nil {
		d.reply, d.deliveries, d.extended = msg.Reply, from.deliveries, r.now() // again, while we still work on it
		return
	}
	d := &delivery{
		r: r, msg: msg, reply: msg.Reply, sequence: from.sequence, deliveries: from.deliveries,
		size: msg.Size(), extended: r.now(),
	}
	r.held[d.sequence] = d
	r.heldSize += d.size
	r.buffer = append(r.buffer, d)
	r.wake()
	if r.pull.left == 0 {
		r.nudge()
	}
}

// statusArrived reads a word about a request. The lock is held.
func (r *Receiver) statusArrived(subject, status, description string) {
	p := &r.pull
	if subject != p.subject {
		return // about an earlier request
	}
	p.signs, p.silences = r.now(), 0
	switch status {
	case "100": // a sign of life
		return
	case "404", "408": // nothing came in time
	case "409":
		r.pullRefused(description)
	case "503":
		p.broken = &broker.Error{
			Reason: broker.ReasonBrokerError,
			Detail: "nobody answers for durable " + r.cfg.Durable,
		}
	default:
		p.broken = refusedRequests(status)
	}
	p.left = 0
	r.nudge()
}

// pullRefused reads why the broker ended a request early. The lock is held.
func (r *Receiver) pullRefused(description string) {
	p := &r.pull
	switch {
	case strings.Contains(description, "MaxBytes"): // the next message is larger than what was left
		if p.brought == 0 {
			p.alone = len(r.held) == 0
			p.starved = len(r.held) > 0
		}
	case strings.Contains(description, "Consumer Deleted"):
		p.broken = errStalled
	case strings.Contains(description, "Batch Completed"), strings.Contains(description, "Leadership Change"),
		strings.Contains(description, "Server Shutdown"):
	default:
		p.broken = refusedRequests("409")
	}
}

func refusedRequests(status string) error {
	return &broker.Error{
		Reason: broker.ReasonBrokerError,
		Detail: "the broker refuses requests for messages (status " + statusText(status) + ")",
	}
}

// statusText repeats a status only where it is a number.
func statusText(status string) string {
	if _, err := strconv.Atoi(status); err != nil {
		return "unknown"
	}
	return status
}
