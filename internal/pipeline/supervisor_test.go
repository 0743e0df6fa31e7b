package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/statusz"
)

// plan is the config of the tests: host changes need a new part, speed is taken over live, uid is fixed.
type plan struct {
	host, uid string
	speed     int64
}

// world is an environment that may be broken and mended, and remembers what was built in it.
type world struct {
	mu       sync.Mutex
	broken   error
	slow     time.Duration
	attempts []time.Time
	parts    []*piece
}

func (w *world) set(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = err
}

func (w *world) build(ctx context.Context, p plan) (part[plan], error) {
	w.mu.Lock()
	w.attempts = append(w.attempts, time.Now())
	slow, broken := w.slow, w.broken
	w.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(slow):
	}
	if broken != nil {
		return nil, &trouble{
			conditions: []statusz.Condition{condition(databaseReachable, statusFalse, "Unreachable", broken.Error())},
			err:        broken,
		}
	}
	made := &piece{plan: p, fail: make(chan error, 1), killed: make(chan struct{}), renewed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parts = append(w.parts, made)
	return made, nil
}

func (w *world) made() []*piece {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parts
}

// piece is a part that moves nothing.
type piece struct {
	fail    chan error
	killed  chan struct{}
	renewed chan struct{}

	mu       sync.Mutex
	plan     plan
	stubborn bool
	released bool
	closed   bool
	kills    int
}

func (p *piece) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case err := <-p.fail:
		return err
	case <-p.killed:
		return errors.New("cut")
	}
	p.mu.Lock()
	stubborn := p.stubborn
	p.mu.Unlock()
	if stubborn {
		<-p.killed
		return errors.New("cut")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	return nil
}

func (p *piece) Reconfigure(next plan) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next.host != p.plan.host {
		return false
	}
	p.plan = next
	return true
}

func (*piece) Refresh() {}

func (p *piece) Renewed() <-chan struct{} { return p.renewed }

func (p *piece) Report(_ context.Context, r *statusz.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	setCondition(r, condition(databaseReachable, statusTrue, reasonReachable, fmt.Sprint(p.plan.host, p.plan.speed)))
}

func (p *piece) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kills++; p.kills == 1 {
		close(p.killed)
	}
}

func (p *piece) Close(context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

func (p *piece) state() (released, closed bool, kills int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.released, p.closed, p.kills
}

func newTestSupervisor(w *world, p plan) *supervisor[plan] {
	return newSupervisor(p, kind[plan]{
		build: w.build,
		blank: func(p plan) statusz.Report {
			return statusz.Report{Generation: p.speed, Conditions: []statusz.Condition{
				condition(databaseReachable, statusUnknown, reasonStarting, ""),
			}}
		},
		fixed: func(old, next plan) error {
			if old.uid != next.uid {
				return errors.New("resource.uid: a change needs a restart")
			}
			return nil
		},
		resource: func(p plan) config.Resource { return config.Resource{Generation: p.speed} },
	}, Options{Log: slog.New(slog.DiscardHandler), Random: func() float64 { return 0.99 }}.complete())
}

// run starts a supervisor in the bubble and returns how to end it.
func run(t *testing.T, s *supervisor[plan]) (stop func() error, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-done
	}, done
}

// database returns the one condition of the tests.
func database(t *testing.T, s *supervisor[plan]) statusz.Condition {
	t.Helper()
	r := s.Report(t.Context())
	if len(r.Conditions) != 1 {
		t.Fatalf("conditions = %+v, want one", r.Conditions)
	}
	return r.Conditions[0]
}

func TestABrokenEnvironmentIsToldRetriedAndRecoveredFrom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{slow: time.Second}
		w.set(errors.New("orders-db: no such host"))
		s := newTestSupervisor(w, plan{host: "a"})
		stop, _ := run(t, s)
		if c := database(t, s); c.Status != statusUnknown {
			t.Errorf("before the first try: %+v, want Unknown", c)
		}
		<-time.After(time.Hour)
		if c := database(t, s); c.Status != statusFalse || c.Message != "orders-db: no such host" {
			t.Errorf("while it is broken: %+v", c)
		}
		if n := len(w.attempts); n < 200 || n > 1000 {
			t.Errorf("%d tries in an hour: it gives up, or it does not rest", n)
		}
		w.set(nil)
		<-time.After(rebuildPause.Max + 2*time.Second)
		if c := database(t, s); c.Status != statusTrue {
			t.Errorf("after it was mended: %+v", c)
		}
		if err := stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
		if released, closed, _ := w.made()[0].state(); !released || !closed {
			t.Errorf("released %v, closed %v at the end", released, closed)
		}
	})
}

func TestAChangedSecretEndsThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.set(errors.New("password wrong"))
		s := newTestSupervisor(w, plan{})
		stop, _ := run(t, s)
		<-time.After(time.Hour)
		w.set(nil)
		s.Refresh()
		synctest.Wait() // no time passes
		if len(w.made()) != 1 {
			t.Error("the change was not taken up at once")
		}
		_ = stop()
	})
}

func TestAConfigIsTakenOverLiveWhereThePartCan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		s := newTestSupervisor(w, plan{host: "a", speed: 1})
		stop, _ := run(t, s)
		if err := s.Reconfigure(plan{host: "a", speed: 2}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if c := database(t, s); c.Message != "a2" || len(w.made()) != 1 {
			t.Errorf("condition %+v of %d parts, want the same part at speed 2", c, len(w.made()))
		}
		_ = stop()
	})
}

func TestANewHostGetsANewPartAfterTheOldHasReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		s := newTestSupervisor(w, plan{host: "a"})
		stop, _ := run(t, s)
		if err := s.Reconfigure(plan{host: "b"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		made := w.made()
		if len(made) != 2 || made[1].plan.host != "b" {
			t.Fatalf("%d parts", len(made))
		}
		if released, closed, kills := made[0].state(); !released || !closed || kills != 0 {
			t.Errorf("the old part: released %v, closed %v, killed %d times", released, closed, kills)
		}
		_ = stop()
	})
}

func TestChangedCredentialsGetANewPartAfterTheOldHasReleased(t *testing.T) {
	t.Parallel()
	for name, stubborn := range map[string]bool{"one that drains": false, "one that has to be cut off": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				s := newTestSupervisor(w, plan{host: "a"})
				stop, _ := run(t, s)
				old := w.made()[0]
				old.stubborn = stubborn
				close(old.renewed)
				if stubborn {
					<-time.After(replacePatience + time.Second)
				}
				synctest.Wait() // no pause, as after a failure
				if len(w.made()) != 2 {
					t.Fatalf("%d parts", len(w.made()))
				}
				if released, closed, kills := old.state(); released == stubborn || !closed || (kills > 0) != stubborn {
					t.Errorf("the old part: released %v, closed %v, killed %d times", released, closed, kills)
				}
				if c := database(t, s); c.Status != statusTrue {
					t.Errorf("condition = %+v of the new part", c)
				}
				_ = stop()
			})
		})
	}
}

func TestAConfigThatComesWhileAPartIsBuiltIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{slow: 10 * time.Second}
		s := newTestSupervisor(w, plan{host: "a"})
		stop, _ := run(t, s)
		<-time.After(5 * time.Second)
		if err := s.Reconfigure(plan{host: "b"}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if c := database(t, s); c.Message != "b0" {
			t.Errorf("condition = %+v, want host b", c)
		}
		_ = stop()
	})
}

func TestAnOldPartThatDoesNotDrainIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		s := newTestSupervisor(w, plan{host: "a"})
		stop, _ := run(t, s)
		w.made()[0].stubborn = true
		if err := s.Reconfigure(plan{host: "b"}); err != nil {
			t.Fatal(err)
		}
		<-time.After(replacePatience + time.Second)
		if len(w.made()) != 2 {
			t.Fatal("the new part never came")
		}
		if _, closed, kills := w.made()[0].state(); !closed || kills == 0 {
			t.Errorf("the old part: closed %v, killed %d times", closed, kills)
		}
		_ = stop()
	})
}

func TestAChangeThatNeedsARestartChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		s := newTestSupervisor(w, plan{host: "a", uid: "1"})
		stop, _ := run(t, s)
		if err := s.Reconfigure(plan{host: "b", uid: "2"}); err == nil {
			t.Error("Reconfigure() = nil")
		}
		synctest.Wait()
		if c := database(t, s); c.Message != "a0" || len(w.made()) != 1 {
			t.Errorf("condition = %+v of %d parts", c, len(w.made()))
		}
		_ = stop()
	})
}

func TestAPartThatFailsIsBuiltAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		s := newTestSupervisor(w, plan{host: "a"})
		stop, _ := run(t, s)
		w.made()[0].fail <- errors.New("cannot go on")
		<-time.After(rebuildPause.Max)
		if len(w.made()) != 2 {
			t.Errorf("%d parts, want a second", len(w.made()))
		}
		_ = stop()
	})
}

func TestKillCutsAndReleasesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		s := newTestSupervisor(w, plan{host: "a"})
		_, ended := run(t, s)
		s.Kill()
		if err := <-ended; !errors.Is(err, errKilled) {
			t.Errorf("Run() = %v, want killed", err)
		}
		synctest.Wait()
		if released, closed, kills := w.made()[0].state(); released || !closed || kills == 0 {
			t.Errorf("released %v, closed %v, killed %d times", released, closed, kills)
		}
	})
}

func TestKillEndsAWaitForTheEnvironment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.set(errors.New("down"))
		s := newTestSupervisor(w, plan{})
		_, ended := run(t, s)
		s.Kill()
		if err := <-ended; !errors.Is(err, errKilled) {
			t.Errorf("Run() = %v, want killed", err)
		}
	})
}
