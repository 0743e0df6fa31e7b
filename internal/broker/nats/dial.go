package nats

import (
	"context"
	"net"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/broker/endpoint"
)

// dialer makes the TCP connection under a NATS connection, so that it can be cut, cannot block for ever in a write, and
// never leads to a blocked address, whatever a name resolves to at that moment.
type dialer struct {
	ctx   context.Context //nolint:containedctx // natsgo.CustomDialer has no context of its own
	allow bool
	now   func() time.Time
	conn  *cuttable // the last connection made
}

// Dial implements natsgo.CustomDialer. The network is always tcp.
func (d *dialer) Dial(_, address string) (net.Conn, error) {
	conn, err := endpoint.Dial(d.ctx, address, dialTimeout, d.allow)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified by the caller
	}
	d.conn = &cuttable{Conn: conn, now: d.now}
	return d.conn, nil
}

// cuttable is a connection whose writes end, at the latest when it is closed from outside: natsgo writes under its
// lock, so that a full socket would block everything that touches the connection.
type cuttable struct {
	net.Conn
	now func() time.Time
}

func (c *cuttable) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(c.now().Add(writeTimeout)); err != nil {
		return 0, err //nolint:wrapcheck // a net.Conn's error
	}
	return c.Conn.Write(b) //nolint:wrapcheck // a net.Conn's error
}

// tlsOption returns how natsgo protects the connection to host, with certificates as the files are now.
func tlsOption(cfg endpoint.TLS, host string) (natsgo.Option, error) {
	conf, err := cfg.Config(host)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified by the caller
	}
	if conf == nil {
		return func(*natsgo.Options) error { return nil }, nil
	}
	return natsgo.Secure(conf), nil
}
