package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/rabbitmq"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/brokers" //nolint:depguard // the tests' servers are measured
)

const (
	exchange   = "bench"
	queue      = "bench"
	routingKey = "events"
)

// openRabbitMQ starts a RabbitMQ with a durable quorum queue.
func openRabbitMQ(ctx context.Context) (_ *bench.Destination, _ func(context.Context) error, err error) {
	server, err := brokers.StartRabbitMQ(ctx, brokers.RabbitMQConfig{})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Stop(ctx))
		}
	}()
	user, password := server.User()
	conn, err := amqp.Dial(
		(&url.URL{Scheme: "amqp", User: url.UserPassword(user, password), Host: server.Addr(), Path: "/"}).String(),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	channel, err := conn.Channel()
	if err != nil {
		return nil, nil, fmt.Errorf("open a channel: %w", err)
	}
	err = errors.Join(channel.Confirm(false),
		channel.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil))
	if err != nil {
		return nil, nil, fmt.Errorf("make the exchange: %w", err)
	}
	credentials, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder: %w", err)
	}
	err = errors.Join(os.WriteFile(filepath.Join(credentials, "username"), []byte(user), 0o600),
		os.WriteFile(filepath.Join(credentials, "password"), []byte(password), 0o600))
	if err != nil {
		return nil, nil, fmt.Errorf("write the credentials: %w", err)
	}
	publisher, err := rabbitmq.NewPublisher(rabbitmq.Config{
		Hosts: []string{
			server.Addr(),
		},
		TLS:            endpoint.TLS{Mode: endpoint.Insecure},
		CredentialsDir: credentials,
		Name:           "bench",
	}, rabbitmq.PublisherConfig{Exchange: exchange, RoutingKey: routingKey, Topology: rabbitmq.Verify})
	if err != nil {
		return nil, nil, err
	}
	end := func(ctx context.Context) error {
		return errors.Join(conn.Close(), publisher.Close(ctx), server.Stop(ctx), os.RemoveAll(credentials))
	}
	return &bench.Destination{
		Name: "RabbitMQ", Publisher: publisher,
		Produce: func(ctx context.Context, messages []message.Message) error {
			return produceRabbitMQ(ctx, channel, messages)
		},
		Empty: func(context.Context) error { return emptyRabbitMQ(channel) },
	}, end, nil
}

func produceRabbitMQ(ctx context.Context, channel *amqp.Channel, messages []message.Message) error {
	answers := make([]*amqp.DeferredConfirmation, len(messages))
	for i := range messages {
		if i >= outstanding {
			if err := confirmed(ctx, answers[i-outstanding]); err != nil {
				return err
			}
		}
		record, err := message.Encode(&messages[i])
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		publishing := amqp.Publishing{
			Headers: make(amqp.Table, len(record.Headers)), DeliveryMode: amqp.Persistent, Body: record.Body,
			MessageId: messages[i].ID.String(), ContentType: messages[i].ContentType,
		}
		for _, h := range record.Headers {
			publishing.Headers[h.Name] = h.Value
		}
		answers[i], err = channel.PublishWithDeferredConfirmWithContext(
			ctx,
			exchange,
			routingKey,
			true,
			false,
			publishing,
		)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	for _, a := range answers[max(0, len(answers)-outstanding):] {
		if err := confirmed(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

var errNotTaken = errors.New("the broker has not taken a message")

func confirmed(ctx context.Context, answer *amqp.DeferredConfirmation) error {
	ok, err := answer.WaitContext(ctx)
	if err != nil {
		return fmt.Errorf("wait for a confirmation: %w", err)
	}
	if !ok {
		return errNotTaken
	}
	return nil
}

// emptyRabbitMQ makes the queue anew.
func emptyRabbitMQ(channel *amqp.Channel) error {
	if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
		return fmt.Errorf("delete the queue: %w", err)
	}
	if _, err := channel.QueueDeclare(
		queue,
		true,
		false,
		false,
		false,
		amqp.Table{"x-queue-type": "quorum"},
	); err != nil {
		return fmt.Errorf("make the queue: %w", err)
	}
	if err := channel.QueueBind(queue, "#", exchange, false, nil); err != nil {
		return fmt.Errorf("bind the queue: %w", err)
	}
	return nil
}
