package bench_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/test/testkit"
)

// figures checks that every quantity was measured once a run, and that the bars that hold whatever the machine does are
// met. How fast says nothing in a test.
func figures(t *testing.T, f bench.Finding, runs int, sure ...string) {
	t.Helper()
	for _, q := range f.Quantities {
		if len(q.Runs) != runs || q.Median <= 0 {
			t.Errorf("%+v, want %d runs", q, runs)
		}
	}
	if len(f.Quantities) == 0 || len(f.Bars) == 0 || f.Machine.Postgres == "" {
		t.Errorf("the finding lacks something: %+v", f)
	}
	for _, what := range sure {
		found := false
		for _, b := range f.Bars {
			if strings.Contains(b.What, what) {
				found = true
				if !b.Met() {
					t.Errorf("missed: %s", b)
				}
			}
		}
		if !found {
			t.Errorf("no bar is about %q", what)
		}
	}
}

func TestLatencyIsMeasuredAtTwoRatesAndWithNotifications(t *testing.T) {
	t.Parallel()
	f, err := bench.Latency(t.Context(), bench.LatencyConfig{
		Postgres: testkit.Postgres(t).Pool().Config(), Rate: 100, Duration: 300 * time.Millisecond, Runs: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	figures(t, f, 1)
	if len(f.Quantities) != 10 || len(f.Bars) != 7 {
		t.Errorf("%d quantities and %d bars, want three of each a rate, those of a relay that is told, and the most",
			len(f.Quantities), len(f.Bars))
	}
}

func TestASliceOfEachBacklogIsDrained(t *testing.T) {
	t.Parallel()
	cfg := bench.BacklogConfig{
		Postgres: testkit.Postgres(t).Pool().Config(), Small: 600, Large: 6000, Slice: 400, Runs: 1,
	}
	f, err := bench.Backlog(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	figures(t, f, 1)

	cfg.Slice = cfg.Small + 1
	if _, err := bench.Backlog(t.Context(), cfg); !errors.Is(err, bench.ErrInvalidConfig) {
		t.Errorf("Backlog() of a slice larger than the backlog = %v", err)
	}
}

// Whatever long transactions do to the speed, no message passes an earlier one of its key.
func TestARelayIsMeasuredUnderLongTransactions(t *testing.T) {
	t.Parallel()
	f, err := bench.Xmin(t.Context(), bench.XminConfig{
		Postgres: testkit.Postgres(t).Pool().Config(), Rate: 100, Duration: 900 * time.Millisecond, Rows: 300, Runs: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	figures(t, f, 1, "behind a later one of their key")
	for _, name := range []string{"none", "reading", "writing"} {
		if f.Median("read p99, "+name) <= 0 {
			t.Errorf("no read was timed: %s", name)
		}
	}
}

func TestProcessesShareTheWorkWhileTheBrokerIsSlow(t *testing.T) {
	t.Parallel()
	f, err := bench.Scale(t.Context(), bench.ScaleConfig{
		Postgres: testkit.Postgres(t).Pool().Config(), Rows: 400, Batch: 20, Delay: time.Millisecond, Runs: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	figures(t, f, 1)
}
