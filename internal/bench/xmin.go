package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/relay"
)

// XminConfig says how it is measured what a long transaction does to a relay.
type XminConfig struct {
	// Postgres is where the tables are made, in a schema of their own that is dropped at the end.
	Postgres *pgxpool.Config
	// Rate is that of the messages a second that are written for Duration while the transaction is open. After that Rows
	// are drained, three times, while it still is.
	Rate     int
	Duration time.Duration
	Rows     int
	// Runs is how often; the median counts.
	Runs int
	// Progress gets a line a run. Nil means none.
	Progress io.Writer
}

// The bars with a long transaction against without: the drain's rate in percent while it reads or writes, and how many
// times as long reads take while it reads.
const (
	readingRateBar = 80
	readingReadBar = 2
	writingRateBar = 40
)

// drains is how often the rows are drained in a run, of which the median counts: one drain of a second or two shows little
// on a busy machine.
const drains = 3

// long is a transaction that stays open: none, or one that began with these statements.
type long struct {
	name, what string
	begin      []string
}

func longTransactions() []long {
	return []long{
		{name: "none", what: "without"},
		{"reading", "while a transaction reads", []string{"SELECT count(*) FROM {outbox}"}},
		{"writing", "while a transaction writes", []string{"SELECT pg_current_xact_id()"}},
	}
}

// Xmin measures a relay under load without a long transaction, with one that only reads and with one that writes. Either
// keeps the server from removing what was settled; behind the latter there may also still be rows to come.
func Xmin(ctx context.Context, cfg XminConfig) (Finding, error) {
	db, err := openTable(ctx, DrainConfig{
		Postgres: cfg.Postgres, Keys: loadKeys, PayloadBytes: loadPayload, Batch: defaultBatch,
	})
	if err != nil {
		return Finding{}, err
	}
	defer db.close(ctx)
	f := Finding{Setup: fmt.Sprintf(
		"%v at %d/s, then %d drains of %d rows: rows of %d bytes and %d keys, %d shards, poll interval %v, a null broker, "+
			"medians of %d",
		cfg.Duration,
		cfg.Rate,
		drains,
		cfg.Rows,
		loadPayload,
		loadKeys,
		shards,
		pollInterval,
		cfg.Runs,
	)}
	if f.Machine, err = db.machine(ctx); err != nil {
		return Finding{}, err
	}
	var turns []turn
	disordered := 0
	for _, l := range longTransactions() {
		turns = append(turns, turn{l.name, func() (string, error) {
			n, told, err := db.under(ctx, l, cfg, &f)
			disordered += n
			return told, err
		}})
	}
	if err := inTurn(cfg.Runs, cfg.Progress, turns...); err != nil {
		return Finding{}, err
	}
	against := func(quantity, name string) float64 { return f.Median(quantity+", "+name) / f.Median(quantity+", none") }
	f.least("the drain's rate while a transaction reads", "% of that without", 100*against("rate", "reading"),
		readingRateBar)
	f.most("99 % of the reads while a transaction reads", "times those without", against("read p99", "reading"),
		readingReadBar)
	f.least("the drain's rate while a transaction writes", "% of that without", 100*against("rate", "writing"),
		writingRateBar)
	f.most("messages behind a later one of their key", "messages", float64(disordered), 0)
	for _, l := range longTransactions() {
		f.least("written "+l.what, "% of the rate", 100*f.Median("written, "+l.name)/float64(cfg.Rate), writtenBar)
	}
	return f, nil
}

// under measures while a transaction stays open.
func (t *table) under(
	ctx context.Context,
	open long,
	cfg XminConfig,
	f *Finding,
) (disordered int, told string, err error) {
	l, err := t.startLoaded(ctx)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, l.end()) }()
	if _, _, err := l.write(ctx, paceOf(cfg.Rate), min(warmUp, cfg.Duration)); err != nil {
		return 0, "", err
	}
	release, err := t.hold(ctx, open)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, release()) }()
	// Reads count from the last third of the time.
	early, earlyTook, err := l.write(ctx, paceOf(cfg.Rate), cfg.Duration-cfg.Duration/3)
	if err != nil {
		return 0, "", err
	}
	l.store.forget()
	late, lateTook, err := l.write(ctx, paceOf(cfg.Rate), cfg.Duration/3)
	if err != nil {
		return 0, "", err
	}
	if err := await(ctx, l.settled, l.seen.all()); err != nil {
		return 0, "", err
	}
	tail := quantile(l.store.forget(), tailQuantile)
	var rates []float64
	for drain := range drains {
		rate, err := l.burst(ctx, drain*cfg.Rows, cfg.Rows)
		if err != nil {
			return 0, "", err
		}
		rates = append(rates, rate)
	}
	f.add("rate, "+open.name, "rows/s", "the drain's, "+open.what, quantile(rates, 0.5))
	f.add("read p99, "+open.name, "ms", "99 % of the reads take no longer, "+open.what, float64(tail)/millisecond)
	f.add("written, "+open.name, "rows/s", "what was written before, "+open.what,
		float64(early+late)/(earlyTook+lateTook).Seconds())
	_, disordered = l.seen.counts()
	return disordered, fmt.Sprintf("%8.0f rows/s, reads p99 %v", rates, tail.Round(time.Microsecond)), nil
}

// hold begins a long transaction; the returned function ends it.
func (t *table) hold(ctx context.Context, l long) (release func() error, err error) {
	if len(l.begin) == 0 {
		return func() error { return nil }, nil
	}
	tx, err := t.plain.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}) // which keeps its snapshot
	if err != nil {
		return nil, fmt.Errorf("begin a long transaction: %w", err)
	}
	release = func() error { return tx.Rollback(context.WithoutCancel(ctx)) }
	for _, statement := range l.begin {
		if _, err := tx.Exec(ctx, t.names.SQL(statement)); err != nil {
			return nil, errors.Join(fmt.Errorf("begin a long transaction: %w", err), release())
		}
	}
	return release, nil
}

// burst writes rows, those after the first ones, while the relay, which has settled everything, pauses, and returns how
// fast it drains them then.
func (l *loaded) burst(ctx context.Context, first, rows int) (rate float64, err error) {
	if err := l.obey(relay.Pause); err != nil {
		return 0, err
	}
	before := l.settled()
	if err := l.t.insert(ctx, first, rows); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := l.obey(relay.Run); err != nil {
		return 0, err
	}
	if err := await(ctx, l.settled, before+rows); err != nil {
		return 0, err
	}
	return float64(rows) / time.Since(began).Seconds(), nil
}
