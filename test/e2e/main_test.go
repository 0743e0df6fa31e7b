//go:build kubernetes

// Package e2e tries Postrider as it is installed: on a whole cluster, with images, Pods, Services and a kubelet.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/test/cluster"
	"github.com/postrider/postrider/test/sandbox"
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

// imagesVariable names the images' files, from the program outside to the one inside.
const imagesVariable = "POSTRIDER_E2E_IMAGES"

// outside fetches and builds what the cluster needs, and then runs this test binary again in a sandbox.
func outside(ctx context.Context) (int, error) {
	images, err := cluster.Prepare(ctx, os.Stderr)
	if err != nil {
		return 0, err
	}
	if err := os.Setenv(imagesVariable, strings.Join(images, string(os.PathListSeparator))); err != nil {
		return 0, err
	}
	return sandbox.Run(ctx)
}

// theCluster is that of all tests.
var theCluster *cluster.Cluster

func inside(ctx context.Context, box *sandbox.Box, m *testing.M) int {
	c, err := cluster.Up(ctx, box, filepath.SplitList(os.Getenv(imagesVariable))...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		return 1
	}
	theCluster = c
	return m.Run()
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := theCluster.Kubectl(t.Context(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestAsRootTheManagerRunsAsInstalled(t *testing.T) {
	kubectl(t, "apply", "-f", "../../dist/install.yaml")
	kubectl(t, "-n", "postrider-system", "rollout", "status", "deployment/postrider-manager", "--timeout=2m")
}
