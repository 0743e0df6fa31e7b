package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/retry"
)

const (
	// maxUnits bounds the units that are remembered. One that is forgotten counts as one that was never used: that errs
	// towards the environment.
	maxUnits = 1024
	// maxOutages bounds the outages that are remembered of a unit.
	maxOutages = 64
)

// units keeps what is known of each part of the broker that can fail alone. All lanes share it: what one of them finds
// out, the others need not. A restart forgets it, and nothing is shared between processes.
type units struct {
	mu sync.Mutex
	by map[string]*unit
}

type unit struct {
	breaker retry.Breaker
	purse   retry.Purse
	// outage is why it failed last; nil while it works or nothing is known. It began at since.
	outage *broker.Confirmation
	since  time.Time
	// past are earlier outages, in order.
	past []span
	// worked says that a message got through since the start; saw are the last two successes with different keys, the
	// newest first.
	worked bool
	saw    [2]success
	used   time.Time
}

// span is a time, from its begin to its end.
type span struct{ from, to time.Time }

// success is a message that got through: the key, and when its batch was sent.
type success struct {
	key string
	at  time.Time
}

func newUnits() *units { return &units{by: make(map[string]*unit)} }

// get returns what is known of a unit. The one that was not used for the longest time makes room for a new one.
func (u *units) get(name string, now time.Time) *unit {
	one := u.by[name]
	if one == nil {
		if len(u.by) >= maxUnits {
			u.forgetOne()
		}
		one = &unit{}
		u.by[name] = one
	}
	if now.After(one.used) {
		one.used = now
	}
	return one
}

func (u *units) forgetOne() {
	oldest := ""
	for name, one := range u.by {
		if oldest == "" || one.used.Before(u.by[oldest].used) {
			oldest = name
		}
	}
	delete(u.by, oldest)
}

// wait returns how long messages of the unit must wait at now.
func (u *units) wait(name string, now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.get(name, now).breaker.Wait(now)
}

// try says whether the unit may be sent to at now, and whether one message is to try first if it works again. Nobody
// else tries until that is known, or the time given is over.
func (u *units) try(name string, now time.Time, within time.Duration) (ok, probe bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.get(name, now).breaker.Try(now, within)
}

// tried says that the message that tried the unit has been answered.
func (u *units) tried(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if one := u.by[name]; one != nil {
		one.breaker.Tried()
	}
}

// failed pauses the unit and says whether it worked until now.
func (u *units) failed(name string, why broker.Confirmation, now time.Time, b retry.Backoff, random float64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.get(name, now)
	first := one.outage == nil
	if first {
		one.since = now
	}
	one.breaker.Failed(now, b, random)
	one.outage = &why
	return first
}

// succeeded ends the unit's pause, remembers who got through when, and says whether the unit had failed. A message that
// was sent before the pause began ends it too: it is the newest that is known.
func (u *units) succeeded(name string, s success, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.get(name, now)
	if one.saw[0].key != s.key {
		one.saw[1] = one.saw[0]
	}
	one.saw[0], one.worked = s, true
	return one.heal(now)
}

// heal ends the unit's pause and says whether it had failed.
func (u *unit) heal(now time.Time) bool {
	u.breaker.Succeeded()
	if u.outage == nil {
		return false
	}
	if len(u.past) == maxOutages { // the gap between the two oldest counts as part of them
		u.past[1].from = u.past[0].from
		u.past = u.past[1:]
	}
	u.past = append(u.past, span{u.since, now})
	u.outage = nil
	return true
}

// witness says whether a message of another key, sent after the given time, got through the unit.
func (u *units) witness(name, key string, after time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.by[name]
	if one == nil {
		return false
	}
	for _, s := range one.saw {
		if s.key != key && s.at.After(after) {
			return true
		}
	}
	return false
}

// working returns how much of the time from one moment to another the unit was not known to fail.
func (u *units) working(name string, from, to time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := max(0, to.Sub(from))
	one := u.by[name]
	if one == nil {
		return left
	}
	for _, s := range one.past {
		left -= overlap(s, span{from, to})
	}
	if one.outage != nil {
		left -= overlap(span{one.since, to}, span{from, to})
	}
	return max(0, left)
}

// overlap returns how long two spans have in common.
func overlap(a, b span) time.Duration {
	from, to := a.from, a.to
	if b.from.After(from) {
		from = b.from
	}
	if b.to.Before(to) {
		to = b.to
	}
	return max(0, to.Sub(from))
}

// fresh notes that messages were sent to the unit for the first time.
func (u *units) fresh(name string, s retry.Share, now time.Time, messages int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.get(name, now).purse.Fresh(s, now, messages)
}

// spare says whether a message may be sent to the unit again at now, and counts it.
func (u *units) spare(name string, s retry.Share, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.get(name, now).purse.Take(s, now, 1) == 1
}

// turn returns how long a message waits that may not be sent to the unit again yet: after all that were told so before, and
// for the given time at most.
func (u *units) turn(name string, s retry.Share, now time.Time, most time.Duration) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.get(name, now).purse.Turn(s, now, most)
}

// answered ends the pause of a unit, and says whether it had failed. Nobody got through.
func (u *units) answered(name string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.get(name, now)
	return one.heal(now)
}

// fails says whether the unit fails.
func (u *units) fails(name string) bool {
	outage, _ := u.state(name)
	return outage != nil
}

// rest returns how long nothing can be sent at now, since all of these units fail and each is paused; and whether all
// fail. No names, no knowledge.
func (u *units) rest(names []string, now time.Time) (wait time.Duration, all bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, name := range names {
		one := u.by[name]
		if one == nil || one.outage == nil {
			return 0, false
		}
		if w := one.breaker.Wait(now); i == 0 || w < wait {
			wait = w
		}
	}
	return wait, len(names) > 0
}

// took says whether the unit took a message that was sent after the given time.
func (u *units) took(name string, after time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.by[name]
	return one != nil && one.saw[0].at.After(after)
}

// failing returns the units that fail and were used since the given time, in order, and the latest time at which one of
// them began to.
func (u *units) failing(since time.Time) (names []string, latest time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for name, one := range u.by {
		if one.outage == nil || one.used.Before(since) {
			continue
		}
		names = append(names, name)
		if one.since.After(latest) {
			latest = one.since
		}
	}
	slices.Sort(names)
	return names, latest
}

// tryAgain ends all pauses without forgetting why they began.
func (u *units) tryAgain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.by {
		one.breaker.Hurry()
	}
}

// state returns why the unit failed last, or that it works, or that nothing is known.
func (u *units) state(name string) (outage *broker.Confirmation, worked bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.by[name]
	if one == nil {
		return nil, false
	}
	return one.outage, one.worked
}
