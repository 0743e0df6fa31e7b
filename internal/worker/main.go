package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider/internal/telemetry"
)

// Parts are what makes a worker's command the one it is.
type Parts[C any] struct {
	// Name is that of the command, such as "relay".
	Name string
	// Load reads and checks the config file.
	Load func(path string) (C, error)
	// Files returns the Secret files and directories that a config names.
	Files func(C) []string
	// New builds the pipeline. It fails only where the config contradicts itself.
	New func(C, Process) (Pipeline[C], error)
}

// Process is what the process gives to its pipeline.
type Process struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Watchdog *Watchdog
	// Tracer tells how messages travel; nil where the environment names no collector.
	Tracer trace.Tracer
	// AllowLoopback permits servers on this machine, as in tests.
	AllowLoopback bool
}

// Main runs a worker's command until ctx ends or a signal asks for its end, and returns its exit code.
func Main[C any](ctx context.Context, args []string, stdout, stderr io.Writer, p Parts[C]) int {
	build := telemetry.ThisBuild()
	flags, err := ParseFlags(p.Name, args, build, stdout, stderr)
	switch {
	case errors.Is(err, ErrDone):
		return ExitOK
	case err != nil:
		return ExitUsage
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once, once Draining says so at the latest

	process := Process{
		Log: telemetry.NewLogger(stderr, flags.LogLevel), Registry: telemetry.NewRegistry(build),
		Watchdog: NewWatchdog(time.Now), AllowLoopback: flags.AllowLoopback,
	}
	var stopTracer func(context.Context)
	process.Tracer, stopTracer, err = telemetry.StartTracer(ctx, "postrider-"+p.Name, build, process.Log)
	if err != nil {
		process.Log.ErrorContext(ctx, "Not started", "err", err)
		return ExitUsage
	}
	defer stopTracer(ctx)
	err = Run(ctx, Options[C]{
		Log: process.Log, Registry: process.Registry, Watchdog: process.Watchdog, Load: p.Load, Files: p.Files,
		ConfigPath: flags.ConfigPath, Listen: flags.Listen, DrainTimeout: flags.DrainTimeout, Draining: stop,
		New: func(cfg C) (Pipeline[C], error) { return p.New(cfg, process) },
	})
	if err != nil {
		process.Log.ErrorContext(ctx, "Ended", "err", err, "exitCode", ExitCode(err))
	}
	return ExitCode(err)
}
