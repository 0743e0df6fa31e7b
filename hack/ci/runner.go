package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// runner runs steps one after the other and remembers what failed.
type runner struct {
	root  string // of the repository
	cache string // where built tools and fetched servers are kept between runs
	out   io.Writer

	failed  []string // one short line a failed step
	notRun  []string // how many tests need what is not there
	results testCounts
}

func newRunner(out io.Writer) (*runner, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		return nil, fmt.Errorf("run this at the root of the repository: %w", err)
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("find the cache: %w", err)
		}
		cache = filepath.Join(home, ".cache")
	}
	return &runner{root: root, cache: filepath.Join(cache, "postrider"), out: out}, nil
}

// step runs one step, says how it went and how long it took. A later step runs even if this one failed:
// a person wants to see everything that is wrong at once.
func (r *runner) step(ctx context.Context, name string, do func(context.Context) error) {
	if ctx.Err() != nil {
		return
	}
	started := time.Now()
	fmt.Fprintf(r.out, "=== %s\n", name)
	err := do(ctx)
	took := time.Since(started).Round(100 * time.Millisecond)
	if err != nil {
		fmt.Fprintf(r.out, "--- %s: not ok (%s): %v\n", name, took, err)
		r.failed = append(r.failed, fmt.Sprintf("%s: %v", name, err))
		return
	}
	fmt.Fprintf(r.out, "--- %s: ok (%s)\n", name, took)
}

// beside runs groups of steps side by side, each one's lines kept together: for those that mostly wait, or that use one
// core only.
func (r *runner) beside(ctx context.Context, groups ...func(context.Context, *runner)) {
	parts := make([]*runner, len(groups))
	out := &together{out: r.out}
	var running sync.WaitGroup
	for i, group := range groups {
		var lines bytes.Buffer
		part := &runner{root: r.root, cache: r.cache, out: &lines}
		parts[i] = part
		running.Go(func() {
			group(ctx, part)
			_, _ = out.Write(lines.Bytes()) // as every other line
		})
	}
	running.Wait()
	for _, part := range parts {
		r.failed = append(r.failed, part.failed...)
		r.notRun = append(r.notRun, part.notRun...)
		r.results.passed += part.results.passed
	}
}

// finish prints the last lines and returns the exit code.
func (r *runner) finish(ctx context.Context, tested bool) int {
	for _, what := range r.notRun {
		fmt.Fprintf(r.out, "NOT RUN: %s\n", what)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(r.out, "NOT OK: interrupted")
		return exitFailed
	case len(r.failed) > 0:
		fmt.Fprintf(r.out, "NOT OK: %s\n", strings.Join(r.failed, "; "))
		return exitFailed
	case tested:
		fmt.Fprintf(r.out, "OK: %d passed\n", r.results.passed)
	default:
		fmt.Fprintln(r.out, "OK")
	}
	return 0
}

// command prepares a child that shares our output and gets a chance to clean up when we are interrupted.
func (r *runner) command(ctx context.Context, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOLANGCI_LINT_CACHE="+filepath.Join(r.cache, "golangci-lint"))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = r.out, r.out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

func (r *runner) sh(ctx context.Context, name string, args ...string) error {
	if err := r.command(ctx, nil, name, args...).Run(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}

// goOutput runs a go command and returns what it printed.
func (r *runner) goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := r.command(ctx, nil, "go", args...)
	cmd.Stdout = nil
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (r *runner) exists(path string) bool {
	_, err := os.Stat(filepath.Join(r.root, path))
	return err == nil
}
