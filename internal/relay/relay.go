// Package relay moves the rows of an outbox to a broker: it claims, publishes and settles, one lane a shard.
//
// It promises that a row is settled only after the broker's confirmation (G2), that the messages of a key are first
// delivered in order, also across crash, hand-over and retry (G4), that a failure of the environment counts against
// no message (G7), and that one bad message holds up only its key (G8). It recovers by itself from everything that
// is the environment's: Run returns only when its context ends.
//
// It knows no SQL and no broker client: those are behind Store and broker.Publisher. What to do is decided in memory
// and verdict, which do no I/O; lane is the edge that does.
package relay

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
	"github.com/postrider/postrider/internal/shard"
)

// The names of the loops that are not lanes, for the watchdog and for what fails.
const (
	loopMembers = "members"
	loopLook    = "look"
)

// ErrDrainTimeout says that lanes did not finish within Config.DrainTimeout. Their leases run out by themselves.
var ErrDrainTimeout = errors.New("relay did not drain in time")

// ErrCrashed says that Crash ended the run.
var ErrCrashed = errors.New("relay was made to crash")

// Relay moves messages from one outbox to one broker, together with the other processes of the same relay.
type Relay struct {
	cfg       atomic.Pointer[Config]
	store     Store
	publisher broker.Publisher
	router    broker.Router // nil where the broker is one unit
	metrics   *Metrics
	log       *slog.Logger
	watchdog  Watchdog
	now       func() time.Time
	random    func() float64

	units  *units
	health *health
	idle   *idlers
	totals totals
	pace   pace
	clock  *Clock
	// source is the one source name of the table's rows, once known.
	source atomic.Pointer[string]

	mu    sync.Mutex
	lanes map[int16]*lane
	// changed tells the members loop that the config changed.
	changed chan struct{}

	crash     chan struct{}
	crashOnce sync.Once
	// calls are the blocking calls that run beside their loops.
	calls sync.WaitGroup
}

// New returns a relay that is ready to Run. A nil watchdog hears nothing. Metrics and clock belong to the process.
func New(
	cfg Config,
	store Store,
	publisher broker.Publisher,
	metrics *Metrics,
	clock *Clock,
	log *slog.Logger,
	watchdog Watchdog,
) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if watchdog == nil {
		watchdog = deaf{}
	}
	r := &Relay{
		store: store, publisher: publisher, metrics: metrics, log: log, watchdog: watchdog,
		now: time.Now, random: rand.Float64,
		units: newUnits(), health: newHealth(), idle: newIdlers(), clock: clock,
		lanes: make(map[int16]*lane), changed: make(chan struct{}, 1), crash: make(chan struct{}),
	}
	r.router, _ = publisher.(broker.Router)
	r.cfg.Store(&cfg)
	return r, nil
}

// deaf is a watchdog that hears nothing.
type deaf struct{}

func (deaf) Step(string, time.Duration) {}
func (deaf) Done(string)                {}

func (r *Relay) config() *Config { return r.cfg.Load() }

func (r *Relay) step(loop string, within time.Duration) { r.watchdog.Step(loop, within) }

// Run moves messages until ctx ends. Then it finishes what is in flight, settles it, gives its shards back and
// returns nil; ErrDrainTimeout when that takes too long. Nothing that the environment does ends it earlier.
func (r *Relay) Run(ctx context.Context) error {
	// What is in flight outlives ctx: it is finished, within the bound.
	hard, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var loops sync.WaitGroup
	loops.Go(func() {
		select {
		case <-r.crash:
			stop(ErrCrashed)
		case <-hard.Done():
		}
	})
	loops.Go(func() { r.lookForWork(hard) })
	loops.Go(func() { r.turnRing(hard) })
	err := newMembers(r).run(ctx, hard, stop)
	stop(nil)
	loops.Wait()
	r.calls.Wait()
	return err
}

// Crash ends Run at once, as killing the process would: nothing more is settled, no shard is given back.
func (r *Relay) Crash() { r.crashOnce.Do(func() { close(r.crash) }) }

// crashing says whether Crash was called.
func (r *Relay) crashing() bool {
	select {
	case <-r.crash:
		return true
	default:
		return false
	}
}

// unit names what of the broker a row goes to, and what can fail alone.
func (r *Relay) unit(row *shard.Row) string {
	if r.router == nil {
		return r.config().Unit
	}
	return r.router.Unit(&row.Message)
}

// rest returns how long nothing at all can be sent at now, and whether every part of a broker of several fails.
func (r *Relay) rest(now time.Time) (wait time.Duration, all bool) {
	if r.router != nil {
		wait, all = r.units.rest(r.router.Units(), now)
	}
	return max(wait, r.units.wait(r.config().Unit, now)), all
}

// Reconfigure takes run policy, batch bounds, backoff and retry budget over. It changes nothing when cfg is invalid or differs in
// what is fixed.
func (r *Relay) Reconfigure(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.fixed() != r.config().fixed() {
		return fmt.Errorf(
			"%w: only run policy, batch, backoff and budget can change while the relay runs",
			ErrInvalidConfig,
		)
	}
	r.cfg.Store(&cfg)
	r.poke()
	return nil
}

// Refresh says that credentials changed: what waits for the broker tries again now.
func (r *Relay) Refresh() {
	r.units.tryAgain()
	r.poke()
}

// poke makes all loops look again.
func (r *Relay) poke() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
	r.idle.hurry()
	r.nudge()
}

// nudge makes all lanes look at the units again.
func (r *Relay) nudge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lanes {
		l.poke()
	}
}

// readAnew makes all lanes begin again: what they know of is not what the database holds.
func (r *Relay) readAnew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lanes {
		l.anew.Store(true)
		l.poke()
	}
}

// tableSource returns the one source name of the table's rows. The first row that is sent names it, once and for all
// processes.
func (r *Relay) tableSource(ctx context.Context, offered string) (string, error) {
	if known := r.source.Load(); known != nil {
		return *known, nil
	}
	source, err := r.store.AdoptSource(ctx, offered)
	if err != nil {
		return "", err
	}
	r.source.Store(&source)
	return source, nil
}

// storeFailed notes a failure of the store: what fails and why in the report, each time in the metrics, and once for each
// reason in the log.
func (r *Relay) storeFailed(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil {
		return // we ended it
	}
	condition, reason, message := r.store.Explain(err)
	r.metrics.storeFailed(reason)
	if r.health.failed(doing, problem{condition: condition, reason: reason, message: message}) {
		r.log.WarnContext(ctx, "Outbox does not answer as it should", "doing", doing, "reason", reason, "err", message)
	}
}

// ringPeriod is how often the archive is looked at, unless its retention is very short.
const ringPeriod = time.Minute

// turnRing lets the archive forget what is older than its retention.
func (r *Relay) turnRing(ctx context.Context) {
	tick := time.NewTicker(min(ringPeriod, max(time.Second, r.config().Retention/64)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		turned, err := r.store.TurnRing(ctx, r.config().Retention)
		switch {
		case err != nil && ctx.Err() == nil:
			r.log.DebugContext(ctx, "Archive not turned", "err", r.explained(err)) // a reader only delays it
		case turned:
			r.log.InfoContext(ctx, "Archive turned to its next slot")
		}
	}
}

func (r *Relay) explained(err error) string {
	_, _, message := r.store.Explain(err)
	return message
}
