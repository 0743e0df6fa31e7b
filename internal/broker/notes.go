package broker

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// noteLifetime is how long an event stays a warning.
const noteLifetime = 10 * time.Minute

// Notes keeps what has happened as warnings for ten minutes, the latest of each reason. The zero value is ready, and safe
// for concurrent use.
type Notes struct {
	mu sync.Mutex
	by map[WarningReason]note
}

type note struct {
	detail string
	until  time.Time
}

// Add notes an event that happens now.
func (n *Notes) Add(reason WarningReason, detail string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.by == nil {
		n.by = make(map[WarningReason]note)
	}
	n.by[reason] = note{detail: Bounded(detail), until: now.Add(noteLifetime)}
}

// Warnings returns what happened lately, in the order of the reasons.
func (n *Notes) Warnings(now time.Time) []Warning {
	n.mu.Lock()
	defer n.mu.Unlock()
	var warnings []Warning
	for reason, event := range n.by {
		if now.After(event.until) {
			delete(n.by, reason)
			continue
		}
		warnings = append(warnings, Warning{Reason: reason, Detail: event.detail})
	}
	slices.SortFunc(warnings, func(a, b Warning) int { return strings.Compare(string(a.Reason), string(b.Reason)) })
	return warnings
}
