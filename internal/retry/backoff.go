// Package retry decides how long to wait after a failure: growing pauses with full jitter, for one
// caller (Backoff) or for everything that shares one part of the environment (Breaker).
//
// It is pure: the time and the random number are arguments, so that a test can say what happens when.
// It never sleeps and starts no goroutine.
package retry

import (
	"errors"
	"fmt"
	"time"
)

// Backoff bounds the growing, jittered pause between tries.
type Backoff struct {
	// Initial is the longest pause after the first failure; each further failure doubles it.
	Initial time.Duration
	// Max is the longest pause of all.
	Max time.Duration
}

// ErrInvalidBackoff says that a Backoff contradicts itself.
var ErrInvalidBackoff = errors.New("invalid backoff")

// Validate refuses a backoff that would never pause or whose bounds are crossed.
func (b Backoff) Validate() error {
	switch {
	case b.Initial <= 0:
		return fmt.Errorf("%w: initial is %v, want more than 0", ErrInvalidBackoff, b.Initial)
	case b.Max < b.Initial:
		return fmt.Errorf("%w: max %v is below initial %v", ErrInvalidBackoff, b.Max, b.Initial)
	default:
		return nil
	}
}

// Ceiling returns the longest pause after this many failures in a row: Initial, doubled for each failure
// after the first, at most Max. It is 0 without a failure.
func (b Backoff) Ceiling(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	ceiling := b.Initial
	for range failures - 1 {
		if ceiling >= b.Max/2 {
			return b.Max
		}
		ceiling *= 2
	}
	return min(ceiling, b.Max)
}

// Pause returns how long to wait after this many failures in a row: a share of the ceiling chosen by
// random, a number in [0, 1). Full jitter spreads callers that failed together; the tenth of Initial
// that is kept as the least pause makes sure that an unlucky number is never a hot loop.
func (b Backoff) Pause(failures int, random float64) time.Duration {
	ceiling := b.Ceiling(failures)
	if ceiling == 0 {
		return 0
	}
	least := b.Initial / 10
	return least + time.Duration(random*float64(ceiling-least))
}
