package worker

import (
	"errors"
	"strings"
	"time"
)

// The exit codes of a worker process.
const (
	// ExitOK: drained, everything released.
	ExitOK = 0
	// ExitFailed: an invalid config at start, or something that only a person can mend and a restart needs.
	ExitFailed = 1
	// ExitUsage: wrong flags.
	ExitUsage = 2
	// ExitStalled: the watchdog ended the process; its log names the loop.
	ExitStalled = 3
	// ExitDrainTimeout: the drain time was over before everything was released. Leases run out by themselves.
	ExitDrainTimeout = 4
)

// StallError names the loops that make no step.
type StallError struct{ Loops []string }

// Error implements error.
func (e *StallError) Error() string {
	return "no step for more than " + StallTimeout.String() + " in " + strings.Join(e.Loops, ", ")
}

// DrainError says that not everything could be released in time.
type DrainError struct{ After time.Duration }

// Error implements error.
func (e *DrainError) Error() string {
	return "not drained within " + e.After.String() + ": what is held is released when its lease ends"
}

// ExitCode maps what Run returned to the process's exit code.
func ExitCode(err error) int {
	var stalled *StallError
	var drain *DrainError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &stalled):
		return ExitStalled
	case errors.As(err, &drain):
		return ExitDrainTimeout
	default:
		return ExitFailed
	}
}
