// Command cluster builds the Kubernetes control plane of the tests into the cache and prints its folder.
//
//	go run ./hack/cluster
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/postrider/postrider/test/cluster" //nolint:depguard // it serves the tests
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "NOT OK: %v\n", err)
		os.Exit(1) //nolint:gocritic // nothing is left to undo
	}
	fmt.Fprintln(os.Stdout, dir)
}
