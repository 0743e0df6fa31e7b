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
