// Package nats is the adapter for NATS JetStream: a Publisher that confirms by PubAck and a Receiver on a durable pull
// consumer.
//
// It promises what package broker promises, and that it never creates a stream unless told to, never changes one, and
// never writes credentials, payloads or headers into logs, errors or conditions.
package nats

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/broker/endpoint"
)

// Topology says whether missing streams are made.
type Topology string

// The topologies.
const (
	// Verify reports a missing stream with the command that makes it.
	Verify Topology = "Verify"
	// Declare makes a missing stream with durable settings. It never changes an existing one.
	Declare Topology = "Declare"
)

// Config says how to reach a stream.
type Config struct {
	// Servers are "host", "host:port" or "nats://host:port", tried in turn.
	Servers []string
	// Stream is the one stream that messages go to or come from.
	Stream   string
	Topology Topology
	// CredentialsDir holds one of: the files username and password; nats-token; nkey, a user's seed; user.creds, a user's
	// JWT and seed. They are read again for each connection; empty means that none are sent.
	CredentialsDir string
	TLS            endpoint.TLS
	// Name is what the server shows for the connection, such as "relay shop/orders".
	Name string
	// AllowLinkLocal permits addresses that broker.BlockedAddress names, for networks that number so.
	AllowLinkLocal bool
	// FirstPause and LongestPause bound the growing pause between tries to connect. Default to 100ms and 5s.
	FirstPause, LongestPause time.Duration
	// Log gets connection changes. Defaults to none.
	Log *slog.Logger
}

const (
	defaultPort  = 4222
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second

	dialTimeout  = 5 * time.Second  // for each of TCP, TLS and NATS's own greeting
	writeTimeout = 10 * time.Second // for one write to the socket
	pingInterval = 10 * time.Second // a connection that is silent for three of these is dead
	apiTimeout   = 5 * time.Second  // for one request to JetStream's API
)

// validStream is what JetStream takes for names of streams and durables.
var validStream = regexp.MustCompile(`^[^\s.*>/\\]{1,255}$`)

// Validate says what is wrong with the configuration, naming the field and no value that could hold a credential.
func (c *Config) Validate() error {
	if len(c.Servers) == 0 {
		return errors.New("nats.servers is empty")
	}
	for i, s := range c.Servers {
		if _, err := parseServer(s); err != nil {
			return fmt.Errorf("nats.servers[%d] %w", i, err)
		}
	}
	if !validStream.MatchString(c.Stream) {
		return errors.New("nats.stream is not a stream's name")
	}
	switch c.Topology {
	case Verify, Declare:
	default:
		return fmt.Errorf("nats.topology is neither %s nor %s", Verify, Declare)
	}
	if err := c.TLS.Validate(); err != nil {
		return fmt.Errorf("nats.tls.%w", err)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.FirstPause <= 0 {
		c.FirstPause = firstPause
	}
	if c.LongestPause < c.FirstPause {
		c.LongestPause = max(longestPause, c.FirstPause)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// parseServer returns host:port. Its errors never quote the text: a password may stand in it by mistake.
func parseServer(s string) (string, error) {
	for _, scheme := range [...]string{"nats://", "tls://"} {
		if rest, ok := strings.CutPrefix(s, scheme); ok {
			s = rest
			break
		}
	}
	return endpoint.ParseAddress(s, defaultPort) //nolint:wrapcheck // the caller names the field
}
