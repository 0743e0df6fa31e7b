package relay_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/test/testkit"
)

// beside runs a writer beside the test until stop is called or the test ends.
func (w *world) beside(write func(ctx context.Context) error) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := write(ctx); err != nil && ctx.Err() == nil {
				w.t.Errorf("write: %v", err)
				return
			}
		}
	})
	stop = func() { cancel(); running.Wait() }
	w.t.Cleanup(stop)
	return stop
}

// One key has as many messages as a thousand others together, and each of them arrives in its order.
func TestAHotKeyAmongManyKeepsItsOrder(t *testing.T) {
	t.Parallel()
	for name, unordered := range map[string]bool{"per key": false, "unordered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const each = 1000
			w := newWorld(t, 4)
			w.Exec(`INSERT INTO message_outbox
				(event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
				SELECT gen_random_uuid(), 'order.paid', 'shop', CASE WHEN i % 2 = 0 THEN 'hot' ELSE 'k' || i END,
				CASE WHEN i % 2 = 0 THEN i / 2 ELSE 1 END, '{}', now() FROM generate_series(1, $1) i`, 2*each)
			w.start(options{config: func(c *relay.Config) { c.Unordered = unordered }})
			w.awaitEmpty()
			w.inOrder("hot", each)
			if got := w.broker.count(); got != 2*each {
				t.Errorf("%d messages arrived, want %d", got, 2*each)
			}
		})
	}
}

// A key that drains catches up with its writer, and is then free again: it would stay slow for ever otherwise.
func TestAKeyThatIsWrittenToAllTheTimeLeavesDraining(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	first := w.put("busy", 100)[0]
	var refusing atomic.Bool
	refusing.Store(true)
	arrived := make(chan struct{}, 1000)
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.ID == first.ID && refusing.Load() {
			return rejected, false
		}
		select {
		case arrived <- struct{}{}:
		default:
		}
		return confirmed, true
	})
	w.start(options{config: func(c *relay.Config) { c.Batch.MaxMessages = 40 }})
	w.awaitSQL("the whole key waits", `count(*) = 100 AND bool_and(held) FROM message_outbox`)
	written := int64(100)
	stop := w.beside(func(ctx context.Context) error { // one more for every two that arrive
		for range 2 {
			select {
			case <-arrived:
			case <-ctx.Done():
				return nil
			}
		}
		m, err := write(context.WithoutCancel(ctx), w.Pool(), "busy")
		written = m.AggregateVersion
		return err
	})
	refusing.Store(false)
	w.awaitSQL("the key drains", `count(*) = 1 FROM message_outbox_gate WHERE state = 'Draining'`)
	w.awaitSQL("the key is free again", `count(*) = 0 FROM message_outbox_gate`)
	stop()
	w.awaitEmpty()
	w.inOrder("busy", int(written))
}

// byDestination is a broker whose parts are the destinations of rows.
type byDestination struct{ broker.Publisher }

// Unit implements broker.Router.
func (byDestination) Unit(m *message.Message) string { return "to " + m.Destination }

// Units implements broker.Router.
func (byDestination) Units() []string { return nil }

// A key whose messages go to another destination from some time on is still one key: nothing of it passes a message that
// waits, and each destination has its part in order.
func TestAKeyWhoseDestinationChangesStaysInOrder(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]broker.Confirmation{
		"the new destination refuses":    rejected,
		"the new destination is down":    {Outcome: broker.Unavailable, Reason: broker.ReasonBrokerError},
		"the new destination is silent":  unknown,
		"the broker is not there":        unavailable,
		"nobody knows whose fault it is": {Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			var want []string
			for i, destination := range strings.Split("||eu||eu|eu||eu", "|") {
				m, err := writeTo(t.Context(), w.Pool(), "k", destination)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, fmt.Sprintf("%s %d", destination, m.AggregateVersion))
				if i == 0 {
					w.put("other", 1)
				}
			}
			var tries atomic.Int64
			w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
				if m.Destination == "eu" && tries.Add(1) <= 4 {
					return why, false
				}
				return confirmed, true
			})
			w.start(options{publisher: byDestination{w.broker}})
			w.awaitEmpty()
			var got []string
			for _, m := range w.broker.all("k") {
				got = append(got, fmt.Sprintf("%s %d", m.Destination, m.AggregateVersion))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("messages in the broker (-want +got):\n%s", diff)
			}
			w.inOrder("other", 1)
		})
	}
}

// A6, A7, A11: replicas come and go while messages are written. Two lease durations later each has its share again.
func TestReplicasAddedAndRemovedUnderLoadAreSoonBalanced(t *testing.T) {
	t.Parallel()
	const keys = 16
	w := newWorld(t, 8)
	duration := w.config().LeaseDuration
	n := 0
	stop := w.beside(func(ctx context.Context) error {
		n++
		_, err := write(context.WithoutCancel(ctx), w.Pool(), fmt.Sprintf("k%d", n%keys))
		rest(ctx, seeded(uint64(n)), 1, 4)
		return err
	})
	balanced := func(what string, shares ...int) {
		t.Helper()
		began := time.Now()
		w.evenly(shares...)
		if took := time.Since(began); took > 2*duration {
			t.Errorf("%s: balanced after %v, want within two lease durations of %v", what, took, duration)
		}
	}
	a := w.start(options{})
	balanced("the first", 8)
	b := w.start(options{})
	balanced("a second", 4, 4)
	c := w.start(options{})
	balanced("a third", 2, 3, 3)
	b.kill()
	balanced("one is killed", 4, 4)
	if err := c.stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	balanced("one is stopped", 8)
	stop()
	w.awaitEmpty()
	for i := range keys {
		key := fmt.Sprintf("k%d", i)
		last := testkit.Value[int](w.DB, `SELECT last::int FROM message_outbox_sequence WHERE ordering_key = $1`, key)
		if diff := cmp.Diff(upTo(last), once(w.broker.versions(key))); diff != "" {
			t.Errorf("first deliveries of %s (-want +got):\n%s", key, diff)
		}
	}
	if err := a.stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// Somebody puts a row back by hand, with a position below all that the relay has read: it is found in time.
func TestARowThatIsInsertedByHandBelowTheFloorIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	h := &hooks{}
	p := w.start(options{wrap: h.wrap})
	for range 3 { // until nothing can be below what was read
		w.put("order-1", 5)
		w.awaitEmpty()
		looks := h.looks.Load()
		testkit.Eventually(t, patience, "the lane is idle", func() bool { return h.looks.Load() > looks+3 })
	}
	w.Exec(`INSERT INTO message_outbox (position, event_id, event_type, source, ordering_key, payload, occurred_at)
		OVERRIDING SYSTEM VALUE VALUES (1, gen_random_uuid(), 'order.paid', 'shop', 'order-2', '{}', now())`)
	testkit.Eventually(t, 3*patience, "the row is sent", func() bool { return w.left() == 0 })
	if got := p.counted("outbox_late_rows_total"); got != 0 {
		t.Errorf("%v late rows counted, want none: nothing of its key was sent", got)
	}
}

// Who goes around the lock of a key may commit below a later message of it that was sent. Nothing can put that right; it is
// counted.
func TestARowThatAppearsBelowASentOneOfItsKeyIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.start(options{})
	const byHand = `INSERT INTO message_outbox
		(event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
		VALUES (gen_random_uuid(), 'order.paid', 'shop', 'order-1', $1, '{}', now())`
	slow, err := w.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Exec(t.Context(), byHand, 1); err != nil {
		t.Fatal(err)
	}
	w.Exec(byHand, 2)
	w.awaitEmpty()
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, "both are sent", func() bool { return w.broker.count() == 2 })
	if got := p.counted("outbox_late_rows_total"); got != 1 {
		t.Errorf("%v late rows counted, want 1", got)
	}
}
