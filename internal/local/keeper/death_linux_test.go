package keeper_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentOf returns the parent of a process whose name has no space.
func parentOf(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var name, state string
	var parent int
	if _, err := fmt.Fscan(strings.NewReader(string(stat)), &pid, &name, &state, &parent); err != nil {
		t.Fatal(err)
	}
	return parent
}

// zombie reports whether a process has ended and nobody has asked for its status: it has lost its keeper, and this
// machine's first process may not care.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestKeeperThatIsKilledTakesTheServerAlong(t *testing.T) {
	t.Parallel()
	k := launch(t, scripted(t, sayReady+sleepOn))
	pid := mustStart(t, k)
	if err := syscall.Kill(parentOf(t, pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-k.Lost():
	case <-time.After(soon):
		t.Fatal("nobody noticed")
	}
	deadline := time.After(soon)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for running(pid) && !zombie(pid) {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal("the server outlives its keeper")
		}
	}
	if _, err := k.Start(t.Context()); err == nil {
		t.Error("Start() without a keeper did nothing and said nothing")
	}
}

func TestKeeperKillsTheChildrenAsWell(t *testing.T) {
	t.Parallel()
	spec := scripted(t, `sleep 1000 & echo $! > child; `+sayReady+`wait`)
	k := launch(t, spec)
	mustStart(t, k)
	content, err := os.ReadFile(spec.Dir + "/child")
	if err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Sscan(string(content), &child); err != nil {
		t.Fatal(err)
	}
	if !running(child) {
		t.Fatal("the child does not run")
	}
	if err := k.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(soon)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for running(child) && !zombie(child) {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal("the child outlives the kill")
		}
	}
}
