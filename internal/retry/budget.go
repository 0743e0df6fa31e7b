package retry

import (
	"errors"
	"fmt"
	"time"
)

// Budget bounds how often and for how long one message may fail by its own fault.
type Budget struct {
	// MaxAttempts is the number of failures with which the budget is spent.
	MaxAttempts int
	// MaxElapsed is the failing time with which it is spent, times left out in which everything failed.
	MaxElapsed time.Duration
}

// ErrInvalidBudget says that a Budget has no bound.
var ErrInvalidBudget = errors.New("invalid retry budget")

// Validate refuses a budget that is spent before the first failure or never.
func (b Budget) Validate() error {
	if b.MaxAttempts < 1 || b.MaxElapsed <= 0 {
		return fmt.Errorf("%w: %d attempts, %v", ErrInvalidBudget, b.MaxAttempts, b.MaxElapsed)
	}
	return nil
}

// Spent says whether a message that has failed so often, and for so long, gets no further try.
func (b Budget) Spent(attempts int, failing time.Duration) bool {
	return attempts >= b.MaxAttempts || (attempts > 0 && failing >= b.MaxElapsed)
}
