package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgxpool"
)

// MemoryConfig says how the memory of a relay that drains a backlog is measured.
type MemoryConfig struct {
	// Postgres is where the tables are made, in a schema of their own that is dropped at the end.
	Postgres *pgxpool.Config
	// Program is the relay.
	Program Program
	// Rows are the backlog, of 1,000 keys, with payloads of PayloadBytes.
	Rows         int
	PayloadBytes int
	// Runs is how often it is drained, each time by a new process; the median counts.
	Runs int
	// Progress gets a line a run. Nil means none.
	Progress io.Writer
}

const (
	mebibyte = 1 << 20
	// memoryBar is what a relay may occupy, in MiB.
	memoryBar = 128
	// The batch that a resource has by default, and the keys of a backlog.
	defaultBatch = 500
	backlogKeys  = 1000
)

// Memory measures what the process of a relay occupies at most while it drains a backlog of large messages.
func Memory(ctx context.Context, cfg MemoryConfig) (Finding, error) {
	db, err := openTable(ctx, DrainConfig{
		Postgres: cfg.Postgres, Rows: cfg.Rows, Keys: backlogKeys, PayloadBytes: cfg.PayloadBytes, Batch: defaultBatch,
		Runs: cfg.Runs,
	})
	if err != nil {
		return Finding{}, err
	}
	defer db.close(ctx)
	f := Finding{Setup: fmt.Sprintf(
		"a relay's process, to NATS: a backlog of %d rows of %d bytes and %d keys, %d shards, batches of %d messages and "+
			"4 MiB, %d runs",
		cfg.Rows,
		cfg.PayloadBytes,
		backlogKeys,
		shards,
		defaultBatch,
		cfg.Runs,
	)}
	if f.Machine, err = db.machine(ctx); err != nil {
		return Finding{}, err
	}
	err = inTurn(
		cfg.Runs,
		cfg.Progress,
		turn{"memory", func() (string, error) { return db.drainProcess(ctx, cfg, &f) }},
	)
	if err != nil {
		return Finding{}, err
	}
	f.most("resident memory while it drains", "MiB", f.Median("resident"), memoryBar)
	return f, nil
}

// drainProcess lets a new process drain the backlog.
func (t *table) drainProcess(ctx context.Context, cfg MemoryConfig, f *Finding) (told string, err error) {
	if err := t.fill(ctx); err != nil {
		return "", err
	}
	p, err := t.startProcess(ctx, cfg.Program)
	if err != nil {
		return "", err
	}
	var first, last reading
	var peak float64
	err = p.watch(ctx, func(r reading) bool {
		if first.at.IsZero() {
			first = r
		}
		last, peak = r, max(peak, r.rss)
		return r.confirmed >= cfg.Rows
	})
	if err = errors.Join(err, p.Stop(ctx)); err != nil { // which settles what was confirmed
		return "", err
	}
	if err := t.checkDrained(ctx); err != nil {
		return "", err
	}
	f.add("resident", "MiB", "the most that the process occupied", peak/mebibyte)
	f.add("at its start", "MiB", "what it occupied at the first look", first.rss/mebibyte)
	took := last.at.Sub(first.at).Seconds()
	if took > 0 {
		f.add("drained", "rows/s", "how fast it drained meanwhile", float64(last.confirmed-first.confirmed)/took)
	}
	return fmt.Sprintf("%.0f MiB", peak/mebibyte), nil
}
