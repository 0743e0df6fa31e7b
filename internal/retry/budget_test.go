package retry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/retry"
)

func TestBudget(t *testing.T) {
	t.Parallel()

	b := retry.Budget{MaxAttempts: 3, MaxElapsed: time.Hour}
	cases := map[string]struct {
		attempts int
		failing  time.Duration
		want     bool
	}{
		"a message that never failed has all of it":      {0, 0, false},
		"a message that failed less often goes on":       {2, time.Minute, false},
		"the last attempt spends it":                     {3, 0, true},
		"so does the time, however few the attempts":     {1, time.Hour, true},
		"time alone, without an attempt, spends nothing": {0, 48 * time.Hour, false},
		"a budget that was lowered is spent at once":     {9, 0, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := b.Spent(tc.attempts, tc.failing); got != tc.want {
				t.Errorf("Spent(%d, %v) = %v, want %v", tc.attempts, tc.failing, got, tc.want)
			}
		})
	}
	for _, invalid := range []retry.Budget{{}, {MaxAttempts: 1}, {MaxElapsed: 1}} {
		if err := invalid.Validate(); !errors.Is(err, retry.ErrInvalidBudget) {
			t.Errorf("Validate(%+v) = %v", invalid, err)
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()

	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := retry.Share{Percent: 20, MinPerSecond: 10}

	t.Run("without other traffic there are as many a second as the least", func(t *testing.T) {
		t.Parallel()
		var p retry.Purse
		sent := 0
		for tick := range 50 { // five seconds
			sent += p.Take(s, start.Add(time.Duration(tick)*100*time.Millisecond), 100)
		}
		if sent < 50 || sent > 60 {
			t.Errorf("%d retries in five seconds, want about 50 and the first 10", sent)
		}
	})
	t.Run("a fifth of the fresh messages comes on top", func(t *testing.T) {
		t.Parallel()
		var p retry.Purse
		sent := 0
		for tick := range 50 {
			now := start.Add(time.Duration(tick) * 100 * time.Millisecond)
			p.Fresh(s, now, 100) // 1,000 a second
			sent += p.Take(s, now, 1000)
		}
		if sent < 1000 || sent > 1070 {
			t.Errorf("%d retries beside 5,000 fresh messages, want about 1,060", sent)
		}
	})
	t.Run("what was not used in a long quiet time is not saved up", func(t *testing.T) {
		t.Parallel()
		var p retry.Purse
		p.Fresh(s, start, 100_000)
		if got := p.Take(s, start.Add(time.Hour), 100_000); got != 10 {
			t.Errorf("%d retries at once after an hour, want 10", got)
		}
	})
	t.Run("no more are taken than wanted", func(t *testing.T) {
		t.Parallel()
		var p retry.Purse
		if got := p.Take(s, start, 3) + p.Take(s, start, 100); got != 10 {
			t.Errorf("%d retries, want 10", got)
		}
	})
	if err := (retry.Share{Percent: 20}).Validate(); !errors.Is(err, retry.ErrInvalidShare) {
		t.Errorf("Validate() = %v", err)
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()

	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := retry.Share{Percent: 20, MinPerSecond: 10}

	t.Run("whoever finds nothing left waits behind those before, as long as coins take to come in", func(t *testing.T) {
		t.Parallel()
		var p retry.Purse
		p.Take(s, start, 10)
		for i := range 5 {
			want := time.Duration(i+1) * 100 * time.Millisecond
			if got := p.Turn(s, start, time.Minute); got != want {
				t.Errorf("turn %d comes in %v, want %v", i, got, want)
			}
		}
		if got := p.Turn(s, start.Add(time.Second), time.Minute); got != 100*time.Millisecond {
			t.Errorf("a turn after a second comes in %v, want 100ms: those before it are over", got)
		}
		p.Fresh(s, start.Add(time.Second), 10_000)
		if got := p.Turn(s, start.Add(time.Second), time.Minute); got > 110*time.Millisecond {
			t.Errorf("a turn beside many fresh messages comes in %v, want sooner than 110ms", got)
		}
	})
	t.Run("no turn is later than the longest wait", func(t *testing.T) {
		t.Parallel()
		var p retry.Purse
		for range 1000 {
			if got := p.Turn(s, start, time.Second); got > time.Second {
				t.Fatalf("a turn comes in %v", got)
			}
		}
		if got := p.Turn(s, start.Add(time.Second), time.Second); got > 200*time.Millisecond {
			t.Errorf("a turn comes in %v after a second, want the first again", got)
		}
	})
}
