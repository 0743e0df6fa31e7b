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
