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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/shop"
	"github.com/postrider/postrider/internal/up"
)

const (
	samples = "config/samples"

	orders      = 10_000
	writers     = 8
	openFor     = 28 * time.Second
	rollbackPct = 5

	startPatience = 3 * time.Minute // the first start fetches PostgreSQL
	drainPatience = 2 * time.Minute
	stopPatience  = 45 * time.Second
	poll          = 500 * time.Millisecond
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	out := &shared{out: os.Stdout}
	err := run(ctx, out)
	if ctx.Err() != nil {
		err = errors.New("interrupted; what was started has ended, and its files are removed")
	}
	stop()
	if err != nil {
		_, _ = fmt.Fprintf(out, "NOT OK: %v\n", err)
		os.Exit(1)
	}
}

// shared is an output that programs and we write to, a piece at a time. It is no terminal, so that `postrider up` writes
// lines: a table that is redrawn in place bears no lines of others between.
type shared struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

// run does everything. What it starts it ends, whatever happens.
func run(ctx context.Context, out io.Writer) (err error) {
	if err := goToRoot(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "postrider-quickstart-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	d := &demo{out: out, dir: dir, postrider: filepath.Join(dir, "postrider"), data: filepath.Join(dir, "data")}
	defer func() {
		if err != nil && ctx.Err() == nil {
			_, _ = fmt.Fprintf(out, "what happened is in %s, its data beside it\n", d.log())
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // where we are root, PostgreSQL runs as another user
		return fmt.Errorf("open up the folder: %w", err)
	}
	_, _ = fmt.Fprintln(out, "building postrider")
	if err := d.command(ctx, "go", "build", "-o", d.postrider, "./cmd/postrider").Run(); err != nil {
		return fmt.Errorf("build postrider: %w", err)
	}
	return d.run(ctx)
}

// goToRoot makes the repository's root the working folder, from which all paths here count.
func goToRoot(ctx context.Context) error {
	file, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("find the repository: %w", err)
	}
	if err := os.Chdir(filepath.Dir(strings.TrimSpace(string(file)))); err != nil {
		return fmt.Errorf("find the repository: %w", err)
	}
	if _, err := os.Stat(samples); err != nil {
		return fmt.Errorf("run this within Postrider's repository: %w", err)
	}
	return nil
}

type demo struct {
	out       io.Writer
	dir       string
	postrider string // the binary
	data      string
	up        *exec.Cmd
	ended     chan error
}

// log is the file with the workers' logs.
func (d *demo) log() string { return filepath.Join(d.dir, "workers.log") }

func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = d.out, d.out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopPatience
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches it through us, once
	return cmd
}

func (d *demo) run(ctx context.Context) (err error) {
	if err := d.start(ctx); err != nil {
		return errors.Join(err, d.stop())
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	totals, err := d.business(ctx)
	if err != nil {
		return err
	}
	d.say("\n$ postrider verify -f %s --data DATA --effects ledger:order_id:version:entry", samples)
	verify := d.command(ctx, d.postrider, "verify", "-f", samples, "--data", d.data,
		"--effects", "ledger:order_id:version:entry")
	if err := verify.Run(); err != nil {
		return fmt.Errorf("postrider verify: %w", err)
	}
	if err := d.stop(); err != nil {
		return err
	}
	d.say("the demonstration's data is removed; postrider up --data keeps yours")
	d.say(
		"OK: %d orders, %d messages committed (%d transactions rolled back), each published and applied once, in order; "+
			"the ledger sums up to %d as expected",
		totals.Orders,
		totals.Messages,
		totals.RolledBack,
		totals.Ledger,
	)
	return nil
}

// start runs `postrider up` and waits until everything is made.
func (d *demo) start(ctx context.Context) error {
	d.say("$ postrider up -f %s", samples)
	d.up = d.command(ctx, d.postrider, "up", "-f", samples, "--data", d.data,
		"--init", "orders=internal/shop/orders.sql", "--init", "billing=internal/shop/billing.sql",
		"--drop-every", "7s", "--drop-count", "2", "--log", d.log())
	if err := d.up.Start(); err != nil {
		d.up = nil
		return fmt.Errorf("start postrider up: %w", err)
	}
	d.ended = make(chan error, 1)
	go func(cmd *exec.Cmd) { d.ended <- cmd.Wait() }(d.up)
	return d.until(ctx, startPatience, "postrider up to start", func() bool {
		_, err := up.ReadEndpoints(d.data)
		return err == nil
	})
}

// until waits for a condition, the end of `postrider up`, or its patience.
func (d *demo) until(ctx context.Context, patience time.Duration, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !done() {
		select {
		case err := <-d.ended:
			d.up = nil
			return fmt.Errorf("postrider up ended early: %w", err)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("waited %s for %s", patience, what)
			}
			return ctx.Err()
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
	endpoints, err := up.ReadEndpoints(d.data)
	if err != nil {
		return shop.Totals{}, err
	}
	sides, err := shop.Open(ctx, samples, endpoints)
	if err != nil {
		return shop.Totals{}, err
	}
	defer sides.Close()
	s := shop.New(shop.Config{
		Orders: orders, Writers: writers, Duration: openFor, RollbackPercent: rollbackPct,
		Seed: uint64(time.Now().UnixNano()),
	}, sides.Orders, sides.Writer)
	d.say("the shop opens: %d orders over half a minute, from %d writers; 1 in %d transactions is rolled back",
		orders, writers, 100/rollbackPct)
	totals, err := s.Drive(ctx)
	if err != nil {
		return totals, err
	}
	d.say("the shop has closed: %d orders, %d messages; the last ones wait until the leases of dropped workers end",
		totals.Orders, totals.Messages)
	var ledger shop.Ledger
	err = d.until(ctx, drainPatience, "the ledger to be complete", func() bool {
		ledger, err = shop.ReadLedger(ctx, sides.Billing)
		return err == nil && ledger.Entries >= totals.Messages
	})
	if err != nil {
		return totals, err
	}
	return totals, totals.Check(ledger)
}
