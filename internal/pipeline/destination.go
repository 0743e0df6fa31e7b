package pipeline

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/kafka"
	"github.com/postrider/postrider/internal/broker/nats"
	"github.com/postrider/postrider/internal/broker/rabbitmq"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/message"
)

// destination is a broker that a relay publishes to, with its connections.
type destination interface {
	broker.Publisher
	// Check says whether the target is usable (the error is *broker.Error) and what about it may hurt later.
	Check(ctx context.Context) ([]broker.Warning, error)
	// Close says the last words as long as the context allows, and cuts what is left.
	Close(ctx context.Context) error
}

// natsDestination is a publisher with the connection it works on.
type natsDestination struct {
	*nats.Publisher

	conn *nats.Conn
}

// Close implements destination.
func (d natsDestination) Close(ctx context.Context) error { return d.conn.Close(ctx) }

// openDestination returns the broker that the config names. It waits for nothing.
func openDestination(ctx context.Context, cfg config.Relay, name string, log *slog.Logger) (destination, error) {
	unordered := cfg.Ordering == config.OrderingNone
	d, err := func() (destination, error) {
		switch {
		case cfg.Kafka != nil:
			return kafka.NewPublisher(kafkaConfig(cfg.Kafka, name, log), kafka.PublisherConfig{
				Topic: cfg.Kafka.Topic, Allowed: cfg.Allowed, Compression: kafka.Compression(cfg.Kafka.Compression),
				Unordered: unordered, Format: message.Format(cfg.MessageFormat), FencingID: fencingID(&cfg),
			})
		case cfg.RabbitMQ != nil:
			return rabbitmq.NewPublisher(rabbitConfig(cfg.RabbitMQ, name, log), rabbitmq.PublisherConfig{
				Exchange: cfg.RabbitMQ.Exchange, RoutingKey: cfg.RabbitMQ.RoutingKey, Allowed: cfg.Allowed,
				Topology: rabbitmq.Topology(cfg.RabbitMQ.Topology), Unordered: unordered,
				Format: message.Format(cfg.MessageFormat),
			})
		default:
			return openNATS(ctx, cfg, name, log)
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("make the publisher: %w", err) // not the typed nil of d
	}
	return d, nil
}

// fencingID names the relay to Kafka, the same in each of its workers; empty where it does not fence.
func fencingID(cfg *config.Relay) string {
	if !cfg.Kafka.TransactionalFencing {
		return ""
	}
	return "postrider/" + cfg.Resource.String()
}

func openNATS(ctx context.Context, cfg config.Relay, name string, log *slog.Logger) (destination, error) {
	conn, err := dialNATS(ctx, cfg.NATS, name, log)
	if err != nil {
		return nil, err
	}
	p, err := nats.NewPublisher(conn, nats.PublisherConfig{
		Subject: cfg.NATS.Subject, Allowed: cfg.Allowed, Unordered: cfg.Ordering == config.OrderingNone,
		Format: message.Format(cfg.MessageFormat),
	})
	if err != nil {
		closeSoon(ctx, log, conn.Close)
		return nil, err
	}
	return natsDestination{Publisher: p, conn: conn}, nil
}

func endpointTLS(t config.TLS) endpoint.TLS {
	return endpoint.TLS{
		Mode: endpoint.TLSMode(t.Mode), CAFile: t.CAFile, ClientCertificateDir: t.ClientCertificateDir,
	}
}

// target names a relay's broker, its destination as status shows it, and the unit that fails as one.
func target(cfg config.Relay) (system, destination, unit string) {
	switch {
	case cfg.Kafka != nil:
		return "kafka", "kafka/" + cfg.Kafka.Topic, "kafka/" + cfg.Kafka.Topic
	case cfg.RabbitMQ != nil:
		at := "rabbitmq/" + cfg.RabbitMQ.Exchange + "/" + cfg.RabbitMQ.RoutingKey
		return "rabbitmq", at, at
	default:
		return "nats", "nats/" + cfg.NATS.Subject, "nats/" + cfg.NATS.Stream
	}
}

// fallback is the destination of rows that name none, as traces name it.
func fallback(cfg config.Relay) string {
	switch {
	case cfg.Kafka != nil:
		return cfg.Kafka.Topic
	case cfg.RabbitMQ != nil:
		return cfg.RabbitMQ.RoutingKey
	default:
		return cfg.NATS.Subject
	}
}

// destinationTLS is how the connection to a relay's broker is protected.
func destinationTLS(cfg config.Relay) config.TLS {
	switch {
	case cfg.Kafka != nil:
		return cfg.Kafka.TLS
	case cfg.RabbitMQ != nil:
		return cfg.RabbitMQ.TLS
	default:
		return cfg.NATS.TLS
	}
}
