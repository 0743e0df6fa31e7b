// Package rabbitmq is the adapter for RabbitMQ: a Publisher in confirm mode whose messages are mandatory and persistent,
// and a Receiver on a queue with manual acknowledgements.
//
// It promises what package broker promises, that a message which no queue takes is never taken for published, and that
// it deletes and changes nothing and never writes credentials, payloads or headers into logs, errors or conditions.
package rabbitmq

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/broker/endpoint"
)

// Topology says whether a missing exchange is made.
type Topology string

// The topologies.
const (
	// Verify reports a missing exchange with the command that makes it.
	Verify Topology = "Verify"
	// Declare makes a missing exchange of the relay's own: a durable topic exchange. It never changes an existing one.
	Declare Topology = "Declare"
)

// Config says how to reach a virtual host.
type Config struct {
	// Hosts are "host" or "host:port", tried in turn.
	Hosts []string
	// VirtualHost defaults to "/".
	VirtualHost string
	// CredentialsDir holds the files username and password, read again for each connection.
	CredentialsDir string
	TLS            endpoint.TLS
	// Name is what the broker shows for the connection, such as "relay shop/orders".
	Name string
	// AllowLinkLocal permits addresses that broker.BlockedAddress names, for networks that number so.
	AllowLinkLocal bool
	// Heartbeat is how often both ends show that they are there, in whole seconds. A connection on which nothing comes
	// for one and a half of it is given up. Defaults to 10s.
	Heartbeat time.Duration
	// Log gets what an operator would act on. Defaults to none.
	Log *slog.Logger
}

const (
	plainPort = 5672
	tlsPort   = 5671

	dialTimeout      = 5 * time.Second // for TCP, TLS and AMQP's own greeting together
	defaultHeartbeat = 10 * time.Second
)

// Validate says what is wrong with the configuration, naming the field and no value that could hold a credential.
func (c *Config) Validate() error {
	if len(c.Hosts) == 0 {
		return errors.New("rabbitMQ.hosts is empty")
	}
	for i, s := range c.Hosts {
		if _, err := endpoint.ParseAddress(s, c.defaultPort()); err != nil {
			return fmt.Errorf("rabbitMQ.hosts[%d] %w", i, err)
		}
	}
	if c.CredentialsDir == "" {
		return errors.New("rabbitMQ needs credentials")
	}
	if err := c.TLS.Validate(); err != nil {
		return fmt.Errorf("rabbitMQ.tls: %w", err)
	}
	return nil
}

func (c *Config) defaultPort() int {
	if c.TLS.Mode == endpoint.Insecure {
		return plainPort
	}
	return tlsPort
}

func (c *Config) heartbeat() time.Duration {
	if c.Heartbeat <= 0 {
		return defaultHeartbeat
	}
	return c.Heartbeat
}

// maxNameBytes bounds the names of exchanges and routing keys in AMQP.
const maxNameBytes = 255

// target is where a message goes.
type target struct{ exchange, routingKey string }

func (t target) String() string { return t.exchange + "/" + t.routingKey }

// parseTarget reads a row's destination: "routing-key" on the relay's own exchange, or "exchange/routing-key". AMQP's
// default exchange, which reaches every queue by its name, and the broker's own exchanges are no row's.
func parseTarget(destination, ownExchange string) (target, bool) {
	exchange, routingKey, named := strings.Cut(destination, "/")
	if !named {
		exchange, routingKey = ownExchange, destination
	} else if !validExchange(exchange) || strings.HasPrefix(exchange, "amq.") {
		return target{}, false
	}
	return target{exchange, routingKey}, validRoutingKey(routingKey)
}

// validExchange says whether a name can be an exchange's and is not the default exchange.
func validExchange(name string) bool {
	if name == "" || len(name) > maxNameBytes {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("-_.:", rune(c)) {
			return false
		}
	}
	return true
}

// validRoutingKey says whether a text is one routing key: printable ASCII, and no pattern of a binding's.
func validRoutingKey(key string) bool {
	if len(key) > maxNameBytes {
		return false
	}
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c > '~' || c == '*' || c == '#' {
			return false
		}
	}
	return true
}
