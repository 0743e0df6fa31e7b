// Package shop is a small shop whose orders are placed, paid, shipped or refunded: real business
// transactions that write a change and a message together, and a ledger on the other side.
//
// Its tables are in orders.sql and billing.sql beside this file. The quickstarts drive it, and its totals are known
// before anything is published, so that the ledger can be checked from outside. It is a demonstration: no other package
// depends on it.
package shop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/outbox"
)

// Config says how much business the shop does.
type Config struct {
	// Orders is how many orders are placed; each makes three messages.
	Orders int
	// First numbers the first order: a shop that opens again goes on where it stopped.
	First int
	// Writers is how many sessions write at once.
	Writers int
	// Duration is how long all orders take together; 0 means as fast as the database allows.
	Duration time.Duration
	// RollbackPercent is the share of transactions that are rolled back after their message was written.
	RollbackPercent int
	// Seed makes the choice of amounts, refunds and rollbacks repeatable.
	Seed uint64
}

// Totals is what the shop has committed.
type Totals struct {
	Orders     int
	Messages   int
	RolledBack int
	Shipped    int
	Refunded   int
	// Ledger is what the ledger must sum up to: paid less refunded.
	Ledger int64
}

// Plus adds up two openings of the shop.
func (t Totals) Plus(o Totals) Totals {
	return Totals{
		Orders: t.Orders + o.Orders, Messages: t.Messages + o.Messages, RolledBack: t.RolledBack + o.RolledBack,
		Shipped: t.Shipped + o.Shipped, Refunded: t.Refunded + o.Refunded, Ledger: t.Ledger + o.Ledger,
	}
}

// Shop writes business changes and their messages in one transaction each.
type Shop struct {
	cfg    Config
	pool   *pgxpool.Pool
	writer *outbox.Writer

	mu     sync.Mutex
	totals Totals
}

// New returns a shop over the orders database.
func New(cfg Config, pool *pgxpool.Pool, writer *outbox.Writer) *Shop {
	return &Shop{cfg: cfg, pool: pool, writer: writer}
}

// Totals returns what has been committed so far.
func (s *Shop) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals
}

// Drive does all the business and returns its totals. It ends early with the context's error.
func (s *Shop) Drive(ctx context.Context) (Totals, error) {
	group, ctx := errgroup.WithContext(ctx)
	for w := range s.cfg.Writers {
		group.Go(func() error { return s.clerk(ctx, w) })
	}
	if err := group.Wait(); err != nil {
		return s.Totals(), fmt.Errorf("drive the shop: %w", err)
	}
	return s.Totals(), nil
}

// The steps of an order.
const (
	placed = iota
	paid
	closed // shipped or refunded
	steps
)

type order struct {
	id       string
	customer string
	amount   int64
	refund   bool
	step     int
}

// openOrders is how many orders one clerk works on at a time, so that the steps of different orders mix.
const openOrders = 40

// clerk takes every Writers-th order through its steps, several orders at a time.
func (s *Shop) clerk(ctx context.Context, number int) error {
	random := rand.New(rand.NewPCG(s.cfg.Seed, uint64(number))) //nolint:gosec // a shop needs no secret numbers
	pace, stop := s.pace()
	defer stop()
	next := number
	var open []*order
	for {
		for len(open) < openOrders && next < s.cfg.Orders {
			open = append(open, &order{
				id:       fmt.Sprintf("order-%06d", s.cfg.First+next),
				customer: fmt.Sprintf("customer-%03d", random.IntN(500)),
				amount:   int64(random.IntN(20_000) + 100),
				refund:   random.IntN(10) == 0,
			})
			next += s.cfg.Writers
		}
		if len(open) == 0 {
			return nil
		}
		if err := pace(ctx); err != nil {
			return err
		}
		i := random.IntN(len(open))
		if err := s.advance(ctx, open[i], random.IntN(100) < s.cfg.RollbackPercent); err != nil {
			return err
		}
		if open[i].step == steps {
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
}

// pace returns a wait that spreads a clerk's transactions over the shop's duration.
func (s *Shop) pace() (wait func(context.Context) error, stop func()) {
	perClerk := s.cfg.Orders * steps / max(1, s.cfg.Writers)
	if s.cfg.Duration <= 0 || perClerk == 0 {
		return func(ctx context.Context) error { return ctx.Err() }, func() {}
	}
	ticker := time.NewTicker(max(time.Microsecond, s.cfg.Duration/time.Duration(perClerk)))
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			return nil
		}
	}, ticker.Stop
}

// errChangedMind rolls a transaction back after everything in it was written.
var errChangedMind = errors.New("the customer changed their mind")

// advance takes an order one step on: business change and message in one transaction.
func (s *Shop) advance(ctx context.Context, o *order, rollback bool) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		state := o.state()
		if err := o.save(ctx, tx, state); err != nil {
			return err
		}
		data, err := json.Marshal(map[string]any{"state": state, "customer": o.customer, "amount": o.amount})
		if err != nil {
			return fmt.Errorf("encode order: %w", err)
		}
		if _, err := s.writer.Write(ctx, tx, outbox.Message{
			Type: "order." + state, SchemaVersion: 1, OrderingKey: o.id, Payload: data,
		}); err != nil {
			return err
		}
		if rollback {
			return errChangedMind
		}
		return nil
	})
	if errors.Is(err, errChangedMind) {
		s.mu.Lock()
		s.totals.RolledBack++
		s.mu.Unlock()
		return nil
	}
	if err != nil {
		return fmt.Errorf("advance %s: %w", o.id, err)
	}
	s.count(o)
	o.step++
	return nil
}

// count adds a committed step to the totals.
func (s *Shop) count(o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.Messages++
	switch {
	case o.step == placed:
		s.totals.Orders++
	case o.step == paid:
		s.totals.Ledger += o.amount
	case o.refund:
		s.totals.Refunded++
		s.totals.Ledger -= o.amount
	default:
		s.totals.Shipped++
	}
}

// state names the state that the order's next step leads to.
func (o *order) state() string {
	switch {
	case o.step == placed:
		return "placed"
	case o.step == paid:
		return "paid"
	case o.refund:
		return "refunded"
	default:
		return "shipped"
	}
}

// save writes the order's new state.
func (o *order) save(ctx context.Context, tx pgx.Tx, state string) error {
	const placeSQL = `INSERT INTO customer_order (order_id, customer, amount, state) VALUES ($1, $2, $3, $4)`
	const moveSQL = `UPDATE customer_order SET state = $2, updated_at = clock_timestamp() WHERE order_id = $1`
	var err error
	if o.step == placed {
		_, err = tx.Exec(ctx, placeSQL, o.id, o.customer, o.amount, state)
	} else {
		_, err = tx.Exec(ctx, moveSQL, o.id, state)
	}
	if err != nil {
		return fmt.Errorf("save order: %w", err)
	}
	return nil
}

// Ledger is what the billing side has booked.
type Ledger struct {
	Entries  int
	Sum      int64
	Invoices int
}

// ReadLedger reads the billing database.
func ReadLedger(ctx context.Context, pool *pgxpool.Pool) (Ledger, error) {
	const ledgerSQL = `
SELECT (SELECT count(*) FROM ledger), (SELECT coalesce(sum(amount), 0) FROM ledger), (SELECT count(*) FROM invoice)`
	var l Ledger
	if err := pool.QueryRow(ctx, ledgerSQL).Scan(&l.Entries, &l.Sum, &l.Invoices); err != nil {
		return Ledger{}, fmt.Errorf("read ledger: %w", err)
	}
	return l, nil
}

// Check compares the ledger with what the shop has committed.
func (t Totals) Check(l Ledger) error {
	if l.Entries != t.Messages || l.Sum != t.Ledger || l.Invoices != t.Orders {
		return fmt.Errorf("the ledger does not match the shop: %d entries for %d messages, sum %d instead of %d, "+
			"%d invoices for %d orders", l.Entries, t.Messages, l.Sum, t.Ledger, l.Invoices, t.Orders)
	}
	return nil
}
