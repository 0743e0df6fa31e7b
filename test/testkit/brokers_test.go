package testkit_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/test/testkit"
)

func TestKafkaKeepsWhatATopicTakes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	broker := testkit.Kafka(t)
	topic := broker.Topic(3, map[string]string{"max.message.bytes": "100000"})
	client := broker.Client(kgo.ConsumeTopics(topic))
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("hello")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	records := client.PollFetches(ctx).Records()
	if len(records) != 1 || string(records[0].Value) != "hello" {
		t.Errorf("%d records come back", len(records))
	}
}

func TestRabbitMQGivesEachTestAVirtualHost(t *testing.T) {
	t.Parallel()
	one, other := testkit.RabbitMQ(t), testkit.RabbitMQ(t)
	if _, err := one.Channel().
		QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Channel().QueueDeclarePassive("q", true, false, false, false, nil); err == nil {
		t.Error("a queue of one test is seen by another")
	}
	if _, err := one.Channel().QueueDeclarePassive("q", true, false, false, false, nil); err != nil {
		t.Errorf("the queue is gone: %v", err)
	}
}
