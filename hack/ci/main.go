// Command ci runs what `make` offers to contributors and what CI runs: the same program for both, so
// that a green run here is a green run there.
//
// It promises that its last line is "OK: …" or "NOT OK: …", that a run in which nothing was tested is
// not OK, and that it leaves the clone as it found it but for generated files. It installs nothing:
// pinned tools are built into the cache.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

const usage = "usage: ci generate|lint|verify|test"

func run(ctx context.Context, args []string, out io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(out, usage)
		return exitUsage
	}
	r, err := newRunner(out)
	if err != nil {
		fmt.Fprintf(out, "NOT OK: %v\n", err)
		return exitUsage
	}
	switch args[0] {
	case "generate":
		r.step(ctx, "generate", r.generate)
	case "lint":
		r.lintSteps(ctx)
	case "verify":
		r.verifySteps(ctx)
	case "test":
		r.checkPods(ctx)
		r.sourceSteps(ctx)
		r.testSteps(ctx)
		// The tests of the control plane wait most of their time.
		r.beside(ctx, func(ctx context.Context, r *runner) { r.planeSteps(ctx) },
			func(ctx context.Context, r *runner) { r.vulnerabilitySteps(ctx) })
		r.podSteps(ctx)
		r.quickstartSteps(ctx)
	default:
		fmt.Fprintln(out, usage)
		return exitUsage
	}
	return r.finish(ctx, args[0] == "test")
}

const (
	exitFailed = 1
	exitUsage  = 2
)

// errNoTests is returned by a test step that ran nothing: a green run must mean that something was tested.
var errNoTests = errors.New("no test ran")
