package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFinding(t *testing.T) {
	t.Parallel()
	f := Finding{Machine: Machine{
		System: "linux/amd64", CPU: "CPU", CPUs: 2, Go: "go1.26", Postgres: "17.6",
		Settings: "fsync on",
	}, Setup: "a setup"}
	for _, v := range []float64{0.5, 0.25, 400} {
		f.add("latency", "ms", "from here to there", v)
	}
	f.most("latency", "ms", f.Median("latency"), 1)
	f.least("rate", "rows/s", 79.5, 80)

	var printed, encoded bytes.Buffer
	if err := errors.Join(f.Print(&printed), f.WriteJSON(&encoded)); err != nil {
		t.Fatal(err)
	}

	want := `           median  lowest  highest
  latency     0.5    0.25      400  ms: from here to there
met: latency: 0.5 ms, the bar is at most 1
MISSED: rate: 79.5 rows/s, the bar is at least 80
a setup
linux/amd64, 2 × CPU, go1.26, PostgreSQL 17.6 (fsync on)
`
	if diff := cmp.Diff(want, printed.String()); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
	var back Finding
	if err := json.Unmarshal(encoded.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f, back); diff != "" {
		t.Errorf("read back from JSON (-want +got):\n%s", diff)
	}
	err := f.Verdict()
	if !errors.Is(err, ErrBelowBar) || err.Error() != "a bar is missed: rate: 79.5 rows/s, the bar is at least 80" {
		t.Errorf("Verdict() = %v", err)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values []int
		q      float64
		want   int
	}{
		"one value is every quantile":         {[]int{7}, 0.99, 7},
		"the median of an even number":        {[]int{4, 1, 3, 2}, 0.5, 2},
		"the last percent of few is the last": {[]int{1, 9, 5}, 0.99, 9},
		"a part of nothing is the first":      {[]int{2, 1}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := quantile(tc.values, tc.q); got != tc.want {
				t.Errorf("quantile(%v, %v) = %d, want %d", tc.values, tc.q, got, tc.want)
			}
		})
	}
}
