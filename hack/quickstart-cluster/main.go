// Command quickstart-cluster shows Postrider where it belongs: installed in a cluster, with the samples applied and a
// small shop driven against them, seen with kubectl and proved with `postrider verify`.
//
// With KUBECONFIG it uses that cluster, and takes everything away again at the end. Without, and as root on Linux, it
// runs a whole cluster of its own in namespaces of its own, of which nothing is left.
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

	"github.com/postrider/postrider/internal/shop"
	"github.com/postrider/postrider/test/cluster" //nolint:depguard // the tests' cluster is the demonstration's
	"github.com/postrider/postrider/test/sandbox" //nolint:depguard // as above
	"github.com/postrider/postrider/test/stage"   //nolint:depguard // as above
)

const (
	orders      = 3_000
	writers     = 8
	openFor     = 20 * time.Second
	rollbackPct = 5

	exitFailed = 1
	exitNotRun = 3

	cleanUpLimit = 3 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Stdout)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; what was started has ended")
	}
	stop()
	switch {
	case errors.Is(err, cluster.ErrNeedsRoot), errors.Is(err, sandbox.ErrForbidden):
		fmt.Fprintf(os.Stdout, "NOT RUN: %v\n", err)
		code = exitNotRun
	case err != nil:
		fmt.Fprintf(os.Stdout, "NOT OK: %v\n", err)
		code = exitFailed
	}
	os.Exit(code)
}

func run(ctx context.Context, out io.Writer) (int, error) {
	if box, ok := sandbox.Inside(); ok {
		return 0, inBox(ctx, box, out)
	}
	if os.Getenv("KUBECONFIG") != "" {
		return 0, inCluster(ctx, out)
	}
	if err := stage.Prepare(ctx, out); err != nil {
		return 0, err
	}
	return sandbox.Run(ctx)
}

// inBox runs the demonstration in a cluster of its own.
func inBox(ctx context.Context, box *sandbox.Box, out io.Writer) error {
	fmt.Fprintln(out, "starting a cluster")
	c, err := cluster.Up(ctx, box)
	if err != nil {
		return err
	}
	s, err := stage.InBox(ctx, box, c, out)
	if err != nil {
		return err
	}
	defer s.Close()
	return play(ctx, s, out)
}

// inCluster runs the demonstration in the cluster that KUBECONFIG names, and takes it away again.
func inCluster(ctx context.Context, out io.Writer) (err error) {
	if _, err := exec.LookPath("kubectl"); err != nil {
		return errors.New("kubectl is not installed: https://kubernetes.io/docs/tasks/tools")
	}
	root, err := cluster.Root(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "postrider-quickstart-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	postrider := filepath.Join(dir, "postrider")
	build := exec.CommandContext(ctx, "go", "build", "-o", postrider, "./cmd/postrider")
	build.Dir, build.Stdout, build.Stderr = root, out, out
	if err := build.Run(); err != nil {
		return fmt.Errorf("build postrider: %w", err)
	}
	cfg := stage.Config{
		Root: root, Dir: dir, Postrider: postrider, Out: out, Image: os.Getenv("IMAGE"),
		Kubectl: func(ctx context.Context, args ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "kubectl", args...)
		},
	}
	if err := stage.Vacant(ctx, cfg); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpLimit)
		defer cancel()
		err = errors.Join(err, stage.TakeAway(ctx, cfg))
	}()
	s, err := stage.SetUp(ctx, cfg, stage.Remote)
	if err != nil {
		return err
	}
	defer s.Close()
	return play(ctx, s, out)
}

func play(ctx context.Context, s *stage.Stage, out io.Writer) error {
	if err := s.Show(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "the shop opens: %d orders over %s, from %d writers; 1 in %d transactions is rolled back\n",
		orders, openFor, writers, 100/rollbackPct)
	totals, err := s.Play(ctx, shop.Config{
		Orders: orders, Writers: writers, Duration: openFor, RollbackPercent: rollbackPct,
		Seed: uint64(time.Now().UnixNano()),
	})
	if err != nil {
		return err
	}
	if err := s.Show(ctx); err != nil {
		return err
	}
	if err := s.Verify(ctx); err != nil {
		return err
	}
	fmt.Fprintf(
		out,
		"OK: %d orders, %d messages committed (%d transactions rolled back), each published and applied once, "+
			"in order; the ledger sums up to %d as expected\n",
		totals.Orders,
		totals.Messages,
		totals.RolledBack,
		totals.Ledger,
	)
	return nil
}
