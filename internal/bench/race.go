package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/message"
)

const (
	// countEvery is how often the topic is looked at while records arrive.
	countEvery = 20 * time.Millisecond
	// raceLimit bounds one run.
	raceLimit = 20 * time.Minute
)

// Racer is a way from an outbox to the topic.
type Racer interface {
	// Fill makes the racer's outbox anew with these rows, with a checkpoint, so that nobody pays for the filling.
	// Nothing drains it yet.
	Fill(ctx context.Context, rows Rows) error
	// Start lets it be drained, and returns when that runs.
	Start(ctx context.Context) (Drainer, error)
}

// Drainer drains an outbox.
type Drainer interface {
	// Stop ends the draining, in an orderly way.
	Stop(ctx context.Context) error
	// PeakMemory returns the most memory in bytes that its process has occupied so far.
	PeakMemory() (float64, error)
	// Lost is closed when its process has ended by itself; Err then says why.
	Lost() <-chan struct{}
	Err() error
}

// Rival is what the relay is compared with.
type Rival struct {
	Racer
	Name, What string
	// WarmUps are the runs that do not count, before all others.
	WarmUps int
	// Rate is the bar: how many times the rival's rate the relay's must be, at least.
	Rate float64
	// Memory is the part of the rival's memory that the relay's may be, at most. 0 means that it is not judged.
	Memory float64
}

// Topic is what all racers send to.
type Topic struct {
	// Empty throws away what it holds.
	Empty func(ctx context.Context) error
	// Count counts the records that have arrived since.
	Count func(ctx context.Context) (int, error)
	// Read hands over the value of each of them.
	Read func(ctx context.Context, take func(payload []byte) error) error
}

// RaceConfig says how the relay races its rivals.
type RaceConfig struct {
	// DrainConfig is that of the relay's outbox. It has no Destination.
	DrainConfig
	// Relay is the relay as it is shipped. It publishes to the Topic.
	Relay Program
	// Produce sends messages to the Topic with the broker's own client and the same confirmations; nil for none. With it
	// the race also has what the machine can do of both at once, and a rate that not even that reaches is not asked of
	// the relay: see judge.
	Produce func(ctx context.Context, messages []message.Message) error
	Topic   Topic
	Rivals  []Rival
	// Versions are those of what takes part.
	Versions string
}

// Race lets the relay, as a process, and its rivals drain equal outboxes to the same topic in turn. A run is timed from the
// last look at which the topic was empty to the first one at which it held all rows, so that nobody's start counts. Then
// each row must have arrived once.
func Race(ctx context.Context, cfg RaceConfig) (Finding, error) {
	if err := cfg.Validate(); err != nil {
		return Finding{}, err
	}
	db, err := openTable(ctx, cfg.DrainConfig)
	if err != nil {
		return Finding{}, err
	}
	defer db.close(ctx)
	f := Finding{Setup: fmt.Sprintf("%d rows of %d bytes and %d keys, medians of %d; %s",
		cfg.Rows, cfg.PayloadBytes, cfg.Keys, cfg.Runs, cfg.Versions)}
	if f.Machine, err = db.machine(ctx); err != nil {
		return Finding{}, err
	}
	relay := Rival{Racer: relayRacer{db, cfg.Relay}, Name: Relay, What: "the relay"}
	racers := []Rival{relay}
	if cfg.Produce != nil {
		racers = append(racers, Rival{Racer: togetherRacer{db, cfg.Produce}, Name: Together, What: togetherWhat})
	}
	racers = append(racers, cfg.Rivals...)
	if err := cfg.warmUp(ctx, racers); err != nil {
		return Finding{}, err
	}
	turns := make([]turn, len(racers))
	for i, r := range racers {
		turns[i] = turn{r.Name, func() (string, error) {
			got, err := cfg.run(ctx, r)
			if err != nil {
				return "", err
			}
			f.add(r.Name, "rows/s", r.What, got.rate)
			if got.memory > 0 {
				f.add(memoryOf(r.Name), "MiB", "the most that its process has occupied", got.memory/mebibyte)
			}
			return got.String(), nil
		}}
	}
	if err := inTurn(cfg.Runs, cfg.Progress, turns...); err != nil {
		return Finding{}, err
	}
	judge(&f, cfg.Rivals)
	return f, nil
}

// memoryOf names the quantity.
func memoryOf(racer string) string { return racer + "'s memory" }

// ofTogether is the part of what the machine can do of both at once that the relay must reach, at least.
const ofTogether = 0.7

// judge holds the relay to the bars that its rivals set. Where the database and the broker, which share the machine, stay
// below a rate even without a relay between them, no relay could show it there: it is held to a part of what they reach.
func judge(f *Finding, rivals []Rival) {
	for _, r := range rivals {
		reached, most := f.Median(Relay)/f.Median(r.Name), f.Median(Together)/f.Median(r.Name)
		if reached < r.Rate && most > 0 && most < r.Rate {
			f.NotShown = append(f.NotShown, fmt.Sprintf(
				"%s times the rate of %s: the bare loop with the broker's own client, without a relay, reaches %s times, "+
					"the relay %s times",
				figure(r.Rate),
				r.Name,
				figure(most),
				figure(reached),
			))
			f.least("the relay's rate", "times that of "+Together, f.Median(Relay)/f.Median(Together), ofTogether)
		} else {
			f.least("the relay's rate", "times that of "+r.Name, reached, r.Rate)
		}
		if r.Memory > 0 {
			share := f.Median(memoryOf(Relay)) / f.Median(memoryOf(r.Name))
			f.most("the relay's memory", "of that of "+r.Name, share, r.Memory)
		}
	}
}

// warmUp lets those run that need it before anything counts.
func (c RaceConfig) warmUp(ctx context.Context, racers []Rival) error {
	for _, r := range racers {
		for i := range r.WarmUps {
			got, err := c.run(ctx, r)
			if err != nil {
				return fmt.Errorf("%s, warm-up %d: %w", r.Name, i+1, err)
			}
			if c.Progress != nil {
				fmt.Fprintf(c.Progress, "warm-up %d of %d: %-8s %s\n", i+1, r.WarmUps, r.Name, got)
			}
		}
	}
	return nil
}

// lap is what one run of a racer found: rows per second, and bytes.
type lap struct{ rate, memory float64 }

func (l lap) String() string {
	if l.memory == 0 {
		return fmt.Sprintf("%8.0f rows/s", l.rate)
	}
	return fmt.Sprintf("%8.0f rows/s, %4.0f MiB", l.rate, l.memory/mebibyte)
}

// run measures a racer once.
func (c RaceConfig) run(ctx context.Context, r Racer) (lap, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, raceLimit, errors.New("the run took too long"))
	defer cancel()
	if err := c.Topic.Empty(ctx); err != nil {
		return lap{}, err
	}
	if err := r.Fill(ctx, Rows{c.Rows, c.Keys, c.PayloadBytes}); err != nil {
		return lap{}, fmt.Errorf("fill its outbox: %w", err)
	}
	got, err := c.drain(ctx, r)
	if err != nil {
		return lap{}, err
	}
	seen := tally{seen: make([]bool, c.Rows)}
	if err := c.Topic.Read(ctx, seen.add); err != nil {
		return lap{}, fmt.Errorf("check what arrived: %w", err)
	}
	if seen.distinct != c.Rows {
		return lap{}, fmt.Errorf("check what arrived: %d of %d rows", seen.distinct, c.Rows)
	}
	return got, nil
}

// drain starts the racer, waits until all rows have arrived, and stops it.
func (c RaceConfig) drain(ctx context.Context, r Racer) (got lap, err error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	var took time.Duration
	var watchErr error
	arrived := make(chan struct{})
	go func() {
		defer close(arrived)
		took, watchErr = c.watch(watching)
	}()
	d, err := r.Start(ctx)
	if err != nil {
		cancel()
		<-arrived
		return lap{}, err
	}
	defer func() { err = errors.Join(err, d.Stop(context.WithoutCancel(ctx))) }()
	select {
	case <-arrived:
	case <-d.Lost():
		cancel()
		<-arrived
		return lap{}, errors.Join(fmt.Errorf("it ended by itself: %w", d.Err()), watchErr)
	}
	if watchErr != nil {
		return lap{}, watchErr
	}
	memory, err := d.PeakMemory()
	return lap{float64(c.Rows) / took.Seconds(), memory}, err
}

// watch waits until the topic holds as many records as there are rows, and returns how long that took.
func (c RaceConfig) watch(ctx context.Context) (time.Duration, error) {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	started := time.Now()
	for {
		looked := time.Now()
		n, err := c.Topic.Count(ctx)
		switch {
		case err != nil:
			return 0, fmt.Errorf("count what arrived: %w", err)
		case n == 0:
			started = looked
		case n >= c.Rows:
			return time.Since(started), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for the rows, %d of %d are there: %w", n, c.Rows, context.Cause(ctx))
		}
	}
}

// relayRacer is the relay as a process, a new one for each run.
type relayRacer struct {
	table   *table
	program Program
}

// Fill implements Racer. The table has its config's rows, which are the same.
func (r relayRacer) Fill(ctx context.Context, _ Rows) error { return r.table.fill(ctx) }

// Start implements Racer.
func (r relayRacer) Start(ctx context.Context) (Drainer, error) {
	p, err := r.table.startProcess(ctx, r.program)
	if err != nil {
		return nil, err
	}
	return relayDrainer{p.Running, r.table}, nil
}

// relayDrainer is not done when all has arrived, but when all is settled.
type relayDrainer struct {
	*Running
	table *table
}

// Stop implements Drainer.
func (d relayDrainer) Stop(ctx context.Context) error {
	return errors.Join(d.Running.Stop(ctx), d.table.checkDrained(ctx)) // the relay settles what was confirmed
}

// togetherRacer is the bare loop with the broker's own client within it, in this process.
type togetherRacer struct {
	table   *table
	produce func(context.Context, []message.Message) error
}

// Fill implements Racer.
func (r togetherRacer) Fill(ctx context.Context, _ Rows) error { return r.table.fill(ctx) }

// Start implements Racer.
func (r togetherRacer) Start(ctx context.Context) (Drainer, error) {
	d := &togetherDrainer{table: r.table, ended: make(chan struct{}), lost: make(chan struct{})}
	go func() {
		defer close(d.ended)
		if _, d.err = r.table.bareLoops(ctx, r.produce); d.err != nil {
			close(d.lost)
		}
	}()
	return d, nil
}

// togetherDrainer ends by itself, when all is settled.
type togetherDrainer struct {
	table       *table
	ended, lost chan struct{}
	err         error // once it has ended
}

// Stop implements Drainer.
func (d *togetherDrainer) Stop(ctx context.Context) error {
	<-d.ended
	return errors.Join(d.err, d.table.checkDrained(ctx))
}

// PeakMemory implements Drainer. It has no process of its own.
func (*togetherDrainer) PeakMemory() (float64, error) { return 0, nil }

// Lost implements Drainer.
func (d *togetherDrainer) Lost() <-chan struct{} { return d.lost }

// Err implements Drainer.
func (d *togetherDrainer) Err() error { return d.err }
