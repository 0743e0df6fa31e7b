package brokertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// receive returns the next n deliveries. Errors of the environment are waited out.
func receive(t *testing.T, r broker.Receiver, n int) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), healTime)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	var got []broker.Delivery
	var last error
	for len(got) < n {
		batch, err := r.Receive(ctx)
		got = append(got, batch...)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			t.Fatalf("%d of %d deliveries within %s (%v)", len(got), n, healTime, last)
		}
		last = err
		if _, ok := errors.AsType[*broker.Error](err); !ok {
			t.Fatalf("Receive: %v, want *broker.Error", err)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
		}
	}
	return got
}

// nothing checks that no delivery comes for a while.
func nothing(t *testing.T, r broker.Receiver, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	got, err := r.Receive(ctx)
	if len(got) > 0 {
		t.Errorf("delivery of %s: %s", got[0].Position, why)
	} else if err == nil {
		t.Error("Receive returned nothing and no error")
	}
}

func ack(t *testing.T, deliveries ...broker.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Ack(t.Context()); err != nil {
			t.Errorf("ack of %s: %v", d.Position, err)
		}
	}
}

func eventIDs(deliveries []broker.Delivery) map[string]int {
	ids := make(map[string]int)
	for i := range deliveries {
		id, _ := deliveries[i].Header(message.HeaderEventID)
		ids[id]++
	}
	return ids
}

func wantEach(t *testing.T, batch []message.Message, deliveries []broker.Delivery) {
	t.Helper()
	ids := eventIDs(deliveries)
	for i := range batch {
		if ids[batch[i].ID.String()] == 0 {
			t.Errorf("message %d of key %s did not come", i, batch[i].OrderingKey)
		}
	}
}

// same says whether a delivery is of the event.
func same(d broker.Delivery, eventID string) bool {
	id, ok := d.Header(message.HeaderEventID)
	return ok && id == eventID
}

func deliveriesInOrder(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(4, 50)
	PublishAll(t, s.Publisher(t), batch...)
	stored := s.Stored(t)
	r := s.Receiver(t, "d", 64)
	var got []broker.Delivery
	for len(got) < len(batch) {
		part := receive(t, r, 1)
		ack(t, part...)
		got = append(got, part...)
	}
	for i := range got {
		want, _ := stored[i].Header(message.HeaderEventID)
		if !same(got[i], want) || got[i].Deliveries != 1 {
			t.Fatalf("delivery %d is %s, time %d; want event %s", i, got[i].Position, got[i].Deliveries, want)
		}
		if got[i].Sequence != stored[i].Sequence && !s.Unnumbered {
			t.Fatalf("delivery %d is %s; want sequence %d", i, got[i].Position, stored[i].Sequence)
		}
	}
	wantEach(t, batch, got)
}

func prefetch(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(4, 10)
	PublishAll(t, s.Publisher(t), batch...)
	r := s.Receiver(t, "d", 7)
	got := receive(t, r, 7)
	if len(got) != 7 {
		t.Fatalf("%d deliveries unsettled, prefetch is 7", len(got))
	}
	nothing(t, r, "beyond the prefetch")
	ack(t, got[0], got[1])
	more := receive(t, r, 2)
	if len(more) != 2 {
		t.Errorf("%d deliveries for two settled", len(more))
	}
}

func receiveEnds(t *testing.T, s *Subject) {
	t.Helper()
	r := s.Receiver(t, "d", 7)
	nothing(t, r, "of an empty stream")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Receive(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Receive with an ended context: %v", err)
	}
}

func release(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(2, 2)
	PublishAll(t, s.Publisher(t), batch...)
	r := s.Receiver(t, "d", 10)
	got := receive(t, r, 4)
	const pause = time.Second
	early := time.After(pause * 9 / 10)
	if err := got[0].Release(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	ack(t, got[1:]...)
	PublishAll(t, s.Publisher(t), Message("other", 1))
	again, other := afterRelease(t, s, r)
	select {
	case <-early:
	default:
		t.Errorf("it came again before its pause of %s", pause)
	}
	id, _ := got[0].Header(message.HeaderEventID)
	if same(other, id) || !same(again, id) || again.Position != got[0].Position || again.Deliveries != 2 {
		t.Errorf("%s, and %s for the time %d; want another, and %s for the time 2",
			other.Position, again.Position, again.Deliveries, got[0].Position)
	}
	if err := again.Release(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	times := 3
	if s.TellsRedelivery {
		times = 2
	}
	if third := receive(t, r, 1)[0]; !same(third, id) || third.Deliveries != times {
		t.Errorf("released without a pause, then %s for the time %d", third.Position, third.Deliveries)
	}
}

// afterRelease returns a delivery that was released, and the one that was published behind it. Only in partitions does the
// second wait for the first.
func afterRelease(t *testing.T, s *Subject, r broker.Receiver) (again, other broker.Delivery) {
	t.Helper()
	if s.InPartitions {
		both := receive(t, r, 2)
		again, other = both[0], both[1]
		ack(t, other)
		return again, other
	}
	other = receive(t, r, 1)[0]
	ack(t, other)
	return receive(t, r, 1)[0], other
}

func drain(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(3, 10)
	PublishAll(t, s.Publisher(t), batch...)
	r := s.Receiver(t, "d", 12)
	got := receive(t, r, 1)
	ack(t, got...)
	r.Close()
	if _, err := r.Receive(t.Context()); err == nil {
		t.Error("a closed receiver receives")
	}
	next := s.Receiver(t, "d", 100)
	rest := receive(t, next, len(batch)-len(got))
	acked, again := eventIDs(got), eventIDs(rest)
	for id := range again {
		if acked[id] > 0 {
			t.Errorf("%s came again after its acknowledgement", id)
		}
	}
	ack(t, rest...)
	nothing(t, next, "all are acknowledged")
}

func crash(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(3, 5)
	PublishAll(t, s.Publisher(t), batch...)
	r := s.Receiver(t, "d", 100)
	if r.Crash == nil {
		return
	}
	held := receive(t, r, len(batch))
	next := s.Receiver(t, "d", 100)
	nothing(t, next, "another receiver holds it")
	var both sync.WaitGroup // its owner and its supervisor may both cut it
	both.Go(r.Crash)
	both.Go(r.Crash)
	both.Wait()
	got := receive(t, next, len(batch))
	wantEach(t, batch, got)
	for i := range got {
		if got[i].Deliveries < 2 && !s.ForgetsDeliveries {
			t.Errorf("%s is delivered for the time %d", got[i].Position, got[i].Deliveries)
		}
	}
	if len(held) != len(batch) {
		t.Errorf("%d deliveries before the crash", len(held))
	}
}

func sharedDurable(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(10, 10)
	a, b := s.Receiver(t, "d", 5), s.Receiver(t, "d", 5)
	nothing(t, a, "of an empty stream")
	nothing(t, b, "of an empty stream")
	PublishAll(t, s.Publisher(t), batch...)
	counts := make(map[string]int)
	shares := [2]int{}
	for turn := 0; len(counts) < len(batch); turn++ {
		r := [2]broker.Receiver{a, b}[turn%2]
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		got, err := r.Receive(ctx)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		for id := range eventIDs(got) {
			counts[id]++
			shares[turn%2]++
		}
		ack(t, got...)
		if turn > 1000 {
			t.Fatalf("%d of %d messages came", len(counts), len(batch))
		}
	}
	if shares[0] == 0 || shares[1] == 0 {
		t.Errorf("shares of %v: one receiver got nothing", shares)
	}
	for _, id := range slices.Collect(maps.Keys(counts)) {
		if counts[id] != 1 {
			t.Errorf("%s came %d times", id, counts[id])
		}
	}
}

func twoDurables(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(3, 3)
	PublishAll(t, s.Publisher(t), batch...)
	for _, durable := range []string{"one", "two"} {
		got := receive(t, s.Receiver(t, durable, 100), len(batch))
		wantEach(t, batch, got)
	}
}

func receiveThroughCuts(t *testing.T, s *Subject) {
	t.Helper()
	if s.Cut == nil {
		return
	}
	receiveThrough(t, s, s.Cut)
}

func receiveThroughSilence(t *testing.T, s *Subject) {
	t.Helper()
	if s.Silence == nil {
		return
	}
	receiveThrough(t, s, func() {
		s.Silence()
		s.Restore()
	})
}

func receiveThroughKill(t *testing.T, s *Subject) {
	t.Helper()
	if s.Kill == nil {
		return
	}
	receiveThrough(t, s, func() {
		s.Kill(t)
		s.Start(t)
	})
}

// receiveThrough consumes while a fault happens, before and after acknowledgements: each message has to come.
func receiveThrough(t *testing.T, s *Subject, fault func()) {
	t.Helper()
	r := s.Receiver(t, "d", 30)
	p := s.Publisher(t)
	batch := Interleaved(4, 30)
	PublishAll(t, p, batch[:len(batch)/2]...)
	first := make(map[string]bool)
	step := func(until int) {
		for len(first) < until {
			got := receive(t, r, 1)
			for i := range got {
				id, _ := got[i].Header(message.HeaderEventID)
				first[id] = true
			}
			ack(t, got...)
		}
	}
	step(len(batch) / 4)
	fault()
	PublishAll(t, p, batch[len(batch)/2:]...)
	step(len(batch) / 2)
	fault()
	step(len(batch))
}
