package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/local/keeper"
)

const (
	programStart = 2 * time.Minute // on a busy machine
	programStop  = 30 * time.Second
)

// Running is a program that runs as a process of its own. It ends with this one.
type Running struct {
	name    string
	keeper  *keeper.Keeper
	process int
}

// Command is a program that is started.
type Command struct {
	Path      string
	Args, Env []string
	// Address takes connections once the program works.
	Address string
	// Dir is the program's folder, with its log. It is removed at the end.
	Dir string
}

// Start starts the program and returns when it works. Without it nothing is left.
func (c Command) Start(ctx context.Context) (*Running, error) {
	name := filepath.Base(c.Path)
	k, err := keeper.Launch(keeper.Spec{
		Command: c.Path, Args: c.Args, Env: c.Env, Dir: c.Dir, Log: filepath.Join(c.Dir, "log"), Remove: c.Dir,
		Listens: []string{c.Address}, StartTimeout: programStart,
		StopSignal: syscall.SIGTERM, StopTimeout: programStop, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), os.RemoveAll(c.Dir))
	}
	r := &Running{name: name, keeper: k}
	if r.process, err = k.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), r.Stop(ctx))
	}
	return r, nil
}

// Stop asks the process to end and waits until it has.
func (r *Running) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), programStop+closeTimeout)
	defer cancel()
	if err := r.keeper.Close(ctx); err != nil {
		return fmt.Errorf("stop %s: %w", r.name, err)
	}
	return nil
}

// Lost is closed when the process has ended without being asked to; Err then says why.
func (r *Running) Lost() <-chan struct{} { return r.keeper.Lost() }

// Err returns why the process has ended, nil while it has not.
func (r *Running) Err() error { return r.keeper.Err() }

// PeakMemory returns the most memory in bytes that the process has occupied so far.
func (r *Running) PeakMemory() (float64, error) { return PeakMemory(r.process) }

// PeakMemory returns the most memory in bytes that a process has occupied so far. Only Linux tells.
func PeakMemory(process int) (float64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(process) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	return parsePeak(string(status))
}

func parsePeak(status string) (float64, error) {
	for line := range strings.Lines(status) {
		value, ok := strings.CutPrefix(line, "VmHWM:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
		if err != nil {
			return 0, fmt.Errorf("read the memory of a process: %w", err)
		}
		return kib * 1024, nil
	}
	return 0, errors.New("read the memory of a process: the system does not tell its peak")
}

// FreeAddress is one of this machine that nobody listens at, as far as can be told.
func FreeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
