package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/test/testkit"
)

// patience is how long a test waits for something that should be quick: the machine may be busy.
const patience = 30 * time.Second

// buildCommands builds the workers' binaries.
func buildCommands(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./cmd/relay", "./cmd/consumer")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the commands: %v\n%s", err, out)
	}
	return dir
}

// process is a worker that runs as a process of its own.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	url  string // of its endpoints
	file string // its config

	mu    sync.Mutex
	log   strings.Builder
	ended chan struct{}
}

// launch starts a worker with this config on a free port and waits until it serves.
func launch(t *testing.T, bin, name string, cfg any) *process {
	t.Helper()
	p := &process{t: t, name: name, file: filepath.Join(t.TempDir(), "config.json"), ended: make(chan struct{})}
	p.configure(cfg)
	p.start(bin)
	return p
}

// configure writes the config file as the kubelet would: at once.
func (p *process) configure(cfg any) {
	p.t.Helper()
	b, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(b)
}

func (p *process) write(b []byte) {
	p.t.Helper()
	next := p.file + ".next"
	if err := errors.Join(os.WriteFile(next, b, 0o600), os.Rename(next, p.file)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) start(bin string) {
	p.t.Helper()
	p.cmd = exec.CommandContext(context.WithoutCancel(p.t.Context()), filepath.Join(bin, p.name),
		"--config", p.file, "--listen", "127.0.0.1:0", "--allow-loopback", "--log-level", "debug")
	dieWithParent(p.cmd)
	p.cmd.Stdout = writer(p.append)
	read, write := io.Pipe()
	p.cmd.Stderr = write
	serving := make(chan string, 1)
	go p.follow(read, serving)
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // ExitCode tells
		_ = write.Close()
		close(p.ended)
	}()
	p.t.Cleanup(p.cleanup)
	select {
	case p.url = <-serving:
	case <-p.ended:
		p.t.Fatalf("%s ended:\n%s", p.name, p.output())
	case <-time.After(patience):
		p.t.Fatalf("%s does not serve:\n%s", p.name, p.output())
	}
}

// follow keeps the log and finds the address in it.
func (p *process) follow(r io.Reader, serving chan<- string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.append(lines.Bytes())
		p.append([]byte("\n"))
		var entry struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "Serving" {
			serving <- "http://" + entry.Address
		}
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

func (p *process) append(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.Write(b)
}

// output is all that the process has printed.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) cleanup() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // a stopped process is killed, but not reaped by everyone
	_ = p.cmd.Process.Kill()
	<-p.ended
	if p.t.Failed() {
		var told strings.Builder
		for line := range strings.Lines(p.output()) {
			if !strings.Contains(line, `"level":"DEBUG"`) {
				told.WriteString(line)
			}
		}
		p.t.Logf("%s printed:\n%s", p.name, tail(told.String()))
	}
}

func tail(s string) string {
	const most = 6 << 10
	return s[max(0, len(s)-most):]
}

// signal sends one to the process.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("sending %v to %s: %v", s, p.name, err)
	}
}

// exit waits for the end and returns the exit code and how long it took.
func (p *process) exit() (code int, took time.Duration) {
	p.t.Helper()
	start := time.Now()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode(), time.Since(start)
}

// running says whether the process is still there.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// get asks an endpoint.
func (p *process) get(path string) (int, string) {
	p.t.Helper()
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(p.url + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// report is the process's /statusz; nil while it does not answer.
func (p *process) report() *statusz.Report {
	p.t.Helper()
	status, body := p.get("/statusz")
	if status != http.StatusOK {
		return nil
	}
	var r statusz.Report
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		p.t.Fatalf("%v in %s", err, body)
	}
	return &r
}

// condition is one of the report's, as "Status Reason"; empty where there is none.
func (p *process) condition(name string) (state, message string) {
	p.t.Helper()
	r := p.report()
	if r == nil {
		return "", ""
	}
	for _, c := range r.Conditions {
		if c.Type == name {
			return c.Status + " " + c.Reason, c.Message
		}
	}
	return "", ""
}

// becomes waits until a condition is so.
func (p *process) becomes(name, want string) {
	p.t.Helper()
	var got, message string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s is %q: %s", name, got, message)
		}
	}()
	testkit.Eventually(p.t, patience, fmt.Sprintf("%s is %s", name, want), func() bool {
		got, message = p.condition(name)
		return got == want
	})
}
