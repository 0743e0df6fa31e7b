// Package worker is what a relay and a consumer share as processes: a config file and mounted Secrets that
// are taken over while it runs, the endpoints people and the manager look at, drain and watchdog.
//
// It promises that a bad reload changes nothing but the report, that readiness says whether the loops run
// and not whether a broker answers, and that the process ends in bounded time. What is moved, and how, it
// does not know: that is the pipeline it runs.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/statusz"
)

const (
	// DrainTimeout is how long a worker may take to finish and release, below a pod's usual grace of 30 s.
	DrainTimeout = 25 * time.Second
	// stallGrace is how long the loops that still move may take to release when another is stuck.
	stallGrace = 5 * time.Second
	// watchdogPeriod is how often the watchdog looks.
	watchdogPeriod = 5 * time.Second
	// maxConfigErrorBytes bounds what the report repeats of a refused config.
	maxConfigErrorBytes = 1024
)

// Pipeline is what a worker runs, built from a config of type C.
type Pipeline[C any] interface {
	// Run moves messages until ctx ends, then finishes what is in flight, releases and returns.
	Run(ctx context.Context) error
	// Reconfigure takes a changed config over while Run goes on. An error says what needs a restart, and
	// that nothing was changed.
	Reconfigure(cfg C) error
	// Refresh says that Secret files changed: what waits for them should try again now.
	Refresh()
	// Report says how it stands.
	Report(ctx context.Context) statusz.Report
	// Kill ends Run at once and releases nothing.
	Kill()
}

// Options are what a command decides about its worker.
type Options[C any] struct {
	Log        *slog.Logger
	Registry   *prometheus.Registry
	Watchdog   *Watchdog
	ConfigPath string
	// Listen is the address of the endpoints, such as ":8080".
	Listen string
	// DrainTimeout bounds the time between the end of the context and the end of Run.
	DrainTimeout time.Duration
	// Draining is called when the end of the context is seen, before anybody is told of it; nil for none.
	Draining func()
	// Load reads and checks the config file.
	Load func(path string) (C, error)
	// Files returns the Secret files and directories that a config names.
	Files func(C) []string
	// New builds the pipeline. It fails only where the config contradicts itself.
	New func(C) (Pipeline[C], error)
	// Finite says that the pipeline ends by itself when its work is done, which is then no error.
	Finite bool
}

// worker is one run.
type worker[C any] struct {
	Options[C]
	pipeline Pipeline[C]
	files    *fileWatch

	mu          sync.Mutex
	configError string
	draining    bool
}

// Run loads the config, runs the pipeline built from it and follows both files until ctx ends, then drains.
// Its error says why the process must end otherwise; ExitCode maps it.
func Run[C any](ctx context.Context, o Options[C]) error {
	listener, err := listen(ctx, o.Listen)
	if err != nil {
		return err
	}
	return serve(ctx, o, listener)
}

func serve[C any](ctx context.Context, o Options[C], listener net.Listener) error {
	defer func() { _ = listener.Close() }() // the server closed it unless it never started
	// What is there now counts as known before it is read: a change in between is seen as one.
	files := newFileWatch(o.Log, []string{o.ConfigPath})
	defer files.close()
	cfg, err := o.Load(o.ConfigPath)
	if err != nil {
		return fmt.Errorf("load config: %w", err)
	}
	files.follow(append(o.Files(cfg), o.ConfigPath))
	pipeline, err := o.New(cfg)
	if err != nil {
		return fmt.Errorf("build from config %s: %w", o.ConfigPath, err)
	}
	w := &worker[C]{Options: o, pipeline: pipeline, files: files}
	server := newServer(probes{
		alive: o.Watchdog.Stalled, ready: w.ready, report: w.report, gatherer: o.Registry,
	}, o.Log)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { _ = server.Close() }() // probes in flight are not worth waiting for
	o.Log.InfoContext(ctx, "Serving", "address", listener.Addr().String())
	return w.run(ctx, served)
}

// run owns the two loops: the pipeline, and the one that follows the files.
func (w *worker[C]) run(ctx context.Context, served <-chan error) error {
	runCtx, drain := context.WithCancel(context.WithoutCancel(ctx))
	defer drain()
	ended := make(chan error, 1)
	go func() { ended <- w.pipeline.Run(runCtx) }()

	var follower sync.WaitGroup
	defer follower.Wait()
	defer drain() // before Wait: deferred calls run last in, first out
	follower.Go(func() { w.follow(runCtx) })

	watch := time.NewTicker(watchdogPeriod)
	defer watch.Stop()
	for {
		select {
		case err := <-ended:
			switch {
			case err == nil && w.Finite:
				return nil
			case err == nil:
				err = errors.New("it ended by itself")
			}
			return fmt.Errorf("run pipeline: %w", err)
		case err := <-served:
			_, _ = w.end(drain, ended, stallGrace) // the first cause is the one to tell
			return fmt.Errorf("serve endpoints: %w", err)
		case <-watch.C:
			if err := w.Watchdog.Stalled(); err != nil {
				w.Log.ErrorContext(ctx, "A loop is stuck, releasing what can be released and ending", "err", err)
				_, _ = w.end(drain, ended, stallGrace) // the stall is what to tell
				return err
			}
		case <-ctx.Done():
			return w.drained(drain, ended)
		}
	}
}

func (w *worker[C]) drained(drain context.CancelFunc, ended <-chan error) error {
	if w.Draining != nil {
		w.Draining()
	}
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	w.Log.Info("Draining", "duration", w.DrainTimeout.String())
	finished, err := w.end(drain, ended, w.DrainTimeout)
	switch {
	case !finished:
		return &DrainError{After: w.DrainTimeout}
	case err != nil && !errors.Is(err, context.Canceled):
		return fmt.Errorf("drain: %w", err)
	default:
		w.Log.Info("Drained")
		return nil
	}
}

// end asks the pipeline to finish and waits so long; then it is killed.
func (w *worker[C]) end(drain context.CancelFunc, ended <-chan error, patience time.Duration) (bool, error) {
	drain()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-ended:
		return true, err
	case <-timer.C:
		w.pipeline.Kill()
		return false, nil
	}
}

// follow takes changed files over until ctx ends.
func (w *worker[C]) follow(ctx context.Context) {
	for {
		changed, err := w.files.changes(ctx)
		if err != nil {
			return
		}
		if i := slices.Index(changed, w.ConfigPath); i >= 0 {
			w.reload()
			changed = slices.Delete(changed, i, i+1)
		}
		if len(changed) > 0 {
			w.Log.InfoContext(ctx, "Secret files changed", "path", strings.Join(changed, " "))
			w.pipeline.Refresh()
		}
	}
}

// reload takes a changed config over, or keeps the old one and says why.
func (w *worker[C]) reload() {
	cfg, err := w.Load(w.ConfigPath)
	if err == nil {
		err = w.pipeline.Reconfigure(cfg)
	}
	if err == nil {
		w.files.follow(append(w.Files(cfg), w.ConfigPath))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.configError = shorten(err.Error())
		w.Log.Error("Config refused, the old one stays in force", "err", err)
		return
	}
	w.configError = ""
	w.Log.Info("Config taken over", "path", w.ConfigPath)
}

func (w *worker[C]) ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return errors.New("draining")
	}
	return nil
}

func (w *worker[C]) report(ctx context.Context) statusz.Report {
	r := w.pipeline.Report(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	r.ConfigError = w.configError
	return r
}

func shorten(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxConfigErrorBytes)], "")
}
