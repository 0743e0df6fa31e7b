package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/local"
)

// watermillModule is the module of Watermill's SQL forwarder, seen from the root of the repository.
const watermillModule = "hack/bench/watermill"

// watermill is Watermill's SQL forwarder as a racer: a new process for each run, on a database that is made anew.
type watermill struct {
	program  string
	postgres *local.Postgres
	broker   string
}

// buildWatermill builds the forwarder from its module, and returns its path.
func buildWatermill(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "watermill")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, ".")
	cmd.Dir = watermillModule
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build Watermill's forwarder, at the root of the repository: %w\n%s", err, out)
	}
	return path, nil
}

const watermillDatabase = "watermill"

// Fill implements bench.Racer: Watermill's own publisher writes the rows.
func (w watermill) Fill(ctx context.Context, rows bench.Rows) error {
	if err := renew(ctx, w.postgres, watermillDatabase); err != nil {
		return err
	}
	url := w.postgres.URL(watermillDatabase) + "&synchronous_commit=off"
	cmd := exec.CommandContext(ctx, w.program, "fill", "-to", topic, "-postgres", url)
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	written := make(chan error, 1)
	go func() {
		lines := bufio.NewWriter(in)
		for key, payload := range rows.All() {
			fmt.Fprintf(lines, "%s\t%s\n", key, payload)
		}
		written <- errors.Join(lines.Flush(), in.Close())
	}()
	out, err := cmd.CombinedOutput()
	if err = errors.Join(err, <-written); err != nil {
		return fmt.Errorf("write rows: %w\n%s", err, out)
	}
	return settle(ctx, w.postgres, watermillDatabase)
}

// Start implements bench.Racer.
func (w watermill) Start(ctx context.Context) (bench.Drainer, error) {
	dir, err := os.MkdirTemp("", "postrider-bench-watermill-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	address, err := bench.FreeAddress(ctx)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return bench.Command{
		Path: w.program, Dir: dir, Address: address,
		Args: []string{
			"forward", "-postgres", w.postgres.URL(watermillDatabase), "-kafka", w.broker, "-listen", address,
		},
	}.Start(ctx)
}
