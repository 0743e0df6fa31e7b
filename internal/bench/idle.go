package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// IdleConfig says how a relay is measured that has nothing to do.
type IdleConfig struct {
	// Postgres is where the tables are made, in a schema of their own that is dropped at the end. The server counts
	// statements: pg_stat_statements is in its shared_preload_libraries, and this user may create the extension.
	Postgres *pgxpool.Config
	// Program is the relay.
	Program Program
	// Duration is how long it is looked at in each of Runs; the median counts.
	Duration time.Duration
	Runs     int
	// Progress gets a line a run. Nil means none.
	Progress io.Writer
}

const (
	// The bars of an idle relay: statements in a poll interval, and percent of one processor.
	idleQueriesBar = 1
	idleCPUBar     = 1
	// calmDown is how long a relay takes, after it has found something, until it looks the least often.
	calmDown = 15 * pollInterval
)

// IdleParameters are the settings of a server that counts statements.
func IdleParameters() map[string]string {
	return map[string]string{"shared_preload_libraries": "pg_stat_statements"}
}

// Idle measures what a relay asks of the database, and takes of the processor, while there is nothing to do. Its status is
// asked for as often as the manager does.
func Idle(ctx context.Context, cfg IdleConfig) (_ Finding, err error) {
	db, err := openTable(
		ctx,
		DrainConfig{Postgres: cfg.Postgres, Keys: 1, PayloadBytes: minPayload, Batch: defaultBatch},
	)
	if err != nil {
		return Finding{}, err
	}
	defer db.close(ctx)
	f := Finding{Setup: fmt.Sprintf(
		"a relay's process, to NATS: an empty outbox, %d shards, poll interval %v, status every %v, %d times %v",
		shards, pollInterval, statusInterval, cfg.Runs, cfg.Duration)}
	if f.Machine, err = db.machine(ctx); err != nil {
		return Finding{}, err
	}
	if _, err := db.plain.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
		return Finding{}, fmt.Errorf("count statements: %w", err)
	}
	if err := db.fill(ctx); err != nil {
		return Finding{}, err
	}
	p, err := db.startProcess(ctx, cfg.Program)
	if err != nil {
		return Finding{}, err
	}
	defer func() { err = errors.Join(err, p.Stop(ctx)) }()
	if err := p.watch(ctx, func(r reading) bool { return r.held == shards }); err != nil {
		return Finding{}, err
	}
	if err := pause(ctx, calmDown); err != nil {
		return Finding{}, err
	}
	err = inTurn(cfg.Runs, cfg.Progress, turn{"idle", func() (string, error) { return db.watchIdle(ctx, p, cfg, &f) }})
	if err != nil {
		return Finding{}, err
	}
	f.most("queries in a poll interval", "queries", f.Median("queries"), idleQueriesBar)
	f.most("processor time", "% of one", f.Median("processor"), idleCPUBar)
	return f, nil
}

// watchIdle looks at what the process does for a while.
func (t *table) watchIdle(ctx context.Context, p *process, cfg IdleConfig, f *Finding) (told string, err error) {
	asked, err := t.asked(ctx)
	if err != nil {
		return "", err
	}
	from, err := p.read(ctx)
	if err != nil {
		return "", err
	}
	if err := p.followStatus(ctx, cfg.Duration); err != nil {
		return "", err
	}
	to, err := p.read(ctx)
	if err != nil {
		return "", err
	}
	now, err := t.asked(ctx)
	if err != nil {
		return "", err
	}
	took := to.at.Sub(from.at)
	intervals := float64(took) / float64(pollInterval)
	queries := float64(now-asked) / intervals
	cpu := 100 * float64(to.cpu-from.cpu) / float64(took)
	f.add("queries", "a poll interval", "statements, without BEGIN and COMMIT", queries)
	f.add("processor", "%", "of one processor", cpu)
	f.add("resident", "MiB", "the memory that the process occupied at the end", to.rss/mebibyte)
	return fmt.Sprintf("%.2f queries a poll interval, %.2f %% of a processor", queries, cpu), nil
}

// Statements that begin and end transactions travel with others; what this program asks itself is not counted.
const askedSQL = `
SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query !~* '^(begin|commit)' AND query NOT LIKE '%pg_stat_statements%'`

// asked counts what was asked of the database so far.
func (t *table) asked(ctx context.Context) (n int64, err error) {
	if err := t.plain.QueryRow(ctx, askedSQL).Scan(&n); err != nil {
		return 0, fmt.Errorf("count statements: %w", err)
	}
	return n, nil
}

// followStatus asks for the status as the manager does, for some time.
func (p *process) followStatus(ctx context.Context, duration time.Duration) error {
	for left := duration; left > 0; left -= statusInterval {
		if err := p.get(ctx, "/statusz", func(*http.Response) error { return nil }); err != nil {
			return err
		}
		if err := pause(ctx, min(left, statusInterval)); err != nil {
			return err
		}
	}
	return nil
}

// pause lets some time pass.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
