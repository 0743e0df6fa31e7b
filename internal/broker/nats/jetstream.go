package nats

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// JetStream returns a client over the connection there is, for tools that look at streams. It waits for the first try
// to connect, fails with *broker.Error where there is no connection, and ends with the connection.
func (c *Conn) JetStream(ctx context.Context) (jetstream.JetStream, error) {
	s, err := c.live(ctx)
	if err != nil {
		return nil, err
	}
	return s.js, nil
}
