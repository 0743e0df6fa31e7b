package retry_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/retry"
)

func TestCeiling(t *testing.T) {
	t.Parallel()

	b := retry.Backoff{Initial: 500 * time.Millisecond, Max: 2 * time.Minute}
	cases := map[string]struct {
		failures int
		want     time.Duration
	}{
		"no failure needs no pause":                     {0, 0},
		"a negative count is no failure":                {-1, 0},
		"the first failure waits at most the initial":   {1, 500 * time.Millisecond},
		"each failure doubles the pause":                {4, 4 * time.Second},
		"the pause stops growing at its bound":          {9, 2 * time.Minute},
		"a very long outage does not overflow the time": {math.MaxInt32, 2 * time.Minute},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := b.Ceiling(tc.failures); got != tc.want {
				t.Errorf("Ceiling(%d) = %v, want %v", tc.failures, got, tc.want)
			}
		})
	}
}

func TestPauseIsFullJitterWithALeastPause(t *testing.T) {
	t.Parallel()

	b := retry.Backoff{Initial: 100 * time.Millisecond, Max: time.Second}
	cases := map[string]struct {
		failures int
		random   float64
		want     time.Duration
	}{
		"without a failure nothing waits":             {0, 0.9, 0},
		"the smallest number still waits":             {3, 0, 10 * time.Millisecond},
		"half of the range is half of the way":        {1, 0.5, 55 * time.Millisecond},
		"the range grows with the failures":           {3, 0.5, 205 * time.Millisecond},
		"the range ends at the bound":                 {30, 0.5, 505 * time.Millisecond},
		"the largest number stays below the ceiling":  {30, math.Nextafter(1, 0), time.Second - 1},
		"the largest number of the first failure too": {1, math.Nextafter(1, 0), 100*time.Millisecond - 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := b.Pause(tc.failures, tc.random); got != tc.want {
				t.Errorf("Pause(%d, %v) = %v, want %v", tc.failures, tc.random, got, tc.want)
			}
		})
	}
}

func TestBackoffValidate(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		backoff retry.Backoff
		wantErr error
	}{
		"a growing pause is valid":             {retry.Backoff{Initial: 1, Max: 2}, nil},
		"a constant pause is valid":            {retry.Backoff{Initial: 2, Max: 2}, nil},
		"no initial pause would be a hot loop": {retry.Backoff{Max: 2}, retry.ErrInvalidBackoff},
		"a bound below the initial is crossed": {retry.Backoff{Initial: 3, Max: 2}, retry.ErrInvalidBackoff},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := tc.backoff.Validate(); !errors.Is(err, tc.wantErr) {
				t.Errorf("Validate() = %v, want %v", err, tc.wantErr)
			}
		})
	}
}
