package testkit

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
)

// Broker is a real NATS server with JetStream.
type Broker struct {
	// URL is where it listens.
	URL string
	// Server is set for a server of the test's own: it can be killed and restarted.
	Server *local.NATS

	t testing.TB
}

// Stream names a stream and the subjects below its prefix.
type Stream struct {
	Name string
	// Prefix is the first token of the subjects: the stream holds "<prefix>.>".
	Prefix string
}

// Subject returns a subject of the stream.
func (s Stream) Subject(rest string) string { return s.Prefix + "." + rest }

// sharedNATS is the server of this test binary, started by the first test that asks. It ends with the process.
var sharedNATS = sync.OnceValues(func() (*local.NATS, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return local.StartNATS(ctx, local.NATSConfig{})
})

// NATS returns the shared server. Tests keep apart by their streams: see Broker.Stream.
func NATS(t testing.TB) *Broker {
	t.Helper()
	if named := os.Getenv(NATSVariable); named != "" {
		return &Broker{URL: named, t: t}
	}
	server, err := sharedNATS()
	if err != nil {
		t.Fatalf("starting NATS for tests: %v", err)
	}
	return &Broker{URL: server.URL(), t: t}
}

// NATSServer starts a server for this test alone, which may be killed and restarted.
func NATSServer(t testing.TB, cfg local.NATSConfig) *Broker {
	t.Helper()
	server, err := local.StartNATS(t.Context(), cfg)
	if err != nil {
		t.Fatalf("starting NATS: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Errorf("stopping NATS: %v", err)
		}
	})
	return &Broker{URL: server.URL(), Server: server, t: t}
}

// Addr is the server's address, the upstream for a Proxy.
func (b *Broker) Addr() string { return strings.TrimPrefix(b.URL, "nats://") }

// Connect returns a connection, closed when the test ends.
func (b *Broker) Connect(options ...nats.Option) *nats.Conn {
	b.t.Helper()
	conn, err := nats.Connect(b.URL, options...)
	if err != nil {
		b.t.Fatalf("connecting to NATS: %v", err)
	}
	b.t.Cleanup(conn.Close)
	return conn
}

// JetStream returns a client over a connection of its own, closed when the test ends.
func (b *Broker) JetStream(options ...nats.Option) jetstream.JetStream {
	b.t.Helper()
	js, err := jetstream.New(b.Connect(options...))
	if err != nil {
		b.t.Fatalf("making a JetStream client: %v", err)
	}
	return js
}

// Stream creates a stream for this test and deletes it when the test ends. Name and subjects are made up where cfg
// leaves them empty.
func (b *Broker) Stream(cfg jetstream.StreamConfig, options ...nats.Option) Stream {
	b.t.Helper()
	s := Stream{Name: cfg.Name, Prefix: uniqueName("subject")}
	if s.Name == "" {
		s.Name = uniqueName("stream")
		cfg.Name = s.Name
	}
	if len(cfg.Subjects) == 0 {
		cfg.Subjects = []string{s.Prefix + ".>"}
	} else {
		s.Prefix, _, _ = strings.Cut(cfg.Subjects[0], ".")
	}
	js := b.JetStream(options...)
	if _, err := js.CreateStream(b.t.Context(), cfg); err != nil {
		b.t.Fatalf("creating stream %s: %v", s.Name, err)
	}
	if b.Server != nil {
		return s // goes with its server, which the test may have stopped
	}
	b.t.Cleanup(func() {
		ctx, cancel := cleanupContext(b.t)
		defer cancel()
		if err := js.DeleteStream(ctx, s.Name); err != nil {
			b.t.Errorf("deleting stream %s: %v", s.Name, err)
		}
	})
	return s
}

// Config is what a worker's configuration says to reach a stream here.
func (b *Broker) Config(s Stream) config.NATS {
	return config.NATS{
		Servers:  []string{b.URL},
		Stream:   s.Name,
		Topology: "Verify",
		TLS:      config.TLS{Mode: "Insecure"},
		Subject:  s.Subject("default"),
	}
}
