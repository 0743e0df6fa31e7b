package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/kafka"
	"github.com/postrider/postrider/internal/broker/nats"
	"github.com/postrider/postrider/internal/broker/rabbitmq"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/postgres/inboxdb"
)

// finishPeriod is how often the finished position is noted, from which a durable that the broker lost is made again.
const finishPeriod = 10 * time.Second

// source is a broker that a consumer reads from, with its connections.
type source interface {
	broker.Receiver
	consumer.Lagger
	// Check says whether the source is usable (the error is *broker.Error) and what about it may hurt later.
	Check(ctx context.Context) ([]broker.Warning, error)
	// Close acknowledges what is durable and gives the rest back, as long as the context allows, and cuts what is left.
	Close(ctx context.Context) error
}

// openSource returns the broker that the config names. It waits for nothing.
func openSource(
	ctx context.Context, cfg config.Consumer, name string, tables *inboxdb.Store, log *slog.Logger,
) (source, error) {
	s, err := func() (source, error) {
		switch {
		case cfg.Kafka != nil:
			return kafka.NewReceiver(ctx, kafkaConfig(cfg.Kafka, name, log), kafka.ReceiverConfig{
				Topics: cfg.Kafka.Topics, Group: cfg.Kafka.Group, OffsetReset: kafka.OffsetReset(cfg.Kafka.OffsetReset),
				Prefetch: int(cfg.Concurrency.Prefetch),
			})
		case cfg.RabbitMQ != nil:
			return rabbitmq.NewReceiver(ctx, rabbitConfig(cfg.RabbitMQ, name, log), rabbitmq.ReceiverConfig{
				Queue: cfg.RabbitMQ.Queue, Bindings: rabbitBindings(cfg.RabbitMQ),
				Topology: rabbitmq.Topology(cfg.RabbitMQ.Topology), Prefetch: int(cfg.Concurrency.Prefetch),
				SingleActive: cfg.Ordering.Delivery == config.DeliverySingleActive,
			})
		default:
			return openDurable(ctx, cfg, name, tables, log)
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("make the receiver: %w", err) // not the typed nil of s
	}
	return s, nil
}

// origin names a consumer's broker, its source as status shows it, and what is read as traces name it.
func origin(cfg config.Consumer) (system, source, from string) {
	switch {
	case cfg.Kafka != nil:
		from = cfg.Kafka.Topics[0]
		source = "kafka/" + from
		if more := len(cfg.Kafka.Topics) - 1; more > 0 {
			source += fmt.Sprintf(" and %d more", more)
		}
		return "kafka", source, from
	case cfg.RabbitMQ != nil:
		return "rabbitmq", "rabbitmq/" + cfg.RabbitMQ.Queue, cfg.RabbitMQ.Queue
	default:
		return "nats", "nats/" + cfg.NATS.Stream, cfg.NATS.Stream
	}
}

// sourceTLS is how the connection to a consumer's broker is protected.
func sourceTLS(cfg config.Consumer) config.TLS {
	switch {
	case cfg.Kafka != nil:
		return cfg.Kafka.TLS
	case cfg.RabbitMQ != nil:
		return cfg.RabbitMQ.TLS
	default:
		return cfg.NATS.TLS
	}
}

func kafkaConfig(k *config.Kafka, name string, log *slog.Logger) kafka.Config {
	return kafka.Config{
		BootstrapServers: k.BootstrapServers, Mechanism: kafka.Mechanism(k.Mechanism),
		CredentialsDir: k.CredentialsDir, TLS: endpointTLS(k.TLS), Name: name, Log: log,
	}
}

func rabbitConfig(r *config.RabbitMQ, name string, log *slog.Logger) rabbitmq.Config {
	return rabbitmq.Config{
		Hosts: r.Hosts, VirtualHost: r.VirtualHost, CredentialsDir: r.CredentialsDir, TLS: endpointTLS(r.TLS),
		Name: name, Log: log,
	}
}

func rabbitBindings(r *config.RabbitMQ) []rabbitmq.Binding {
	bindings := make([]rabbitmq.Binding, len(r.Bindings))
	for i, b := range r.Bindings {
		bindings[i] = rabbitmq.Binding(b)
	}
	return bindings
}

// natsSource is a receiver with the connection it works on.
type natsSource struct {
	*nats.Receiver

	conn   *nats.Conn
	tables *inboxdb.Store
	stream string
	log    *slog.Logger
}

func openDurable(
	ctx context.Context, cfg config.Consumer, name string, tables *inboxdb.Store, log *slog.Logger,
) (source, error) {
	conn, err := dialNATS(ctx, cfg.NATS, name, log)
	if err != nil {
		return nil, err
	}
	s := &natsSource{conn: conn, tables: tables, stream: cfg.NATS.Stream, log: log}
	c := nats.ReceiverConfig{
		Durable: cfg.NATS.Durable, FilterSubjects: cfg.NATS.FilterSubjects,
		Prefetch: int(cfg.Concurrency.Prefetch), StartSequence: s.startSequence,
	}
	if cfg.Ordering.Delivery == config.DeliverySingleActive {
		c.Prefetch, c.MaxAckPending = 1, 1
	}
	if s.Receiver, err = nats.NewReceiver(ctx, conn, c); err != nil {
		closeSoon(ctx, log, conn.Close)
		return nil, err
	}
	return s, nil
}

// Close implements source.
func (s *natsSource) Close(ctx context.Context) error {
	if ctx.Err() == nil { // else the end of the context is the point
		if err := s.Receiver.Close(ctx); err != nil {
			s.log.InfoContext(ctx, "A receiver was cut", "err", err)
		}
	}
	return s.conn.Close(ctx)
}

// startSequence is where a durable that has to be made begins: after what is finished in this very stream, else at its
// start.
func (s *natsSource) startSequence(ctx context.Context, stream string) (uint64, bool, error) {
	known, finished, err := s.tables.Finished(ctx)
	switch {
	case err != nil:
		return 0, false, err
	case known == stream:
		return finished + 1, finished > 0, nil
	case nats.SameStream(known, stream):
		s.log.WarnContext(
			ctx,
			"The stream was made again: what the old one held unread is gone",
			"stream",
			s.stream,
			"detail",
			"read from its start; `postrider verify` names what never arrived, and relays keep what they published",
		)
	}
	return 0, false, nil
}

// attend keeps the position from which a lost durable would be made again.
func (s *natsSource) attend(ctx context.Context) {
	tick := time.NewTicker(finishPeriod)
	defer tick.Stop()
	notedOf, noted := "", uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stream, finished, err := s.Finished(ctx)
		if err != nil || (stream == notedOf && finished == noted) {
			continue // the loop tells what is wrong with the broker
		}
		if err := s.tables.Finish(ctx, stream, finished); err == nil {
			notedOf, noted = stream, finished
		}
	}
}
