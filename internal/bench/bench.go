// Package bench measures the product against the least that could do the same work, on the same machine, in the same
// minute.
//
// It promises honest settings: a real PostgreSQL with fsync and synchronous commit, contestants in alternation, medians,
// and the machine named beside the numbers. Only ratios of one run mean anything: machines differ by a factor of three,
// and busy ones from minute to minute.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// DrainConfig says how the drain of an outbox is measured.
type DrainConfig struct {
	// Postgres is where the tables are made, in a schema of their own that is dropped at the end.
	Postgres *pgxpool.Config
	// Rows are drained in each run, of Keys ordering keys, with payloads of PayloadBytes.
	Rows         int
	Keys         int
	PayloadBytes int
	// Batch bounds the messages that are read and settled at once.
	Batch int
	// Runs is how often each contestant drains; the median counts.
	Runs int
	// Destination is where the relay publishes to. Nil means a null broker, which confirms at once.
	Destination *Destination
	// Progress gets a line a run. Nil means none.
	Progress io.Writer
}

// Destination is a real broker.
type Destination struct {
	// Name is the broker's, for the table.
	Name string
	// Publisher is the relay's way to it.
	Publisher broker.Publisher
	// Produce sends all messages with the broker's own client, as fast as that can with the same confirmations, and
	// returns when the last one is confirmed.
	Produce func(ctx context.Context, messages []message.Message) error
	// Empty makes room between runs: what was sent is thrown away.
	Empty func(ctx context.Context) error
}

// ErrInvalidConfig says that a DrainConfig asks for nothing that can be measured.
var ErrInvalidConfig = errors.New("invalid bench config")

// Validate refuses configurations that measure nothing.
func (c DrainConfig) Validate() error {
	switch {
	case c.Postgres == nil:
		return fmt.Errorf("%w: no database is given", ErrInvalidConfig)
	case c.Rows < 1 || c.Keys < 1 || c.Batch < 1 || c.Runs < 1:
		return fmt.Errorf("%w: rows, keys, batch and runs are 1 or more", ErrInvalidConfig)
	case c.PayloadBytes < minPayload:
		return fmt.Errorf("%w: payloads have %d bytes or more", ErrInvalidConfig, minPayload)
	default:
		return nil
	}
}

// contestant is one way to drain an outbox.
type contestant struct {
	name string
	what string
	// drain moves all rows to the archive and returns how long that took, from the first read to the last settle. Where
	// noTable is set, it has messages of its own to send.
	drain   func(ctx context.Context, t *table) (time.Duration, error)
	noTable bool
}

// The contestants' names.
const (
	// Bare is the limit that the SQL sets: read by a cursor, settle by id, nothing else.
	Bare = "bare"
	// Floor is the fewest lines that keep the order: floor reads, gates looked at, settles fenced.
	Floor = "floor"
	// Producer is the limit that a real broker sets: its own client, the same confirmations, no database.
	Producer = "producer"
	// Together is what the machine can do of both at once: the bare loop with the broker's own client within it.
	Together = "together"

	togetherWhat = "the bare loop with the broker's client within it: no lease, no gates, no order"
	// Relay is the product.
	Relay = "relay"
)

func contestants(d *Destination) []contestant {
	all := []contestant{
		{name: Bare, what: "the same SQL in a bare loop: a cursor, no lease, no gates, no broker", drain: bareDrain},
		{name: Floor, what: "a minimal loop that keeps order: floor reads, gates, fence, no broker", drain: floorDrain},
	}
	if d == nil {
		return append(all, contestant{name: Relay, what: "the relay, with a null broker", drain: relayDrain})
	}
	return append(all,
		contestant{
			name: Producer, what: "the client of " + d.Name + " with the same confirmations, no database",
			drain: produce, noTable: true,
		},
		contestant{
			name: Together, what: togetherWhat,
			drain: togetherDrain,
		},
		contestant{name: Relay, what: "the relay, to " + d.Name, drain: relayDrain})
}

// Drain lets the contestants drain the same rows in turn and compares them.
func Drain(ctx context.Context, cfg DrainConfig) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	db, err := openTable(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	defer db.close(ctx)
	report := Report{Rows: cfg.Rows, Batch: cfg.Batch, PayloadBytes: cfg.PayloadBytes, Keys: cfg.Keys}
	if report.Machine, err = db.machine(ctx); err != nil {
		return Report{}, err
	}
	all := contestants(cfg.Destination)
	for _, c := range all {
		report.Results = append(report.Results, Result{Name: c.name, What: c.what})
	}
	turns := make([]turn, len(all))
	for i, c := range all {
		turns[i] = turn{c.name, func() (string, error) {
			got, err := db.measure(ctx, c)
			if err != nil {
				return "", err
			}
			rate := float64(cfg.Rows) / got.took.Seconds()
			report.Results[i].add(rate, got.used)
			return fmt.Sprintf("%8.0f rows/s", rate), nil
		}}
	}
	if err := inTurn(cfg.Runs, cfg.Progress, turns...); err != nil {
		return Report{}, err
	}
	report.complete()
	return report, nil
}
