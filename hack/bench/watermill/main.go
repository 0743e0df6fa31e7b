// Command watermill is Watermill's SQL forwarder, as its documentation puts it together, for the race of hack/bench:
//
//	watermill fill -postgres URL -to TOPIC    writes a message for each line KEY<tab>PAYLOAD of its input
//	watermill forward -postgres URL -kafka HOST:PORT -listen HOST:PORT    forwards them until SIGTERM
//
// It promises settings that are as safe as the relay's, acks from all in-sync replicas, and otherwise the fastest that
// keep the order of a key: batches of 1,000 rows, and keys on partitions. It is a module of its own so that none of its
// dependencies becomes one of ours.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	outbox = "outbox"
	// keyField is the part of a message's metadata that is its ordering key.
	keyField = "ordering_key"
	// batch is how many rows are read, and their offset written, at once: 100 by default, and slower.
	batch = 1000
	// perTransaction is how many messages a writer commits at once.
	perTransaction = 20
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "watermill:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader) error {
	if len(args) == 0 {
		return errors.New("say fill or forward")
	}
	flags := flag.NewFlagSet("watermill", flag.ContinueOnError)
	url := flags.String("postgres", "", "URL of the database")
	to := flags.String("to", "", "topic that the messages are for")
	broker := flags.String("kafka", "", "address of a Kafka broker")
	listen := flags.String("listen", "", "address that takes connections once messages are forwarded")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	db, err := pgxpool.New(ctx, *url)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer db.Close()
	switch args[0] {
	case "fill":
		return fill(ctx, db, *to, in)
	case "forward":
		return forward(ctx, db, *broker, *listen)
	default:
		return fmt.Errorf("%s is neither fill nor forward", args[0])
	}
}

func schema() sql.DefaultPostgreSQLSchema {
	return sql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}
}

// fill writes messages with the library's own publisher, in its own envelopes.
func fill(ctx context.Context, db *pgxpool.Pool, topic string, in io.Reader) error {
	config := sql.PublisherConfig{SchemaAdapter: schema(), AutoInitializeSchema: true}
	rows, err := sql.NewPublisher(sql.BeginnerFromPgx(db), config, watermill.NopLogger{})
	if err != nil {
		return fmt.Errorf("make a publisher: %w", err)
	}
	publisher := forwarder.NewPublisher(rows, forwarder.PublisherConfig{ForwarderTopic: outbox})
	var messages []*message.Message
	write := func() error {
		if len(messages) == 0 {
			return nil
		}
		if err := publisher.Publish(topic, messages...); err != nil {
			return fmt.Errorf("write messages: %w", err)
		}
		messages = messages[:0]
		return ctx.Err()
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20) // payloads may be large
	for lines.Scan() {
		key, payload, _ := strings.Cut(lines.Text(), "\t")
		m := message.NewMessageWithContext(ctx, watermill.NewUUID(), message.Payload(payload))
		m.Metadata.Set(keyField, key)
		if messages = append(messages, m); len(messages) == perTransaction {
			if err := write(); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read messages: %w", err)
	}
	return errors.Join(write(), publisher.Close())
}

// forward runs the forwarder until the context ends.
func forward(ctx context.Context, db *pgxpool.Pool, broker, listen string) error {
	log := watermill.NewStdLogger(false, false)
	from, err := sql.NewSubscriber(sql.BeginnerFromPgx(db), sql.SubscriberConfig{
		SchemaAdapter: schema(), OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
		PollInterval: 200 * time.Millisecond, // the relay's
	}, log)
	if err != nil {
		return fmt.Errorf("make a subscriber: %w", err)
	}
	to, err := publisher(broker, log)
	if err != nil {
		return err
	}
	f, err := forwarder.NewForwarder(from, to, log, forwarder.Config{ForwarderTopic: outbox})
	if err != nil {
		return fmt.Errorf("make the forwarder: %w", err)
	}
	go func() {
		select {
		case <-f.Running():
			answer(ctx, listen, log)
		case <-ctx.Done():
		}
	}()
	if err := f.Run(ctx); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	return errors.Join(to.Close(), from.Close())
}

// publisher waits for all in-sync replicas; the library's default waits for the leader alone, and speaks a version of the
// protocol that newer brokers have forgotten.
func publisher(broker string, log watermill.LoggerAdapter) (*kafka.Publisher, error) {
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	key := func(_ string, m *message.Message) (string, error) { return m.Metadata.Get(keyField), nil }
	to, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{broker}, Marshaler: kafka.NewWithPartitioningMarshaler(key), OverwriteSaramaConfig: config,
	}, log)
	if err != nil {
		return nil, fmt.Errorf("make a publisher: %w", err)
	}
	return to, nil
}

// answer takes connections, which says that the forwarder runs.
func answer(ctx context.Context, address string, log watermill.LoggerAdapter) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		log.Error("Not listening", err, nil)
		return
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		_ = conn.Close()
	}
}
