package nats

import (
	"context"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// testAckWait is how long tests wait for the redelivery of what a dead receiver held.
const testAckWait = 2 * time.Second

// testConfig reaches the stream at the address.
func testConfig(address, stream string) Config {
	return Config{
		Servers: []string{address}, Stream: stream, Topology: Verify, Name: "test",
		TLS:        endpoint.TLS{Mode: endpoint.Insecure},
		FirstPause: 10 * time.Millisecond, LongestPause: 200 * time.Millisecond,
	}
}

func dial(t *testing.T, cfg Config) *Conn {
	t.Helper()
	conn, err := Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, conn.Close) })
	return conn
}

// closeWithin closes something also after the test's own context has ended.
func closeWithin(t *testing.T, closer func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	if err := closer(ctx); err != nil {
		t.Logf("closing: %v", err) // the server may be cut off
	}
}

func newPublisher(t *testing.T, conn *Conn, cfg PublisherConfig) *Publisher {
	t.Helper()
	p, err := NewPublisher(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newReceiver(t *testing.T, conn *Conn, cfg ReceiverConfig) *Receiver {
	t.Helper()
	if cfg.AckWait == 0 {
		cfg.AckWait = testAckWait
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 500 * time.Millisecond
	}
	r, err := NewReceiver(t.Context(), conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, r.Close) })
	return r
}

// stored reads the whole stream over a connection of the test's own.
func stored(t *testing.T, js jetstream.JetStream, name string) []brokertest.Stored {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	var all []brokertest.Stored
	for seq := state.FirstSeq; state.Msgs > 0 && seq <= state.LastSeq; seq++ {
		raw, err := stream.GetMsg(ctx, seq)
		if err != nil {
			t.Fatalf("message %d: %v", seq, err)
		}
		all = append(all, brokertest.Stored{
			Sequence: seq, Destination: raw.Subject,
			Record: recordOf(&natsgo.Msg{Header: raw.Header, Data: raw.Data}),
		})
	}
	return all
}

func TestJetStreamKeepsTheContract(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, newSubject)
}

// newSubject is the suite's view of one stream. Clients go through a proxy, the test's own connection does not. Only
// the cases that kill a server get one of their own.
func newSubject(t *testing.T) *brokertest.Subject {
	t.Helper()
	server := testkit.NATS(t)
	if strings.Contains(t.Name(), "killed") {
		server = testkit.NATSServer(t, local.NATSConfig{})
	}
	stream := server.Stream(jetstream.StreamConfig{Storage: jetstream.FileStorage})
	proxy := testkit.Proxy(t, server.Addr())
	cfg := testConfig(proxy.Addr(), stream.Name)
	formatted := func(t *testing.T, format message.Format) broker.Publisher {
		t.Helper()
		return newPublisher(t, dial(t, cfg), PublisherConfig{
			Subject: stream.Subject("events"), Allowed: []string{stream.Prefix + ".*", "nobody.*"}, Format: format,
		})
	}
	s := &brokertest.Subject{
		Allowed: stream.Subject("eu"), Unroutable: "nobody." + stream.Name, MaxPayload: 1 << 19, Dedupes: true,
		Refusing:  func(*testing.T) string { return "nobody." + stream.Name },
		Publisher: func(t *testing.T) broker.Publisher { t.Helper(); return formatted(t, message.Native) },
		Formatted: formatted,
		Receiver: func(t *testing.T, durable string, prefetch int) brokertest.Receiver {
			t.Helper()
			conn := dial(t, cfg)
			r := newReceiver(t, conn, ReceiverConfig{Durable: durable, Prefetch: prefetch})
			return brokertest.Receiver{
				Receiver: r,
				Close:    func() { closeWithin(t, r.Close) },
				Crash: func() { // the socket ends, nothing is said
					s, _, _ := conn.look()
					conn.cancel()
					s.cut()
				},
			}
		},
		Stored: func(t *testing.T) []brokertest.Stored {
			t.Helper()
			return stored(t, server.JetStream(), stream.Name)
		},
		Silence:    proxy.HalfOpen,
		Slow:       proxy.Delay,
		Restore:    proxy.Resume,
		Cut:        proxy.Reset,
		LoseAnswer: proxy.LoseAnswer,
	}
	if server.Server != nil {
		s.MayKill(server.Server)
	}
	return s
}
