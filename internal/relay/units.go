package relay

import (
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/retry"
)

// units keeps a breaker for each part of the broker that can fail alone. All lanes share it: what one of them finds
// out, the others need not.
type units struct {
	mu sync.Mutex
	by map[string]*unit
}

type unit struct {
	breaker retry.Breaker
	// outage is why it failed last; nil while it works or nothing is known.
	outage *broker.Confirmation
	// worked says that a message got through since the start.
	worked bool
}

func newUnits() *units { return &units{by: make(map[string]*unit)} }

func (u *units) get(name string) *unit {
	if u.by[name] == nil {
		u.by[name] = &unit{}
	}
	return u.by[name]
}

// wait returns how long messages of the unit must wait at now.
func (u *units) wait(name string, now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.get(name).breaker.Wait(now)
}

// failed pauses the unit and says whether it worked until now.
func (u *units) failed(name string, why broker.Confirmation, now time.Time, b retry.Backoff, random float64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.get(name)
	first := one.outage == nil
	one.breaker.Failed(now, b, random)
	one.outage = &why
	return first
}

// succeeded ends the unit's pause and says whether it had failed.
func (u *units) succeeded(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.get(name)
	recovered := one.outage != nil
	one.breaker.Succeeded()
	one.outage, one.worked = nil, true
	return recovered
}

// tryAgain ends all pauses without forgetting why they began.
func (u *units) tryAgain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.by {
		one.breaker.Succeeded()
	}
}

// state returns why the unit failed last, or that it works, or that nothing is known.
func (u *units) state(name string) (outage *broker.Confirmation, worked bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.get(name)
	return one.outage, one.worked
}
