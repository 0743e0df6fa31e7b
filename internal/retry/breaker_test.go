package retry_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/retry"
)

func TestBreaker(t *testing.T) {
	t.Parallel()

	backoff := retry.Backoff{Initial: 100 * time.Millisecond, Max: time.Second}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var b retry.Breaker

	if got := b.Wait(start); got != 0 {
		t.Fatalf("a new breaker waits %v, want 0", got)
	}
	first := b.Failed(start, backoff, 0.5)
	if got, want := first.Sub(start), 55*time.Millisecond; got != want {
		t.Fatalf("the first failure waits %v, want %v", got, want)
	}
	if got := b.Failed(start.Add(time.Millisecond), backoff, 0.9); !got.Equal(first) {
		t.Errorf("a failure inside the pause moved its end to %v, want %v", got, first)
	}
	if got := b.Failures(); got != 1 {
		t.Errorf("failures inside one pause count %d times, want once", got)
	}
	if got, want := b.Wait(start.Add(5*time.Millisecond)), 50*time.Millisecond; got != want {
		t.Errorf("Wait() = %v, want the rest of the pause %v", got, want)
	}
	if got := b.Wait(first); got != 0 {
		t.Errorf("Wait() = %v at the end of the pause, want 0", got)
	}
	second := b.Failed(first, backoff, 0.5)
	if got, want := second.Sub(first), 105*time.Millisecond; got != want {
		t.Errorf("the second failure waits %v, want %v", got, want)
	}
	b.Succeeded()
	if b.Wait(first) != 0 || b.Failures() != 0 {
		t.Error("a success left the breaker open")
	}
}

func TestAfterAPauseOneCallerTriesAndTheOthersWait(t *testing.T) {
	t.Parallel()

	backoff := retry.Backoff{Initial: 100 * time.Millisecond, Max: time.Second}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	within := 10 * time.Second
	var b retry.Breaker
	try := func(what string, now time.Time, wantOK, wantProbe bool) {
		t.Helper()
		if ok, probe := b.Try(now, within); ok != wantOK || probe != wantProbe {
			t.Errorf("%s: Try() = %v, %v, want %v, %v", what, ok, probe, wantOK, wantProbe)
		}
	}

	try("closed", start, true, false)
	end := b.Failed(start, backoff, 0.5)
	try("in the pause", start, false, false)
	try("after the pause, the first", end, true, true)
	try("after the pause, the second", end, false, false)
	if got := b.Wait(end); got != within {
		t.Errorf("Wait() beside a probe = %v, want %v", got, within)
	}
	try("a probe of which nothing was heard is forgotten", end.Add(within), true, true)
	b.Tried()
	try("a probe that told nothing leaves the next to try", end.Add(within), true, true)
	again := b.Failed(end.Add(within), backoff, 0.5)
	b.Tried()
	try("a probe that failed begins the next pause", again.Add(-1), false, false)
	b.Hurry()
	try("who hurries still tries with one", again.Add(-1), true, true)
	b.Succeeded()
	try("closed again", again, true, false)
	try("closed again, for everyone", again, true, false)
}
