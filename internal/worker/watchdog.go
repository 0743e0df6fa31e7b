package worker

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// StallTimeout is how much longer than it said a loop may take for its next step before the process counts
// as stuck. It is far above any pause of the scheduler or the disk, and no setting: nobody could choose better.
const StallTimeout = time.Minute

// Watchdog notices a loop that makes no step any more: a deadlock, a library that ignores its deadline, a
// goroutine that never returns. A database or broker that does not answer is none of these: calls have
// deadlines, and a loop says before each how long it may take.
type Watchdog struct {
	now func() time.Time

	mu    sync.Mutex
	loops map[string]time.Time // when the next step is due
}

// NewWatchdog returns a watchdog that reads time from now, which must be monotonic.
func NewWatchdog(now func() time.Time) *Watchdog {
	return &Watchdog{now: now, loops: make(map[string]time.Time)}
}

// Step says that a loop is alive and makes its next step within the given time.
func (w *Watchdog) Step(loop string, within time.Duration) {
	due := w.now().Add(within)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loops[loop] = due
}

// Done says that a loop has ended.
func (w *Watchdog) Done(loop string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.loops, loop)
}

// Stalled returns an error that names the loops whose step is overdue by more than StallTimeout.
func (w *Watchdog) Stalled() error {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	var stuck []string
	for loop, due := range w.loops {
		if late := now.Sub(due); late > StallTimeout {
			stuck = append(stuck, fmt.Sprintf("%s (%s overdue)", loop, late.Round(time.Second)))
		}
	}
	if len(stuck) == 0 {
		return nil
	}
	slices.Sort(stuck)
	return &StallError{Loops: stuck}
}
