package bench

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/relay"
)

// BacklogConfig says how it is measured what a large backlog does to a relay.
type BacklogConfig struct {
	// Postgres is where the tables are made, in a schema of their own that is dropped at the end.
	Postgres *pgxpool.Config
	// Small and Large are the rows of the two backlogs. Of each, Slice rows are drained.
	Small, Large, Slice int
	// Runs is how often; the median counts.
	Runs int
	// Progress gets a line a run. Nil means none.
	Progress io.Writer
}

// The bars of a large backlog against a small one: the rate in percent, and how many times as long reads take.
const (
	backlogRateBar = 80
	backlogReadBar = 2
)

// Validate refuses configurations that measure nothing.
func (c BacklogConfig) Validate() error {
	if c.Slice < 1 || c.Small < c.Slice || c.Large < c.Small || c.Runs < 1 {
		return fmt.Errorf("%w: at least one run, and a slice that is in the smaller backlog", ErrInvalidConfig)
	}
	return nil
}

// Backlog measures how fast a slice of a small and of a large backlog is drained, and how long the reads take.
func Backlog(ctx context.Context, cfg BacklogConfig) (Finding, error) {
	if err := cfg.Validate(); err != nil {
		return Finding{}, err
	}
	db, err := openTable(ctx, DrainConfig{
		Postgres: cfg.Postgres, Keys: backlogKeys, PayloadBytes: loadPayload, Batch: defaultBatch,
	})
	if err != nil {
		return Finding{}, err
	}
	defer db.close(ctx)
	f := Finding{Setup: fmt.Sprintf(
		"%d rows of backlogs of %d and %d rows of %d bytes and %d keys, %d shards, batches of %d, a null broker, medians of %d",
		cfg.Slice,
		cfg.Small,
		cfg.Large,
		loadPayload,
		backlogKeys,
		shards,
		defaultBatch,
		cfg.Runs,
	)}
	if f.Machine, err = db.machine(ctx); err != nil {
		return Finding{}, err
	}
	of := func(name string, rows int) turn {
		return turn{name, func() (string, error) { return db.drainSlice(ctx, name, rows, cfg.Slice, &f) }}
	}
	if err := inTurn(cfg.Runs, cfg.Progress, of("small", cfg.Small), of("large", cfg.Large)); err != nil {
		return Finding{}, err
	}
	f.least("the rate with the large backlog", "% of that with the small one",
		100*f.Median("rate, large")/f.Median("rate, small"), backlogRateBar)
	f.most("99 % of the reads with the large backlog", "times those with the small one",
		f.Median("read p99, large")/f.Median("read p99, small"), backlogReadBar)
	return f, nil
}

// drainSlice drains a part of a backlog.
func (t *table) drainSlice(ctx context.Context, name string, rows, slice int, f *Finding) (told string, err error) {
	t.cfg.Rows = rows
	if err := t.fill(ctx); err != nil {
		return "", err
	}
	m, err := t.newMember(t.publisher(), relay.Run)
	if err != nil {
		return "", err
	}
	took, err := m.drain(ctx, slice)
	if err != nil {
		return "", err
	}
	rate := float64(slice) / took.Seconds()
	tail := quantile(m.store.forget(), tailQuantile)
	f.add("rate, "+name, "rows/s", fmt.Sprintf("the slice's, of a backlog of %d", rows), rate)
	f.add("read p99, "+name, "ms", "99 % of the reads take no longer", float64(tail)/millisecond)
	return fmt.Sprintf("%8.0f rows/s, reads p99 %v", rate, tail.Round(time.Microsecond)), nil
}
