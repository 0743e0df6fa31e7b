package consumer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/verdict"
)

const (
	// lookAgain is how long a key that another process holds is left alone.
	lookAgain = 20 * time.Millisecond
	// waitAfter is how long a message waits for its key before the lane asks for the key and waits for it.
	waitAfter = time.Second
	// maxBatchBytes bounds the bodies of a batch beside its first.
	maxBatchBytes = 8 << 20
	// settleTimeout bounds the words to the broker about one batch.
	settleTimeout = 5 * time.Second
	// idleStep is how often a lane without work says that it is alive.
	idleStep = 5 * time.Second
)

// entry is a delivery in a lane.
type entry struct {
	delivery broker.Delivery
	item     *verdict.Item
	beat     time.Time // when the broker last heard of it
}

// lane handles the messages of its keys, one batch after the other. The queue holds them in the order of arrival until
// they are decided: nothing of a key passes an earlier one.
type lane struct {
	*session
	name string

	mu      sync.Mutex
	queue   []*entry
	wake    chan struct{}            // holds one
	waiting map[verdict.Hash]*waited // keys that another process holds; only the lane's goroutine touches it
	limit   int                      // messages of the next batch
}

// waited is how long a key has been waited for.
type waited struct{ since, next time.Time }

func newLane(s *session, name string) *lane {
	return &lane{
		session: s,
		name:    name,
		wake:    make(chan struct{}, 1),
		waiting: make(map[verdict.Hash]*waited),
		limit:   s.cfg().MaxBatch,
	}
}

func (l *lane) push(e *entry) {
	l.mu.Lock()
	l.queue = append(l.queue, e)
	l.mu.Unlock()
	nudge(l.wake)
}

// run handles batches until the session stops or, when it drains, until the queue is empty.
func (l *lane) run(soft, hard context.Context) {
	defer l.steps.Done(l.name)
	failures := 0
	for soft.Err() == nil {
		apart := failures >= apartAfter
		batch, wait, pause := l.next(apart)
		if len(batch) == 0 {
			if l.draining() && l.empty() {
				return
			}
			l.steps.Step(l.name, idleStep)
			l.rest(soft, pause)
			continue
		}
		err := l.handle(hard, batch, wait, apart)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		l.rest(soft, l.failed(hard, err, failures, len(batch)))
	}
}

// rest waits for new deliveries, the end of the pause or the session's.
func (l *lane) rest(soft context.Context, pause time.Duration) {
	timer := time.NewTimer(min(pause, idleStep))
	defer timer.Stop()
	select {
	case <-soft.Done():
	case <-timer.C:
	case <-l.wake:
	}
}

// next picks a batch: the queue's messages in order, without those whose key another process holds. A key that has been
// waited for too long gets a batch of its own, which waits for it. With apart it takes the first message of each key only,
// so that many of one key leave room for others. Without a batch it says when to look again.
func (l *lane) next(apart bool) (batch []*entry, wait bool, pause time.Duration) {
	now := l.now()
	for h, w := range l.waiting {
		if apart || now.Sub(w.since) < waitAfter || now.Before(w.next) {
			continue
		}
		if batch = l.pick(func(it *verdict.Item) bool { return it.Keyed && it.Key == h }); len(batch) > 0 {
			return batch, true, 0
		}
		delete(l.waiting, h)
	}
	var taken map[verdict.Hash]bool
	if apart {
		taken = make(map[verdict.Hash]bool)
	}
	batch = l.pick(func(it *verdict.Item) bool {
		w := l.waiting[it.Key]
		if it.Keyed && (taken[it.Key] || (w != nil && now.Before(w.next))) {
			return false
		}
		if apart && it.Keyed {
			taken[it.Key] = true
		}
		return true
	})
	pause = idleStep
	for _, w := range l.waiting {
		pause = min(pause, w.next.Sub(now))
	}
	return batch, false, max(pause, time.Millisecond)
}

// pick takes the first messages of the queue that are wanted, within the bounds of a batch.
func (l *lane) pick(wanted func(*verdict.Item) bool) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []*entry
	bytes := 0
	for _, e := range l.queue {
		if !wanted(e.item) {
			continue
		}
		bytes += len(e.item.Record.Body)
		if len(batch) == l.limit || (len(batch) > 0 && bytes > maxBatchBytes) {
			break
		}
		batch = append(batch, e)
	}
	return batch
}

// handle runs one batch and tells the broker what is durable.
func (l *lane) handle(hard context.Context, batch []*entry, wait, apart bool) error {
	cfg := l.cfg()
	job := l.job(cfg)
	job.Wait, job.Apart = wait, apart
	items := make([]*verdict.Item, len(batch))
	for i, e := range batch {
		items[i] = e.item
	}
	// The store bounds its transactions; where messages are run one by one there may be several.
	l.steps.Step(l.name, 2*time.Minute+4*cfg.HandlerTimeout)
	start := l.now()
	decisions, err := l.store.Apply(hard, job, items)
	took := l.now().Sub(start)
	if hard.Err() != nil {
		return hard.Err() // killed: nothing is acknowledged any more
	}
	if err == nil {
		l.metrics.transaction(took)
		l.healed(l.name)
		l.limit = grow(l.limit, cfg.MaxBatch, took, cfg.HandlerTimeout)
	}
	if err == nil {
		l.await(batch, decisions, wait)
	}
	l.settle(hard, batch, decisions)
	return err
}

// grow returns the size of the next batch. One that took its time is not followed by a larger one.
func grow(limit, most int, took, bound time.Duration) int {
	if took < bound/4 {
		limit *= 2
	}
	return min(limit, most)
}

// await notes which keys another process holds. One that was waited for in vain is left alone for longer, so that the
// lane's other keys get most of its time.
func (l *lane) await(batch []*entry, decisions []verdict.Decision, waitedFor bool) {
	now := l.now()
	again := lookAgain
	if waitedFor {
		again = waitAfter
	}
	for i, e := range batch {
		if !e.item.Keyed {
			continue
		}
		if decisions[i].Action != verdict.Undecided {
			delete(l.waiting, e.item.Key)
			continue
		}
		w := l.waiting[e.item.Key]
		if w == nil {
			w = &waited{since: now}
			l.waiting[e.item.Key] = w
		}
		w.next = now.Add(again)
	}
}

// settle acknowledges what is decided and keeps the rest.
func (l *lane) settle(hard context.Context, batch []*entry, decisions []verdict.Decision) {
	done := make(map[*entry]bool, len(batch))
	ripe := false
	for i, e := range batch {
		if d := decisions[i]; d.Action != verdict.Undecided {
			done[e] = true
			ripe = ripe || d.Ripe
			l.decided(d)
		}
	}
	if len(done) == 0 {
		return
	}
	l.remove(done)
	if ripe {
		l.drainSoon()
	}
	l.acknowledge(hard, batch, done)
}

func (l *lane) remove(done map[*entry]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = slices.DeleteFunc(l.queue, func(e *entry) bool { return done[e] })
}

// acknowledge tells the broker. What it does not hear it delivers again, and the inbox knows it.
func (l *lane) acknowledge(hard context.Context, batch []*entry, done map[*entry]bool) {
	ctx, cancel := context.WithTimeout(hard, settleTimeout)
	defer cancel()
	unheard := 0
	var last error
	for _, e := range batch {
		if !done[e] {
			continue
		}
		l.outstanding.Add(-int64(len(e.item.Record.Body)))
		if err := e.delivery.Ack(ctx); err != nil {
			unheard++
			last = err
		}
	}
	if unheard > 0 && hard.Err() == nil {
		l.log.DebugContext(hard, "The broker did not hear acknowledgements", "messages", unheard, "err", last)
	}
}

// failed says how long to wait after an error, and notes it. A batch that was too slow is tried again in halves.
func (l *lane) failed(hard context.Context, err error, failures, n int) time.Duration {
	var t *verdict.Trouble
	if !errors.As(err, &t) || t.Kind == verdict.Stopping || hard.Err() != nil {
		return idleStep // the session is ending
	}
	l.metrics.failed(t)
	switch t.Kind {
	case verdict.Again, verdict.OutcomeUnknown:
		l.log.DebugContext(
			hard,
			"Transaction is run again",
			"reason",
			t.Reason,
			"sqlState",
			t.Code,
			"attempt",
			failures,
		)
		if failures > againPatience {
			l.troubled(hard, l.name, t)
		}
		return againPause.Pause(failures, l.random())
	case verdict.Slow:
		l.limit = max(1, n/2)
		l.log.DebugContext(hard, "Batch is too slow, trying a smaller one", "batchSize", n, "attempt", failures)
		return againPause.Pause(failures, l.random())
	default:
		l.troubled(hard, l.name, t)
		return environmentPause.Pause(failures, l.random())
	}
}

func (l *lane) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) == 0
}

// release gives back what is not decided, so that another process gets it at once.
func (l *lane) release(hard context.Context) {
	l.mu.Lock()
	left := l.queue
	l.queue = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(hard, settleTimeout)
	defer cancel()
	for _, e := range left {
		if hard.Err() != nil {
			return // killed
		}
		l.outstanding.Add(-int64(len(e.item.Record.Body)))
		if err := e.delivery.Release(ctx, 0); err != nil {
			l.log.DebugContext(hard, "The broker did not hear a release", "err", err)
		}
	}
}

// beat tells the broker of deliveries that have waited for long, whatever they wait for.
func (l *lane) beat(ctx context.Context, every time.Duration) {
	now := l.now()
	l.mu.Lock()
	var old []*entry
	for _, e := range l.queue {
		if now.Sub(e.beat) >= every {
			e.beat = now
			old = append(old, e)
		}
	}
	l.mu.Unlock()
	for _, e := range old {
		if err := e.delivery.InProgress(ctx); err != nil {
			l.log.DebugContext(ctx, "The broker did not hear that a delivery is in progress", "err", err)
			return
		}
	}
}
