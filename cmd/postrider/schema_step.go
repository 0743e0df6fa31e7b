package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/telemetry"
	"github.com/postrider/postrider/internal/worker"
)

// stepFlags make `schema apply` the step before a worker: it reads where the tables are from the worker's config
// file, tries until they are there, and says meanwhile at /statusz what keeps it.
type stepFlags struct{ config, listen, logLevel string }

// asStep gives a command that connects by flags the other way: by a worker's config file.
func (f *schemaFlags) asStep(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.step.config, "config", "", "take everything but the credentials from a worker's config file, "+
		"and try until the tables are there: the step before a worker in a Pod")
	flags.StringVar(
		&f.step.listen,
		"listen",
		":8080",
		"with --config: address of /livez, /readyz, /statusz and /metrics",
	)
	flags.StringVar(&f.step.logLevel, "log-level", "info", "with --config: debug, info, warn or error")
	flags.BoolVar(
		&f.allowLoopback,
		"allow-loopback",
		false,
		"with --config: permit a database on this machine, as in tests",
	)
	byFlags := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error {
		if f.step.config == "" {
			return byFlags(command, args)
		}
		return f.runStep(command, args)
	}
}

func (f *schemaFlags) runStep(command *cobra.Command, args []string) error {
	for _, flag := range []string{
		"host", "port", "database", "schema", "table", "shards", "tls-mode", "preset", "column",
		"status-value", "ordering",
	} {
		if command.Flags().Changed(flag) {
			return wrong(errors.New("--" + flag + " is in the file of --config: leave it out"))
		}
	}
	level, err := telemetry.ParseLevel(f.step.logLevel)
	if err != nil {
		return wrong(err)
	}
	if len(args) != 1 {
		return wrong(errors.New("--config is of one worker: name outbox or inbox"))
	}
	log := telemetry.NewLogger(command.ErrOrStderr(), level)
	if schema.Component(args[0]) == schema.Outbox {
		return runStep(
			command.Context(),
			f,
			log,
			config.LoadRelay,
			config.Relay.SecretPaths,
			pipeline.NewRelayMigration,
		)
	}
	return runStep(
		command.Context(), f, log, config.LoadConsumer, config.Consumer.SecretPaths, pipeline.NewConsumerMigration,
	)
}

// runStep runs as a worker does, with the same endpoints, and ends when the tables are there.
func runStep[C any](
	ctx context.Context, f *schemaFlags, log *slog.Logger, load func(string) (C, error), files func(C) []string,
	newMigration func(C, string, pipeline.Options) *pipeline.Migration[C],
) error {
	watchdog := worker.NewWatchdog(time.Now)
	var migration *pipeline.Migration[C]
	err := worker.Run(ctx, worker.Options[C]{
		Log: log, Registry: telemetry.NewRegistry(telemetry.ThisBuild()), Watchdog: watchdog, Load: load,
		Files:      func(cfg C) []string { return append(files(cfg), f.db.CredentialsDir) },
		ConfigPath: f.step.config, Listen: f.step.listen, DrainTimeout: worker.DrainTimeout, Finite: true,
		New: func(cfg C) (worker.Pipeline[C], error) {
			migration = newMigration(cfg, f.db.CredentialsDir, pipeline.Options{
				Log: log, Steps: watchdog, AllowLoopback: f.allowLoopback,
			})
			return migration, nil
		},
	})
	if err == nil && !migration.Done() {
		err = errors.New("ended before the tables were there")
	}
	if err != nil {
		log.ErrorContext(ctx, "Ended", "err", err, "exitCode", worker.ExitCode(err))
		return reported(worker.ExitCode(err), err)
	}
	return nil
}
