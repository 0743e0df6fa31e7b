package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

var _ broker.Router = (*Publisher)(nil)

// Unit implements broker.Router: each partition has a leader of its own, and a set of replicas. A topic that nobody has
// looked at yet is one unit.
func (p *Publisher) Unit(m *message.Message) string {
	topic, ok := p.destinations.Resolve(m)
	if !ok {
		topic = p.publish.Topic // the row is refused, whatever works
	}
	units := p.topics.partitions(topic)
	if len(units) == 0 {
		return topic
	}
	return units[p.partitioner.partition(m.OrderingKey, len(units))]
}

// Units implements broker.Router.
func (p *Publisher) Units() []string {
	if len(p.publish.Allowed) > 0 {
		return nil // rows name topics as they like
	}
	if units := p.topics.partitions(p.publish.Topic); len(units) > 0 {
		return units
	}
	return []string{p.publish.Topic}
}

// hashKeys chooses partitions by the keys' murmur2 hash, as Java clients do.
func hashKeys() kgo.Partitioner { return kgo.StickyKeyPartitioner(nil) }

// steady chooses partitions by the keys' hash among as many as a topic had at the first record of the call. What a key has
// in one call is on its way together, and only within a partition is it kept in order: partitions that are added
// meanwhile are for the next call.
type steady struct {
	mu     sync.Mutex
	counts map[string]int
}

func newSteady() *steady { return &steady{counts: make(map[string]int)} }

// anew begins a call.
func (s *steady) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.counts)
}

// among returns how many partitions the call goes by, where the topic has so many now.
func (s *steady) among(topic string, now int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.counts[topic]; before > 0 && before < now {
		return before
	}
	s.counts[topic] = now
	return now
}

// ForTopic implements kgo.Partitioner.
func (s *steady) ForTopic(topic string) kgo.TopicPartitioner {
	return steadyTopic{TopicPartitioner: hashKeys().ForTopic(topic), all: s, name: topic}
}

// steadyTopic is steady for one topic. All records have keys.
type steadyTopic struct {
	kgo.TopicPartitioner

	all  *steady
	name string
}

// Partition implements kgo.TopicPartitioner.
func (t steadyTopic) Partition(r *kgo.Record, n int) int {
	return t.TopicPartitioner.Partition(r, t.all.among(t.name, n))
}

// partitioner tells where the library will send a key.
type partitioner struct {
	keys    kgo.TopicPartitioner // for records with a key it depends on nothing but the key
	records *sync.Pool           // *kgo.Record, reused: the relay asks several times for each message
}

func newPartitioner(topic string) partitioner {
	return partitioner{
		keys:    hashKeys().ForTopic(topic),
		records: &sync.Pool{New: func() any { return new(kgo.Record) }},
	}
}

func (p partitioner) partition(key string, partitions int) int {
	record, _ := p.records.Get().(*kgo.Record)
	defer p.records.Put(record)
	record.Key = append(record.Key[:0], key...)
	return p.keys.Partition(record, partitions)
}
