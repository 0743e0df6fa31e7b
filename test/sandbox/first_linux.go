package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	exitFailed = 125
	signalBase = 128 // and the signal's number, as in a shell
)

// init takes over when the process was started as the first of a box. It is an init, and not a call in main, because
// the program may be any command or test binary.
func init() { //nolint:gochecknoinits // see above
	if os.Getenv(roleVariable) != roleFirst {
		return
	}
	code, err := first()
	if err != nil {
		fmt.Fprintf(os.Stderr, "NOT OK: %v\n", err)
		code = exitFailed
	}
	os.Exit(code)
}

// first is process 1: it furnishes the box, runs the program and buries orphans until the program ends.
func first() (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	if err := furnish(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	if err := connect(); err != nil {
		return 0, err
	}
	if err := os.Setenv(roleVariable, roleInside); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find the own executable: %w", err)
	}
	program, err := syscall.ForkExec(self, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, fmt.Errorf("start the program: %w", err)
	}
	go func() {
		for s := range signals {
			if number, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(program, number) // it may have ended
			}
		}
	}()
	return bury(program)
}

// bury waits for every child, orphans too, until the program has ended.
func bury(program int) (int, error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, fmt.Errorf("wait for the program: %w", err)
		case pid != program:
		case status.Signaled():
			return signalBase + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// furnish gives the box its own view of processes, and folders to write to where servers insist on fixed paths.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{"/var/lib", "/var/log"} {
		if err := cover(dir); err != nil {
			return fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	return nil
}

// cover lets a folder be read, and keeps in memory what is written to it.
func cover(dir string) error {
	upper, work := filepath.Join("/run/cover", dir, "upper"), filepath.Join("/run/cover", dir, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work)
}

// connect gives the box a network that ends at its walls. Its address is one of lo: not every kernel has a device for
// it. Some default route must be there for Pods and Services.
func connect() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"}, {"address", "add", Address + "/32", "dev", "lo"}, {"route", "add", "default", "dev", "lo"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil { //nolint:noctx // it takes no time
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return fmt.Errorf("forward between Pods: %w", err)
	}
	return nil
}
