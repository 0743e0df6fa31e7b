// Package brokertest holds what every broker adapter is tested with: one conformance suite, and a broker in memory
// (Fake) that passes it, for tests of relay and consumer that need to choose the broker's answers.
//
// It promises that what the suite shows of the Fake it also shows of the real brokers, as far as their capabilities
// say.
package brokertest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// FakeConfig is what a Fake is made of. Zero fields have defaults.
type FakeConfig struct {
	// Stream names the stream in positions. Defaults to FAKE.
	Stream string
	// Destination is the default destination. Defaults to fake.events.
	Destination string
	// Allowed lists the destinations that rows may name.
	Allowed []string
	// MaxPayload bounds a payload in bytes. Defaults to 1 MiB.
	MaxPayload int
	// AckWait is how long a delivery may stay unsettled before it is handed out again. Defaults to 30s.
	AckWait time.Duration
	// Dedupe makes the broker store one message per event id, as JetStream does within its window.
	Dedupe bool
}

// Fault is what happens to one message instead of being stored and confirmed.
type Fault struct {
	// Confirmation is the answer.
	Confirmation broker.Confirmation
	// Stored says that the broker keeps the message all the same: a lost confirmation.
	Stored bool
	// Panic, where not empty, is panicked with.
	Panic string
}

// Stored is one message that a broker holds.
type Stored struct {
	Sequence    uint64
	Destination string
	message.Record

	republish int64 // the fake dedupes by it and the event id
}

// EventID returns the event id that the record carries.
func (s *Stored) EventID() string {
	id, _ := s.Header(message.HeaderEventID)
	return id
}

// Fake is a broker in memory, a Publisher, and a maker of Receivers. All methods are safe for concurrent use.
type Fake struct {
	cfg          FakeConfig
	destinations broker.Destinations
	now          func() time.Time

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever a waiter may go on
	stored  []Stored
	next    uint64
	paused  bool
	stopped bool
	fault   func(*message.Message) *Fault
	calls   int
	durable map[string]*fakeDurable
}

// NewFake returns a running, empty broker. It panics on a malformed pattern in Allowed.
func NewFake(cfg FakeConfig) *Fake {
	if cfg.Stream == "" {
		cfg.Stream = "FAKE"
	}
	if cfg.Destination == "" {
		cfg.Destination = "fake.events"
	}
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = 1 << 20
	}
	if cfg.AckWait == 0 {
		cfg.AckWait = 30 * time.Second
	}
	destinations, err := broker.NewDestinations(cfg.Destination, cfg.Allowed)
	if err != nil {
		panic(err)
	}
	return &Fake{
		cfg: cfg, destinations: destinations, now: time.Now, next: 1,
		changed: make(chan struct{}), durable: make(map[string]*fakeDurable),
	}
}

// Inject sets what decides each message's fate; nil ends it, and a nil Fault is the usual fate.
// The function runs before the message is stored, outside the Fake's lock.
func (f *Fake) Inject(fault func(*message.Message) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Pause makes the broker silent: nothing is answered or handed out until Resume.
func (f *Fake) Pause() { f.set(func() { f.paused = true }) }

// Resume ends Pause. Messages published meanwhile and still awaited are answered.
func (f *Fake) Resume() { f.set(func() { f.paused = false }) }

// Stop makes the broker unreachable until Start. What it holds is kept.
func (f *Fake) Stop() { f.set(func() { f.stopped = true }) }

// Start ends Stop.
func (f *Fake) Start() { f.set(func() { f.stopped = false }) }

func (f *Fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.wake()
}

// wake lets all waiters look again. The lock is held.
func (f *Fake) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Calls returns how often Publish was called.
func (f *Fake) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Stored returns what the broker holds, in its order.
func (f *Fake) Stored() []Stored {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.stored)
}

// Append stores a record as any producer could have made it, and returns its sequence.
func (f *Fake) Append(destination string, rec message.Record) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.store(destination, rec)
}

func (f *Fake) store(destination string, rec message.Record) uint64 {
	seq := f.next
	f.next++
	f.stored = append(f.stored, Stored{Sequence: seq, Destination: destination, Record: rec})
	f.wake()
	return seq
}

func (f *Fake) position(seq uint64) string { return f.cfg.Stream + "@" + strconv.FormatUint(seq, 10) }

func answer(outcome broker.Outcome, reason broker.Reason, detail string) broker.Confirmation {
	return broker.Confirmation{Outcome: outcome, Reason: reason, Detail: detail}
}

// Publish implements broker.Publisher.
func (f *Fake) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	f.mu.Lock()
	f.calls++
	f.mu.Unlock()
	out := make([]broker.Confirmation, len(batch))
	cut := make(map[string]bool)
	for i := range batch {
		m := &batch[i]
		if cut[m.OrderingKey] {
			out[i] = answer(broker.Unavailable, broker.ReasonNotSent, "an earlier message of the key was not confirmed")
			continue
		}
		out[i] = f.publishOne(ctx, m)
		if out[i].Outcome != broker.Confirmed {
			cut[m.OrderingKey] = true
		}
	}
	return out
}

func (f *Fake) publishOne(ctx context.Context, m *message.Message) broker.Confirmation {
	rec, destination, refusal := f.prepare(m)
	if refusal != nil {
		return *refusal
	}
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault != nil {
		if ft := fault(m); ft != nil {
			return f.fail(ft, destination, rec)
		}
	}
	if ctx.Err() != nil {
		return answer(broker.Unavailable, broker.ReasonNotSent, "the deadline had passed")
	}
	return f.storeWhenUp(ctx, destination, rec, m.RepublishID)
}

func (f *Fake) fail(ft *Fault, destination string, rec message.Record) broker.Confirmation {
	if ft.Panic != "" {
		panic(ft.Panic)
	}
	if ft.Stored {
		f.Append(destination, rec)
	}
	return ft.Confirmation
}

// prepare checks what the message alone decides.
func (f *Fake) prepare(m *message.Message) (message.Record, string, *broker.Confirmation) {
	destination, ok := f.destinations.Resolve(m)
	if !ok {
		c := answer(broker.Rejected, broker.ReasonNotAllowed, "add the destination to spec.destination.allowed")
		return message.Record{}, "", &c
	}
	rec, err := message.Encode(m)
	if err != nil {
		c := broker.Refusal(err)
		return message.Record{}, "", &c
	}
	if len(rec.Body) > f.cfg.MaxPayload {
		c := answer(broker.Rejected, broker.ReasonTooLarge, "the message exceeds the broker's limit")
		return message.Record{}, "", &c
	}
	return rec, destination, nil
}

func (f *Fake) storeWhenUp(
	ctx context.Context, destination string, rec message.Record, republish int64,
) broker.Confirmation {
	sent := false
	for {
		f.mu.Lock()
		switch {
		case f.stopped && sent:
			f.mu.Unlock()
			return answer(broker.Unknown, broker.ReasonNoAnswer, "the connection ended")
		case f.stopped:
			f.mu.Unlock()
			return answer(broker.Unavailable, broker.ReasonUnreachable, "the broker is down")
		case !f.paused:
			seq := f.storeOnce(destination, rec, republish)
			f.mu.Unlock()
			return broker.Confirmation{Outcome: broker.Confirmed, Position: f.position(seq)}
		}
		sent = true
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return answer(broker.Unknown, broker.ReasonNoAnswer, "no answer in time")
		}
	}
}

// storeOnce stores the record, or finds it stored where the broker dedupes. The lock is held.
func (f *Fake) storeOnce(destination string, rec message.Record, republish int64) uint64 {
	if f.cfg.Dedupe {
		id, _ := rec.Header(message.HeaderEventID)
		for i := range f.stored {
			if f.stored[i].EventID() == id && f.stored[i].republish == republish {
				return f.stored[i].Sequence
			}
		}
	}
	seq := f.store(destination, rec)
	f.stored[len(f.stored)-1].republish = republish
	return seq
}
