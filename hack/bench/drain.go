package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/local"
)

const (
	// The bars of the relay in percent of its limit.
	nullBar   = 80
	brokerBar = 70
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

// drain measures how fast the relay drains a backlog to each broker.
func drain(ctx context.Context, args []string, out io.Writer) error {
	var cfg bench.DrainConfig
	flags := flag.NewFlagSet("drain", flag.ContinueOnError)
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
	var below, unshown []string
	for _, t := range chosen {
		fmt.Fprintf(out, "\nto %s\n", t.name)
		report, err := measure(ctx, t, cfg)
		if err != nil {
			return fmt.Errorf("to %s: %w", t.name, err)
		}
		if err := errors.Join(report.Print(out), writeJSON(*folder, "drain-"+t.name, report)); err != nil {
			return err
		}
		switch verdict, text := judge(t, report); verdict {
		case missed:
			below = append(below, text)
		case notShown:
			unshown = append(unshown, text)
		case met:
		}
	}
	if len(below) > 0 {
		return fmt.Errorf("the relay is below its bar: %s", strings.Join(append(below, unshown...), "; "))
	}
	if len(unshown) > 0 {
		fmt.Fprintf(out, "OK, but not a bar of each can be shown on this machine: %s\n", strings.Join(unshown, "; "))
		return nil
	}
	fmt.Fprintf(out, "OK: the relay reaches its bar to %s\n", *to)
	return nil
}

// verdict is what a report says of a bar.
type verdict uint8

const (
	met verdict = iota
	missed
	// notShown: the machine cannot do what the bar asks of a relay even without one, since the database and the broker
	// share it. The limit is what each of them does alone.
	notShown
)

// judge holds a relay to its bar: of the limit, or where the database and the broker together stay below that bar without
// any relay, of what they reach.
func judge(t target, report bench.Report) (verdict, string) {
	relay, _ := report.Result(bench.Relay) // a report has it
	reached := 100 * relay.OfLimit
	if reached >= t.bar {
		return met, ""
	}
	text := fmt.Sprintf("to %s it reaches %.0f %% of the limit, the bar is %.0f %%", t.name, reached, t.bar)
	together, ok := report.Result(bench.Together)
	if !ok || 100*together.OfLimit >= t.bar {
		return missed, text
	}
	ofTogether := 100 * relay.Median / together.Median
	text += fmt.Sprintf("; the bare loop with the broker's own client reaches %.0f %%, and the relay %.0f %% of that",
		100*together.OfLimit, ofTogether)
	if ofTogether < t.bar {
		return missed, text
	}
	return notShown, text
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
		defer func() { err = errors.Join(err, ended(ctx, end)) }()
	}
	return bench.Drain(ctx, cfg)
}

// writeJSON writes a result into a file of the folder; no folder, no file.
func writeJSON(folder, name string, result interface{ WriteJSON(w io.Writer) error }) (err error) {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder for results: %w", err)
	}
	file, err := os.Create(filepath.Join(folder, name+".json"))
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return result.WriteJSON(file)
}
