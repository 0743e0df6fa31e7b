package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// LatencyConfig says how the time from a commit to the broker's confirmation is measured.
type LatencyConfig struct {
	// Postgres is where the tables are made, in a schema of their own that is dropped at the end.
	Postgres *pgxpool.Config
	// Destination is where the relay publishes to. Nil means a null broker, which confirms at once.
	Destination *Destination
	// Rate is the first rate of messages a second. The second is half of what the relay gets through while the writers
	// write as fast as they can, on the same machine.
	Rate int
	// Duration is how long each rate lasts in each of Runs; the median counts.
	Duration time.Duration
	Runs     int
	// Progress gets a line a run. Nil means none.
	Progress io.Writer
}

// The bars of the latency, in poll intervals, and of what is written, in percent of the rate.
const (
	medianBar    = 1
	tailBar      = 2
	writtenBar   = 95
	toldBar      = 25 // milliseconds
	loadKeys     = 1000
	loadPayload  = 300
	millisecond  = float64(time.Millisecond)
	tailQuantile = 0.99
)

// Latency measures the time from a commit to the broker's confirmation at a low rate and at half of what writers and relay
// can do together, and at the low rate where the database tells the relay of commits (batch.wakeUp: Notify).
func Latency(ctx context.Context, cfg LatencyConfig) (Finding, error) {
	db, err := openTable(ctx, DrainConfig{
		Postgres:     cfg.Postgres,
		Keys:         loadKeys,
		PayloadBytes: loadPayload,
		Batch:        defaultBatch,
		Destination:  cfg.Destination,
	})
	if err != nil {
		return Finding{}, err
	}
	defer db.close(ctx)
	f := Finding{Setup: fmt.Sprintf(
		"from sending the transaction to the confirmation, %s: %d writers, rows of %d bytes and %d keys, %d shards, "+
			"poll interval %v, %d times %v", cfg.Destination.title(), writers, loadPayload, loadKeys, shards, pollInterval,
		cfg.Runs, cfg.Duration)}
	if f.Machine, err = db.machine(ctx); err != nil {
		return Finding{}, err
	}
	most, err := db.sustained(ctx, cfg.Duration)
	if err != nil {
		return Finding{}, err
	}
	f.add("most", "rows/s", "what the relay gets through while the writers write as fast as they can", most)
	rates := map[string]int{"low": cfg.Rate, "half": max(1, int(most/2)), "told": cfg.Rate}
	at := func(name string, t *table) turn {
		return turn{name, func() (string, error) { return t.latency(ctx, cfg, name, rates[name], &f) }}
	}
	if err := inTurn(cfg.Runs, cfg.Progress, at("low", db), at("half", db), at("told", db.telling())); err != nil {
		return Finding{}, err
	}
	interval := float64(pollInterval) / millisecond
	for _, name := range []string{"low", "half"} {
		what := fmt.Sprintf("at %d/s", rates[name])
		f.most("half of the latencies "+what, "poll intervals", f.Median("p50, "+name)/interval, medianBar)
		f.most("99 % of the latencies "+what, "poll intervals", f.Median("p99, "+name)/interval, tailBar)
		f.least("written "+what, "% of the rate", 100*f.Median("rate, "+name)/float64(rates[name]), writtenBar)
	}
	f.most(
		fmt.Sprintf("99 %% of the latencies at %d/s, told of commits", cfg.Rate),
		"ms",
		f.Median("p99, told"),
		toldBar,
	)
	return f, nil
}

// title names where the messages go.
func (d *Destination) title() string {
	if d == nil {
		return "a null broker"
	}
	return d.Name
}

// latency measures at one rate, with a new relay.
func (t *table) latency(
	ctx context.Context, cfg LatencyConfig, name string, rate int, f *Finding,
) (told string, err error) {
	l, err := t.startLoaded(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, l.end()) }()
	warm, _, err := l.write(ctx, paceOf(rate), min(warmUp, cfg.Duration))
	if err != nil {
		return "", err
	}
	if err := l.awaitConfirmed(ctx, warm); err != nil {
		return "", err
	}
	l.seen.forget()
	rows, took, err := l.write(ctx, paceOf(rate), cfg.Duration)
	if err != nil {
		return "", err
	}
	if err := l.awaitConfirmed(ctx, warm+rows); err != nil {
		return "", err
	}
	latencies := l.seen.forget()
	half, tail := quantile(latencies, 0.5), quantile(latencies, tailQuantile)
	f.add("p50, "+name, "ms", fmt.Sprintf("half of the messages are confirmed within this, at %d/s", rate),
		float64(half)/millisecond)
	f.add("p99, "+name, "ms", "99 % of them are", float64(tail)/millisecond)
	f.add("rate, "+name, "rows/s", "what was written", float64(rows)/took.Seconds())
	return fmt.Sprintf(
		"%d rows/s: p50 %v, p99 %v",
		rate,
		half.Round(time.Millisecond),
		tail.Round(time.Millisecond),
	), nil
}

// sustained is how many messages a second get through while the writers write as fast as they can: from the first one that
// is written to the last one that is confirmed.
func (t *table) sustained(ctx context.Context, duration time.Duration) (rate float64, err error) {
	l, err := t.startLoaded(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.end()) }()
	began := time.Now()
	rows, _, err := l.write(ctx, flatOut(), duration)
	if err != nil {
		return 0, err
	}
	err = l.awaitConfirmed(ctx, rows)
	return float64(rows) / time.Since(began).Seconds(), err
}
