package integration

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// repeat publishes what the stream holds once more, bytes and headers, without the id by which the server knows it.
func (b *bank) repeat(stream jetstream.Stream, upTo uint64) {
	b.t.Helper()
	for sequence := uint64(1); sequence <= upTo; sequence++ {
		stored, err := stream.GetMsg(b.t.Context(), sequence)
		if err != nil {
			b.t.Fatalf("reading message %d of the stream: %v", sequence, err)
		}
		again := &nats.Msg{Subject: stored.Subject, Data: stored.Data, Header: stored.Header}
		again.Header.Del(jetstream.MsgIDHeader)
		again.Header.Del(jetstream.ExpectedStreamHeader)
		if _, err := b.js.PublishMsg(b.t.Context(), again); err != nil {
			b.t.Fatalf("publishing message %d again: %v", sequence, err)
		}
	}
}

// killable is a server that can be killed and started again.
type killable interface {
	Kill(ctx context.Context) error
	Start(ctx context.Context) error
}

// A server is killed twice in the middle of the flow and comes back with what it had made durable.
func TestG1G2G5AServerThatIsKilledAndRestartedLosesNothing(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*testing.T) (bankOptions, killable){
		"the database of the outbox": func(t *testing.T) (bankOptions, killable) {
			t.Helper()
			server := testkit.PostgresServer(t, local.PostgresConfig{})
			return bankOptions{
				orders: []testkit.PostgresOption{testkit.OnServer(server), testkit.OwnDatabase(nil)},
			}, server
		},
		"the database of the inbox": func(t *testing.T) (bankOptions, killable) {
			t.Helper()
			server := testkit.PostgresServer(t, local.PostgresConfig{})
			return bankOptions{
				billing: []testkit.PostgresOption{testkit.OnServer(server), testkit.OwnDatabase(nil)},
			}, server
		},
		"the broker": func(t *testing.T) (bankOptions, killable) {
			t.Helper()
			broker := testkit.NATSServer(t, local.NATSConfig{})
			return bankOptions{broker: broker}, broker.Server
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, server := prepare(t)
			b := newBank(t, options)
			b.startRelay(b.relay)
			b.startRelay(b.relay)
			b.startConsumer(b.consumer)
			b.trade(4, 10)
			for range 2 {
				before := b.entries()
				traded := b.trading(4, 60)
				testkit.Eventually(t, patience, "some of it has arrived", func() bool { return b.entries() > before })
				if err := server.Kill(t.Context()); err != nil {
					t.Fatalf("killing the server: %v", err)
				}
				if err := server.Start(t.Context()); err != nil {
					t.Fatalf("starting the server again: %v", err)
				}
				b.orders.Pool().Reset() // of connections that have ended
				b.billing.Pool().Reset()
				if err := <-traded; err != nil {
					t.Fatalf("trading: %v", err)
				}
			}
			b.balanced()
			if dead := testkit.Value[int](b.billing.DB, "SELECT count(*) FROM message_failure"); dead != 0 {
				t.Errorf("the outage made %d dead letters", dead)
			}
		})
	}
}
