package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/kafka"
	"github.com/postrider/postrider/internal/broker/nats"
	"github.com/postrider/postrider/internal/broker/rabbitmq"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/up"
	"github.com/postrider/postrider/internal/verify"
)

const (
	verifyName = "postrider verify"
	// closeTimeout bounds the end of connections that answer no more.
	closeTimeout = 5 * time.Second
	// dialTimeout bounds the wait for a broker.
	dialTimeout = 20 * time.Second
)

// sources are the open databases and brokers of a set of resources, as their own users.
type sources struct {
	input verify.Input

	rabbit    []rabbitOutbox
	set       *manifest.Set
	endpoints *up.Endpoints // where embedded servers stand in; nil: the hosts as named
	root      string        // of the credential files
	closers   []func(context.Context)
}

// openSources opens what the resources name.
func openSources(ctx context.Context, set *manifest.Set, data string) (*sources, error) {
	s := &sources{set: set}
	if data != "" {
		endpoints, err := up.ReadEndpoints(data)
		if err != nil {
			return nil, wrong(err)
		}
		s.endpoints = &endpoints
	}
	var err error
	if s.root, err = os.MkdirTemp("", "postrider-verify-"); err != nil {
		return nil, fmt.Errorf("make a folder for credentials: %w", err)
	}
	if err := s.open(ctx); err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

func (s *sources) open(ctx context.Context) error {
	for _, r := range s.set.Relays {
		if err := s.relay(ctx, r); err != nil {
			return fmt.Errorf("%s: outboxrelay/%s: %w", r.Origin, r.Name, err)
		}
	}
	for _, c := range s.set.Consumers {
		if err := s.consumer(ctx, c); err != nil {
			return fmt.Errorf("%s: inboxconsumer/%s: %w", c.Origin, c.Name, err)
		}
	}
	return nil
}

// close ends what was opened, the last first, and removes the credential files.
func (s *sources) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, v := range slices.Backward(s.closers) {
		v(ctx)
	}
	_ = os.RemoveAll(s.root) // a temporary folder that only we can read
}

func (s *sources) relay(ctx context.Context, r manifest.Relay) error {
	root := filepath.Join(s.root, "relay", r.Namespace, r.Name)
	if err := s.set.WriteFiles(r.Namespace, desired.RelayReferences(r.OutboxRelay), root); err != nil {
		return err
	}
	cfg, err := desired.Relay(r.OutboxRelay, desired.Inputs{Root: root})
	if err != nil {
		return err
	}
	pool, err := s.database(ctx, cfg.Source)
	if err != nil {
		return err
	}
	tables := postgres.Names{Schema: cfg.Source.Schema, Outbox: cfg.Outbox.Table}
	var stream verify.Stream
	switch {
	case cfg.RabbitMQ != nil:
		stream.Unreadable = "what RabbitMQ's queues hold cannot be read without being taken"
		if cfg.Outbox.Columns == nil { // a team's own table has no archive
			s.rabbit = append(
				s.rabbit,
				rabbitOutbox{cfg.RabbitMQ.VirtualHost, verify.Outbox{Pool: pool, Tables: tables}},
			)
		}
	case cfg.Kafka != nil:
		stream, err = s.topics(cfg.Kafka, relayTopics(cfg))
	default:
		stream, err = s.stream(ctx, cfg.NATS)
	}
	if err != nil {
		return err
	}
	out := verify.Relay{Name: relayTitle(r.Namespace, r.Name), Pool: pool, Stream: stream, Tables: tables}
	if cfg.Outbox.Columns != nil {
		if out.Columns, err = mapped.Read(ctx, pool, mapped.Table{
			Names: tables, Map: *cfg.Outbox.Columns, Unordered: cfg.Ordering == config.OrderingNone,
			Shards: int(cfg.Outbox.Shards), Relay: cfg.Resource.String(),
		}); err != nil {
			return err
		}
	}
	s.input.Relays = append(s.input.Relays, out)
	return nil
}

// relayTopics are the topics that a relay may publish to, as far as they are named.
func relayTopics(cfg config.Relay) []string {
	topics := []string{cfg.Kafka.Topic}
	for _, allowed := range cfg.Allowed {
		if !strings.ContainsAny(allowed, "*>") && !slices.Contains(topics, allowed) {
			topics = append(topics, allowed)
		}
	}
	return topics
}

// rabbitOutbox is an outbox whose relay publishes to a virtual host of RabbitMQ.
type rabbitOutbox struct {
	virtualHost string
	outbox      verify.Outbox
}

func (s *sources) consumer(ctx context.Context, c manifest.Consumer) error {
	root := filepath.Join(s.root, "consumer", c.Namespace, c.Name)
	if err := s.set.WriteFiles(c.Namespace, desired.ConsumerReferences(c.InboxConsumer), root); err != nil {
		return err
	}
	cfg, err := desired.Consumer(c.InboxConsumer, desired.Inputs{Root: root})
	if err != nil {
		return err
	}
	pool, err := s.database(ctx, cfg.Inbox.Postgres)
	if err != nil {
		return err
	}
	v := verify.Consumer{
		Name: consumerTitle(c.Namespace, c.Name), Pool: pool, Schema: cfg.Inbox.Postgres.Schema,
		ConsumerName: cfg.ConsumerName, Retention: cfg.Inbox.Retention.D(),
	}
	switch {
	case cfg.RabbitMQ != nil:
		v.Queue = s.queue(cfg.RabbitMQ)
	case cfg.Kafka != nil:
		v.Durable = cfg.Kafka.Group
		v.Stream, err = s.topics(cfg.Kafka, cfg.Kafka.Topics)
	default:
		if v.Stream, err = s.stream(ctx, cfg.NATS); err == nil {
			v.Durable = cfg.NATS.Durable
		}
	}
	if err != nil {
		return err
	}
	s.input.Consumers = append(s.input.Consumers, v)
	return nil
}

// queue is a RabbitMQ queue, and the outboxes that may feed it.
func (s *sources) queue(r *config.RabbitMQ) *verify.Queue {
	q := &verify.Queue{Name: r.Queue, Waiting: func(ctx context.Context) (int64, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return rabbitmq.Waiting(ctx, rabbitmq.Config{
			Hosts: r.Hosts, VirtualHost: r.VirtualHost, CredentialsDir: r.CredentialsDir, Name: verifyName,
			TLS: endpointTLS(r.TLS),
		}, r.Queue)
	}}
	for _, b := range r.Bindings {
		q.Bindings = append(q.Bindings, verify.Binding(b))
	}
	for _, o := range s.rabbit {
		if o.virtualHost == r.VirtualHost {
			q.Outboxes = append(q.Outboxes, o.outbox)
		}
	}
	return q
}

func (s *sources) database(ctx context.Context, cfg config.Postgres) (*pgxpool.Pool, error) {
	if s.endpoints != nil {
		if err := s.endpoints.Database(&cfg); err != nil {
			return nil, err
		}
	}
	cfg.MaxConnections = 1 // one session a check
	pool, err := postgres.Open(ctx, cfg, postgres.Options{ApplicationName: verifyName, AllowLoopback: true})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func(context.Context) { pool.Close() })
	return pool.Pool, nil
}

// topics opens a reader of topics.
func (s *sources) topics(cfg *config.Kafka, topics []string) (verify.Stream, error) {
	k := *cfg
	if s.endpoints != nil {
		s.endpoints.Cluster(&k)
	}
	reader, err := kafka.NewReader(kafka.Config{
		BootstrapServers: k.BootstrapServers, Mechanism: kafka.Mechanism(k.Mechanism),
		CredentialsDir: k.CredentialsDir, Name: verifyName, TLS: endpointTLS(k.TLS),
	}, topics)
	if err != nil {
		return verify.Stream{}, err
	}
	s.closers = append(s.closers, func(context.Context) { reader.Close() })
	return verify.Stream{Kafka: reader, Name: "topics " + strings.Join(topics, ", ")}, nil
}

func endpointTLS(t config.TLS) endpoint.TLS {
	return endpoint.TLS{
		Mode: endpoint.TLSMode(t.Mode), CAFile: t.CAFile, ClientCertificateDir: t.ClientCertificateDir,
	}
}

func (s *sources) stream(ctx context.Context, cfg *config.NATS) (verify.Stream, error) {
	if cfg == nil {
		return verify.Stream{}, errors.New("names no broker that can be looked at")
	}
	n := *cfg
	if s.endpoints != nil {
		s.endpoints.Broker(&n)
	}
	conn, err := nats.Dial(ctx, nats.Config{
		Servers: n.Servers, Stream: n.Stream, Topology: nats.Verify, CredentialsDir: n.CredentialsDir, Name: verifyName,
		TLS: endpointTLS(n.TLS),
	})
	if err != nil {
		return verify.Stream{}, err
	}
	s.closers = append(s.closers, func(ctx context.Context) { _ = conn.Close(ctx) }) // nothing was sent that matters
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	js, err := conn.JetStream(ctx)
	if err != nil {
		return verify.Stream{}, err
	}
	return verify.Stream{JS: js, Name: n.Stream}, nil
}
