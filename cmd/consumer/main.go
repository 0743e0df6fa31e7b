// Command consumer applies a broker's messages to a database, each once.
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

func parts() worker.Parts[config.Consumer] {
	return worker.Parts[config.Consumer]{
		Name: "consumer", Load: config.LoadConsumer, Files: config.Consumer.SecretPaths,
		New: func(cfg config.Consumer, p worker.Process) (worker.Pipeline[config.Consumer], error) {
			return pipeline.NewConsumer(cfg, pipeline.Options{
				Log: p.Log, Registry: p.Registry, Steps: p.Watchdog, AllowLoopback: p.AllowLoopback, Tracer: p.Tracer,
			})
		},
	}
}
