// Package kafka is the adapter for Apache Kafka: a Publisher that confirms when all in-sync replicas have a record.
//
// It promises what package broker promises, that a key's partition is the one a Java client chooses, and that it never
// makes or changes a topic and never writes credentials, payloads or headers into logs, errors or conditions.
package kafka

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/postrider/postrider/internal/broker/endpoint"
)

// Mechanism is how a client proves who it is.
type Mechanism string

// The SASL mechanisms. Empty means none: the broker knows the client by its certificate, or not at all.
const (
	Plain       Mechanism = "Plain"
	ScramSHA256 Mechanism = "ScramSHA256"
	ScramSHA512 Mechanism = "ScramSHA512"
)

// Compression is how batches travel and are kept.
type Compression string

// The compressions. Empty means CompressionNone.
const (
	CompressionNone   Compression = "None"
	CompressionGzip   Compression = "Gzip"
	CompressionSnappy Compression = "Snappy"
	CompressionLz4    Compression = "Lz4"
	CompressionZstd   Compression = "Zstd"
)

// Config says how to reach a cluster.
type Config struct {
	// BootstrapServers are "host" or "host:port", tried in turn; the cluster's other brokers are learnt from them.
	BootstrapServers []string
	// Mechanism is the SASL mechanism; empty means none.
	Mechanism Mechanism
	// CredentialsDir holds the files username and password, read again for each connection.
	CredentialsDir string
	TLS            endpoint.TLS
	// Name is what the broker's logs show for the connection, such as "relay shop/orders".
	Name string
	// AllowLinkLocal permits addresses that broker.BlockedAddress names, for networks that number so.
	AllowLinkLocal bool
	// Log gets what an operator would act on. Defaults to none.
	Log *slog.Logger

	// redirect, where tests set it, is where connections to a broker's address go instead: through a proxy.
	redirect func(address string) string
}

const defaultPort = 9092

// Validate says what is wrong with the configuration, naming the field and no value that could hold a credential.
func (c *Config) Validate() error {
	if len(c.BootstrapServers) == 0 {
		return errors.New("kafka.bootstrapServers is empty")
	}
	for i, s := range c.BootstrapServers {
		if _, err := endpoint.ParseAddress(s, defaultPort); err != nil {
			return fmt.Errorf("kafka.bootstrapServers[%d] %w", i, err)
		}
	}
	switch c.Mechanism {
	case "":
	case Plain, ScramSHA256, ScramSHA512:
		if c.CredentialsDir == "" {
			return errors.New("kafka.sasl needs credentials")
		}
	default:
		return fmt.Errorf("kafka.sasl.mechanism is none of %s, %s, %s", Plain, ScramSHA256, ScramSHA512)
	}
	if err := c.TLS.Validate(); err != nil {
		return fmt.Errorf("kafka.tls: %w", err)
	}
	return nil
}

// seeds are the bootstrap servers with their ports.
func (c *Config) seeds() ([]string, error) {
	seeds := make([]string, len(c.BootstrapServers))
	for i, s := range c.BootstrapServers {
		var err error
		if seeds[i], err = endpoint.ParseAddress(s, defaultPort); err != nil {
			return nil, fmt.Errorf("kafka.bootstrapServers[%d] %w", i, err)
		}
	}
	return seeds, nil
}

const maxTopicBytes = 249

// validTopic says whether a name is one that Kafka takes for a topic, and none of its own.
func validTopic(name string) bool {
	if name == "" || len(name) > maxTopicBytes || name == "." || name == ".." || strings.HasPrefix(name, "__") {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		return !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-'
	})
}
