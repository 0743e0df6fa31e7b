package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/test/testkit"
)

// asServers makes the test binary be the command itself.
const asServers = "TEST_AS_SERVERS"

// soon bounds what must happen.
const soon = 20 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asServers) != "" {
		os.Exit(run(os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// started is a running `servers run`.
type started struct {
	*exec.Cmd

	temp   string // holds all its folders
	mark   string // is in the environment of all its processes
	stdin  io.Closer
	stdout io.Reader
	stderr *bytes.Buffer
}

// begin runs a shell script under servers. It returns when the script has said "up".
func begin(t *testing.T, script string) started {
	t.Helper()
	s := started{temp: testkit.SharedDir(t), stderr: &bytes.Buffer{}}
	s.mark = "TEST_MARK=" + s.temp
	s.Cmd = exec.Command(os.Args[0], "run", "--", "/bin/sh", "-c", script)
	s.Env = append(os.Environ(), asServers+"=1", "TMPDIR="+s.temp, s.mark)
	s.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.Cmd.Stderr = s.stderr
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.stdin = in
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.stdout = out
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-s.Process.Pid, syscall.SIGKILL) })
	word := make([]byte, len("up\n"))
	if _, err := io.ReadFull(out, word); err != nil || string(word) != "up\n" {
		_ = s.Wait()
		t.Fatalf("the command said %q, %v; stderr: %s", word, err, s.stderr)
	}
	return s
}

// processes lists what still runs of it.
func (s started) processes(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		environment, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(environment, []byte(s.mark)) {
			continue // gone meanwhile, or another user's
		}
		pid := filepath.Base(filepath.Dir(f))
		line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if err == nil && len(line) > 0 {
			found = append(found, pid+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// mustRun checks that the search for processes finds what it later must not find.
func (s started) mustRun(t *testing.T) {
	t.Helper()
	got := strings.Join(s.processes(t), "\n")
	for _, want := range []string{"postrider-keeper", "bin/postgres", "nats.json", "/bin/sh"} {
		if !strings.Contains(got, want) {
			t.Fatalf("no process %q in:\n%s", want, got)
		}
	}
}

// mustLeaveNothing waits until no process and no folder is left.
func (s started) mustLeaveNothing(t *testing.T) {
	t.Helper()
	var processes, folders []string
	defer func() {
		if t.Failed() {
			t.Logf("left: %q %q", processes, folders)
		}
	}()
	testkit.Eventually(t, soon, "no process and no folder is left", func() bool {
		var err error
		if folders, err = filepath.Glob(filepath.Join(s.temp, "*")); err != nil {
			t.Fatal(err)
		}
		processes = s.processes(t)
		return len(processes)+len(folders) == 0
	})
}

const wait = "echo up; while :; do sleep 1; done"

func TestRunLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		script string
		send   func(t *testing.T, s started)
		code   int
	}{
		"when the command succeeds":  {script: "echo up; exit 0", code: 0},
		"when the command fails":     {script: "echo up; exit 7", code: 7},
		"when the command is killed": {script: "echo up; kill -9 $$", code: 128 + 9},
		"at Ctrl-C": {
			script: wait, code: 128 + 2,
			send: func(t *testing.T, s started) { t.Helper(); kill(t, -s.Process.Pid, syscall.SIGINT) },
		},
		"at SIGTERM": {
			script: wait, code: 128 + 15,
			send: func(t *testing.T, s started) { t.Helper(); kill(t, s.Process.Pid, syscall.SIGTERM) },
		},
		"at a second signal, when the command ignores the first": {
			script: "trap 'echo no' TERM; " + wait, code: 128 + 9,
			send: func(t *testing.T, s started) {
				t.Helper()
				kill(t, s.Process.Pid, syscall.SIGTERM)
				answer := make([]byte, len("no\n"))
				if _, err := io.ReadFull(s.stdout, answer); err != nil {
					t.Fatal(err)
				}
				kill(t, s.Process.Pid, syscall.SIGTERM)
			},
		},
		"of the command's own children": {script: "sleep 1000 & echo up; exit 3", code: 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, tc.script)
			if tc.send != nil {
				s.mustRun(t)
				tc.send(t, s)
			}
			_ = s.Wait() // the code is looked at
			if got := s.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit code %d, want %d; stderr: %s", got, tc.code, s.stderr)
			}
			s.mustLeaveNothing(t)
		})
	}
}

func TestKilledRunLeavesNoServerBehind(t *testing.T) {
	t.Parallel()
	s := begin(t, "echo up; read x")
	s.mustRun(t)
	kill(t, s.Process.Pid, syscall.SIGKILL)
	if err := s.stdin.Close(); err != nil { // so that the shell ends
		t.Fatal(err)
	}
	_ = s.Wait()
	s.mustLeaveNothing(t)
}

func TestRunEndsWithItsParent(t *testing.T) {
	t.Parallel()
	temp := testkit.SharedDir(t)
	mark := "TEST_MARK=" + temp
	// The shell in the middle is what `go run` is: it is killed and tells no one.
	script := `"$0" run -- /bin/sh -c '` + wait + `' & echo $!; wait`
	cmd := exec.Command("/bin/sh", "-c", script, os.Args[0])
	cmd.Env = append(os.Environ(), asServers+"=1", "TMPDIR="+temp, mark)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	buffer := make([]byte, 64)
	for !strings.HasSuffix(text.String(), "up\n") {
		n, err := out.Read(buffer)
		if err != nil {
			t.Fatalf("reading: %v after %q", err, text.String())
		}
		text.Write(buffer[:n])
	}
	kill(t, cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
	started{temp: temp, mark: mark}.mustLeaveNothing(t)
}

func TestRunGivesRealServers(t *testing.T) {
	t.Parallel()
	s := begin(t, `echo up; case "$POSTRIDER_TEST_POSTGRES $POSTRIDER_TEST_NATS" in
		"postgres://postgres:"*"@127.0.0.1:"*" nats://127.0.0.1:"*) exit 0;; esac; exit 1`)
	if err := s.Wait(); err != nil {
		t.Errorf("the addresses are not in the environment: %v", err)
	}
	s.mustLeaveNothing(t)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no argument":       nil,
		"no command":        {"run", "--"},
		"no double dash":    {"run", "go", "test"},
		"another operation": {"walk", "--", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if code := run(args, &out); code != exitUsage || !strings.Contains(out.String(), "usage:") {
				t.Errorf("run() = %d, said %q", code, out.String())
			}
		})
	}
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}
