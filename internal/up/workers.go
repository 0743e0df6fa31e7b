package up

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

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

// fleet is the workers of one resource: what a Deployment is in a cluster.
type fleet struct {
	name  string
	start func() (worker, error)
	log   *slog.Logger

	mu      sync.Mutex
	workers []worker
	running sync.WaitGroup
	next    int // the worker to drop next
	gone    dropped
}

// dropped is what the workers that were dropped had counted.
type dropped struct{ published, applied, duplicates, workers int64 }

// run starts n workers. They work until ctx ends.
func (f *fleet) run(ctx context.Context, n int) error {
	f.workers = make([]worker, n)
	for i := range n {
		if err := f.replace(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// replace puts a new worker in a place.
func (f *fleet) replace(ctx context.Context, place int) error {
	w, err := f.start()
	if err != nil {
		return fmt.Errorf("start a worker of %s: %w", f.name, err)
	}
	f.mu.Lock()
	f.workers[place] = w
	f.mu.Unlock()
	f.running.Go(func() {
		if err := w.Run(ctx); err != nil && ctx.Err() == nil {
			f.log.InfoContext(ctx, "Worker ended", "name", f.name, "err", err)
		}
	})
	return nil
}

// drop ends one worker as kill -9 would and starts another in its place, as a Deployment does.
func (f *fleet) drop(ctx context.Context) error {
	f.mu.Lock()
	if len(f.workers) == 0 {
		f.mu.Unlock()
		return nil
	}
	place := f.next % len(f.workers)
	f.next++
	w := f.workers[place]
	f.mu.Unlock()
	r := f.report(ctx, w)
	w.Kill()
	f.mu.Lock()
	f.gone.workers++
	f.gone.count(r)
	f.mu.Unlock()
	return f.replace(ctx, place)
}

func (d *dropped) count(r statusz.Report) {
	if r.Relay != nil {
		d.published += r.Relay.PublishedTotal
	}
	if r.Consumer != nil {
		d.applied += r.Consumer.AppliedTotal
		d.duplicates += r.Consumer.DuplicatesTotal
	}
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
		asked.Go(func() { reports[i] = f.report(ctx, w) })
	}
	asked.Wait()
	return reports
}

func (f *fleet) report(ctx context.Context, w worker) statusz.Report {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return w.Report(ctx)
}

// totals is what all workers have counted, those that were dropped included.
func (f *fleet) totals(ctx context.Context) dropped {
	reports := f.reports(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.gone
	for _, r := range reports {
		sum.count(r)
	}
	return sum
}
