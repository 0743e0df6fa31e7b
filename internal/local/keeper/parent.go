package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// endTimeout is how long a keeper may take to end beyond its server's stop timeout.
const endTimeout = 10 * time.Second

// ErrGone says that the keeper itself has ended: nothing can start its server again.
var ErrGone = errors.New("the keeper ended")

// ServerError says that the server could not be started or ended by itself, with the end of its output.
type ServerError struct {
	Reason string
	Log    string
}

// Error returns the reason and the server's last words.
func (e *ServerError) Error() string {
	log := strings.TrimSpace(e.Log)
	if log == "" {
		return e.Reason
	}
	return e.Reason + "; its log ends with:\n" + log
}

// Keeper is the parent's side of a running keeper. Its methods may be called from several goroutines.
type Keeper struct {
	spec    Spec
	cmd     *exec.Cmd
	stderr  *bytes.Buffer // read only after the keeper has ended
	in      io.WriteCloser
	replies chan report
	gone    chan struct{} // closed when the keeper has ended
	loss    atomic.Pointer[loss]

	mu     sync.Mutex // one request at a time
	closed bool
}

// loss is the end of one run of the server that nobody asked for.
type loss struct {
	once     sync.Once
	happened chan struct{}
	err      error // before happened is closed
}

func newLoss() *loss { return &loss{happened: make(chan struct{})} }

func (l *loss) happen(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.happened)
	})
}

// Launch starts a keeper. It runs no server yet.
func Launch(spec Spec) (*Keeper, error) {
	cmd, err := command(roleKeeper)
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("making the keeper's pipe: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("making the keeper's pipe: %w", err)
	}
	k := &Keeper{
		spec: spec, cmd: cmd, in: in, stderr: &bytes.Buffer{},
		replies: make(chan report), gone: make(chan struct{}),
	}
	k.loss.Store(newLoss())
	cmd.Stderr = k.stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the keeper: %w", err)
	}
	go k.listen(out)
	if err := json.NewEncoder(in).Encode(spec); err != nil {
		return nil, errors.Join(fmt.Errorf("telling the keeper what to keep: %w", err), in.Close())
	}
	return k, nil
}

// command prepares a child in a role. It has a session of its own, so that no signal of the terminal reaches it.
func command(role string) (*exec.Cmd, error) {
	name, err := selfPath()
	if err != nil {
		return nil, fmt.Errorf("finding the own executable: %w", err)
	}
	cmd := exec.Command(name) //nolint:gosec,noctx // the own executable; it ends when the pipe does
	cmd.Args = []string{"postrider-" + role}
	cmd.Env = append(childEnvironment(os.Environ()), roleVariable+"="+role)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}

// childEnvironment leaves out what would change how PostgreSQL's programs behave, and fixes the language of their
// messages, which are read to tell one failure from another.
func childEnvironment(env []string) []string {
	var kept []string
	for _, e := range env {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") {
			kept = append(kept, e)
		}
	}
	return append(kept, "LC_ALL=C")
}

// listen passes the keeper's reports on until the keeper ends.
func (k *Keeper) listen(out io.Reader) {
	dec := json.NewDecoder(out)
	for {
		var r report
		if dec.Decode(&r) != nil {
			break
		}
		switch {
		case r.Op == exited:
			k.loss.Load().happen(&ServerError{Reason: "the server ended by itself: " + r.Error, Log: r.Log})
			continue
		case r.Op == opStart && r.Error == "" && k.Err() != nil:
			k.loss.Store(newLoss()) // here, before another loss can be read
		}
		k.replies <- r
	}
	err := k.cmd.Wait()
	gone := fmt.Errorf("%w: %w %s", ErrGone, errors.Join(err), bytes.TrimSpace(k.stderr.Bytes()))
	k.loss.Load().happen(gone)
	close(k.gone)
}

// Lost is closed when the server has ended without being asked to, or the keeper has ended; Err then says why. A server
// that was started again can be lost again, which another channel tells.
func (k *Keeper) Lost() <-chan struct{} { return k.loss.Load().happened }

// Err returns why the server was lost, nil while it was not.
func (k *Keeper) Err() error {
	l := k.loss.Load()
	select {
	case <-l.happened:
		return l.err
	default:
		return nil
	}
}

// Start starts the server and returns its process id when it serves.
func (k *Keeper) Start(ctx context.Context) (int, error) { return k.ask(ctx, opStart) }

// Kill ends the server with kill -9.
func (k *Keeper) Kill(ctx context.Context) error {
	_, err := k.ask(ctx, opKill)
	return err
}

// Stop asks the server to stop and waits until it has.
func (k *Keeper) Stop(ctx context.Context) error {
	_, err := k.ask(ctx, opStop)
	return err
}

// ask sends one request and waits for its reply.
func (k *Keeper) ask(ctx context.Context, op string) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return 0, errors.New("the server was stopped for good")
	}
	if err := json.NewEncoder(k.in).Encode(request{Op: op}); err != nil {
		<-k.gone
		return 0, k.goneError()
	}
	select {
	case r := <-k.replies:
		if r.Error != "" {
			return 0, &ServerError{Reason: r.Error, Log: r.Log}
		}
		return r.PID, nil
	case <-k.gone:
		return 0, k.goneError()
	case <-ctx.Done():
		// The reply would be taken for that of the next request: there must be none.
		k.closed = true
		return 0, errors.Join(context.Cause(ctx), k.in.Close())
	}
}

// goneError is what a request gets when the keeper has ended, whatever happened to the server before.
func (k *Keeper) goneError() error {
	if err := k.Err(); !errors.Is(err, ErrGone) {
		return fmt.Errorf("%w; before that: %w", ErrGone, err)
	}
	return k.Err()
}

// Close stops the server, has its folder removed if the spec says so, and ends the keeper. A second call does nothing.
func (k *Keeper) Close(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.closed = true
		if err := k.in.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("closing the keeper's pipe: %w", err)
		}
	}
	limit := time.NewTimer(k.spec.StopTimeout + endTimeout)
	defer limit.Stop()
	for {
		select {
		case <-k.replies: // of a request that was given up
		case <-k.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("waiting for the server to stop: %w", context.Cause(ctx))
		case <-limit.C:
			return errors.Join(errors.New("the keeper did not end in time"), k.cmd.Process.Kill())
		}
	}
}
