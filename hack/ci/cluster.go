package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// planeTests need a control plane, podTests a node that runs Pods as well, which needs root.
	planeTests = "test/envtest"
	podTests   = "test/e2e"
	// clusterTag is the build tag of both: they are no part of `go test ./...`.
	clusterTag = "kubernetes"
	// podTimeout is for one package whose tests follow each other on one cluster.
	podTimeout = "20m"
)

// checkPods says before everything else that Pods cannot run here: it would come out late.
func (r *runner) checkPods(ctx context.Context) {
	if os.Geteuid() != 0 {
		return // they are counted, see podSteps
	}
	r.step(ctx, "Pods can run here", func(ctx context.Context) error {
		return r.built(ctx, "cluster", "./hack/cluster", "check")
	})
}

// planeSteps run what needs a control plane. It is built before, once a version, by a step of its own: the first time
// that takes longer than all the rest.
func (r *runner) planeSteps(ctx context.Context) {
	r.step(ctx, "Kubernetes", func(ctx context.Context) error { return r.built(ctx, "cluster", "./hack/cluster") })
	r.step(ctx, "tests on a control plane", func(ctx context.Context) error {
		return r.goTest(
			ctx,
			[]string{"CGO_ENABLED=0"},
			[]string{"-trimpath", "-tags=" + clusterTag},
			r.tagged(planeTests),
		)
	})
}

// podSteps run what needs a node that runs Pods.
func (r *runner) podSteps(ctx context.Context) {
	if os.Geteuid() != 0 {
		r.leaveOut(needs(), r.tagged(podTests))
		r.notRun = append(r.notRun, "the quick start in a cluster needs root")
		return
	}
	r.step(ctx, "tests with Pods", func(ctx context.Context) error {
		flags := []string{"-trimpath", "-tags=" + clusterTag, "-timeout=" + podTimeout}
		return r.goTest(ctx, []string{"CGO_ENABLED=0"}, flags, r.tagged(podTests))
	})
	r.step(ctx, "quickstart in a cluster", func(ctx context.Context) error {
		return r.built(ctx, "quickstart-cluster", "./hack/quickstart-cluster")
	})
}

// tagged names a package that is not listed without its tag.
func (r *runner) tagged(dir string) []testPackage {
	return []testPackage{{path: "github.com/postrider/postrider/" + dir, dir: filepath.Join(r.root, dir)}}
}

// built runs a command of ours with the flags that Kubernetes is built with. Not `go run`, which does not pass signals
// on.
func (r *runner) built(ctx context.Context, name, pkg string, args ...string) error {
	bin := filepath.Join(r.root, "bin", name)
	build := r.command(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", bin, pkg)
	if err := build.Run(); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return r.sh(ctx, bin, args...)
}
