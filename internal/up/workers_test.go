package up

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/internal/verdict"
)

// counting is a worker that does nothing but count.
type counting struct {
	published, applied, duplicates prometheus.Counter
	killed                         chan struct{}
	once                           sync.Once
	done                           bool // as a step before a worker
}

func newCounting(o pipeline.Options) *counting {
	results := prometheus.NewCounterVec(prometheus.CounterOpts{Name: publishResultsMetric}, []string{outcomeLabel})
	handled := prometheus.NewCounterVec(prometheus.CounterOpts{Name: handledMetric}, []string{outcomeLabel})
	w := &counting{
		published:  results.WithLabelValues(broker.Confirmed.String()),
		applied:    handled.WithLabelValues(verdict.Apply.String()),
		duplicates: prometheus.NewCounter(prometheus.CounterOpts{Name: duplicatesMetric}),
		killed:     make(chan struct{}),
	}
	results.WithLabelValues(broker.Rejected.String()).Add(1000) // which is no success
	handled.WithLabelValues(verdict.Park.String()).Add(1000)
	for _, c := range []prometheus.Collector{results, handled, w.duplicates} {
		_ = o.Registry.Register(c) // new for each worker
	}
	return w
}

func (w *counting) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		w.published.Inc() // what was in flight
		return nil
	case <-w.killed:
		return errors.New("killed")
	}
}

func (w *counting) Report(context.Context) statusz.Report { return statusz.Report{Worker: "worker"} }
func (w *counting) Kill()                                 { w.once.Do(func() { close(w.killed) }) }
func (w *counting) Done() bool                            { return w.done }

func TestTotalsKeepWhatEveryWorkerCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var made []*counting
		f := &fleet{name: "outboxrelay/orders", log: slog.New(slog.DiscardHandler)}
		f.start = func(o pipeline.Options) (worker, error) {
			w := newCounting(o)
			made = append(made, w)
			return w, nil
		}
		ctx, stop := context.WithCancel(t.Context())
		if err := f.run(ctx, 2); err != nil {
			t.Fatal(err)
		}
		made[0].published.Add(10)
		made[1].applied.Add(20)
		made[1].duplicates.Add(3)
		for range 3 { // one place after the other
			if dropped, err := f.drop(ctx); err != nil || !dropped {
				t.Fatalf("drop() = %v, %v", dropped, err)
			}
			synctest.Wait()
		}
		if len(made) != 5 || len(f.reports(ctx)) != 2 {
			t.Fatalf("%d workers were made and %d run, want 5 and 2", len(made), len(f.reports(ctx)))
		}
		for i, w := range made {
			select {
			case <-w.killed:
				if i > 2 {
					t.Errorf("worker %d was killed", i)
				}
			default:
				if i <= 2 {
					t.Errorf("worker %d was not killed", i)
				}
			}
		}
		made[4].published.Add(5)
		if got, want := f.totals(), (totals{published: 15, applied: 20, duplicates: 3, dropped: 3}); got != want {
			t.Errorf("totals = %+v, want %+v", got, want)
		}
		stop()
		f.wait()
		want := totals{published: 17, applied: 20, duplicates: 3, dropped: 3}
		if got := f.totals(); got != want {
			t.Errorf("totals after the end = %+v, want %+v: draining counts too", got, want)
		}
		if got := want.droppedWords(); got != " (3 workers dropped on the way; what was in flight there is not counted)" {
			t.Errorf("words = %q", got)
		}
	})
}

func TestNothingIsDroppedWhereNothingRuns(t *testing.T) {
	t.Parallel()
	f := &fleet{name: "outboxrelay/orders", log: slog.New(slog.DiscardHandler)}
	if err := f.run(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if dropped, err := f.drop(t.Context()); dropped || err != nil {
		t.Errorf("drop() = %v, %v", dropped, err)
	}
}

func TestAWorkerStartsWhenTheStepBeforeItIsDone(t *testing.T) {
	t.Parallel()
	step, w := newCounting(pipeline.Options{Registry: prometheus.NewRegistry()}),
		newCounting(pipeline.Options{Registry: prometheus.NewRegistry()})
	s := &staged{step: step, worker: w}
	step.Kill()
	if err := s.Run(t.Context()); err == nil {
		t.Error("a worker ran after its step was killed")
	}
	s.Kill()
	select {
	case <-w.killed:
	default:
		t.Error("the worker behind the step was not killed")
	}
}

// flaky is a server that is lost and takes some tries to start.
type flaky struct {
	mu     sync.Mutex
	lost   chan struct{}
	err    error
	starts []error // what the next tries come to
}

func (f *flaky) lose(err error, starts ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.starts = err, starts
	close(f.lost)
}

func (f *flaky) Lost() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

func (f *flaky) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *flaky) Start(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.starts[0]
	f.starts = f.starts[1:]
	if err == nil {
		f.err, f.lost = nil, make(chan struct{})
	}
	return err
}

func TestALostServerIsStartedUntilItRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &flaky{lost: make(chan struct{})}
		var said []string
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- keep(ctx, "NATS", s, func(line string) { said = append(said, line) }) }()
		full := errors.New("no space left")
		s.lose(full, full, full, errors.New("ended; its log ends with:\nmuch"), nil)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		s.lose(full, nil)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		stop()
		if err := <-ended; err != nil {
			t.Errorf("keep() = %v", err)
		}
		again := "the embedded NATS is lost, trying to start it again: "
		want := []string{
			again + "no space left", again + "ended", "the embedded NATS runs again",
			again + "no space left", "the embedded NATS runs again",
		}
		if len(said) != len(want) {
			t.Fatalf("said %q, want %q", said, want)
		}
		for i := range want {
			if said[i] != want[i] {
				t.Errorf("said %q, want %q", said[i], want[i])
			}
		}
	})
}

func TestAServerThatNobodyCanStartEndsTheRun(t *testing.T) {
	t.Parallel()
	s := &flaky{lost: make(chan struct{})}
	s.lose(local.ErrGone)
	err := keep(t.Context(), "PostgreSQL", s, func(line string) { t.Errorf("it said %q", line) })
	if !errors.Is(err, local.ErrGone) {
		t.Errorf("keep() = %v, want ErrGone", err)
	}
}
