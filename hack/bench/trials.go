package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
)

// trial is a command that holds what it finds to bars.
type trial struct {
	name string
	// parameters are added to those of the PostgreSQL.
	parameters map[string]string
	// process says that a relay's own process is measured, with a NATS to publish to.
	process bool
	// prepare names the flags and returns what measures.
	prepare func(flags *flag.FlagSet) func(ctx context.Context, s stage) (bench.Finding, error)
}

// stage is what a trial works with.
type stage struct {
	postgres *pgxpool.Config
	program  bench.Program
	progress io.Writer
}

func trials() []trial {
	return []trial{
		{name: "latency", prepare: prepareLatency},
		{name: "backlog", prepare: prepareBacklog},
		{name: "xmin", prepare: prepareXmin},
		{name: "scale", prepare: prepareScale},
		{name: "memory", process: true, prepare: prepareMemory},
		{name: "idle", process: true, parameters: bench.IdleParameters(), prepare: prepareIdle},
	}
}

func prepareLatency(flags *flag.FlagSet) func(context.Context, stage) (bench.Finding, error) {
	var cfg bench.LatencyConfig
	to := flags.String("to", "null", "broker to publish to")
	flags.IntVar(&cfg.Rate, "rate", 500, "the low rate, in messages a second")
	flags.DurationVar(&cfg.Duration, "for", 30*time.Second, "how long each rate lasts in a run")
	flags.IntVar(&cfg.Runs, "runs", 5, "how often; the median counts")
	return func(ctx context.Context, s stage) (f bench.Finding, err error) {
		cfg.Postgres, cfg.Progress = s.postgres, s.progress
		chosen, err := choose(*to)
		if err != nil {
			return f, err
		}
		if open := chosen[0].open; open != nil {
			var end func(context.Context) error
			if cfg.Destination, end, err = open(ctx); err != nil {
				return f, err
			}
			defer func() { err = errors.Join(err, ended(ctx, end)) }()
		}
		return bench.Latency(ctx, cfg)
	}
}

func prepareBacklog(flags *flag.FlagSet) func(context.Context, stage) (bench.Finding, error) {
	var cfg bench.BacklogConfig
	flags.IntVar(&cfg.Small, "small", 100_000, "rows of the small backlog")
	flags.IntVar(&cfg.Large, "large", 2_000_000, "rows of the large backlog; 10000000 is the full measure")
	flags.IntVar(&cfg.Slice, "slice", 50_000, "rows of each that are drained")
	flags.IntVar(&cfg.Runs, "runs", 3, "how often; the median counts")
	return func(ctx context.Context, s stage) (bench.Finding, error) {
		cfg.Postgres, cfg.Progress = s.postgres, s.progress
		return bench.Backlog(ctx, cfg)
	}
}

func prepareXmin(flags *flag.FlagSet) func(context.Context, stage) (bench.Finding, error) {
	var cfg bench.XminConfig
	flags.IntVar(&cfg.Rate, "rate", 500, "messages a second that are written meanwhile")
	flags.DurationVar(&cfg.Duration, "for", 2*time.Minute, "how long the transaction is open; 15m is the full measure")
	flags.IntVar(&cfg.Rows, "rows", 100_000, "rows that are drained after that")
	flags.IntVar(&cfg.Runs, "runs", 1, "how often; the median counts")
	return func(ctx context.Context, s stage) (bench.Finding, error) {
		cfg.Postgres, cfg.Progress = s.postgres, s.progress
		return bench.Xmin(ctx, cfg)
	}
}

func prepareScale(flags *flag.FlagSet) func(context.Context, stage) (bench.Finding, error) {
	var cfg bench.ScaleConfig
	flags.IntVar(&cfg.Rows, "rows", 10_000, "rows to drain in each run")
	flags.IntVar(&cfg.Batch, "batch", 20, "messages read and settled at once")
	flags.DurationVar(&cfg.Delay, "delay", 20*time.Millisecond, "how long the broker takes to confirm a batch")
	flags.IntVar(&cfg.Runs, "runs", 5, "how often; the median counts")
	return func(ctx context.Context, s stage) (bench.Finding, error) {
		cfg.Postgres, cfg.Progress = s.postgres, s.progress
		return bench.Scale(ctx, cfg)
	}
}

func prepareMemory(flags *flag.FlagSet) func(context.Context, stage) (bench.Finding, error) {
	var cfg bench.MemoryConfig
	flags.IntVar(&cfg.Rows, "rows", 1_000_000, "rows of the backlog")
	flags.IntVar(&cfg.PayloadBytes, "payload-bytes", 20<<10, "length of a payload")
	flags.IntVar(&cfg.Runs, "runs", 1, "how often it is drained; the median counts")
	return func(ctx context.Context, s stage) (bench.Finding, error) {
		cfg.Postgres, cfg.Program, cfg.Progress = s.postgres, s.program, s.progress
		return bench.Memory(ctx, cfg)
	}
}

func prepareIdle(flags *flag.FlagSet) func(context.Context, stage) (bench.Finding, error) {
	var cfg bench.IdleConfig
	flags.DurationVar(&cfg.Duration, "for", time.Minute, "how long the relay is looked at in a run")
	flags.IntVar(&cfg.Runs, "runs", 3, "how often; the median counts")
	return func(ctx context.Context, s stage) (bench.Finding, error) {
		cfg.Postgres, cfg.Program, cfg.Progress = s.postgres, s.program, s.progress
		return bench.Idle(ctx, cfg)
	}
}

// run starts what the trial needs, measures, and tells what it found.
func (t trial) run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet(t.name, flag.ContinueOnError)
	flags.SetOutput(out)
	folder := flags.String("json", "", "folder for the result as JSON")
	find := t.prepare(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	finding, err := t.find(ctx, out, find)
	if err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	if err := errors.Join(finding.Print(out), writeJSON(*folder, t.name, finding)); err != nil {
		return err
	}
	if err := finding.Verdict(); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	fmt.Fprintf(out, "OK: %s meets its bars\n", t.name)
	return nil
}

func (t trial) find(
	ctx context.Context, out io.Writer, find func(context.Context, stage) (bench.Finding, error),
) (f bench.Finding, err error) {
	parameters := local.BenchParameters()
	maps.Copy(parameters, t.parameters)
	server, err := local.StartPostgres(ctx, local.PostgresConfig{Parameters: parameters})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, ended(ctx, server.Stop)) }()
	s := stage{progress: out}
	if s.postgres, err = pgxpool.ParseConfig(server.URL("postgres")); err != nil {
		return f, err
	}
	if t.process {
		var end func(context.Context) error
		if s.program, end, err = openProgram(ctx); err != nil {
			return f, err
		}
		defer func() { err = errors.Join(err, ended(ctx, end)) }()
	}
	return find(ctx, s)
}

// streamBytes bounds what the stream keeps on disk: older messages make room.
const streamBytes = 512 << 20

// openProgram builds the relay and starts a NATS for it.
func openProgram(ctx context.Context) (p bench.Program, end func(context.Context) error, err error) {
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return p, nil, fmt.Errorf("make a folder: %w", err)
	}
	end = func(context.Context) error { return os.RemoveAll(dir) }
	if p.Path, err = buildRelay(ctx, dir); err != nil {
		return p, nil, errors.Join(err, end(ctx))
	}
	server, err := local.StartNATS(ctx, local.NATSConfig{})
	if err != nil {
		return p, nil, errors.Join(err, end(ctx))
	}
	end = func(ctx context.Context) error { return errors.Join(server.Stop(ctx), os.RemoveAll(dir)) }
	address := net.JoinHostPort(server.Host(), strconv.Itoa(server.Port()))
	if err := makeStream(ctx, address); err != nil {
		return p, nil, errors.Join(err, end(ctx))
	}
	p.NATS = &config.NATS{
		Servers: []string{address}, Stream: stream, Topology: config.TopologyVerify, Subject: subject,
		TLS: config.TLS{Mode: config.TLSInsecure},
	}
	return p, end, nil
}

// buildRelay builds the relay as it is shipped, and returns its path.
func buildRelay(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "relay")
	const relay = "github.com/postrider/postrider/cmd/relay"
	if out, err := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, relay).
		CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the relay: %w\n%s", err, out)
	}
	return path, nil
}

func makeStream(ctx context.Context, address string) error {
	conn, err := natsgo.Connect(address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{"bench.>"}, Storage: jetstream.FileStorage, MaxBytes: streamBytes,
	})
	if err != nil {
		return fmt.Errorf("make the stream: %w", err)
	}
	return nil
}
