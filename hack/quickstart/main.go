// Command quickstart shows Postrider's main job on real parts: it runs the samples with `postrider up`, drives a
// small shop against them while relays and consumers are dropped, and proves with `postrider verify` and the shop's
// own ledger that every event arrived and had its effect once, in order.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/shop"
	"github.com/postrider/postrider/internal/up"
	"github.com/postrider/postrider/outbox"
)

const (
	samples = "config/samples"
	// source is the shop's name in its messages.
	source = "shop"

	startPatience = 3 * time.Minute // the first start fetches PostgreSQL
	drainPatience = 90 * time.Second
	stopPatience  = 45 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		_, _ = fmt.Fprintf(os.Stdout, "NOT OK: %v\n", err)
		os.Exit(1)
	}
}

// run does everything. What it starts it ends, whatever happens.
func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "postrider-quickstart-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() {
		if err != nil {
			_, _ = fmt.Fprintf(out, "what happened is in %s\n", filepath.Join(dir, "workers.log"))
			return
		}
		err = os.RemoveAll(dir)
	}()
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("open up the folder: %w", err)
	}
	d := &demo{out: out, dir: dir, postrider: filepath.Join(dir, "postrider"), data: filepath.Join(dir, "data")}
	if err := d.command(ctx, "go", "build", "-o", d.postrider, "./cmd/postrider").Run(); err != nil {
		return fmt.Errorf("build postrider: %w", err)
	}
	return d.run(ctx)
}

type demo struct {
	out       io.Writer
	dir       string
	postrider string // the binary
	data      string
	up        *exec.Cmd
	ended     chan error
}

func (d *demo) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = d.out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopPatience
	return cmd
}

func (d *demo) run(ctx context.Context) (err error) {
	if err := d.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	totals, err := d.business(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(d.out, "\npostrider verify:")
	verify := d.command(ctx, d.postrider, "verify", "-f", samples, "--data", d.data,
		"--effects", "ledger:order_id:version:entry")
	if err := verify.Run(); err != nil {
		return fmt.Errorf("postrider verify: %w", err)
	}
	if err := d.stop(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(
		d.out,
		"OK: %d orders, %d messages committed (%d transactions rolled back), each published and "+
			"applied once in order; ledger sum %d as expected\n",
		totals.Orders,
		totals.Messages,
		totals.RolledBack,
		totals.Ledger,
	)
	return err
}

// start runs `postrider up` and waits for its servers.
func (d *demo) start(ctx context.Context) error {
	d.up = d.command(ctx, d.postrider, "up", "-f", samples, "--data", d.data,
		"--init", "orders=internal/shop/orders.sql", "--init", "billing=internal/shop/billing.sql",
		"--drop-every", "12s", "--log", filepath.Join(d.dir, "workers.log"))
	d.up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches it through us, so that it drains
	if err := d.up.Start(); err != nil {
		return fmt.Errorf("start postrider up: %w", err)
	}
	d.ended = make(chan error, 1)
	go func() { d.ended <- d.up.Wait() }()
	return d.until(ctx, startPatience, "postrider up to start", func() bool {
		_, err := up.ReadEndpoints(d.data)
		return err == nil
	})
}

// until waits for a condition, the end of `postrider up`, or its patience.
func (d *demo) until(ctx context.Context, patience time.Duration, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case err := <-d.ended:
			d.ended <- err
			return fmt.Errorf("postrider up ended early: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", patience, what, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// stop ends `postrider up` and waits until it has drained.
func (d *demo) stop() error {
	if d.up == nil {
		return nil
	}
	cmd := d.up
	d.up = nil
	_ = cmd.Process.Signal(os.Interrupt) // it may have ended
	select {
	case err := <-d.ended:
		if err != nil {
			return fmt.Errorf("postrider up: %w", err)
		}
		return nil
	case <-time.After(stopPatience):
		return errors.Join(fmt.Errorf("postrider up did not end within %s", stopPatience), cmd.Process.Kill())
	}
}

// business drives the shop and waits until everything has had its effect.
func (d *demo) business(ctx context.Context) (shop.Totals, error) {
	orders, billing, err := d.databases(ctx)
	if err != nil {
		return shop.Totals{}, err
	}
	defer orders.Close()
	defer billing.Close()
	if err := d.until(ctx, startPatience, "the outbox table", func() bool {
		_, err := orders.Exec(ctx, "SELECT FROM message_outbox, customer_order LIMIT 1")
		return err == nil
	}); err != nil {
		return shop.Totals{}, err
	}
	writer, err := outbox.New(outbox.Config{Source: source})
	if err != nil {
		return shop.Totals{}, err
	}
	s := shop.New(shop.Config{
		Orders: 10_000, Writers: 8, Duration: 28 * time.Second, RollbackPercent: 5, Seed: uint64(time.Now().UnixNano()),
	}, orders, writer)
	_, _ = fmt.Fprintln(d.out, "the shop opens: 10000 orders over half a minute, from 8 writers")
	totals, err := s.Drive(ctx)
	if err != nil {
		return totals, err
	}
	_, _ = fmt.Fprintf(d.out, "the shop has closed: %d orders, %d messages\n", totals.Orders, totals.Messages)
	var ledger shop.Ledger
	err = d.until(ctx, drainPatience, "the ledger to be complete", func() bool {
		ledger, err = shop.ReadLedger(ctx, billing)
		return err == nil && ledger.Entries >= totals.Messages
	})
	return totals, errors.Join(err, totals.Check(ledger))
}

// databases opens both databases as their owners, as the services' own sessions.
func (d *demo) databases(ctx context.Context) (orders, billing *pgxpool.Pool, err error) {
	endpoints, err := up.ReadEndpoints(d.data)
	if err != nil {
		return nil, nil, err
	}
	schemas, err := manifest.LoadSchemas()
	if err != nil {
		return nil, nil, err
	}
	set, err := manifest.Load(ctx, schemas, manifest.Options{}, samples)
	if err != nil {
		return nil, nil, err
	}
	if orders, err = openAs(ctx, set, endpoints, "orders", "orders-db-owner"); err != nil {
		return nil, nil, err
	}
	billing, err = openAs(ctx, set, endpoints, "billing", "billing-db-owner")
	return orders, billing, err
}

func openAs(ctx context.Context, set *manifest.Set, e up.Endpoints, database, secret string) (*pgxpool.Pool, error) {
	for i := range set.Secrets {
		s := &set.Secrets[i]
		if s.Name != secret {
			continue
		}
		cfg, err := pgxpool.ParseConfig("postgres://" + e.Postgres + "/" + database)
		if err != nil {
			return nil, fmt.Errorf("settings of database %s: %w", database, err)
		}
		cfg.ConnConfig.User, cfg.ConnConfig.Password = string(
			s.Data["username"].Reveal(),
		), string(
			s.Data["password"].Reveal(),
		)
		cfg.MaxConns = 8
		return pgxpool.NewWithConfig(ctx, cfg)
	}
	return nil, fmt.Errorf("%s has no Secret %s", samples, secret)
}
