// Package lease says what it takes to act for a shard: a holder, a term that grows at each acquire,
// and a time until which this process may trust that nobody took over.
//
// The database decides who holds a shard; this package only carries its answer. It reads no clock.
package lease

import (
	"errors"
	"time"
)

// ErrLost says that the shard has passed to another holder or term: the writer is a zombie, nothing was written.
var ErrLost = errors.New("lease lost")

// Lease is the right to act for one shard. Every write carries its holder and term.
type Lease struct {
	Relay  string
	Shard  int16
	Holder [16]byte
	Term   int64
	// TrustUntil is the time, on this process's monotonic clock, until which the lease cannot have passed
	// on: the moment the acquiring statement was sent, plus the duration, minus the margin.
	TrustUntil time.Time
}

// Trusted says whether the lease surely still holds at now.
func (l Lease) Trusted(now time.Time) bool { return now.Before(l.TrustUntil) }

// Remaining is how long the lease can be trusted from now, never below zero.
func (l Lease) Remaining(now time.Time) time.Duration { return max(0, l.TrustUntil.Sub(now)) }
