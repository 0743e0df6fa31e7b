// Package consumer receives messages from a broker, applies each with its place in the inbox and acknowledges it: never
// before its effect, its parked copy or its dead letter is committed (contract R9 to R11).
//
// It keeps the order of each key, holds what cannot be decided yet without letting anything of its key pass, and goes on
// by itself when database or broker come back. It knows neither: a Store writes, a broker.Receiver delivers.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/verdict"
)

const (
	// ownerLease is how long a consumer name stays taken after the last heartbeat.
	ownerLease = 30 * time.Second
	// apartAfter is after how many failures in a row it is found out whether one message is the cause.
	apartAfter = 5
	// againPatience is how many times a transaction may be run again before that is reported.
	againPatience = 10
	// openTimeout bounds the look at the tables and the handler's statements.
	openTimeout = 30 * time.Second
)

// Pauses between tries. The first is for transactions that lost a race, the second for servers that are not there: long
// enough to spare them, short enough that work goes on soon after they are back.
//
//nolint:gochecknoglobals // constants of a struct type
var (
	againPause       = retry.Backoff{Initial: 10 * time.Millisecond, Max: time.Second}
	environmentPause = retry.Backoff{Initial: 100 * time.Millisecond, Max: 5 * time.Second}
)

// Applier decides and commits messages.
type Applier interface {
	// Apply returns one decision a message; what is not Undecided is committed, also beside an error.
	Apply(ctx context.Context, job verdict.Job, items []*verdict.Item) ([]verdict.Decision, error)
	// Drain handles the parked messages of one key that is due.
	Drain(
		ctx context.Context,
		job verdict.Job,
		admit func(message.Record, string) *verdict.Item,
	) (verdict.Drained, error)
}

// Keeper keeps what is around the messages.
type Keeper interface {
	// Check proves that tables, role and the handler's statements are right.
	Check(ctx context.Context, statements []string) error
	// Claim takes or renews the consumer name.
	Claim(ctx context.Context, o verdict.Owner) error
	// Purge forgets a few old ids and says whether there may be more.
	Purge(ctx context.Context, retention time.Duration) (more bool, err error)
	// Rearm makes gaps that are held due once.
	Rearm(ctx context.Context) error
	// Counts counts what waits.
	Counts(ctx context.Context) (verdict.Counts, error)
}

// Store is what a consumer needs of its tables.
type Store interface {
	Applier
	Keeper
}

// Handler chooses what is run for a message.
type Handler interface {
	// Route returns the statement for a message, none where it only takes its place, or why it is refused.
	Route(e *message.Envelope) (*verdict.Statement, *verdict.Refusal)
	// Statements returns what is checked at the start.
	Statements() []string
	// Position maps a place in a statement that was sent to the one that was written.
	Position(route, position int) int
}

// Steps is told of each loop's progress; a watchdog listens.
type Steps interface {
	// Step says that a loop is alive and makes its next step within the given time.
	Step(loop string, within time.Duration)
	// Done says that a loop has ended.
	Done(loop string)
}

// Parts are what a consumer works with.
type Parts struct {
	Store    Store
	Handler  Handler
	Receiver broker.Receiver
	Metrics  *Metrics
	Log      *slog.Logger
	// Steps may be nil.
	Steps Steps
	// Random returns a number in [0, 1) that spreads pauses; nil means a good one.
	Random func() float64
}

// Consumer consumes for one consumer name.
type Consumer struct {
	store    Store
	handler  Handler
	receiver broker.Receiver
	metrics  *Metrics
	log      *slog.Logger
	steps    Steps
	random   func() float64
	now      func() time.Time

	killOnce sync.Once
	killed   chan struct{}
	running  atomic.Bool
	changed  chan struct{} // holds one: a config was taken over
	counters counters
	health   health

	mu      sync.Mutex
	current Config
}

// New returns a consumer that is ready to Run. It dials nothing.
func New(cfg Config, p Parts) (*Consumer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("consumer config: %w", err)
	}
	if p.Store == nil || p.Handler == nil || p.Receiver == nil || p.Metrics == nil || p.Log == nil {
		return nil, errors.New("consumer: store, handler, receiver, metrics and log must be given")
	}
	c := &Consumer{
		store: p.Store, handler: p.Handler, receiver: p.Receiver, metrics: p.Metrics, log: p.Log, steps: p.Steps,
		random: p.Random, now: time.Now, changed: make(chan struct{}, 1), current: cfg.complete(),
	}
	if c.steps == nil {
		c.steps = noSteps{}
	}
	if c.random == nil {
		c.random = rand.Float64
	}
	c.killed = make(chan struct{})
	c.health.troubles = make(map[string]*verdict.Trouble)
	return c, nil
}

func (c *Consumer) cfg() Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// Reconfigure takes a changed config over while Run goes on and returns true, or returns false and changes nothing where
// that takes a new consumer.
func (c *Consumer) Reconfigure(cfg Config) (bool, error) {
	if err := cfg.Validate(); err != nil {
		return false, fmt.Errorf("consumer config: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.current.live(cfg) {
		return false, nil
	}
	c.current = cfg.complete()
	nudge(c.changed)
	return true, nil
}

// Kill ends Run as a crash would: connections are cut, nothing is committed, acknowledged or released any more.
func (c *Consumer) Kill() { c.killOnce.Do(func() { close(c.killed) }) }

// Run consumes until ctx ends; then it finishes the transactions in flight, acknowledges what they decided and gives the
// rest back. It returns nil then, and an error only after Kill. What is wrong with database or broker is retried without
// end and told by Report.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("consumer: Run was called twice")
	}
	hard, cutHard := context.WithCancel(context.WithoutCancel(ctx))
	defer cutHard()
	soft, cutSoft := context.WithCancel(ctx)
	defer cutSoft()
	go func() {
		select {
		case <-c.killed:
			cutHard()
			cutSoft()
		case <-hard.Done():
		}
	}()
	defer c.steps.Done("consumer")

	failures := 0
	for soft.Err() == nil {
		cfg := c.cfg()
		if err := c.open(soft, cfg); err != nil {
			failures++
			c.rest(soft, environmentPause.Pause(failures, c.random()))
			continue
		}
		failures = 0
		if cfg.RunPolicy == Run {
			c.steps.Done("consumer") // the session's own loops say how they are, for as long as it lasts
			c.session(soft, hard, cfg)
		} else {
			c.rest(soft, ownerLease/3) // and look again: the name stays ours, and the report true
		}
	}
	select {
	case <-c.killed:
		return errors.New("consumer: killed")
	default:
		return nil
	}
}

// rest waits until the config changes, at most for a time.
func (c *Consumer) rest(ctx context.Context, d time.Duration) {
	c.steps.Step("consumer", d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-c.changed:
	}
}

// open takes the consumer name and checks what the first message would meet.
func (c *Consumer) open(ctx context.Context, cfg Config) error {
	c.steps.Step("consumer", openTimeout)
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := c.store.Check(ctx, c.handler.Statements())
	if err == nil {
		err = c.store.Claim(ctx, cfg.owner())
	}
	if err == nil && cfg.Rules.ApplyAfterGap {
		err = c.store.Rearm(ctx)
	}
	if ctx.Err() != nil && err != nil {
		return err // stopping, or too slow: the next try tells
	}
	if c.health.opened(err) && err != nil {
		c.log.WarnContext(ctx, "Not consuming, trying again", "err", c.describe(err))
	}
	return err
}

func (c Config) owner() verdict.Owner {
	return verdict.Owner{Resource: c.Resource, UID: c.UID, Lease: ownerLease}
}

func (c *Consumer) job(cfg Config) verdict.Job {
	return verdict.Job{
		Rules: cfg.Rules, HandlerTimeout: cfg.HandlerTimeout,
		Pause: func(attempts int, failing time.Duration) time.Duration {
			return cfg.pauseFor(attempts, failing, c.random())
		},
	}
}

// nudge wakes whoever waits on a channel that holds one.
func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// noSteps is for a process that has no watchdog.
type noSteps struct{}

func (noSteps) Step(string, time.Duration) {}
func (noSteps) Done(string)                {}
