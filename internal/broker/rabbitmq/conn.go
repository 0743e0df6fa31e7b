package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
)

// conn is one connection to the broker. The library ignores contexts while it writes to a socket: the raw connection is
// kept to be cut.
type conn struct {
	*amqp.Connection

	raw       net.Conn
	tcp       *net.TCPConn
	id        string // names it in positions
	confirmed atomic.Uint64
	blocked   chan amqp.Blocking
	held      atomic.Bool // the broker has stopped reading from it
}

// dial connects to the first host that answers. The first error that says more than "unreachable" is the one returned.
func dial(ctx context.Context, cfg *Config, id string, now func() time.Time) (*conn, *broker.Error) {
	var first *broker.Error
	for _, host := range cfg.Hosts {
		server, err := endpoint.ParseAddress(host, cfg.defaultPort())
		if err != nil {
			return nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "a host is not host:port"}
		}
		c, err := dialServer(ctx, cfg, server, now)
		if err == nil {
			c.id = id
			return c, nil
		}
		if state := dialError(server, err); first == nil || first.Reason == broker.ReasonUnreachable {
			first = state
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func dialServer(ctx context.Context, cfg *Config, server string, now func() time.Time) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	user, password, err := endpoint.Credentials(cfg.CredentialsDir)
	if err != nil {
		return nil, endpoint.CredentialsError(err)
	}
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	protection, err := cfg.TLS.Config(host)
	if err != nil {
		return nil, endpoint.TLSFilesError(err)
	}
	raw, err := endpoint.Dial(ctx, server, dialTimeout, cfg.AllowLinkLocal)
	if err != nil {
		return nil, err
	}
	c := &conn{raw: raw, blocked: make(chan amqp.Blocking, blockedNotices)}
	c.tcp, _ = raw.(*net.TCPConn)
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline) // for the greeting, which knows no context
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(now()) })
	defer stop()
	if protection != nil {
		secure := tls.Client(raw, protection)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		c.raw = secure
	}
	virtualHost := cfg.VirtualHost
	if virtualHost == "" {
		virtualHost = "/"
	}
	c.Connection, err = amqp.Open(c.raw, amqp.Config{
		SASL:  []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}},
		Vhost: virtualHost, Heartbeat: cfg.heartbeat(), Locale: "en_US",
		Properties: amqp.Table{"connection_name": cfg.Name, "product": "Postrider"},
	})
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	if !stop() { // the context ended meanwhile
		c.cut()
		return nil, ctx.Err()
	}
	_ = raw.SetDeadline(time.Time{})
	c.NotifyBlocked(c.blocked)
	return c, nil
}

// blockedNotices is room for notices that nobody reads while the connection is idle.
const blockedNotices = 64

// cut ends the connection now, also where the library is blocked in a write. What the broker has not read yet it never
// will.
func (c *conn) cut() {
	if c.tcp != nil {
		_ = c.tcp.SetLinger(0)
		_ = c.tcp.Close() // before TLS, which would say goodbye first
	}
	_ = c.raw.Close()
}

// dialError says what keeps us from a server, in words of ours.
func dialError(server string, err error) *broker.Error {
	if state := endpoint.StateError(server, err); state != nil {
		return state
	}
	var said *amqp.Error
	switch {
	case errors.Is(err, amqp.ErrCredentials), errors.Is(err, amqp.ErrSASL):
		return &broker.Error{
			Reason: broker.ReasonAuthFailed,
			Detail: server + " refuses the login: check the Secret's username and password",
		}
	case errors.Is(err, amqp.ErrVhost):
		return &broker.Error{
			Reason: broker.ReasonPermissionDenied,
			Detail: server + " refuses the virtual host: check its name and the user's rights in it",
		}
	case errors.As(err, &said):
		return stateOf(said)
	default:
		return &broker.Error{
			Reason: broker.ReasonUnreachable, Detail: "cannot reach " + server + ": check host, port and network",
		}
	}
}

// stateOf says what a broker's word on the whole connection means.
func stateOf(err *amqp.Error) *broker.Error {
	switch {
	case err.Code == amqp.AccessRefused && strings.Contains(err.Reason, "login"):
		return &broker.Error{
			Reason: broker.ReasonAuthFailed,
			Detail: "the broker refuses the login: check the Secret's username and password",
		}
	case err.Code == amqp.AccessRefused, err.Code == amqp.NotAllowed:
		return &broker.Error{
			Reason: broker.ReasonPermissionDenied,
			Detail: "the user may not use the virtual host: grant it, or correct its name",
		}
	case err.Code == amqp.ConnectionForced:
		return &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the broker closed the connection"}
	default:
		return &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the connection to RabbitMQ ended"}
	}
}

// lane is a channel in confirm mode with what the broker tells of it. What is returned comes before its confirmation.
type lane struct {
	*amqp.Channel

	confirms chan amqp.Confirmation
	returns  chan amqp.Return
	closed   chan *amqp.Error
}

// openLane opens a channel in confirm mode with room for the answers to window messages.
func (c *conn) openLane(window int) (*lane, error) {
	channel, err := c.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	l := &lane{
		Channel:  channel,
		confirms: channel.NotifyPublish(make(chan amqp.Confirmation, window)),
		returns:  channel.NotifyReturn(make(chan amqp.Return, window)),
		closed:   channel.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if err := channel.Confirm(false); err != nil {
		return nil, fmt.Errorf("put a channel into confirm mode: %w", err)
	}
	return l, nil
}
