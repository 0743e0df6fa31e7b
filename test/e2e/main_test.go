//go:build kubernetes

// Package e2e tries Postrider as it is installed: on a whole cluster, with images, Pods, Services and a kubelet.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/postrider/postrider/test/cluster"
	"github.com/postrider/postrider/test/sandbox"
	"github.com/postrider/postrider/test/stage"
)

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if box, ok := sandbox.Inside(); ok {
		return inside(ctx, box, m)
	}
	code, err := outside(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		return 1
	}
	return code
}

// outside fetches and builds what the cluster needs, and then runs this test binary again in a sandbox.
func outside(ctx context.Context) (int, error) {
	if err := stage.Prepare(ctx, os.Stderr); err != nil {
		return 0, err
	}
	if err := buildServers(ctx); err != nil {
		return 0, err
	}
	return sandbox.Run(ctx)
}

// The cluster and the stage of all tests, which run one after the other.
var (
	theCluster *cluster.Cluster
	theStage   *stage.Stage
)

func inside(ctx context.Context, box *sandbox.Box, m *testing.M) int {
	var err error
	if theCluster, err = cluster.Up(ctx, box); err == nil {
		theStage, err = stage.InBox(ctx, box, theCluster, os.Stderr)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		return 1
	}
	defer theStage.Close()
	return m.Run()
}
