package retry

import "time"

// Breaker pauses everything that shares one part of the environment (a unit, such as a broker's stream)
// while that part fails. It is not safe for concurrent use; the caller that shares it guards it.
type Breaker struct {
	failures int
	until    time.Time
}

// Failed notes a failure seen at now and returns when the next try may start. Failures of callers that
// were already on their way when the breaker opened are one failure: otherwise eight lanes would make
// one outage look like eight.
func (b *Breaker) Failed(now time.Time, backoff Backoff, random float64) time.Time {
	if now.Before(b.until) {
		return b.until
	}
	b.failures++
	b.until = now.Add(backoff.Pause(b.failures, random))
	return b.until
}

// Succeeded closes the breaker and forgets its failures.
func (b *Breaker) Succeeded() { *b = Breaker{} }

// Wait returns how long callers must still wait at now; 0 when they may try.
func (b *Breaker) Wait(now time.Time) time.Duration { return max(0, b.until.Sub(now)) }

// Failures returns the number of failures since the last success.
func (b *Breaker) Failures() int { return b.failures }
