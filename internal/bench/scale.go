package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
)

// ScaleConfig says how it is measured what further processes add with a broker that is slow to confirm.
type ScaleConfig struct {
	// Postgres is where the tables are made, in a schema of their own that is dropped at the end.
	Postgres *pgxpool.Config
	// Rows are drained in each run, Batch at once.
	Rows  int
	Batch int
	// Delay is how long the broker takes to confirm a batch.
	Delay time.Duration
	// Runs is how often; the median counts.
	Runs int
	// Progress gets a line a run. Nil means none.
	Progress io.Writer
}

const (
	// scaleBar is how many times as much four processes do as one with a quarter of the shards, and sharedBar how much
	// of what one process does with all shards, in percent.
	scaleBar  = 3
	sharedBar = 90
	members   = 4
)

// slowPublisher confirms after a while, as a broker that is far away does: a batch is one round trip.
type slowPublisher struct{ delay time.Duration }

// Publish implements broker.Publisher.
func (p slowPublisher) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	if pause(ctx, p.delay) != nil {
		return nil
	}
	return nullPublisher{}.Publish(ctx, batch)
}

// Scale measures what processes add while the broker is what everybody waits for.
func Scale(ctx context.Context, cfg ScaleConfig) (Finding, error) {
	db, err := openTable(ctx, DrainConfig{
		Postgres: cfg.Postgres, Rows: cfg.Rows, Keys: backlogKeys, PayloadBytes: loadPayload, Batch: cfg.Batch,
	})
	if err != nil {
		return Finding{}, err
	}
	defer db.close(ctx)
	f := Finding{Setup: fmt.Sprintf(
		"%d rows of %d bytes and %d keys, batches of %d, a null broker that confirms a batch after %v, medians of %d",
		cfg.Rows, loadPayload, backlogKeys, cfg.Batch, cfg.Delay, cfg.Runs)}
	if f.Machine, err = db.machine(ctx); err != nil {
		return Finding{}, err
	}
	contestant := func(name, what string, members, shards int) turn {
		return turn{name, func() (string, error) {
			rate, err := db.drainBy(ctx, members, shards, slowPublisher{cfg.Delay})
			if err == nil {
				f.add(name, "rows/s", what, rate)
			}
			return fmt.Sprintf("%8.0f rows/s", rate), err
		}}
	}
	err = inTurn(cfg.Runs, cfg.Progress,
		contestant("one", "one process with 2 shards", 1, shards/members),
		contestant("four", "four processes with 2 shards each", members, shards),
		contestant("alone", "one process with all 8 shards", 1, shards))
	if err != nil {
		return Finding{}, err
	}
	f.least("four processes against one with as many shards as each of them", "times", f.Median("four")/f.Median("one"),
		scaleBar)
	f.least(
		"four processes against one with all of their shards",
		"%",
		100*f.Median("four")/f.Median("alone"),
		sharedBar,
	)
	return f, nil
}

// drainBy lets some processes drain a table of some shards, and returns how fast: from the moment when they share the
// shards and may begin.
func (t *table) drainBy(
	ctx context.Context, members, shards int, publisher broker.Publisher,
) (rate float64, err error) {
	t.shards = shards
	if err := t.fill(ctx); err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	all := make([]*member, 0, members)
	var running errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, running.Wait())
	}()
	for range members {
		m, err := t.newMember(publisher, relay.Pause)
		if err != nil {
			return 0, err
		}
		all = append(all, m)
		running.Go(func() error { return m.Run(ctx) })
	}
	for _, m := range all {
		if err := awaitShards(ctx, m.Relay, shards/members); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	for _, m := range all {
		if err := m.obey(relay.Run); err != nil {
			return 0, err
		}
	}
	settled := func() (sum int) {
		for _, m := range all {
			sum += m.settled()
		}
		return sum
	}
	if err := await(ctx, settled, t.cfg.Rows); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return float64(t.cfg.Rows) / took.Seconds(), t.checkDrained(ctx)
}
