package kafka

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/postrider/postrider/internal/broker/endpoint"
)

const (
	dialTimeout = 5 * time.Second // for each of TCP and TLS

	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// recordTries bounds how often a record is sent that the broker says it has not taken: about two seconds, after which
	// the broker's reason is told.
	recordTries = 6

	produceKey = 0 // of a produce request, in its header
)

// client is one client of the library, with our hands on its connections.
type client struct {
	*kgo.Client

	now      func() time.Time
	dial     *dialer
	limits   *limits      // nil where it sends nothing
	keys     *steady      // nil where it sends nothing
	renewal  int          // the publisher's when it was made
	produced atomic.Int64 // produce requests that were begun to be written
	closing  sync.Once
	answered atomic.Int64 // produce requests that were answered
	heard    atomic.Int64 // answers of any broker to any request
}

// traffic is what a client had sent and heard at one time.
type traffic struct{ produced, heard int64 }

func (c *client) traffic() traffic {
	return traffic{produced: c.produced.Load(), heard: c.heard.Load()}
}

// newClient returns a client that connects when it is first used.
func newClient(cfg Config, options ...kgo.Opt) (*client, error) {
	seeds, err := cfg.seeds()
	if err != nil {
		return nil, err
	}
	c := &client{now: time.Now}
	c.dial = &dialer{cfg: cfg, open: make(map[*counted]struct{}), produced: &c.produced}
	all := append([]kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.ClientID(cfg.Name), kgo.Dialer(c.dial.dial), kgo.WithHooks(answers{c}),
		kgo.DisableClientMetrics(), kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(time.Minute),
		kgo.RetryBackoffFn(backoff), kgo.RetryTimeout(dialTimeout),
	}, options...)
	if cfg.Mechanism != "" {
		all = append(all, kgo.SASL(mechanism(cfg)))
	}
	c.Client, err = kgo.NewClient(all...)
	if err != nil {
		return nil, fmt.Errorf("make a Kafka client: %w", err)
	}
	return c, nil
}

// backoff is the pause before a request's or record's next try.
func backoff(tries int) time.Duration {
	const doublings = 5
	return min(firstPause<<min(max(tries-1, 0), doublings), longestPause)
}

// close ends the client without waiting for anything. It may be called again.
func (c *client) close() {
	c.dial.cut()
	// It may wait for what it has under way, and is not to be called twice at once.
	c.closing.Do(func() { go c.Client.Close() })
}

// answers counts the answers of brokers.
type answers struct{ c *client }

// OnBrokerRead implements kgo.HookBrokerRead.
func (a answers) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		return
	}
	a.c.heard.Add(1)
	if key == produceKey {
		a.c.answered.Add(1)
	}
}

// mechanism proves who we are with the credentials as the files are at that moment.
func mechanism(cfg Config) sasl.Mechanism {
	read := func() (string, string, error) {
		user, password, err := endpoint.Credentials(cfg.CredentialsDir)
		if err != nil {
			return "", "", endpoint.CredentialsError(err)
		}
		return user, password, nil
	}
	scramAuth := func(context.Context) (scram.Auth, error) {
		user, password, err := read()
		return scram.Auth{User: user, Pass: password}, err
	}
	switch cfg.Mechanism {
	case ScramSHA256:
		return scram.Sha256(scramAuth)
	case ScramSHA512:
		return scram.Sha512(scramAuth)
	default:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			user, password, err := read()
			return plain.Auth{User: user, Pass: password}, err
		})
	}
}

// dialer makes the connections of a client, and can cut them all.
type dialer struct {
	cfg      Config
	produced *atomic.Int64

	mu     sync.Mutex
	open   map[*counted]struct{}
	closed bool   // no more connections are made
	err    error  // why the last connection could not be made; nil where it was
	to     string // where that was to go
}

// dial makes a connection to a broker.
func (d *dialer) dial(ctx context.Context, _, address string) (net.Conn, error) {
	conn, err := d.connect(ctx, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		if err == nil {
			_ = conn.Close()
		}
		return nil, net.ErrClosed
	}
	d.err, d.to = err, address
	if err != nil {
		return nil, err
	}
	c := &counted{Conn: conn, dialer: d}
	d.open[c] = struct{}{}
	return c, nil
}

func (d *dialer) connect(ctx context.Context, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	protection, err := d.cfg.TLS.Config(host)
	if err != nil {
		return nil, endpoint.TLSFilesError(err)
	}
	if d.cfg.redirect != nil {
		address = d.cfg.redirect(address)
	}
	conn, err := endpoint.Dial(ctx, address, dialTimeout, d.cfg.AllowLinkLocal)
	if err != nil || protection == nil {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	secure := tls.Client(conn, protection)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// failure returns why the last connection could not be made, and nil where it was.
func (d *dialer) failure() (address string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.to, d.err
}

// cut ends all connections now and makes no more: what was not sent yet never will be.
func (d *dialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for c := range d.open {
		_ = c.Conn.Close()
	}
	clear(d.open)
}

// counted is a connection that notices produce requests.
type counted struct {
	net.Conn

	dialer *dialer
}

// Write implements net.Conn. The library writes a request at once: its size, and then its kind.
func (c *counted) Write(b []byte) (int, error) {
	const sizeBytes = 4
	if len(b) > sizeBytes+1 && binary.BigEndian.Uint16(b[sizeBytes:]) == produceKey {
		c.dialer.produced.Add(1)
	}
	return c.Conn.Write(b) //nolint:wrapcheck // a net.Conn's error
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // a net.Conn's error
}

// discard is a logger that logs nothing.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
