package kafka

import (
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// usurper writes records as if it were a publisher's own producer: afterwards the broker's memory of that producer is
// another one than the producer's, as after a leader that has lost the last records.
type usurper struct {
	id            int64
	epoch         int16
	sequence      int32
	transactional string // the id of the producer's transactions, empty where it has none
}

// usurp learns the producer of a client that nobody uses now.
func usurp(t *testing.T, c *client) usurper {
	t.Helper()
	id, epoch, err := c.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return usurper{id: id, epoch: epoch}
}

// batch is a batch of small records as it is on the wire.
func (u usurper) batch(records int32) []byte {
	var encoded []byte
	for i := range records {
		record := kmsg.Record{OffsetDelta: i, Value: []byte("usurped")}
		record.Length = int32(len(record.AppendTo(nil)) - 1) // without the length itself
		encoded = record.AppendTo(encoded)
	}
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: records - 1,
		ProducerID: u.id, ProducerEpoch: u.epoch, FirstSequence: u.sequence,
		NumRecords: records, Records: encoded,
	}
	if u.transactional != "" {
		batch.Attributes = 1 << 4
	}
	const untilLength, untilSummed = 12, 21
	batch.Length = int32(len(batch.AppendTo(nil)) - untilLength)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[untilSummed:], crc32.MakeTable(crc32.Castagnoli)))
	return batch.AppendTo(nil)
}

// write has the broker take records from the usurper, into the topic's only partition.
func (u usurper) write(t *testing.T, server *testkit.KafkaBroker, topic string, records int32) {
	t.Helper()
	found, err := server.Admin().ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	partition := kmsg.NewProduceRequestTopicPartition()
	partition.Records = u.batch(records)
	to := kmsg.NewProduceRequestTopic()
	to.Topic, to.TopicID = topic, found[topic].ID
	to.Partitions = append(to.Partitions, partition)
	request := kmsg.NewPtrProduceRequest()
	request.Acks, request.TimeoutMillis = -1, int32(answerTime.Milliseconds())
	request.Topics = append(request.Topics, to)
	if u.transactional != "" {
		request.TransactionID = &u.transactional
	}
	client := server.Client()
	testkit.Eventually(t, answerTime, "the broker is done with the transaction before", func() bool {
		answer, err := request.RequestWith(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		err = kerr.ErrorForCode(answer.Topics[0].Partitions[0].ErrorCode)
		if err != nil && !errors.Is(err, kerr.ConcurrentTransactions) {
			t.Fatalf("the usurper's records: %v", err)
		}
		return err == nil
	})
}

// ours leaves out what no publisher has written.
func ours(all []brokertest.Stored) []brokertest.Stored {
	return slices.DeleteFunc(all, func(s brokertest.Stored) bool { return len(s.Headers) == 0 })
}

// K6: the broker's memory of a producer is not the producer's own, and it refuses what comes next. Nothing of that is
// confirmed or refused for good, a new producer begins, and the same messages go through it, in order.
func TestAProducerThatTheBrokerDisownsIsReplaced(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(usurper) usurper{
		"its sequence is not the next": func(u usurper) usurper { u.sequence = 2; return u },
		"its epoch is over":            func(u usurper) usurper { u.epoch++; return u },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.Kafka(t)
			topic := server.Topic(1, nil)
			p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: topic})
			first := []message.Message{brokertest.Message("a", 1), brokertest.Message("b", 1)}
			for _, got := range publish(t, p, first...) {
				want(t, "before", got, broker.Confirmed, "")
			}
			disowned := p.idle[0]
			change(usurp(t, disowned)).write(t, server, topic, 3)

			batch := []message.Message{
				brokertest.Message(
					"a",
					2,
				),
				brokertest.Message("b", 2),
				brokertest.Message("a", 3),
				brokertest.Message("b", 3),
			}
			for _, got := range publish(t, p, batch...) {
				want(t, "when the broker disowns the producer", got, broker.Unknown, broker.ReasonBrokerError)
			}
			if slices.Contains(p.idle, disowned) {
				t.Error("the producer that the broker disowns is kept for the next Publish")
			}
			for _, got := range publish(t, p, batch...) {
				want(t, "of a new producer", got, broker.Confirmed, "")
			}
			brokertest.WantInOrder(t, ours(stored(t, server, topic)), append(first, batch...), false)
		})
	}
}

// The same of a shard's producer: what it wrote in its transaction is never seen, and the shard's next one commits.
func TestAShardsProducerThatTheBrokerDisownsIsReplaced(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: topic, FencingID: "postrider/shop/" + topic})
	o := owner{p, broker.Fence{Shard: 3, Term: 1}}
	first := brokertest.Message("a", 1)
	want(t, "before", sendAs(t, o, first)[0], broker.Confirmed, "")
	u := usurp(t, p.shards[o.fence.Shard].client)
	u.transactional = p.transactionalID(o.fence.Shard)
	u.write(t, server, topic, 3)

	batch := []message.Message{brokertest.Message("a", 2), brokertest.Message("b", 1)}
	for _, got := range sendAs(t, o, batch...) {
		want(t, "when the broker disowns the producer", got, broker.Unknown, broker.ReasonBrokerError)
	}
	for _, got := range sendAs(t, o, batch...) {
		want(t, "of a new producer", got, broker.Confirmed, "")
	}
	brokertest.WantInOrder(t, stored(t, server, topic), append([]message.Message{first}, batch...), false)
}
