// Command relay moves committed outbox rows to a broker.
//
// It reads one config file and mounted Secrets, follows both, and never talks to the Kubernetes API.
package main

import (
	"context"
	"os"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/worker"
)

func main() { os.Exit(worker.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr, parts())) }

func parts() worker.Parts[config.Relay] {
	return worker.Parts[config.Relay]{
		Name: "relay", Load: config.LoadRelay, Files: config.Relay.SecretPaths,
		New: func(cfg config.Relay, p worker.Process) (worker.Pipeline[config.Relay], error) {
			return pipeline.NewRelay(cfg, pipeline.Options{
				Log: p.Log, Registry: p.Registry, Steps: p.Watchdog, AllowLoopback: p.AllowLoopback, Tracer: p.Tracer,
			})
		},
	}
}
