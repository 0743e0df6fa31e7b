// Command cluster readies what the tests with Kubernetes run on.
//
//	go run ./hack/cluster          builds Kubernetes into the cache and prints its folder
//	go run ./hack/cluster check    says at once whether Pods can run on this machine
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/postrider/postrider/test/cluster" //nolint:depguard // it serves the tests
	"github.com/postrider/postrider/test/sandbox" //nolint:depguard // as above
)

func main() {
	if _, ok := sandbox.Inside(); ok {
		return // to get here is all that is asked
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "NOT OK: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	switch {
	case len(args) == 0:
		dir, err := cluster.Build(ctx, progress)
		if err == nil {
			fmt.Fprintln(out, dir)
		}
		return err
	case slices.Equal(args, []string{"check"}):
		return check(ctx, progress)
	default:
		return errors.New("usage: cluster [check]")
	}
}

// check does what running Pods begins with, short of building anything.
func check(ctx context.Context, progress io.Writer) error {
	if err := cluster.Check(ctx, progress); err != nil {
		return err
	}
	code, err := sandbox.Run(ctx)
	if err == nil && code != 0 {
		err = sandbox.ErrForbidden // the lines above say why
	}
	return err
}
