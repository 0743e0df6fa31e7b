package bench_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// program builds the relay and gives it a stream.
func program(t *testing.T) bench.Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay")
	const relay = "github.com/postrider/postrider/cmd/relay"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, relay).CombinedOutput(); err != nil {
		t.Fatalf("building the relay: %v\n%s", err, out)
	}
	broker := testkit.NATS(t)
	nats := broker.Config(broker.Stream(jetstream.StreamConfig{}))
	return bench.Program{Path: path, NATS: &nats}
}

// Where a measure's process and its folder go when it has ended.
func leavesNothing(t *testing.T) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	t.Cleanup(func() {
		if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

// A relay's own process does the work of both measures: here a small part of it, on real servers.
func TestTheProcessOfARelayIsMeasured(t *testing.T) { //nolint:paralleltest // sets the folder for temporary files
	ours := program(t)
	server := testkit.PostgresServer(t, local.PostgresConfig{Parameters: bench.IdleParameters()})
	db := testkit.Postgres(t, testkit.OnServer(server)).Pool().Config()
	leavesNothing(t)

	memory, err := bench.Memory(t.Context(), bench.MemoryConfig{
		Postgres: db, Program: ours, Rows: 300, PayloadBytes: 20 << 10, Runs: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := memory.Median("resident"); got < 5 || memory.Verdict() != nil {
		t.Errorf("a small backlog takes %v MiB: %v", got, memory.Verdict())
	}

	idle, err := bench.Idle(t.Context(), bench.IdleConfig{Postgres: db, Program: ours, Duration: time.Second, Runs: 1})
	if err != nil {
		t.Fatal(err)
	}
	// A renewal of all leases may fall into the second that is looked at.
	if got := idle.Median("queries"); got <= 0 || got > 5 {
		t.Errorf("an idle relay asks %v queries a poll interval", got)
	}
}

func TestAProcessThatDoesNotStartSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := bench.Memory(t.Context(), bench.MemoryConfig{
		Postgres: testkit.Postgres(t).Pool().Config(), Rows: 1, PayloadBytes: 64, Runs: 1,
		Program: bench.Program{Path: filepath.Join(t.TempDir(), "none")},
	})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Memory() without a relay = %v", err)
	}
}
