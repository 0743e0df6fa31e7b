package relay

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/internal/statusz"
)

// Report says how the relay stands. A count that could not be taken is absent. The time at which the counts were
// taken, by the database's clock, is ObservedTime.
func (r *Relay) Report(ctx context.Context) (statusz.Relay, []statusz.Condition) {
	cfg := r.config()
	held, inHand := r.held()
	out := statusz.Relay{Shards: cfg.Shards, HeldShards: held, Destination: cfg.Destination}
	r.totals.report(r.now(), &out)
	var ambiguous int64
	if len(held) > 0 {
		ambiguous = r.backlog(ctx, held, inHand, &out)
	}
	takes := r.brokerCondition(cfg)
	conditions := append(r.health.conditions(), takes)
	if ambiguous > 0 {
		conditions = append(conditions, warning(conditionAmbiguous, reasonUnclear,
			"messages have failed for long, and nothing got through meanwhile that tells whether it is their fault; "+
				"postrider dead-letters move gives one up by hand"))
	}
	now := r.now()
	conditions = append(conditions, r.clock.conditions(now)...)
	if takes.Status != "False" { // who does not answer at all is slow too
		conditions = append(conditions, r.pace.conditions(now)...)
	}
	return out, conditions
}

// held returns the shards that this process holds, in order, and the rows it has in hand.
func (r *Relay) held() (shards []int16, inHand int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	shards = make([]int16, 0, len(r.lanes))
	for s, l := range r.lanes {
		shards = append(shards, s)
		inHand += l.inHand.Load()
	}
	slices.Sort(shards)
	return shards, inHand
}

// backlog counts what is not settled of the held shards, what comes in, and the relay's open dead letters. What is not
// known stays absent. It returns the number of messages of which nobody knows why they fail.
func (r *Relay) backlog(ctx context.Context, held []int16, inHand int64, out *statusz.Relay) (ambiguous int64) {
	b, err := r.store.Backlog(ctx, held)
	if err != nil {
		r.storeFailed(ctx, "backlog", err)
		return 0
	}
	r.health.succeeded("backlog")
	r.metrics.observed(b)
	r.totals.observed(b)
	out.ArrivedPerSec = r.totals.arrived(r.now(), held, b)
	out.Backlog = &statusz.Backlog{
		Messages: b.Ready + b.Retrying + b.Blocked, Precision: "Exact",
		OldestMessageTime: b.OldestAt, OldestBlockedTime: b.OldestBlockedAt,
		InFlight: inHand, Retrying: b.Retrying, BlockedMessages: b.Blocked, BlockedKeys: b.BlockedKeys,
	}
	if b.AtLeast {
		out.Backlog.Precision = "AtLeast"
	}
	out.DeadLetters = &statusz.Count{Open: b.DeadLetters, OldestTime: b.OldestDeadLetterAt}
	return b.Ambiguous
}

// ObservedTime is when the last counts were taken, by the database's clock; nil before the first.
func (r *Relay) ObservedTime() *time.Time {
	r.totals.mu.Lock()
	defer r.totals.mu.Unlock()
	return r.totals.observedAt
}

// failing returns the units that fail as far as is known, and the latest time at which one of them began to. One that
// nobody has tried for long, such as a partition without messages, is not known.
func (r *Relay) failing(now time.Time) (names []string, latest time.Time) {
	return r.units.failing(now.Add(-2 * max(time.Minute, r.config().Backoff.Max)))
}

// brokerCondition is what the last answers of the broker say. While some of its parts take messages, it is there.
func (r *Relay) brokerCondition(cfg *Config) statusz.Condition {
	c := statusz.Condition{Type: conditionBroker, Status: "Unknown", Reason: reasonUnknown}
	outage, worked := r.units.state(cfg.Unit)
	failing, latest := r.failing(r.now())
	if outage == nil && len(failing) > 0 && !r.units.took(cfg.Unit, latest) {
		outage, _ = r.units.state(failing[0])
	}
	switch {
	case outage != nil:
		c.Status, c.Reason, c.Message = "False", string(outage.Reason), outage.Detail
	case worked:
		c.Status, c.Reason = "True", reasonWorking
	}
	return c
}

// rateWindow is how far back the rate looks.
const rateWindow = 10 * time.Second

// totals counts what a process has published since its start.
type totals struct {
	mu         sync.Mutex
	count      int64
	last       *time.Time
	observedAt *time.Time
	samples    []sample
	// left counts all rows that left the outbox, looks are the backlogs of the same shards from which arrivals follow.
	left  int64
	looks []backlogLook
}

// backlogLook is what was there at one time, and what had left until then.
type backlogLook struct {
	at            time.Time
	held          []int16
	waiting, left int64
}

// sample is the count at one time.
type sample struct {
	at    time.Time
	count int64
}

// published adds the confirmed messages of a batch.
func (t *totals) published(now time.Time, b *batch) {
	var n, expired int64
	for i := range b.got {
		switch {
		case b.got[i].Outcome != broker.Confirmed:
		case b.got[i].Position == placeExpired:
			expired++
		default:
			n++
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count += n
	t.left += n + expired
	t.last = &now
}

// sample remembers the count for the rate. It is called about once a second.
func (t *totals) sample(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.samples = append(t.samples, sample{at: now, count: t.count})
	for len(t.samples) > 2 && now.Sub(t.samples[1].at) >= rateWindow {
		t.samples = t.samples[1:]
	}
}

func (t *totals) observed(b shard.Backlog) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observedAt = &b.ObservedAt
}

// arrived returns how many messages a second were written since a look some seconds ago: what has left since, and what
// is there more. Nil while nobody knows: counts that stopped at a bound, or are of other shards, say nothing.
func (t *totals) arrived(now time.Time, held []int16, b shard.Backlog) *int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.AtLeast || (len(t.looks) > 0 && !slices.Equal(t.looks[0].held, held)) {
		t.looks = nil
	}
	if b.AtLeast {
		return nil
	}
	is := backlogLook{at: now, held: held, waiting: b.Ready + b.Retrying + b.Blocked, left: t.left}
	t.looks = append(t.looks, is)
	for len(t.looks) > 2 && now.Sub(t.looks[1].at) >= rateWindow {
		t.looks = t.looks[1:]
	}
	was := t.looks[0]
	took := now.Sub(was.at)
	if took < time.Second {
		return nil
	}
	more := max(0, is.waiting-was.waiting+is.left-was.left) // a settle under way counts twice for a moment
	rate := int64(float64(more)/took.Seconds() + 0.5)
	return &rate
}

// report writes count, rate and last time into a report. There is no rate before there is something to compare with.
func (t *totals) report(now time.Time, out *statusz.Relay) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out.PublishedTotal = t.count
	out.LastPublishedTime = t.last
	if len(t.samples) == 0 {
		return
	}
	first := t.samples[0]
	if took := now.Sub(first.at); took >= time.Second {
		rate := int64(float64(t.count-first.count)/took.Seconds() + 0.5)
		out.PublishedPerSec = &rate
	}
}
