package nats

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// BenchmarkPublish measures confirmed messages a second to a real server with a file store: batches of 500, payloads
// of 300 bytes. The last case is a bare client on the same server, with as many unanswered messages.
func BenchmarkPublish(b *testing.B) {
	for _, keys := range []int{1000, 50, 1} {
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) { benchmarkPublish(b, keys) })
	}
	b.Run("bare client", benchmarkBare)
}

const (
	benchBatch   = 500
	benchPayload = 300
)

func benchmarkPublish(b *testing.B, keys int) {
	b.Helper()
	server := testkit.NATS(b)
	stream := server.Stream(jetstream.StreamConfig{Storage: jetstream.FileStorage})
	conn, err := Dial(b.Context(), testConfig(server.Addr(), stream.Name))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(b.Context())) }()
	p, err := NewPublisher(conn, PublisherConfig{Subject: stream.Subject("a")})
	if err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, benchPayload)
	sent := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		batch := make([]message.Message, benchBatch)
		for i := range batch {
			batch[i] = brokertest.Message(fmt.Sprintf("key-%d", i%keys), int64(sent+i+1))
			batch[i].Payload, batch[i].Size, batch[i].Headers = payload, len(payload), nil
		}
		b.StartTimer()
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		for _, c := range p.Publish(ctx, batch) {
			if c.Outcome != broker.Confirmed {
				b.Fatalf("%+v", c)
			}
		}
		cancel()
		sent += benchBatch
	}
	b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "messages/s")
}

func benchmarkBare(b *testing.B) {
	server := testkit.NATS(b)
	stream := server.Stream(jetstream.StreamConfig{Storage: jetstream.FileStorage})
	js := server.JetStream()
	payload := make([]byte, benchPayload)
	sent := 0
	b.ReportAllocs()
	for b.Loop() {
		futures := make([]jetstream.PubAckFuture, benchBatch)
		for i := range futures {
			m := brokertest.Message("k", 0)
			f, err := js.PublishAsync(stream.Subject("a"), payload, jetstream.WithMsgID(m.ID.String()))
			if err != nil {
				b.Fatal(err)
			}
			futures[i] = f
		}
		for _, f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				b.Fatal(err)
			}
		}
		sent += benchBatch
	}
	b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "messages/s")
}
