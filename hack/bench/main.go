// Command bench measures the relay to a null broker and to each real one, against the bare SQL and the brokers' own
// clients:
//
//	go run ./hack/bench
//	go run ./hack/bench -to kafka -runs 3 -json results
//
// PostgreSQL and the brokers are the real ones of the tests, started for it, with their durable settings on: fsync and
// synchronous commit, JetStream's file storage, Kafka's acks=all, RabbitMQ's confirms on a durable quorum queue. Its last
// line is "OK: …" or "NOT OK: …". Do nothing else on the machine meanwhile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stdout, "NOT OK: %v\n", err)
		os.Exit(1)
	}
}

const (
	// The bars of the relay in percent of its limit.
	nullBar   = 80
	brokerBar = 70
	// endLimit bounds the end of a broker.
	endLimit = 30 * time.Second
)

// target is what a relay can be measured to.
type target struct {
	name string
	bar  float64
	// open starts the broker; nil where there is none to start. The returned function ends it.
	open func(ctx context.Context) (*bench.Destination, func(context.Context) error, error)
}

func targets() []target {
	return []target{
		{"null", nullBar, nil},
		{"nats", brokerBar, openNATS},
		{"kafka", brokerBar, openKafka},
		{"rabbitmq", brokerBar, openRabbitMQ},
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var cfg bench.DrainConfig
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	to := flags.String("to", "null,nats,kafka,rabbitmq", "brokers to drain to")
	folder := flags.String("json", "", "folder for the results as JSON")
	flags.IntVar(&cfg.Rows, "rows", 200_000, "rows to drain in each run")
	flags.IntVar(&cfg.Keys, "keys", 1000, "ordering keys that the rows belong to")
	flags.IntVar(&cfg.PayloadBytes, "payload-bytes", 300, "length of a payload")
	flags.IntVar(&cfg.Batch, "batch", 500, "messages read and settled at once")
	flags.IntVar(&cfg.Runs, "runs", 5, "drains of each contestant; their median counts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*to)
	if err != nil {
		return err
	}
	cfg.Progress = out
	var below []string
	for _, t := range chosen {
		fmt.Fprintf(out, "\nto %s\n", t.name)
		report, err := measure(ctx, t, cfg)
		if err != nil {
			return fmt.Errorf("to %s: %w", t.name, err)
		}
		if err := errors.Join(report.Print(out), writeJSON(*folder, t.name, report)); err != nil {
			return err
		}
		relay, _ := report.Result(bench.Relay) // a report has it
		if reached := 100 * relay.OfLimit; reached < t.bar {
			below = append(
				below,
				fmt.Sprintf("to %s it reaches %.0f %% of the limit, the bar is %.0f %%", t.name, reached, t.bar),
			)
		}
	}
	if len(below) > 0 {
		return fmt.Errorf("the relay is below its bar: %s", strings.Join(below, "; "))
	}
	fmt.Fprintf(out, "OK: the relay reaches its bar to %s\n", *to)
	return nil
}

func choose(names string) ([]target, error) {
	var chosen []target
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(targets(), func(t target) bool { return t.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-to: %s is none of null, nats, kafka, rabbitmq", name)
		}
		chosen = append(chosen, targets()[i])
	}
	return chosen, nil
}

// measure starts servers of its own for each target: what one leaves on disk and in memory is not the next one's.
func measure(ctx context.Context, t target, cfg bench.DrainConfig) (report bench.Report, err error) {
	server, err := local.StartPostgres(ctx, local.PostgresConfig{Parameters: local.BenchParameters()})
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	if cfg.Postgres, err = pgxpool.ParseConfig(server.URL("postgres")); err != nil {
		return report, err
	}
	if t.open != nil {
		var end func(context.Context) error
		if cfg.Destination, end, err = t.open(ctx); err != nil {
			return report, err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
			defer cancel()
			err = errors.Join(err, end(ctx))
		}()
	}
	return bench.Drain(ctx, cfg)
}

func writeJSON(folder, name string, report bench.Report) (err error) {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder for results: %w", err)
	}
	file, err := os.Create(filepath.Join(folder, "drain-"+name+".json"))
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return report.WriteJSON(file)
}
