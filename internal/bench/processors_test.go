package bench

import (
	"math"
	"testing"
)

func TestWhatAStretchOfTimeTookOfTheProcessors(t *testing.T) {
	t.Parallel()
	before := parseClock(
		"cpu  100 0 50 800 50 0 0 0 40 0\ncpu0 1 1 1 1\n",
		"7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 30 20 0 0",
	)
	after := parseClock(
		"cpu  300 0 150 880 70 0 0 0 90 0\ncpu0 1 1 1 1\n",
		"7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 90 60 0 0",
	)
	got := after.since(before) // 400 ticks, of them 100 idle; the process had 100
	if math.Abs(got.busy-0.75) > 1e-9 || math.Abs(got.own-0.25) > 1e-9 {
		t.Errorf("since() = %+v, want three quarters busy, a quarter our own", got)
	}
	for name, unknown := range map[string]share{
		"nothing is told":    parseClock("", "").since(clock{}),
		"no time has passed": after.since(after),
	} {
		if unknown != (share{}) {
			t.Errorf("where %s: %+v", name, unknown)
		}
	}
}
