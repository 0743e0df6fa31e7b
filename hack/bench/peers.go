package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/brokers" //nolint:depguard // the tests' servers are measured
)

// The bars of the relay against each peer.
const (
	watermillRate  = 3.5
	debeziumRate   = 1.7
	debeziumMemory = 0.1
	// debeziumWarmUps are those after which its rate grows no more.
	debeziumWarmUps = 3
)

// ground is what all racers run on.
type ground struct {
	dir      string
	postgres *local.Postgres
	broker   string
	topic    bench.Topic
}

// peer is another project's way from an outbox to Kafka.
type peer struct {
	name string
	// open makes it ready to race, and returns what ends it; nil where nothing is to be ended.
	open func(ctx context.Context, g ground) (bench.Rival, func(context.Context) error, error)
}

func allPeers() []peer {
	return []peer{{"watermill", openWatermill}, {"debezium", openDebezium}}
}

func openWatermill(ctx context.Context, g ground) (bench.Rival, func(context.Context) error, error) {
	program, err := buildWatermill(ctx, g.dir)
	return bench.Rival{
		Racer: watermill{program, g.postgres, g.broker},
		Name:  "watermill", What: "Watermill's SQL forwarder: acks from all, batches of 1,000", Rate: watermillRate,
	}, nil, err
}

// peers races the relay against other projects to one Kafka.
func peers(ctx context.Context, args []string, out io.Writer) error {
	cfg := bench.RaceConfig{DrainConfig: bench.DrainConfig{Batch: 500, Progress: out}}
	var names []string
	for _, p := range allPeers() {
		names = append(names, p.name)
	}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(out)
	against := flags.String("against", strings.Join(names, ","), "peers to race against")
	folder := flags.String("json", "", "folder for the result as JSON")
	flags.IntVar(&cfg.Rows, "rows", 200_000, "rows to drain in each run")
	flags.IntVar(&cfg.Keys, "keys", 1000, "ordering keys that the rows belong to")
	flags.IntVar(&cfg.PayloadBytes, "payload-bytes", 300, "length of a payload")
	flags.IntVar(&cfg.Runs, "runs", 5, "drains of each racer; their median counts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var chosen []peer
	for name := range strings.SplitSeq(*against, ",") {
		i := slices.Index(names, name)
		if i < 0 {
			return fmt.Errorf("-against: %s is none of %s", name, strings.Join(names, ", "))
		}
		chosen = append(chosen, allPeers()[i])
	}
	if _, err := bench.PeakMemory(os.Getpid()); err != nil { // before half an hour is spent
		return fmt.Errorf("peers: only Linux tells what a process occupies at most: %w", err)
	}
	finding, err := race(ctx, chosen, cfg)
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	if err := errors.Join(finding.Print(out), writeJSON(*folder, "peers", finding)); err != nil {
		return err
	}
	if err := finding.Verdict(); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	if len(finding.NotShown) > 0 {
		fmt.Fprintf(
			out,
			"OK, but not every bar can be shown on this machine: %s\n",
			strings.Join(finding.NotShown, "; "),
		)
		return nil
	}
	fmt.Fprintf(out, "OK: the relay reaches its bars against %s\n", *against)
	return nil
}

// race starts the servers and everything that races, and ends it again.
func race(ctx context.Context, chosen []peer, cfg bench.RaceConfig) (f bench.Finding, err error) {
	var ends []func(context.Context) error
	defer func() {
		for _, end := range slices.Backward(ends) {
			err = errors.Join(err, ended(ctx, end))
		}
	}()
	g := ground{}
	if g.dir, err = os.MkdirTemp("", "postrider-bench-"); err != nil {
		return f, fmt.Errorf("make a folder: %w", err)
	}
	ends = append(ends, func(context.Context) error { return os.RemoveAll(g.dir) })
	parameters := local.BenchParameters()
	parameters["wal_level"] = "logical" // for one of them, so for all
	server, err := local.StartPostgres(ctx, local.PostgresConfig{Parameters: parameters})
	if err != nil {
		return f, err
	}
	ends = append(ends, server.Stop)
	g.postgres = server
	if cfg.Postgres, err = pgxpool.ParseConfig(server.URL("postgres")); err != nil {
		return f, err
	}
	kafka, err := brokers.StartKafka(ctx, brokers.KafkaConfig{})
	if err != nil {
		return f, err
	}
	ends = append(ends, kafka.Stop)
	g.broker = kafka.Addr()
	client, err := kgo.NewClient(kgo.SeedBrokers(g.broker), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(kgo.NoCompression())) // as the relay's
	if err != nil {
		return f, fmt.Errorf("make a client: %w", err)
	}
	ends = append(ends, func(context.Context) error { client.Close(); return nil })
	if err := makeTopic(ctx, kadm.NewClient(client)); err != nil {
		return f, err
	}
	g.topic = (&arrivals{client: client, broker: g.broker}).topic()
	cfg.Topic = g.topic
	cfg.Produce = func(ctx context.Context, batch []message.Message) error { return produceKafka(ctx, client, batch) }
	for _, p := range chosen { // before anything is built: this is what may be missing
		rival, end, err := p.open(ctx, g)
		if end != nil {
			ends = append(ends, end)
		}
		if err != nil {
			return f, fmt.Errorf("%s: %w", p.name, err)
		}
		cfg.Rivals = append(cfg.Rivals, rival)
	}
	if cfg.Relay, err = kafkaProgram(ctx, g); err != nil {
		return f, err
	}
	cfg.Versions = "Kafka " + brokers.KafkaVersion
	return bench.Race(ctx, cfg)
}

// kafkaProgram builds the relay, for the topic.
func kafkaProgram(ctx context.Context, g ground) (bench.Program, error) {
	path, err := buildRelay(ctx, g.dir)
	kafka := config.Kafka{BootstrapServers: []string{g.broker}, Topic: topic, Compression: "None"}
	kafka.TLS.Mode = config.TLSInsecure
	return bench.Program{Path: path, Kafka: &kafka}, err
}

// execute runs a statement in a database.
func execute(ctx context.Context, server *local.Postgres, database, statement string) error {
	conn, err := pgx.Connect(ctx, server.URL(database))
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the statement's result counts
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("prepare a database: %w", err)
	}
	return nil
}

// renew makes a database anew.
func renew(ctx context.Context, server *local.Postgres, database string) error {
	name := pgx.Identifier{database}.Sanitize()
	return errors.Join(
		execute(ctx, server, "postgres", "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"),
		execute(ctx, server, "postgres", "CREATE DATABASE "+name),
	)
}

// settle has the server take note of a database that was filled, so that no racer pays for it.
func settle(ctx context.Context, server *local.Postgres, database string) error {
	return errors.Join(execute(ctx, server, database, "ANALYZE"), execute(ctx, server, database, "CHECKPOINT"))
}
