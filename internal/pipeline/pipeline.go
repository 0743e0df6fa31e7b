// Package pipeline builds a running relay or consumer from its config: the one place where tables, broker
// and loop meet. The commands run it in a process of its own, `postrider up` runs it within itself.
//
// It promises that whatever is wrong with the environment (wrong host, wrong password, a missing table,
// stream or Secret) is told by a condition, retried without end and picked up when it is mended, and that a
// config which the running part cannot take over gets a new part in its place. It moves nothing itself.
package pipeline

//go:generate go test . -run ^TestDocsListEveryMetric$ -update

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider/internal/config"
)

// Steps is told of each loop's progress; a watchdog listens.
type Steps interface {
	// Step says that a loop is alive and makes its next step within the given time.
	Step(loop string, within time.Duration)
	// Done says that a loop has ended.
	Done(loop string)
}

// noSteps is for a process that has no watchdog.
type noSteps struct{}

func (noSteps) Step(string, time.Duration) {}
func (noSteps) Done(string)                {}

// Options are what the process decides about its pipeline.
type Options struct {
	Log *slog.Logger
	// Registry takes the pipeline's metrics. It may be asked for one pipeline only.
	Registry prometheus.Registerer
	// Steps hears of each loop's progress; nil means nobody does.
	Steps Steps
	// Tracer tells how messages travel; nil means nobody asks.
	Tracer trace.Tracer
	// AllowLoopback permits servers on this machine, as `postrider up` and tests have them.
	AllowLoopback bool
	// Random spreads retries: a number in [0, 1). Nil means a good one.
	Random func() float64
}

// complete fills in what may be left out.
func (o Options) complete() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Steps == nil {
		o.Steps = noSteps{}
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return o
}

// fixedResource says that a process runs for one resource.
func fixedResource(old, next config.Resource) error {
	if old.Namespace != next.Namespace || old.Name != next.Name || old.UID != next.UID {
		return fmt.Errorf("resource: the process runs for %s (uid %s); another needs a restart", old, old.UID)
	}
	return nil
}

// newWorkerID names this process among those of its resource.
func newWorkerID() string { return uuid.NewString() }
