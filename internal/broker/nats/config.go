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
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
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

// TLSMode says how a connection is protected.
type TLSMode string

// The TLS modes.
const (
	// VerifyFull checks the server's chain and its name.
	VerifyFull TLSMode = "VerifyFull"
	// VerifyCA checks the server's chain only.
	VerifyCA TLSMode = "VerifyCA"
	// Insecure is plain text.
	Insecure TLSMode = "Insecure"
)

// TLS says how a connection is protected. The files are read again for each connection.
type TLS struct {
	Mode TLSMode
	// CAFile is a PEM bundle; empty means the system's roots.
	CAFile string
	// ClientCertificateDir holds tls.crt and tls.key; empty means no client certificate.
	ClientCertificateDir string
}

// Config says how to reach a stream.
type Config struct {
	// Servers are "host", "host:port" or "nats://host:port", tried in turn.
	Servers []string
	// Stream is the one stream that messages go to or come from.
	Stream   string
	Topology Topology
	// CredentialsDir holds the files username and password, read again for each connection; empty means none.
	CredentialsDir string
	TLS            TLS
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
	switch c.TLS.Mode {
	case VerifyFull, VerifyCA, Insecure:
	default:
		return fmt.Errorf("nats.tls.mode is none of %s, %s, %s", VerifyFull, VerifyCA, Insecure)
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
	if strings.Contains(s, "@") {
		return "", errors.New("holds credentials; they belong into the Secret")
	}
	if strings.ContainsAny(s, " \t\r\n/?#\x00") || s == "" {
		return "", errors.New("is not host:port")
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil { // no port
		host, port = strings.Trim(s, "[]"), strconv.Itoa(defaultPort)
		if strings.Count(host, ":") == 1 {
			return "", errors.New("is not host:port")
		}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" {
		return "", errors.New("is not host:port")
	}
	return net.JoinHostPort(host, port), nil
}
