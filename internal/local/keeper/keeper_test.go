package keeper_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/local/keeper"
)

// soon bounds what must happen.
const soon = 20 * time.Second

// sayReady is how a shell script says that it serves.
const sayReady = `echo $$ > ready.part; echo ready >> ready.part; mv ready.part ready; `

// sleepOn never ends by itself, and leaves no child behind when it is killed.
const sleepOn = `exec sleep 1000`

// scripted is the spec of a server that is a shell script, in a folder of its own.
func scripted(t *testing.T, script string) keeper.Spec {
	t.Helper()
	dir := t.TempDir()
	return keeper.Spec{
		Command: "/bin/sh", Args: []string{"-c", script}, Dir: dir,
		Log: filepath.Join(dir, "log"), Ready: filepath.Join(dir, "ready"),
		StartTimeout: soon, StopTimeout: soon, StopSignal: syscall.SIGTERM, DeathSignal: syscall.SIGKILL,
	}
}

func launch(t *testing.T, spec keeper.Spec) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Launch(spec)
	if err != nil {
		t.Fatalf("Launch() error = %v", err)
	}
	t.Cleanup(func() { closeKeeper(t, k) })
	return k
}

func closeKeeper(t *testing.T, k *keeper.Keeper) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
	defer cancel()
	if err := k.Close(ctx); err != nil {
		t.Errorf("Close() error = %v", err)
	}
}

// running reports whether the process runs. A process that was ended by its keeper is not a zombie: the keeper waits.
func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

func mustStart(t *testing.T, k *keeper.Keeper) int {
	t.Helper()
	pid, err := k.Start(t.Context())
	if err != nil {
		t.Fatalf("Start() error = %v", err)
	}
	if !running(pid) {
		t.Fatalf("process %d does not run", pid)
	}
	return pid
}

func TestKeeperStartsKillsAndStops(t *testing.T) {
	t.Parallel()
	k := launch(t, scripted(t, `trap 'echo asked; exit 0' TERM; `+sayReady+`while :; do sleep 0.01; done`))
	first := mustStart(t, k)
	if _, err := k.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a second Start() error = %v, want a refusal", err)
	}
	if err := k.Kill(t.Context()); err != nil {
		t.Fatalf("Kill() error = %v", err)
	}
	if running(first) {
		t.Error("the killed server runs")
	}
	second := mustStart(t, k)
	if err := k.Stop(t.Context()); err != nil {
		t.Fatalf("Stop() error = %v", err)
	}
	if running(second) {
		t.Error("the stopped server runs")
	}
	if err := k.Err(); err != nil {
		t.Errorf("what was asked for counts as a loss: %v", err)
	}
	closeKeeper(t, k)
	if _, err := k.Start(t.Context()); err == nil {
		t.Error("Start() after Close() did nothing and said nothing")
	}
}

func TestKeeperKillsAServerThatDoesNotStop(t *testing.T) {
	t.Parallel()
	spec := scripted(t, `trap '' TERM; `+sayReady+`while :; do sleep 0.01; done`)
	spec.StopTimeout = 100 * time.Millisecond
	k := launch(t, spec)
	pid := mustStart(t, k)
	closeKeeper(t, k)
	if running(pid) {
		t.Error("the server that ignores the signal runs")
	}
}

func TestKeeperRemovesTheFolder(t *testing.T) {
	t.Parallel()
	spec := scripted(t, sayReady+sleepOn)
	spec.Remove = spec.Dir
	k := launch(t, spec)
	mustStart(t, k)
	closeKeeper(t, k)
	if _, err := os.Stat(spec.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestKeeperStartThatFails(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		script string
		spoil  func(*keeper.Spec)
		want   []string
	}{
		"a server that ends at once shows its last words": {
			script: `echo first; echo "the last words" >&2; exit 3`,
			want:   []string{"ended before it was ready", "exit status 3", "the last words"},
		},
		"a server that ends without an error is not taken for a running one": {
			script: `exit 0`,
			want:   []string{"ended before it was ready: exit status 0"},
		},
		"a server that never gets ready is given up": {
			script: sleepOn,
			spoil:  func(s *keeper.Spec) { s.StartTimeout = 100 * time.Millisecond },
			want:   []string{"not ready within 100ms"},
		},
		"a ready file of another process does not count": {
			script: `echo 1 > ready; echo ready >> ready; ` + sleepOn,
			spoil:  func(s *keeper.Spec) { s.StartTimeout = 100 * time.Millisecond },
			want:   []string{"not ready within 100ms"},
		},
		"a program that is not there is named": {
			spoil: func(s *keeper.Spec) { s.Command = "/nowhere/server" },
			want:  []string{"/nowhere/server", "no such file"},
		},
		"only the end of a long log is shown": {
			script: `echo early; i=0; while [ $i -lt 1000 ]; do echo 0123456789; i=$((i+1)); done; echo late; exit 1`,
			want:   []string{"late"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := scripted(t, tc.script)
			if tc.spoil != nil {
				tc.spoil(&spec)
			}
			k := launch(t, spec)
			_, err := k.Start(t.Context())
			if err == nil {
				t.Fatal("Start() error = nil")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start() error = %v, want %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "early") {
				t.Error("the error holds the whole log")
			}
			if err := k.Err(); err != nil {
				t.Errorf("the keeper is lost as well: %v", err)
			}
		})
	}
}

func TestKeeperTellsThatTheServerEnded(t *testing.T) {
	t.Parallel()
	spec := scripted(t, sayReady+`while [ ! -e end ]; do sleep 0.01; done; echo "the reason"; exit 4`)
	k := launch(t, spec)
	pid := mustStart(t, k)
	if err := os.WriteFile(filepath.Join(spec.Dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-k.Lost():
	case <-time.After(soon):
		t.Fatal("nobody noticed")
	}
	for _, want := range []string{"exit status 4", "the reason"} {
		if err := k.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Err() = %v, want %q", err, want)
		}
	}
	if running(pid) {
		t.Error("it runs")
	}
}

func TestKeeperStartsAServerAgainThatWasLost(t *testing.T) {
	t.Parallel()
	spec := scripted(t, sayReady+sleepOn)
	k := launch(t, spec)
	for range 3 {
		pid := mustStart(t, k)
		if err := k.Err(); err != nil {
			t.Fatalf("Err() = %v of a server that runs", err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-k.Lost():
		case <-time.After(soon):
			t.Fatal("nobody noticed")
		}
		if err := k.Err(); err == nil || errors.Is(err, keeper.ErrGone) {
			t.Errorf("Err() = %v, want the server's end", err)
		}
	}
}

func TestKeeperThatIsKilledSaysThatItIsGone(t *testing.T) {
	t.Parallel()
	spec := scripted(t, `echo $PPID > keeper; `+sayReady+sleepOn)
	k, err := keeper.Launch(spec)
	if err != nil {
		t.Fatal(err)
	}
	mustStart(t, k)
	content, err := os.ReadFile(filepath.Join(spec.Dir, "keeper"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-k.Lost():
	case <-time.After(soon):
		t.Fatal("nobody noticed")
	}
	for _, err := range []error{k.Err(), func() error { _, err := k.Start(t.Context()); return err }()} {
		if !errors.Is(err, keeper.ErrGone) {
			t.Errorf("error = %v, want ErrGone", err)
		}
	}
	closeKeeper(t, k)
}

func TestKeeperRequestThatIsGivenUp(t *testing.T) {
	t.Parallel()
	k := launch(t, scripted(t, sleepOn)) // never ready
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := k.Start(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Start() error = %v, want the deadline", err)
	}
	closeKeeper(t, k) // does not wait for the start to fail
}
