// Package keeper runs one server as a child of a process of ours and ends it with that process, however that
// process ends: a return, a panic, Ctrl-C or kill -9.
//
// The own executable is started a second time as the keeper. It holds the read end of a pipe from its parent, starts
// the server, and obeys the few requests that come over the pipe. When the pipe ends, because the parent closed it or
// died, the keeper stops the server, removes what it was told to remove and exits. It runs in a session of its own, so
// that Ctrl-C at the terminal reaches the parent alone, which may still need the server to finish its work.
//
// The package promises nothing about the keeper being killed itself, beyond Linux: there the server then ends too.
package keeper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Spec says which server to keep and how.
type Spec struct {
	// Command is the server's executable; Args its arguments. Command "self" is the keeper's own executable.
	Command string   `json:"command"`
	Args    []string `json:"args"`
	// Env is added to the keeper's own environment.
	Env []string `json:"env"`
	// Dir is the server's working folder.
	Dir string `json:"dir"`
	// Log is the file the server's output is appended to.
	Log string `json:"log"`
	// Ready is the file in which the server says that it serves: its process id in the first line and, once it
	// serves, a line "ready" or, of PostgreSQL's copies, "standby".
	Ready string `json:"ready"`
	// Listens is for a server that says so in no file, with Ready empty: the addresses (host:port) at which it takes
	// connections once it serves.
	Listens []string `json:"listens,omitempty"`
	// StartTimeout is how long the server may take until it serves.
	StartTimeout time.Duration `json:"startTimeout"`
	// StopSignal asks the server to stop; after StopTimeout it is killed.
	StopSignal  syscall.Signal `json:"stopSignal"`
	StopTimeout time.Duration  `json:"stopTimeout"`
	// DeathSignal is sent to the server when the keeper itself is killed (Linux only).
	DeathSignal syscall.Signal `json:"deathSignal"`
	// RunAs is the account of the server; nil means the keeper's own, which is that of its parent.
	RunAs *User `json:"runAs,omitempty"`
	// Remove is the folder to remove when the keeper ends; empty keeps everything.
	Remove string `json:"remove"`
}

// User is an account to run a program as.
type User struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// credential is what the kernel wants to know, nil for nil.
func (u *User) credential() *syscall.Credential {
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID}
}

// Operations a parent may ask for.
const (
	opStart = "start" // start the server and wait until it serves
	opKill  = "kill"  // kill -9
	opStop  = "stop"  // ask it to stop, kill it when it does not
)

// exited is the report, sent without being asked for, that the server ended by itself.
const exited = "exited"

type request struct {
	Op string `json:"op"`
}

type report struct {
	Op    string `json:"op"`
	Error string `json:"error,omitempty"`
	Log   string `json:"log,omitempty"` // the end of the server's output, when something went wrong
	PID   int    `json:"pid,omitempty"`
}

// How often the keeper looks whether the server is ready. To knock at a port costs more than to read a file, and on a busy
// machine it takes its share of the processor from the very server that is to start.
const (
	readInterval  = 10 * time.Millisecond
	knockInterval = 50 * time.Millisecond
)

// logTailBytes bounds the output of the server that a report carries.
const logTailBytes = 4 << 10

// status is how the server ended.
type status struct{ err error }

func (s status) String() string {
	if s.err == nil {
		return "exit status 0"
	}
	return s.err.Error()
}

// child is the keeper's side: it owns the server.
type child struct {
	spec    Spec
	out     *json.Encoder
	server  *exec.Cmd
	ended   chan status // holds one value when the server has ended
	logFrom int64       // where the current server's output starts in the log
}

// keep is the keeper's whole life. It must run on the main goroutine, locked to its thread: the death signal of the
// server is bound to the thread that started it.
func keep(in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(in)
	var spec Spec
	if err := dec.Decode(&spec); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // the parent is gone already
		}
		return fmt.Errorf("reading what to keep: %w", err)
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)

	requests := make(chan request)
	go func() {
		defer close(requests)
		for {
			var r request
			if dec.Decode(&r) != nil {
				return
			}
			requests <- r
		}
	}()
	c := &child{spec: spec, out: json.NewEncoder(out)}
	err := c.serve(requests, terminate)
	if spec.Remove != "" {
		err = errors.Join(err, os.RemoveAll(spec.Remove))
	}
	return err
}

// serve obeys requests until the parent is gone or the keeper is asked to end.
func (c *child) serve(requests <-chan request, terminate <-chan os.Signal) error {
	for {
		select {
		case r, open := <-requests:
			if !open {
				return c.stop()
			}
			rep := report{Op: r.Op}
			if err := c.do(r.Op, requests); err != nil {
				rep.Error, rep.Log = err.Error(), c.logTail()
			} else if c.server != nil {
				rep.PID = c.server.Process.Pid
			}
			// A parent that is gone cannot read; the closed pipe ends the loop.
			_ = c.out.Encode(rep)
		case s := <-c.ended:
			c.server, c.ended = nil, nil
			_ = c.out.Encode(report{Op: exited, Error: s.String(), Log: c.logTail()})
		case <-terminate:
			return c.stop()
		}
	}
}

func (c *child) do(op string, requests <-chan request) error {
	switch op {
	case opStart:
		return c.start(requests)
	case opKill:
		return c.kill()
	case opStop:
		return c.stop()
	default:
		return fmt.Errorf("unknown request %q", op)
	}
}

// start starts the server and waits until it serves. It gives up when the parent goes away meanwhile.
func (c *child) start(requests <-chan request) error {
	if c.server != nil {
		return errors.New("the server runs already")
	}
	if c.spec.Ready != "" {
		if err := os.Remove(c.spec.Ready); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing the ready file: %w", err)
		}
	}
	if err := c.launch(); err != nil {
		return err
	}
	deadline := time.NewTimer(c.spec.StartTimeout)
	defer deadline.Stop()
	interval := readInterval
	if c.spec.Ready == "" {
		interval = knockInterval
	}
	poll := time.NewTicker(interval)
	defer poll.Stop()
	for {
		select {
		case s := <-c.ended:
			c.server, c.ended = nil, nil
			return fmt.Errorf("the server ended before it was ready: %s", s)
		case <-deadline.C:
			return errors.Join(fmt.Errorf("the server was not ready within %s", c.spec.StartTimeout), c.kill())
		case _, open := <-requests:
			if !open {
				return c.kill()
			}
		case <-poll.C:
			if c.ready() {
				return nil
			}
		}
	}
}

func (c *child) launch() error {
	log, err := os.OpenFile(c.spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the server's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the server holds its own copy of the descriptor
	if c.logFrom, err = log.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("finding the end of the server's log: %w", err)
	}
	name, shown := c.spec.Command, c.spec.Command
	if name == Self {
		shown = "postrider-server"
		if name, err = selfPath(); err != nil {
			return err
		}
	}
	cmd := exec.Command(name, c.spec.Args...) //nolint:gosec,noctx // the parent names it; it ends by request
	cmd.Args[0] = shown
	cmd.Env = append(os.Environ(), c.spec.Env...)
	cmd.Dir = c.spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.spec.RunAs.credential()}
	setDeathSignal(cmd.SysProcAttr, c.spec.DeathSignal)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the server: %w", err)
	}
	ended := make(chan status, 1)
	go func() { ended <- status{cmd.Wait()} }()
	c.server, c.ended = cmd, ended
	return nil
}

// ready reports whether the running server, not one before it, has said that it serves.
func (c *child) ready() bool {
	if c.spec.Ready == "" {
		return listens(c.spec.Listens...)
	}
	content, err := os.ReadFile(c.spec.Ready)
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	if lines[0] != strconv.Itoa(c.server.Process.Pid) {
		return false
	}
	for _, l := range lines[1:] {
		if l := strings.TrimSpace(l); l == "ready" || l == "standby" { // the latter of a copy that serves reads
			return true
		}
	}
	return false
}

// listens reports whether something takes connections at each of the addresses.
func listens(addresses ...string) bool {
	dialer := net.Dialer{Timeout: time.Second}
	for _, address := range addresses {
		conn, err := dialer.Dial("tcp", address)
		if err != nil {
			return false
		}
		_ = conn.Close()
	}
	return true
}

// kill ends the server and its own children as a crash of all at once would.
func (c *child) kill() error {
	if c.server == nil {
		return nil
	}
	killChildren(c.server.Process.Pid)
	if err := c.server.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing the server: %w", err)
	}
	<-c.ended // it was killed: that is its status
	c.server, c.ended = nil, nil
	return nil
}

// stop asks the server to end and kills it when it does not in time.
func (c *child) stop() error {
	if c.server == nil {
		return nil
	}
	if err := c.server.Process.Signal(c.spec.StopSignal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("asking the server to stop: %w", err)
	}
	deadline := time.NewTimer(c.spec.StopTimeout)
	defer deadline.Stop()
	select {
	case <-c.ended: // it was asked to: whatever its status is
		c.server, c.ended = nil, nil
		return nil
	case <-deadline.C:
		return c.kill()
	}
}

// logTail returns the end of what the current or last server wrote.
func (c *child) logTail() string {
	f, err := os.Open(c.spec.Log)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	from := max(c.logFrom, size-logTailBytes)
	tail := make([]byte, size-from)
	n, err := f.ReadAt(tail, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return string(bytes.ToValidUTF8(tail[:n], []byte("?")))
}
