package testkit

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/test/brokers"
)

// firstStart bounds a start that may have to fetch the server.
const firstStart = 20 * time.Minute

// KafkaBroker is a real Apache Kafka.
type KafkaBroker struct {
	*brokers.Kafka

	t testing.TB
}

// sharedKafka is the server of this test binary, started by the first test that asks. It ends with the process.
var sharedKafka = sync.OnceValues(func() (*brokers.Kafka, error) {
	ctx, cancel := context.WithTimeout(context.Background(), firstStart)
	defer cancel()
	return brokers.StartKafka(ctx, brokers.KafkaConfig{})
})

// Kafka returns the Kafka of this test binary. Tests keep apart by their topics: see KafkaBroker.Topic.
func Kafka(t testing.TB) *KafkaBroker {
	t.Helper()
	server, err := sharedKafka()
	if err != nil {
		t.Fatalf("starting Kafka for tests: %v", err)
	}
	return &KafkaBroker{Kafka: server, t: t}
}

// KafkaServer starts a Kafka for this test alone, which may be killed and restarted.
func KafkaServer(t testing.TB, cfg brokers.KafkaConfig) *KafkaBroker {
	t.Helper()
	server, err := brokers.StartKafka(t.Context(), cfg)
	if err != nil {
		t.Fatalf("starting Kafka: %v", err)
	}
	t.Cleanup(func() { stopWithin(t, server.Stop) })
	return &KafkaBroker{Kafka: server, t: t}
}

// stopWithin stops a test's own server.
func stopWithin(t testing.TB, stop func(context.Context) error) {
	t.Helper()
	ctx, cancel := cleanupContext(t)
	defer cancel()
	if err := stop(ctx); err != nil {
		t.Error(err)
	}
}

// Client returns a client of the plain listener, closed when the test ends.
func (b *KafkaBroker) Client(options ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Addr())}, options...)...)
	if err != nil {
		b.t.Fatalf("making a Kafka client: %v", err)
	}
	b.t.Cleanup(client.Close)
	return client
}

// Admin returns a client for what administrators do, closed when the test ends.
func (b *KafkaBroker) Admin() *kadm.Client {
	b.t.Helper()
	return kadm.NewClient(b.Client())
}

// Topic creates a topic for this test and returns its name. Settings are the topic's, such as max.message.bytes.
func (b *KafkaBroker) Topic(partitions int32, settings map[string]string) string {
	b.t.Helper()
	name := uniqueName("topic")
	b.CreateTopic(name, partitions, settings)
	return name
}

// CreateTopic creates a topic of that name, and returns when the broker shows it with its leaders.
func (b *KafkaBroker) CreateTopic(name string, partitions int32, settings map[string]string) {
	b.t.Helper()
	configs := make(map[string]*string, len(settings))
	for key, value := range settings {
		configs[key] = &value
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	admin := b.Admin()
	if _, err := admin.CreateTopic(ctx, partitions, -1, configs, name); err != nil {
		b.t.Fatalf("creating topic %s: %v", name, err)
	}
	b.awaitLeaders(ctx, admin, name, partitions)
}

// SetPartitions makes a topic larger, and returns when the new partitions have their leaders too.
func (b *KafkaBroker) SetPartitions(topic string, partitions int32) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	admin := b.Admin()
	if _, err := admin.UpdatePartitions(ctx, int(partitions), topic); err != nil {
		b.t.Fatalf("adding partitions to %s: %v", topic, err)
	}
	b.awaitLeaders(ctx, admin, topic, partitions)
}

// awaitLeaders waits for what the broker takes a moment after it has answered.
func (b *KafkaBroker) awaitLeaders(ctx context.Context, admin *kadm.Client, topic string, partitions int32) {
	b.t.Helper()
	Eventually(b.t, time.Minute, "each partition has its leader", func() bool {
		ends, err := admin.ListEndOffsets(ctx, topic)
		return err == nil && ends.Error() == nil && len(ends[topic]) == int(partitions)
	})
}

// Records reads topics from their beginning to their end now, as those do who read committed records.
func (b *KafkaBroker) Records(topics ...string) []*kgo.Record {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	ends, err := b.Admin().ListEndOffsets(ctx, topics...)
	if err != nil {
		b.t.Fatal(err)
	}
	type place struct {
		topic     string
		partition int32
	}
	from := make(map[string]map[int32]kgo.Offset)
	left := make(map[place]int64) // partitions that are not read to their ends
	ends.Each(func(end kadm.ListedOffset) {
		if end.Err != nil {
			b.t.Fatal(end.Err)
		}
		if from[end.Topic] == nil {
			from[end.Topic] = make(map[int32]kgo.Offset)
		}
		from[end.Topic][end.Partition] = kgo.NewOffset().AtStart()
		if end.Offset > 0 {
			left[place{end.Topic, end.Partition}] = end.Offset
		}
	})
	client := b.Client(
		kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	var all []*kgo.Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			b.t.Fatalf("not read to their ends: %v", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if at := (place{r.Topic, r.Partition}); r.Offset+1 >= left[at] {
				delete(left, at)
			}
			if !r.Attrs.IsControl() {
				all = append(all, r)
			}
		})
	}
	return all
}
