package up

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/statusz"
)

// reportTimeout bounds one look at one worker.
const reportTimeout = 2 * time.Second

// worker is a relay or consumer of this process.
type worker interface {
	// Run works until ctx ends, then finishes what is in flight and gives back what it holds.
	Run(ctx context.Context) error
	Report(ctx context.Context) statusz.Report
	// Kill ends it as kill -9 would: nothing is settled, released or acknowledged.
	Kill()
}

// staged is a worker with the step before it, as a Pod has them.
type staged struct {
	step interface {
		worker
		Done() bool
	}
	worker
}

// Run implements worker.
func (s *staged) Run(ctx context.Context) error {
	if err := s.step.Run(ctx); err != nil {
		return err
	}
	return s.worker.Run(ctx)
}

// Report implements worker.
func (s *staged) Report(ctx context.Context) statusz.Report {
	if !s.step.Done() {
		return s.step.Report(ctx)
	}
	return s.worker.Report(ctx)
}

// Kill implements worker.
func (s *staged) Kill() {
	s.step.Kill()
	s.worker.Kill()
}

// fleet is the workers of one resource: what a Deployment is in a cluster.
type fleet struct {
	name  string
	start func(pipeline.Options) (worker, error)
	log   *slog.Logger

	mu      sync.Mutex
	workers []worker
	counts  map[worker]*prometheus.Registry // of those whose Run has not returned
	gone    totals                          // what the others counted
	dropped int
	running sync.WaitGroup
	next    int // the worker to drop next
}

// run starts n workers. They work until ctx ends.
func (f *fleet) run(ctx context.Context, n int) error {
	f.workers, f.counts = make([]worker, n), make(map[worker]*prometheus.Registry, n)
	for i := range n {
		if err := f.replace(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// replace puts a new worker in a place.
func (f *fleet) replace(ctx context.Context, place int) error {
	registry := prometheus.NewRegistry()
	w, err := f.start(pipeline.Options{Log: f.log.With("name", f.name), Registry: registry, AllowLoopback: true})
	if err != nil {
		return fmt.Errorf("start a worker of %s: %w", f.name, err)
	}
	f.mu.Lock()
	f.workers[place], f.counts[w] = w, registry
	f.mu.Unlock()
	f.running.Go(func() {
		if err := w.Run(ctx); err != nil && ctx.Err() == nil {
			f.log.InfoContext(ctx, "Worker ended", "name", f.name, "err", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.counts, w)
		f.gone.add(registry)
	})
	return nil
}

// drop ends one worker as kill -9 would and starts another in its place, as a Deployment does. It returns false where
// there is none.
func (f *fleet) drop(ctx context.Context) (bool, error) {
	f.mu.Lock()
	if len(f.workers) == 0 {
		f.mu.Unlock()
		return false, nil
	}
	place := f.next % len(f.workers)
	f.next++
	f.dropped++
	w := f.workers[place]
	f.mu.Unlock()
	w.Kill()
	return true, f.replace(ctx, place)
}

// wait returns when every worker has ended.
func (f *fleet) wait() { f.running.Wait() }

// reports asks every worker, all at once.
func (f *fleet) reports(ctx context.Context) []statusz.Report {
	f.mu.Lock()
	workers := append([]worker(nil), f.workers...)
	f.mu.Unlock()
	reports := make([]statusz.Report, len(workers))
	var asked sync.WaitGroup
	for i, w := range workers {
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, reportTimeout)
			defer cancel()
			reports[i] = w.Report(ctx)
		})
	}
	asked.Wait()
	return reports
}

// totals is what all workers have counted, those that were dropped included.
func (f *fleet) totals() totals {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.gone
	for _, registry := range f.counts {
		sum.add(registry)
	}
	sum.dropped = f.dropped
	return sum
}
