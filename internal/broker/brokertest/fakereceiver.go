package brokertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
)

// fakeDurable is what the broker remembers of one consumer: how far it has handed out, and what is unsettled.
// It is guarded by the Fake's lock.
type fakeDurable struct {
	after   uint64 // all up to here was handed out at least once
	pending map[uint64]*fakePending
}

type fakePending struct {
	due        time.Time // handed out again from here on
	deliveries int
	holder     *FakeReceiver
}

// FakeReceiver is a broker.Receiver of a Fake. Receivers of one durable share its messages.
type FakeReceiver struct {
	fake     *Fake
	name     string
	prefetch int

	mu     sync.Mutex
	err    error
	acked  []uint64
	closed bool
}

// Receiver returns a receiver on the durable of that name, which begins at the first message.
func (f *Fake) Receiver(durable string, prefetch int) *FakeReceiver {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.durable[durable] == nil {
		f.durable[durable] = &fakeDurable{pending: make(map[uint64]*fakePending)}
	}
	return &FakeReceiver{fake: f, name: durable, prefetch: prefetch}
}

// Fail makes Receive return err until it is set to nil.
func (r *FakeReceiver) Fail(err error) {
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	r.fake.set(func() {})
}

// Acked returns the sequences acknowledged through this receiver, in the order of the acknowledgements.
func (r *FakeReceiver) Acked() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.acked)
}

// Close gives what this receiver holds unsettled back to the durable. Receive then returns an error.
func (r *FakeReceiver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.fake.set(func() {
		for _, p := range r.fake.durable[r.name].pending {
			if p.holder == r {
				p.holder, p.due = nil, r.fake.now()
			}
		}
	})
}

// Receive implements broker.Receiver.
func (r *FakeReceiver) Receive(ctx context.Context) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := r.failure(); err != nil {
			return nil, err
		}
		r.fake.mu.Lock()
		if r.fake.stopped {
			r.fake.mu.Unlock()
			return nil, &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the broker is down"}
		}
		var got []broker.Delivery
		var wait time.Duration
		if !r.fake.paused {
			got, wait = r.take()
		}
		changed := r.fake.changed
		r.fake.mu.Unlock()
		if len(got) > 0 {
			return got, nil
		}
		waitFor(ctx, changed, wait)
	}
}

func (r *FakeReceiver) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("receiver is closed")
	}
	return r.err
}

// waitFor waits for the channel, the context's end, or the time, where one is given.
func waitFor(ctx context.Context, changed <-chan struct{}, wait time.Duration) {
	var expired <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-changed:
	case <-expired:
	case <-ctx.Done():
	}
}

// take hands out what is due, lowest sequence first, up to the prefetch; else it says how long until something may be.
// The Fake's lock is held.
func (r *FakeReceiver) take() (got []broker.Delivery, wait time.Duration) {
	d := r.fake.durable[r.name]
	now := r.fake.now()
	free := r.prefetch
	for _, p := range d.pending {
		if p.holder == r && now.Before(p.due) {
			free--
		}
	}
	for _, sequence := range slices.Sorted(maps.Keys(d.pending)) {
		p := d.pending[sequence]
		if left := p.due.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		if len(got) < free {
			got = append(got, r.handOut(sequence, p, now))
		}
	}
	for len(got) < free && d.after < uint64(len(r.fake.stored)) {
		d.after++
		p := &fakePending{}
		d.pending[d.after] = p
		got = append(got, r.handOut(d.after, p, now))
	}
	return got, wait
}

func (r *FakeReceiver) handOut(sequence uint64, p *fakePending, now time.Time) broker.Delivery {
	p.holder, p.due = r, now.Add(r.fake.cfg.AckWait)
	p.deliveries++
	return broker.Delivery{
		Acknowledger: &fakeAck{r: r, sequence: sequence},
		Record:       r.fake.stored[sequence-1].Record, // sequences are dense from 1
		Position:     r.fake.position(sequence), Sequence: sequence, Deliveries: p.deliveries,
	}
}

// fakeAck settles one delivery.
type fakeAck struct {
	r        *FakeReceiver
	sequence uint64
}

// Ack implements broker.Acknowledger.
func (a *fakeAck) Ack(context.Context) error {
	return a.settle(func(d *fakeDurable, _ *fakePending) {
		delete(d.pending, a.sequence)
		a.r.mu.Lock()
		a.r.acked = append(a.r.acked, a.sequence)
		a.r.mu.Unlock()
	})
}

// Release implements broker.Acknowledger.
func (a *fakeAck) Release(_ context.Context, pause time.Duration) error {
	return a.settle(func(_ *fakeDurable, p *fakePending) {
		p.holder, p.due = nil, a.r.fake.now().Add(pause)
	})
}

// InProgress implements broker.Acknowledger.
func (a *fakeAck) InProgress(context.Context) error {
	return a.settle(func(_ *fakeDurable, p *fakePending) {
		p.due = a.r.fake.now().Add(a.r.fake.cfg.AckWait)
	})
}

// settle changes the delivery where it is still unsettled. As brokers do, an acknowledgement counts also when
// the message has been handed out again since.
func (a *fakeAck) settle(change func(*fakeDurable, *fakePending)) error {
	f := a.r.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the broker is down"}
	}
	d := f.durable[a.r.name]
	if p := d.pending[a.sequence]; p != nil {
		change(d, p)
		f.wake()
	}
	return nil
}
