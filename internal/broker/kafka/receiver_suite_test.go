package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/test/testkit"
)

// testSession is how long tests wait until what a dead receiver held goes to others.
const testSession = 3 * time.Second

func newReceiver(t *testing.T, cfg Config, receive ReceiverConfig) *Receiver {
	t.Helper()
	if receive.SessionTimeout == 0 {
		receive.SessionTimeout = testSession
	}
	r, err := NewReceiver(t.Context(), cfg, receive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, r.Close) })
	return r
}

// closeWithin closes something also after the test's own context has ended.
func closeWithin(t *testing.T, closer func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	if err := closer(ctx); err != nil {
		t.Logf("closing: %v", err) // the server may be cut off
	}
}

// crash ends a receiver as kill -9 would: the sockets end, nothing is said.
func crash(t *testing.T, r *Receiver) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestKafkaReceiverKeepsTheContract(t *testing.T) {
	t.Parallel()
	brokertest.RunReceiver(t, newSource)
}

// newSource is the suite's view of one topic: of one partition, where the whole order is looked at, and of several, where
// receivers share it.
func newSource(t *testing.T) *brokertest.Subject {
	t.Helper()
	server, own := suiteServer(t)
	partitions := int32(1)
	if strings.Contains(t.Name(), "share") {
		partitions = 6
	}
	topic := server.Topic(partitions, nil)
	proxy := testkit.Proxy(t, server.Addr())
	cfg := testConfig(server, proxy)
	s := &brokertest.Subject{
		MaxPayload: 1 << 19, Resends: true, InPartitions: true, ForgetsDeliveries: true,
		Publisher: func(t *testing.T) broker.Publisher {
			t.Helper()
			return newPublisher(t, cfg, PublisherConfig{Topic: topic})
		},
		Receiver: func(t *testing.T, durable string, prefetch int) brokertest.Receiver {
			t.Helper()
			r := newReceiver(t, cfg, ReceiverConfig{
				Topics: []string{topic}, Group: topic + "-" + durable, Prefetch: prefetch,
			})
			return brokertest.Receiver{
				Receiver: r,
				Close:    func() { closeWithin(t, r.Close) },
				Crash:    func() { crash(t, r) },
			}
		},
		Stored: func(t *testing.T) []brokertest.Stored {
			t.Helper()
			return stored(t, server, topic)
		},
		Silence: proxy.HalfOpen, Restore: proxy.Resume, Cut: proxy.Reset, LoseAnswer: proxy.LoseAnswer,
	}
	if own {
		s.MayKill(server)
	}
	return s
}
