package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/statusz"
)

const (
	// buildTimeout bounds one try to connect and check.
	buildTimeout = 30 * time.Second
	// replacePatience is how long an old part may take to drain before it is cut off for the new one.
	replacePatience = 30 * time.Second
)

// rebuildPause bounds the pause between tries to build: short enough that a mended cause is soon noticed,
// long enough for a server that is down. A changed config or Secret file ends it at once.
var rebuildPause = retry.Backoff{Initial: 500 * time.Millisecond, Max: 15 * time.Second}

// errKilled says that the pipeline was cut off on purpose.
var errKilled = errors.New("killed")

// part is one relay or consumer with its connections, built for a config and ready to run.
type part[C any] interface {
	runner
	// Reconfigure takes a changed config over live, or returns false: it takes a new part.
	Reconfigure(cfg C) bool
	// Refresh says that Secret files changed.
	Refresh()
	// Renewed is closed when the part should give way to a new one: its connections are of credentials that have
	// changed, and the new ones work. Nil means never.
	Renewed() <-chan struct{}
	// Report fills in what it knows.
	Report(ctx context.Context, r *statusz.Report)
}

// runner is the life of a part.
type runner interface {
	// Run moves messages until ctx ends, then finishes what is in flight and releases.
	Run(ctx context.Context) error
	// Kill cuts every connection: nothing is settled, released or acknowledged any more.
	Kill()
	// Close gives the connections back after Run. The context gives values only.
	Close(ctx context.Context)
}

// kind is what differs between relay and consumer.
type kind[C any] struct {
	// build connects and checks. Its error is a *trouble where it knows which condition is False.
	build func(ctx context.Context, cfg C) (part[C], error)
	// blank is the report of a process that has no part.
	blank func(cfg C) statusz.Report
	// fixed says which change cannot be taken over without a restart.
	fixed func(old, next C) error
	// resource names whom the process runs for.
	resource func(cfg C) config.Resource
}

// supervisor keeps one part running: it builds it, retries while the environment does not allow it, and
// replaces it when a new config cannot be taken over by the one that runs. It never gives up: every cause
// it meets is one that can be mended from outside.
type supervisor[C any] struct {
	kind[C]
	log    *slog.Logger
	steps  Steps
	random func() float64
	killed chan struct{}
	wake   chan struct{} // holds one: a second wake before the first was seen changes nothing

	mu      sync.Mutex
	cfg     C
	part    part[C] // nil while there is none
	replace bool    // the part does not fit cfg
	trouble *trouble
	kill    sync.Once
}

func newSupervisor[C any](cfg C, k kind[C], o Options) *supervisor[C] {
	return &supervisor[C]{
		kind: k, cfg: cfg, log: o.Log, steps: o.Steps, random: o.Random,
		killed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// Run keeps a part running until ctx ends, then drains it. It returns an error only after Kill.
func (s *supervisor[C]) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		started, err := s.start(ctx)
		if err == nil {
			err = s.runPart(ctx, started, func() { failures = 0 })
		}
		switch {
		case errors.Is(err, errKilled):
			return err
		case err == nil || ctx.Err() != nil:
			continue // replaced, or drained
		}
		failures++
		s.failed(ctx, err, failures)
		if err := s.pause(ctx, rebuildPause.Pause(failures, s.random())); err != nil {
			return err
		}
	}
	return nil
}

// start builds a part for the config in force.
func (s *supervisor[C]) start(ctx context.Context) (part[C], error) {
	s.mu.Lock()
	cfg := s.cfg
	s.replace = false
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	s.steps.Step("build", buildTimeout)
	defer s.steps.Done("build")
	built, err := s.build(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part, s.trouble = built, nil
	select {
	case <-s.killed:
		built.Kill()
	default:
	}
	return built, nil
}

// runPart runs a part until it ends, is replaced, is killed, or ctx ends.
func (s *supervisor[C]) runPart(ctx context.Context, p part[C], healthy func()) error {
	runCtx, drain := context.WithCancel(ctx)
	defer drain()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(runCtx) }()
	s.log.InfoContext(ctx, "Running", "generation", s.generation())

	steady := time.NewTimer(rebuildPause.Max)
	defer steady.Stop()
	for {
		select {
		case err := <-ended:
			return s.gone(ctx, p, err)
		case <-s.killed:
			s.cut(ctx, p, ended)
			return errKilled
		case <-steady.C:
			healthy()
		case <-p.Renewed():
			s.outdate()
			s.log.InfoContext(ctx, "Replacing the part for changed credentials", "generation", s.generation())
			return s.drainPart(ctx, p, drain, ended)
		case <-s.wake:
			if s.stale() {
				s.log.InfoContext(ctx, "Replacing the part for a changed config", "generation", s.generation())
				return s.drainPart(ctx, p, drain, ended)
			}
		}
	}
}

// drainPart lets an old part finish and gives up on one that does not.
func (s *supervisor[C]) drainPart(ctx context.Context, p part[C], drain func(), ended <-chan error) error {
	drain()
	patience := time.NewTimer(replacePatience)
	defer patience.Stop()
	for {
		select {
		case err := <-ended:
			return s.gone(ctx, p, err)
		case <-s.killed:
			s.cut(ctx, p, ended)
			return errKilled
		case <-patience.C:
			s.log.WarnContext(ctx, "The old part does not drain and is cut off", "duration", replacePatience.String())
			p.Kill()
		}
	}
}

// cut ends a part that is killed. What it still does goes nowhere, so nobody waits for it.
func (s *supervisor[C]) cut(ctx context.Context, p part[C], ended <-chan error) {
	p.Kill()
	go func() {
		err := <-ended
		s.log.DebugContext(ctx, "A killed part has ended", "err", err)
		p.Close(ctx)
	}()
}

// gone forgets a part that has ended.
func (s *supervisor[C]) gone(ctx context.Context, p part[C], err error) error {
	s.mu.Lock()
	s.part = nil
	s.mu.Unlock()
	p.Close(ctx)
	switch {
	case ctx.Err() != nil || s.stale():
		if err != nil {
			s.log.WarnContext(ctx, "The part did not end well; what it held is free when its leases end", "err", err)
		}
		return nil
	case err == nil:
		return errors.New("it ended by itself")
	default:
		return err
	}
}

// failed says once a cause, and again when it is another or takes long.
func (s *supervisor[C]) failed(ctx context.Context, err error, failures int) {
	var told *trouble
	if !errors.As(err, &told) {
		told = &trouble{err: err}
	}
	s.mu.Lock()
	repeated := s.trouble != nil && s.trouble.Error() == told.Error()
	s.trouble = told
	s.mu.Unlock()
	level := slog.LevelWarn
	if repeated {
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, "Not running, trying again", "attempt", failures, "err", told)
}

// pause waits, at most until something changes.
func (s *supervisor[C]) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.killed:
		return errKilled
	case <-timer.C:
	case <-s.wake:
	}
	return nil
}

func (s *supervisor[C]) stale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replace
}

// outdate says that another part is wanted.
func (s *supervisor[C]) outdate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace = true
}

func (s *supervisor[C]) generation() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resource(s.cfg).Generation
}

// Reconfigure takes a changed config over: live, or by a new part in place of the one that runs. Its error
// says what needs a restart; nothing has changed then.
func (s *supervisor[C]) Reconfigure(cfg C) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fixed(s.cfg, cfg); err != nil {
		return err
	}
	s.cfg = cfg
	// A part that is still to be replaced, or is being built right now, was made for an older config.
	if s.part == nil || s.replace || !s.part.Reconfigure(cfg) {
		s.replace = true
		s.nudge()
	}
	return nil
}

// Refresh says that Secret files changed: what waits for them tries again now.
func (s *supervisor[C]) Refresh() {
	s.nudge()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.part != nil {
		s.part.Refresh()
	}
}

func (s *supervisor[C]) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Kill ends Run at once. Nothing in flight is settled, released or acknowledged.
func (s *supervisor[C]) Kill() {
	s.kill.Do(func() { close(s.killed) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.part != nil {
		s.part.Kill()
	}
}

// Report says how it stands.
func (s *supervisor[C]) Report(ctx context.Context) statusz.Report {
	s.mu.Lock()
	r := s.blank(s.cfg)
	running, told := s.part, s.trouble
	s.mu.Unlock()
	switch {
	case running != nil:
		running.Report(ctx, &r)
	case told != nil:
		told.apply(&r)
	}
	return r
}
