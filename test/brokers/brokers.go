// Package brokers runs the real Kafka, the real RabbitMQ and the real PgBouncer that tests are tried on, and the Debezium
// that the relay is measured against, each in a process of its own on loopback, with data that go when it ends. They end
// with this process, however that ends.
//
// It promises that both come from one cache, which is filled once and used offline after that, and that a machine that
// cannot have them is told why in one line. It does not install anything: RabbitMQ and Erlang are unpacked from the
// distribution's packages, the same for root and others, and Kafka's jars are fetched by Maven.
package brokers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/local/keeper"
)

const (
	loopback     = "127.0.0.1"
	portTries    = 5 // a free port may be taken by another process before the server has it
	fetchTries   = 3 // registries have their moments
	fetchPause   = 2 * time.Second
	startTimeout = 15 * time.Minute // on a very busy machine
	stopTimeout  = 5 * time.Second
)

// MissingError says what this machine lacks to run a broker, and how it is had.
type MissingError struct {
	What string // "Java 17 or newer", say
	How  string // a command
}

// Error says what to do.
func (e *MissingError) Error() string { return e.What + " is not installed: " + e.How }

// Fetch fills the cache with all brokers, so that no test waits for a download. It returns at once where it is filled.
func Fetch(ctx context.Context) error {
	_, kafkaErr := kafkaInstall(ctx)
	_, rabbitErr := rabbitInstall(ctx)
	_, _, poolerErr := poolerInstall(ctx)
	return errors.Join(kafkaErr, rabbitErr, poolerErr)
}

// server is a broker's process and its folder.
type server struct {
	dir    string
	keeper *keeper.Keeper
	pid    int // after the first start
}

// spec says how a server of tests is kept: it serves when it listens on all its ports; it is killed in the end, and its
// folder removed, since nobody reads it again.
func (s *server) spec(command string, args, env []string, ports ...int) keeper.Spec {
	listens := make([]string, len(ports))
	for i, port := range ports {
		listens[i] = address(port)
	}
	return keeper.Spec{
		Command: command, Args: args, Env: env, Dir: s.dir, Log: s.LogFile(), Listens: listens,
		StartTimeout: startTimeout, StopSignal: killed, StopTimeout: stopTimeout, DeathSignal: killed, Remove: s.dir,
	}
}

// start starts the process and returns when it takes connections.
func (s *server) start(ctx context.Context, spec keeper.Spec) error {
	k, err := keeper.Launch(spec)
	if err != nil {
		return fmt.Errorf("launching a keeper: %w", err)
	}
	pid, err := k.Start(ctx)
	if err != nil {
		return errors.Join(err, k.Close(context.WithoutCancel(ctx)))
	}
	s.keeper, s.pid = k, pid
	return nil
}

// LogFile is the file the server logs to.
func (s *server) LogFile() string { return s.dir + "/server.log" }

// Lost is closed when the server has ended without being asked to.
func (s *server) Lost() <-chan struct{} { return s.keeper.Lost() }

// Kill ends the server with kill -9; its data stay.
func (s *server) Kill(ctx context.Context) error { return s.keeper.Kill(ctx) }

// Start starts a killed server on the same data and ports.
func (s *server) Start(ctx context.Context) error {
	_, err := s.keeper.Start(ctx)
	return err
}

// freePorts returns n ports that nothing listens on now. They are below those that the kernel gives out by itself: on a
// busy machine these servers take long enough to start for another process to be given one.
func freePorts(ctx context.Context, n int) ([]int, error) {
	const first, last = 20_000, 32_000
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries == 100*n {
			return nil, errors.New("no free port found")
		}
		port := first + rand.N(last-first)
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", address(port))
		if err != nil || slices.Contains(ports, port) {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("finding a free port: %w", err)
		}
		ports = append(ports, port)
	}
	return ports, nil
}

func address(port int) string { return fmt.Sprintf("%s:%d", loopback, port) }

// portTaken says whether a server did not start because another process was first on one of its ports.
func portTaken(err error) bool {
	if err == nil {
		return false
	}
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "address already in use") || strings.Contains(text, "eaddrinuse")
}

// command runs a program in a folder. Its error ends with what the program said last.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = stopTimeout
	out, err := cmd.CombinedOutput()
	if err != nil {
		const lastBytes = 2 << 10
		out = bytes.TrimSpace(out)
		return fmt.Errorf("%s: %w: %s", name, err, out[max(0, len(out)-lastBytes):])
	}
	return nil
}

// retry runs what reaches for the network a few times.
func retry(ctx context.Context, fetch func(context.Context) error) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var err error
	for range fetchTries {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
		if err = fetch(ctx); err == nil {
			return nil
		}
		pause.Reset(fetchPause)
	}
	return err
}
