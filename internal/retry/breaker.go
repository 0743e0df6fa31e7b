package retry

import "time"

// Breaker pauses everything that shares one part of the environment (a unit, such as a broker's stream)
// while that part fails. After the pause one caller tries whether it works again; the others wait for the outcome. It
// is not safe for concurrent use; the caller that shares it guards it.
type Breaker struct {
	failures int
	until    time.Time
	// probing is until when the caller that tries has time to answer.
	probing time.Time
}

// Failed notes a failure seen at now and returns when the next try may start. Failures of callers that
// were already on their way when the breaker opened are one failure: otherwise eight lanes would make
// one outage look like eight.
func (b *Breaker) Failed(now time.Time, backoff Backoff, random float64) time.Time {
	if now.Before(b.until) {
		return b.until
	}
	b.failures++
	b.probing = time.Time{}
	b.until = now.Add(backoff.Pause(b.failures, random))
	return b.until
}

// Succeeded closes the breaker and forgets its failures.
func (b *Breaker) Succeeded() { *b = Breaker{} }

// Tried says that a probe is over. Where it has told nothing, somebody else may try.
func (b *Breaker) Tried() { b.probing = time.Time{} }

// Hurry ends the pause without forgetting the failures.
func (b *Breaker) Hurry() { b.until, b.probing = time.Time{}, time.Time{} }

// Open says that the last thing known is a failure.
func (b *Breaker) Open() bool { return b.failures > 0 }

// Wait returns how long callers must still wait at now; 0 when one may try.
func (b *Breaker) Wait(now time.Time) time.Duration {
	return max(0, b.until.Sub(now), b.probing.Sub(now))
}

// Try says at now whether the caller may send: as much as it likes while the breaker is closed; else, if nobody else is
// trying, a probe whose outcome it must tell. A probe of which nothing is heard within the time given is forgotten.
func (b *Breaker) Try(now time.Time, within time.Duration) (ok, probe bool) {
	switch {
	case !b.Open():
		return true, false
	case b.Wait(now) > 0:
		return false, false
	default:
		b.probing = now.Add(within)
		return true, true
	}
}

// Failures returns the number of failures since the last success.
func (b *Breaker) Failures() int { return b.failures }
