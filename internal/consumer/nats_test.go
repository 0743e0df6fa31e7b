package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/nats"
	"github.com/postrider/postrider/test/testkit"
)

// jetStream is a receiver on a real stream, with a connection of its own.
func jetStream(t *testing.T, server *testkit.Broker, stream testkit.Stream) (broker.Receiver, *nats.Conn) {
	t.Helper()
	conn, err := nats.Dial(t.Context(), nats.Config{
		Servers: []string{server.URL}, Stream: stream.Name, Topology: nats.Declare,
		TLS: endpoint.TLS{Mode: endpoint.Insecure},
	})
	if err != nil {
		t.Fatalf("dialling NATS: %v", err)
	}
	r, err := nats.NewReceiver(t.Context(), conn, nats.ReceiverConfig{
		Durable: durable, Prefetch: 100, AckWait: time.Second, MaxAckPending: 400,
	})
	if err != nil {
		t.Fatalf("making a receiver: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_ = r.Close(ctx) // a test may have cut its connection
		_ = conn.Close(ctx)
	})
	return r, conn
}

// A real stream, two processes on one durable, one of them killed twice: redeliveries come late and out of order.
func TestTwoProcessesOnOneDurableOfARealStream(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	start := func() (*worker, *nats.Conn) {
		r, conn := jetStream(t, server, stream)
		return s.start(func(o *options) { o.receiver = r; o.config.MaxBatch = 50 }), conn
	}
	start()
	killed, conn := start()

	js := server.JetStream()
	const keys, versions = 40, 50
	for v := range int64(versions) {
		for k := range keys {
			r := ev(fmt.Sprintf("k%d", k), v+1).record()
			m := &natsgo.Msg{Subject: stream.Subject("orders"), Data: r.Body, Header: natsgo.Header{}}
			for _, h := range r.Headers {
				m.Header.Set(h.Name, h.Value)
			}
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatalf("publishing: %v", err)
			}
		}
		if v == 15 || v == 30 {
			s.applied(keys * (v - 10))
			over, cancel := context.WithCancel(t.Context())
			cancel()
			killed.Kill()
			_ = conn.Close(over) // cut: what it holds comes again after the wait for its acknowledgement
			<-killed.ended
			killed, conn = start()
		}
	}

	s.applied(keys * versions)
	testkit.Eventually(t, patience, "everything is acknowledged and nothing is parked", func() bool {
		c, err := js.Consumer(t.Context(), stream.Name, durable)
		if err != nil {
			t.Fatalf("looking up the durable: %v", err)
		}
		info, err := c.Info(t.Context())
		return err == nil && info.NumAckPending == 0 && info.NumPending == 0 &&
			testkit.Value[int64](s.DB, `SELECT count(*) FROM message_parked`) == 0
	})
	if got := s.countEffects(); got != keys*versions {
		t.Errorf("effects = %d, want %d", got, keys*versions)
	}
	s.once()
	s.tidy()
	if dead := s.failures(); len(dead) > 0 {
		t.Errorf("dead letters: %v", dead)
	}
}
