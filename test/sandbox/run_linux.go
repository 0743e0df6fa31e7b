package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopPatience is how long the program inside may take to end when it is asked to.
const stopPatience = 30 * time.Second

// Run runs this program again inside a new box, with the same arguments, input and output, and returns its exit code.
// The end of ctx asks it to end, as SIGTERM does. When Run returns, nothing of the box is left.
func Run(ctx context.Context) (code int, err error) {
	if os.Geteuid() != 0 {
		return 0, ErrForbidden
	}
	if err := sweep(); err != nil {
		return 0, err
	}
	box, unlock, err := create()
	if err != nil {
		return 0, err
	}
	defer unlock()
	defer func() { err = errors.Join(err, box.remove()) }()
	if err := makeCgroups(box.Cgroup); err != nil {
		return 0, err
	}
	return box.run(ctx)
}

// create makes a box's folder. While its lock is held, nobody takes it for one that was left behind.
func create() (*Box, func(), error) {
	for {
		dir, err := os.MkdirTemp("", prefix)
		if err != nil {
			return nil, nil, fmt.Errorf("make a folder: %w", err)
		}
		unlock, err := lock(dir, os.O_CREATE)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EWOULDBLOCK) {
			continue // another run has just tidied it away
		}
		if err != nil {
			return nil, nil, err
		}
		box := boxIn(dir)
		// Servers that refuse root pass through to their own folders.
		if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(box.temp(), 0o777),
			os.Chmod(box.temp(), 0o777|os.ModeSticky)); err != nil {
			unlock()
			return nil, nil, errors.Join(fmt.Errorf("make a folder: %w", err), os.RemoveAll(dir))
		}
		return box, unlock, nil
	}
}

func (b *Box) temp() string { return filepath.Join(b.Dir, "tmp") }

// lock marks a folder as in use. The mark ends with this process. Only who makes the folder gives os.O_CREATE: who tidies
// it away must not bring the mark back while another removes it.
func lock(dir string, create int) (unlock func(), err error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, create|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock a folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	if err := isStillAt(path, f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks
}

// isStillAt returns os.ErrNotExist when the file that was locked was removed between its opening and its locking: its
// lock holds nobody off.
func isStillAt(path string, locked *os.File) error {
	held, err := locked.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(held, named) {
		return os.ErrNotExist
	}
	return nil
}

// sweep removes what runs left that were killed.
func sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return fmt.Errorf("look for boxes left behind: %w", err)
	}
	for _, dir := range dirs {
		unlock, err := lock(dir, 0)
		if err != nil {
			continue // in use, or just being made
		}
		err = boxIn(dir).remove()
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// remove takes away what the kernel does not.
func (b *Box) remove() error {
	return errors.Join(removeCgroups(b.Cgroup), os.RemoveAll(b.Dir))
}

func (b *Box) run(ctx context.Context) (int, error) {
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find the own executable: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), roleVariable+"="+roleFirst, dirVariable+"="+b.Dir, "TMPDIR="+b.temp())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL, // with process 1 the kernel ends all others
		Setpgid:    true,            // Ctrl-C reaches it through us
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopPatience
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	err = cmd.Wait()
	switch {
	case cmd.ProcessState.Exited(): // what the program made of the signal counts, not that there was one
		return cmd.ProcessState.ExitCode(), nil
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	default:
		return 0, fmt.Errorf("the program in its own namespaces: %w", err)
	}
}
