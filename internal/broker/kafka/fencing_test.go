package kafka

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// owner is a publisher as a lane uses it: under the shard that it holds.
type owner struct {
	*Publisher

	fence broker.Fence
}

func (o owner) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	return o.Publisher.Publish(broker.WithFence(ctx, o.fence), batch)
}

// lanes is a publisher of many shards: each Publish is one's, and of those that nobody uses the one that was used last:
// what it left open ends with that.
type lanes struct {
	*Publisher

	mu   sync.Mutex
	free []int16
}

func newLanes(p *Publisher) *lanes {
	return &lanes{Publisher: p, free: []int16{7, 6, 5, 4, 3, 2, 1, 0}}
}

func (l *lanes) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	l.mu.Lock()
	last := len(l.free) - 1
	shard := l.free[last]
	l.free = l.free[:last]
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.free = append(l.free, shard)
	}()
	return l.Publisher.Publish(broker.WithFence(ctx, broker.Fence{Shard: shard, Term: 1}), batch)
}

// A publisher that fences keeps the whole contract for those who read committed records.
func TestAFencingPublisherKeepsTheContract(t *testing.T) {
	t.Parallel()
	brokertest.RunPublisher(t, func(t *testing.T) *brokertest.Subject {
		t.Helper()
		s := newSubject(t)
		s.Kill = nil // a broker that comes back is the plain publisher's case; its start takes longer than all the others
		plain := s.Formatted
		s.Formatted = func(t *testing.T, format message.Format) broker.Publisher {
			t.Helper()
			p, ok := plain(t, format).(*Publisher)
			if !ok {
				t.Fatal("another publisher")
			}
			p.publish.FencingID = "postrider/" + t.Name()
			return newLanes(p)
		}
		s.Publisher = func(t *testing.T) broker.Publisher { t.Helper(); return s.Formatted(t, message.Native) }
		return s
	})
}

func sendAs(t *testing.T, o owner, batch ...message.Message) []broker.Confirmation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	return o.Publish(ctx, batch)
}

// twoOwners returns the publishers of two relays that hold one shard, one after the other.
func twoOwners(t *testing.T) (server *testkit.KafkaBroker, topic string, old, next owner) {
	t.Helper()
	server = testkit.Kafka(t)
	topic = server.Topic(1, nil)
	publish := PublisherConfig{Topic: topic, FencingID: "postrider/shop/" + topic}
	old = owner{newPublisher(t, testConfig(server, nil), publish), broker.Fence{Shard: 3, Term: 1}}
	next = owner{newPublisher(t, testConfig(server, nil), publish), broker.Fence{Shard: 3, Term: 2}}
	return server, topic, old, next
}

// A relay that has lost its shard and does not know is kept out by the broker (K7): nothing that it sends is seen.
func TestAZombieIsFenced(t *testing.T) {
	t.Parallel()
	server, topic, old, next := twoOwners(t)
	first := brokertest.Message("order-7", 1)
	want(t, "the first owner", sendAs(t, old, first)[0], broker.Confirmed, "")

	// The old owner halts amid a transaction: its record is at the broker, its commit is not.
	zombie, err := old.takeFenced(old.fence)
	if err != nil {
		t.Fatal(err)
	}
	if err := zombie.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	zombie.Produce(t.Context(), &kgo.Record{Topic: topic, Key: []byte("order-7"), Value: []byte("halted")}, nil)
	if err := zombie.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}

	second := brokertest.Message("order-7", 2)
	want(t, "the next owner", sendAs(t, next, second)[0], broker.Confirmed, "")

	if err := zombie.EndTransaction(t.Context(), kgo.TryCommit); !isFenced(err) {
		t.Errorf("the zombie's commit: %v, want that it is fenced", err)
	}
	old.drop(zombie)
	brokertest.WantInOrder(t, stored(t, server, topic), []message.Message{first, second}, false)
	want(t, "the next owner again", sendAs(t, next, brokertest.Message("order-7", 3))[0], broker.Confirmed, "")
}

// The same, where the zombie wakes between two transactions: its next record is refused, and that says why.
func TestAZombiesNextRecordIsRefused(t *testing.T) {
	t.Parallel()
	server, topic, old, next := twoOwners(t)
	first, second := brokertest.Message("order-7", 1), brokertest.Message("order-7", 2)
	want(t, "the first owner", sendAs(t, old, first)[0], broker.Confirmed, "")
	want(t, "the next owner", sendAs(t, next, second)[0], broker.Confirmed, "")

	refused := sendAs(t, old, brokertest.Message("order-8", 1))[0]
	want(t, "the zombie", refused, broker.Unavailable, broker.ReasonFenced)
	if !strings.Contains(refused.Detail, "another relay") {
		t.Errorf("detail %q", refused.Detail)
	}
	elsewhere := owner{old.Publisher, broker.Fence{Shard: 4, Term: 1}}
	third := brokertest.Message("order-9", 1)
	want(t, "the zombie on a shard that it holds", sendAs(t, elsewhere, third)[0], broker.Confirmed, "")
	brokertest.WantInOrder(t, stored(t, server, topic), []message.Message{first, second, third}, false)
}

// A message that the broker refuses does not take down what is in one transaction with it.
func TestARefusalLeavesTheRestOfItsTransaction(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{
		Topic: topic, Allowed: []string{"nobody.*"}, FencingID: "postrider/shop/" + topic,
	})
	o := owner{p, broker.Fence{Shard: 0, Term: 1}}
	batch := []message.Message{
		brokertest.Message("a", 1), brokertest.Message("b", 1), brokertest.Message("c", 1),
	}
	batch[1].Destination = "nobody." + topic
	got := sendAs(t, o, batch...)
	want(t, "one before", got[0], broker.Confirmed, "")
	want(t, "one to a topic that is not there", got[1], broker.Rejected, broker.ReasonUnroutable)
	want(t, "one behind", got[2], broker.Confirmed, "")
	brokertest.WantInOrder(t, stored(t, server, topic), []message.Message{batch[0], batch[2]}, false)
}

// What fencing costs: publishes of 500 messages of 300 bytes, with and without, in turn. The ratio is what counts.
func BenchmarkFencing(b *testing.B) {
	server := testkit.Kafka(b)
	topic := server.Topic(4, nil)
	publisher := func(fencingID string) *Publisher {
		p, err := NewPublisher(testConfig(server, nil), PublisherConfig{Topic: topic, FencingID: fencingID})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close(context.WithoutCancel(b.Context())) })
		return p
	}
	plain, fencing := publisher(""), owner{publisher("postrider/" + topic), broker.Fence{Shard: 1, Term: 1}}
	var took [2]float64
	for range b.N {
		for i, p := range []broker.Publisher{plain, fencing} {
			batch := brokertest.Interleaved(100, 5)
			for j := range batch {
				batch[j].Payload = make([]byte, 300)
				batch[j].Size = len(batch[j].Payload)
			}
			start := b.Elapsed()
			for _, c := range p.Publish(b.Context(), batch) {
				if c.Outcome != broker.Confirmed {
					b.Fatalf("%+v", c)
				}
			}
			took[i] += (b.Elapsed() - start).Seconds()
		}
	}
	b.ReportMetric(took[1]/took[0], "fenced/plain")
}
