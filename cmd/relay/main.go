// Command relay moves committed outbox rows to a broker.
//
// It reads one config file and mounted Secrets, follows both, and never talks to the Kubernetes API.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/telemetry"
	"github.com/postrider/postrider/internal/worker"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	build := telemetry.ThisBuild()
	flags, err := worker.ParseFlags("relay", args, build, stdout, stderr)
	switch {
	case errors.Is(err, worker.ErrDone):
		return worker.ExitOK
	case err != nil:
		return worker.ExitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	log := telemetry.NewLogger(stderr, flags.LogLevel)
	registry := telemetry.NewRegistry(build)
	watchdog := worker.NewWatchdog(time.Now)
	err = worker.Run(ctx, worker.Options[config.Relay]{
		Log: log, Registry: registry, Watchdog: watchdog, Load: config.LoadRelay, Files: config.Relay.SecretPaths,
		ConfigPath: flags.ConfigPath, Listen: flags.Listen, DrainTimeout: flags.DrainTimeout,
		New: func(cfg config.Relay) (worker.Pipeline[config.Relay], error) {
			return pipeline.NewRelay(cfg, pipeline.Options{
				Log: log, Registry: registry, Steps: watchdog, AllowLoopback: flags.AllowLoopback,
			})
		},
	})
	if err != nil {
		log.Error("Ended", "err", err, "exitCode", worker.ExitCode(err))
	}
	return worker.ExitCode(err)
}
