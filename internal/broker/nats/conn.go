package nats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
)

// Conn keeps a connection to NATS: it connects again for ever, with the credentials and certificates as the files are
// at that moment. Its users work on one session, which is one TCP connection, and notice its end: natsgo's own
// reconnecting would hold sent messages back and send them after their deadline.
type Conn struct {
	cfg     Config
	servers []string
	now     func() time.Time
	cancel  context.CancelFunc
	over    chan struct{} // closed when the loop has ended

	mu      sync.Mutex
	session *session
	err     *broker.Error // why there is no session; nil before the first try has ended
	changed chan struct{} // closed and replaced at each change of the two
}

// session is one connection, from its greeting to its end.
type session struct {
	nc         *natsgo.Conn
	js         jetstream.JetStream
	raw        *cuttable
	maxPayload int64
	answers    atomic.Int64  // what came back so far: growing, the connection lives
	done       chan struct{} // closed at the end

	mu       sync.Mutex
	watchers map[int]func(denied)
	next     int
}

// denied is a subject that the server says we may not use.
type denied struct {
	subject   string
	subscribe bool // else publish
}

// Dial returns at once and connects in the background until Close. The context gives values only.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg.withDefaults(), now: time.Now, over: make(chan struct{}), changed: make(chan struct{})}
	for _, s := range cfg.Servers {
		server, err := parseServer(s)
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, server)
	}
	// Load over servers is no secret.
	rand.Shuffle(len(c.servers), func(i, j int) { //nolint:gosec // see above
		c.servers[i], c.servers[j] = c.servers[j], c.servers[i]
	})
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go c.run(ctx)
	return c, nil
}

// Close sends what is buffered, as long as the context allows, and disconnects for good.
func (c *Conn) Close(ctx context.Context) error {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	var err error
	if s != nil {
		err = s.flush(ctx)
	}
	c.cancel()
	select {
	case <-c.over:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("close NATS connection: %w", ctx.Err()))
	}
}

// State returns why there is no connection, or nil.
func (c *Conn) State() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.session != nil:
		return nil
	case c.err != nil:
		return c.err
	default:
		return &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the first connection is being made"}
	}
}

// live returns the session. It waits for the first try to connect, and returns *broker.Error while there is none.
func (c *Conn) live(ctx context.Context) (*session, error) {
	for {
		s, err, changed := c.look()
		switch {
		case s != nil:
			return s, nil
		case err != nil:
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "not connected in time", Err: ctx.Err()}
		}
	}
}

// look returns the session, or why there is none, and what is closed when that changes.
func (c *Conn) look() (*session, *broker.Error, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, c.err, c.changed
}

func (c *Conn) set(s *session, err *broker.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.err = s, err
	close(c.changed)
	c.changed = make(chan struct{})
}

// run connects, waits for the session's end, and connects again.
func (c *Conn) run(ctx context.Context) {
	defer close(c.over)
	pause := c.cfg.FirstPause
	for ctx.Err() == nil {
		s, err := c.connect(ctx)
		if err == nil {
			c.cfg.Log.InfoContext(ctx, "Connected to NATS", "broker", "nats")
			pause = c.cfg.FirstPause
			c.set(s, nil)
			select {
			case <-s.done:
			case <-ctx.Done():
				s.cut()
				s.nc.Close()
				<-s.done
			}
			err = &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the connection to NATS ended"}
		}
		if ctx.Err() != nil {
			break
		}
		c.report(ctx, err)
		wait(ctx, pause/2+rand.N(pause/2+1)) //nolint:gosec // jitter is no secret
		pause = min(2*pause, c.cfg.LongestPause)
	}
	c.set(nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the connection is closed"})
}

// report keeps the reason and logs it when it is another one than before.
func (c *Conn) report(ctx context.Context, err *broker.Error) {
	c.mu.Lock()
	same := c.err != nil && c.err.Reason == err.Reason && c.err.Detail == err.Detail
	c.mu.Unlock()
	c.set(nil, err)
	if !same {
		c.cfg.Log.WarnContext(ctx, "Not connected to NATS", "broker", "nats", "reason", err.Reason, "err", err)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// connect tries each server once. The first error that says more than "unreachable" is the one returned.
func (c *Conn) connect(ctx context.Context) (*session, *broker.Error) {
	var first *broker.Error
	for _, server := range c.servers {
		s, err := c.connectTo(ctx, server)
		if err == nil {
			return s, nil
		}
		if first == nil || first.Reason == broker.ReasonUnreachable {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func (c *Conn) connectTo(ctx context.Context, server string) (*session, *broker.Error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "a server is not host:port"}
	}
	secure, err := tlsOption(c.cfg.TLS, host)
	if err != nil {
		return nil, &broker.Error{Reason: broker.ReasonTLSFailed, Detail: "mend the TLS files", Err: err}
	}
	login, failure := readLogin(c.cfg.CredentialsDir)
	if failure != nil {
		return nil, failure
	}
	s := &session{done: make(chan struct{}), watchers: make(map[int]func(denied))}
	d := &dialer{ctx: ctx, allow: c.cfg.AllowLinkLocal, now: c.now}
	s.nc, err = natsgo.Connect("nats://"+server, secure, login.option,
		natsgo.Name(c.cfg.Name), natsgo.NoReconnect(), natsgo.Timeout(dialTimeout), natsgo.SetCustomDialer(d),
		natsgo.SkipHostLookup(), natsgo.IgnoreDiscoveredServers(),
		natsgo.PingInterval(pingInterval), natsgo.MaxPingsOutstanding(2),
		natsgo.ClosedHandler(func(*natsgo.Conn) { close(s.done) }),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) { s.asyncError(err) }))
	if err != nil {
		return nil, connectError(server, login.what, err)
	}
	s.raw, s.maxPayload = d.conn, s.nc.MaxPayload()
	if s.js, err = jetstream.New(s.nc); err != nil {
		s.nc.Close()
		return nil, &broker.Error{
			Reason: broker.ReasonUnreachable,
			Detail: "the JetStream client did not start",
			Err:    err,
		}
	}
	return s, nil
}

// connectError says what keeps us from the server, in words of ours: the error's own may be the server's.
func connectError(server, login string, err error) *broker.Error {
	e := &broker.Error{
		Reason: broker.ReasonUnreachable, Detail: "cannot reach " + server + ": check host, port and network",
	}
	var network *net.OpError
	var name *net.DNSError
	switch {
	case isAuthError(err):
		e.Reason, e.Detail = broker.ReasonAuthFailed, server+" refuses the login: check "+login
	case errors.Is(err, natsgo.ErrNkeysNotSupported):
		e.Reason, e.Detail = broker.ReasonAuthFailed, server+" takes no NKeys: configure it, or log in another way"
	case errors.Is(err, natsgo.ErrSecureConnWanted):
		e.Reason, e.Detail = broker.ReasonTLSFailed, server+" offers no TLS: turn it on there, or set tls.mode"
	case errors.Is(err, natsgo.ErrTLS):
		e.Reason, e.Detail = broker.ReasonTLSFailed, tlsDetail(server, err)
	case errors.Is(err, endpoint.ErrBlockedAddress):
		e.Detail = server + " leads to an address that workers never dial (link-local or metadata service)"
	case errors.As(err, &name):
		e.Detail = "the name in " + server + " is not known: check it"
	case errors.As(err, &network):
		e.Err = network.Err
	}
	return e
}

func isAuthError(err error) bool {
	for _, target := range [...]error{
		natsgo.ErrAuthorization, natsgo.ErrAuthExpired, natsgo.ErrAuthRevoked, natsgo.ErrAccountAuthExpired,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func (s *session) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// flush waits until the server has read all that was sent, or the context ends.
func (s *session) flush(ctx context.Context) error {
	flushed := make(chan error, 1)
	go func() { flushed <- s.nc.FlushWithContext(ctx) }() // it can block in natsgo's lock, whatever the context says
	select {
	case err := <-flushed:
		if err == nil || s.ended() {
			return nil
		}
		return fmt.Errorf("flush to NATS: %w", err)
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("flush to NATS: %w", ctx.Err())
	}
}

// cut ends the session now, also where natsgo is blocked in a write: what was not sent yet never will be.
func (s *session) cut() {
	_ = s.raw.Close() // natsgo reads the error and ends
}

// watch has f called for each refusal by the server to let us use a subject, until the returned function is called.
// f runs in natsgo's own goroutine and must not block.
func (s *session) watch(f func(denied)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	id := s.next
	s.watchers[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, id)
	}
}

func (s *session) asyncError(err error) {
	d, ok := parseDenied(err)
	if !ok {
		return // the session's end says the rest
	}
	s.mu.Lock()
	watchers := make([]func(denied), 0, len(s.watchers))
	for _, f := range s.watchers {
		watchers = append(watchers, f)
	}
	s.mu.Unlock()
	for _, f := range watchers {
		f(d)
	}
}

// parseDenied reads which subject a permissions violation is about:
// `… Permissions Violation for Publish to "orders.eu"` or `… for Subscription to "_INBOX.x.*" using queue "q"`.
func parseDenied(err error) (denied, bool) {
	if !errors.Is(err, natsgo.ErrPermissionViolation) {
		return denied{}, false
	}
	text := err.Error()
	if _, rest, ok := strings.Cut(text, `Publish to "`); ok {
		if end := strings.LastIndexByte(rest, '"'); end >= 0 {
			return denied{subject: rest[:end]}, true
		}
	}
	if _, rest, ok := strings.Cut(text, `Subscription to "`); ok {
		if subject, _, ok := strings.Cut(rest, `"`); ok {
			return denied{subject: subject, subscribe: true}, true
		}
	}
	return denied{}, false
}
