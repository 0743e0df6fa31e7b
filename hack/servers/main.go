// Command servers runs a command with real servers beside it, and leaves none behind.
//
//	go run ./hack/servers run -- go test ./...
//	go run ./hack/servers run --postgres=15 -- go test ./internal/postgres/...
//
// It starts PostgreSQL and NATS on free ports, tells the command their addresses by POSTRIDER_TEST_POSTGRES and
// POSTRIDER_TEST_NATS, forwards signals to it and exits with its exit code. However it ends, also by kill -9, the
// servers end with it and their data is removed. Kafka and RabbitMQ are heavier and few packages need them: it fetches
// them, or says why it cannot, and the tests that need them start them (package testkit).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/brokers" //nolint:depguard // it serves the tests
	"github.com/postrider/postrider/test/testkit" //nolint:depguard // it serves the tests
)

const (
	exitUsage   = 2                // nothing was done
	signalBase  = 128              // a command that died of a signal: 128 and its number, as in a shell
	startLimit  = 10 * time.Minute // the first start ever downloads all servers
	stopLimit   = 30 * time.Second
	parentCheck = 250 * time.Millisecond
)

const usage = `usage: servers run [--postgres=15|16|17|18] -- COMMAND [ARGUMENT...]

Runs the command with a real PostgreSQL and a real NATS beside it, and a real Kafka and
RabbitMQ at hand.`

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

// run is main with a result.
func run(args []string, log io.Writer) int {
	version, command, ok := parse(args)
	if !ok {
		_, _ = fmt.Fprintln(log, usage)
		return exitUsage
	}
	parent := os.Getppid()
	// Signals are caught before anything runs that would be left behind by them.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)

	s, err := startUnlessSignalled(signals, version)
	if err != nil {
		_, _ = fmt.Fprintf(log, "servers: %v\n", err)
		return exitUsage
	}
	code, err := supervise(command, s, parent, signals, log)
	if err != nil {
		_, _ = fmt.Fprintf(log, "servers: %v\n", err)
	}
	if err := s.stop(); err != nil {
		_, _ = fmt.Fprintf(log, "servers: %v\n", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

// parse returns the version of PostgreSQL that is asked for, and the command.
func parse(args []string) (version string, command []string, ok bool) {
	if len(args) < 3 || args[0] != "run" {
		return "", nil, false
	}
	args = args[1:]
	if major, asked := strings.CutPrefix(args[0], "--postgres="); asked {
		version, ok = map[string]string{
			"15": local.Postgres15, "16": local.Postgres16, "17": local.Postgres17, "18": local.Postgres18,
		}[major]
		if !ok {
			return "", nil, false
		}
		args = args[1:]
	}
	return version, args[1:], len(args) > 1 && args[0] == "--"
}

// servers are the running ones.
type servers struct {
	postgres *local.Postgres
	nats     *local.NATS
}

// startUnlessSignalled starts the servers, and gives up at a signal.
func startUnlessSignalled(signals <-chan os.Signal, version string) (*servers, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), startLimit, errors.New("the servers took too long"))
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	started := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case s := <-signals:
			interrupt(fmt.Errorf("got signal %q while starting", s))
		case <-started:
		}
	}()
	s, err := start(ctx, version)
	close(started)
	<-watching
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// start starts all servers at once. With an error it returns those that run.
func start(ctx context.Context, version string) (*servers, error) {
	var s servers
	var group errgroup.Group
	group.Go(func() (err error) {
		s.postgres, err = local.StartPostgres(ctx, local.PostgresConfig{
			Version: version, Parameters: testkit.PostgresParameters(),
		})
		return err
	})
	group.Go(func() (err error) {
		s.nats, err = local.StartNATS(ctx, local.NATSConfig{})
		return err
	})
	group.Go(func() error { return brokers.Fetch(ctx) })
	return &s, group.Wait()
}

// stop ends what runs.
func (s *servers) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	var group errgroup.Group
	if s.postgres != nil {
		group.Go(func() error { return s.postgres.Stop(ctx) })
	}
	if s.nats != nil {
		group.Go(func() error { return s.nats.Stop(ctx) })
	}
	return group.Wait()
}

// environment is the command's.
func (s *servers) environment() []string {
	return append(os.Environ(),
		testkit.PostgresVariable+"="+s.postgres.URL("postgres"),
		testkit.NATSVariable+"="+s.nats.URL())
}

// supervise runs the command until it ends and returns its exit code. The first signal is passed on to the command and
// its children; at the second they are killed. They are also told when our own parent has gone: `go run` and make do
// not pass on every signal.
func supervise(
	command []string, s *servers, parent int, signals <-chan os.Signal, log io.Writer,
) (int, error) {
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it is ended by signals
	cmd.Env = s.environment()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that a signal reaches its children as well
	if err := cmd.Start(); err != nil {
		return exitUsage, fmt.Errorf("starting the command: %w", err)
	}
	group := -cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// Whatever the command left running would go on without its servers.
	defer syscall.Kill(group, syscall.SIGKILL) //nolint:errcheck // usually there is none

	orphaned := time.NewTicker(parentCheck)
	defer orphaned.Stop()
	postgresLost, natsLost := s.postgres.Lost(), s.nats.Lost()
	told := false
	tell := func(sig syscall.Signal) {
		if told {
			sig = syscall.SIGKILL
		}
		told = true
		_ = syscall.Kill(group, sig) // an error means that it has just ended
	}
	for {
		select {
		case err := <-ended:
			return exitCode(err)
		case got := <-signals:
			if sig, ok := got.(syscall.Signal); ok {
				tell(sig)
			}
		case <-orphaned.C:
			if os.Getppid() != parent {
				orphaned.Stop()
				tell(syscall.SIGTERM)
			}
		case <-postgresLost:
			postgresLost = nil
			_, _ = fmt.Fprintf(log, "servers: PostgreSQL is gone: %v\n", s.postgres.Err())
		case <-natsLost:
			natsLost = nil
			_, _ = fmt.Fprintf(log, "servers: NATS is gone: %v\n", s.nats.Err())
		}
	}
}

// exitCode is the code a shell would give.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 1, fmt.Errorf("waiting for the command: %w", err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalBase + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
