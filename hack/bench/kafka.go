package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/kafka"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/brokers" //nolint:depguard // the tests' servers are measured
)

const (
	topic      = "bench"
	partitions = 8

	leaderPatience = time.Minute
	leaderPoll     = 50 * time.Millisecond
)

// openKafka starts a Kafka. The bare client is franz-go's with its defaults: idempotent, acks=all.
func openKafka(ctx context.Context) (*bench.Destination, func(context.Context) error, error) {
	server, err := brokers.StartKafka(ctx, brokers.KafkaConfig{})
	if err != nil {
		return nil, nil, err
	}
	bare, err := kgo.NewClient(
		kgo.SeedBrokers(server.Addr()),
		kgo.DefaultProduceTopic(topic),
		kgo.MaxBufferedRecords(1<<20),
	)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make a client: %w", err), server.Stop(ctx))
	}
	if err := makeTopic(ctx, kadm.NewClient(bare)); err != nil {
		bare.Close()
		return nil, nil, errors.Join(err, server.Stop(ctx))
	}
	publisher, err := kafka.NewPublisher(kafka.Config{
		BootstrapServers: []string{server.Addr()}, TLS: endpoint.TLS{Mode: endpoint.Insecure}, Name: "bench",
	}, kafka.PublisherConfig{Topic: topic})
	if err != nil {
		bare.Close()
		return nil, nil, errors.Join(err, server.Stop(ctx))
	}
	end := func(ctx context.Context) error {
		bare.Close()
		return errors.Join(publisher.Close(ctx), server.Stop(ctx))
	}
	return &bench.Destination{
		Name:      "Kafka",
		Publisher: publisher,
		Produce:   func(ctx context.Context, messages []message.Message) error { return produceKafka(ctx, bare, messages) },
		Empty:     func(ctx context.Context) error { return emptyKafka(ctx, kadm.NewClient(bare)) },
	}, end, nil
}

func produceKafka(ctx context.Context, client *kgo.Client, messages []message.Message) error {
	failed := make(chan error, 1)
	for i := range messages {
		record, err := message.Encode(&messages[i])
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		r := &kgo.Record{Key: []byte(messages[i].OrderingKey), Value: record.Body}
		for _, h := range record.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
		}
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default: // the first is told
				}
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// makeTopic makes the topic and returns when each of its partitions has a leader.
func makeTopic(ctx context.Context, admin *kadm.Client) error {
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		return fmt.Errorf("make the topic: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	tick := time.NewTicker(leaderPoll)
	defer tick.Stop()
	for {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil && len(ends[topic]) == partitions {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for the topic: %w", context.Cause(ctx)), err)
		}
	}
}

// emptyKafka throws away what the topic holds.
func emptyKafka(ctx context.Context, admin *kadm.Client) error {
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("look at the topic: %w", err)
	}
	if _, err := admin.DeleteRecords(ctx, ends.Offsets()); err != nil {
		return fmt.Errorf("delete the records: %w", err)
	}
	return nil
}
