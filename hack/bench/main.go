// Command bench measures the relay, each measure with a bar of its own (docs/performance.md):
//
//	go run ./hack/bench                 # drain: how fast, to a null broker and to each real one
//	go run ./hack/bench drain -to kafka -runs 3 -json results
//	go run ./hack/bench latency         # from commit to confirmation, at a low rate and at half of what is drained
//	go run ./hack/bench backlog         # a slice of a large backlog against one of a small one
//	go run ./hack/bench xmin            # under long transactions that read and write
//	go run ./hack/bench scale           # one process and four with a broker that is slow to confirm
//	go run ./hack/bench memory          # what a relay's process occupies while it drains large messages
//	go run ./hack/bench idle            # what a relay's process asks and takes while there is nothing to do
//	go run ./hack/bench peers           # how fast, and in how much memory, beside other projects on the same servers
//
// PostgreSQL and the brokers are the real ones of the tests, started for it, with their durable settings on: fsync and
// synchronous commit, JetStream's file storage, Kafka's acks=all, RabbitMQ's confirms on a durable quorum queue. Its last
// line is "OK: …" or "NOT OK: …". Do nothing else on the machine meanwhile.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// endLimit bounds the end of a broker.
const endLimit = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(errors.New("interrupted"), err)
	}
	stop()
	if err != nil {
		refuse(os.Stdout, err)
		os.Exit(1)
	}
}

// refuse says why there is no result. One line is the last; what else is to be said, such as a program's log, is above it.
func refuse(out io.Writer, err error) {
	reason, more, _ := strings.Cut(err.Error(), "\n")
	if more != "" {
		fmt.Fprintln(out, more)
	}
	fmt.Fprintf(out, "NOT OK: %s\n", reason)
}

// command is one of the things that can be measured. Its arguments are flags.
type command struct {
	name string
	run  func(ctx context.Context, args []string, out io.Writer) error
}

func commands() []command {
	all := []command{{"drain", drain}, {"peers", peers}}
	for _, m := range trials() {
		all = append(all, command{m.name, m.run})
	}
	return all
}

func run(ctx context.Context, args []string, out io.Writer) error {
	name := "drain"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i < 0 {
		names := make([]string, len(all))
		for i, c := range all {
			names[i] = c.name
		}
		return fmt.Errorf("%s is none of %s", name, strings.Join(names, ", "))
	}
	return all[i].run(ctx, args, out)
}

// ended ends a server within the limit.
func ended(ctx context.Context, end func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	return end(ctx)
}
