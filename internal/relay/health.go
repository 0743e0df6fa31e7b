package relay

import (
	"slices"
	"strings"
	"sync"

	"github.com/postrider/postrider/internal/statusz"
)

// The condition types that a relay reports. Store.Explain uses the first four.
const (
	conditionDatabase  = "DatabaseReachable"
	conditionSchema    = "SchemaReady"
	conditionInUse     = "TableInUse"
	conditionUnburied  = "DeadLetterUnavailable"
	conditionBroker    = "BrokerReachable"
	conditionAmbiguous = "RetryingAmbiguous"
)

// The reasons of conditions that are not a failure's own.
const (
	reasonWorking = "Working"
	reasonUnknown = "NotTried"
	reasonUnclear = "NoWitness"
)

// health remembers which of a relay's doings fail and why, until the same doing works again.
type health struct {
	mu       sync.Mutex
	problems map[string]problem // by doing
	worked   bool
}

type problem struct{ condition, reason, message string }

func newHealth() *health { return &health{problems: make(map[string]problem)} }

// failed notes why a doing failed. It says whether that is news.
func (h *health) failed(doing string, p problem) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, known := h.problems[doing]
	h.problems[doing] = p
	h.worked = h.worked || p.condition != conditionDatabase // a database that complains is there
	return !known || before.condition != p.condition || before.reason != p.reason
}

// succeeded notes that a doing works.
func (h *health) succeeded(doing string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.worked = true
	delete(h.problems, doing)
}

// forget drops what is known of the doings with a prefix: whoever did them is gone.
func (h *health) forget(prefix string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for doing := range h.problems {
		if strings.HasPrefix(doing, prefix) {
			delete(h.problems, doing)
		}
	}
}

// conditions returns what the problems say about the database, its schema, who uses it and its dead letters.
func (h *health) conditions() []statusz.Condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := make(map[string]problem)
	for _, doing := range h.sorted() {
		p := h.problems[doing]
		if _, ok := found[p.condition]; !ok {
			found[p.condition] = p
		}
	}
	out := make([]statusz.Condition, 0, len(found)+2)
	for _, t := range []string{conditionDatabase, conditionSchema} {
		out = append(out, h.condition(t, found))
	}
	for _, t := range []string{conditionInUse, conditionUnburied} {
		if p, ok := found[t]; ok {
			out = append(out, warning(t, p.reason, p.message))
		}
	}
	return out
}

// condition is the state of one of the conditions that should be True. A database that cannot be reached says nothing
// about its schema.
func (h *health) condition(t string, found map[string]problem) statusz.Condition {
	if p, ok := found[t]; ok {
		return statusz.Condition{Type: t, Status: "False", Reason: p.reason, Message: p.message}
	}
	_, unreachable := found[conditionDatabase]
	if !h.worked || (t == conditionSchema && unreachable) {
		return statusz.Condition{Type: t, Status: "Unknown", Reason: reasonUnknown}
	}
	return statusz.Condition{Type: t, Status: "True", Reason: reasonWorking}
}

// sorted returns the doings that fail, in order, so that a report does not flicker between several reasons.
func (h *health) sorted() []string {
	out := make([]string, 0, len(h.problems))
	for doing := range h.problems {
		out = append(out, doing)
	}
	slices.Sort(out)
	return out
}
