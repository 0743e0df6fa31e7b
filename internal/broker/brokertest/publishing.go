package brokertest

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

func confirmedIsStored(t *testing.T, s *Subject) {
	t.Helper()
	m := Message("order-7", 1)
	m.Payload = []byte{0, 255, '\r', '\n', 'x'}
	m.Size = len(m.Payload)
	m.Destination = s.Allowed
	m.Headers = map[string]string{"odd": " a\t%41é ", "empty": ""}
	got := publish(t, s.Publisher(t), m)
	wantOutcome(t, "the message", got[0], broker.Confirmed, "")
	stored := s.Stored(t)
	if len(stored) != 1 {
		t.Fatalf("%d messages stored", len(stored))
	}
	if stored[0].Destination != s.Allowed {
		t.Errorf("stored under %q, want %q", stored[0].Destination, s.Allowed)
	}
	e, err := message.Decode(&stored[0].Record)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(e.Data, m.Payload) || e.EventID != m.ID.String() || e.OrderingKey != m.OrderingKey {
		t.Errorf("stored %q of %s under key %q", e.Data, e.EventID, e.OrderingKey)
	}
	for name, want := range m.Headers {
		if value, ok := e.Headers[name]; !ok || value != want {
			t.Errorf("header %s came as %q, %v; want %q", name, value, ok, want)
		}
	}
	if s.Receiver == nil {
		return
	}
	d := receive(t, s.Receiver(t, "d", 10), 1)[0]
	if d.Position != got[0].Position {
		t.Errorf("confirmed at %q, delivered from %q", got[0].Position, d.Position)
	}
}

func emptyBatch(t *testing.T, s *Subject) {
	t.Helper()
	if got := publish(t, s.Publisher(t)); len(got) != 0 {
		t.Errorf("answers %v", got)
	}
}

func refusals(t *testing.T, s *Subject) {
	t.Helper()
	refused := map[broker.Reason]message.Message{}
	add := func(reason broker.Reason, change func(*message.Message)) {
		m := Message("bad-"+string(reason), 1)
		change(&m)
		refused[reason] = m
	}
	add(broker.ReasonTooLarge, func(m *message.Message) {
		m.Payload = make([]byte, 2*s.MaxPayload)
		m.Size = len(m.Payload)
	})
	add(broker.ReasonNotAllowed, func(m *message.Message) { m.Destination = "elsewhere.entirely" })
	add(broker.ReasonInvalidHeader, func(m *message.Message) { m.Headers = map[string]string{"nats-rollup": "all"} })
	if s.Unroutable != "" {
		add(broker.ReasonUnroutable, func(m *message.Message) { m.Destination = s.Unroutable })
	}
	var batch []message.Message
	var reasons []broker.Reason
	for reason, m := range refused {
		batch = append(batch, Message("good-"+string(reason), 1), m)
		reasons = append(reasons, "", reason)
	}
	batch = append(batch, Message("last", 1))
	reasons = append(reasons, "")
	got := publish(t, s.Publisher(t), batch...)
	for i, reason := range reasons {
		want := broker.Confirmed
		if reason != "" {
			want = broker.Rejected
		}
		wantOutcome(t, batch[i].OrderingKey, got[i], want, reason)
	}
	if stored := s.Stored(t); len(stored) != len(refused)+1 {
		t.Errorf("%d messages stored, want the %d good ones", len(stored), len(refused)+1)
	}
	for _, c := range got {
		if strings.Contains(c.Detail, "elsewhere") {
			t.Errorf("the detail repeats what the row says: %q", c.Detail)
		}
	}
}

func orderInBatch(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(5, 40)
	for i, c := range publish(t, s.Publisher(t), batch...) {
		wantOutcome(t, "message "+batch[i].OrderingKey, c, broker.Confirmed, "")
	}
	wantStoredInOrder(t, s, batch, false)
}

func restOfKeyWaits(t *testing.T, s *Subject) {
	t.Helper()
	batch := Interleaved(2, 4)
	bad := &batch[2] // version 2 of the first key
	bad.Destination = "elsewhere.entirely"
	got := publish(t, s.Publisher(t), batch...)
	for i := range batch {
		switch {
		case i == 2:
			wantOutcome(t, "the refused one", got[i], broker.Rejected, broker.ReasonNotAllowed)
		case batch[i].OrderingKey == bad.OrderingKey && i > 2:
			wantOutcome(t, "a later one of its key", got[i], broker.Unavailable, broker.ReasonNotSent)
		default:
			wantOutcome(t, "another", got[i], broker.Confirmed, "")
		}
	}
	if stored := s.Stored(t); len(stored) != 5 {
		t.Errorf("%d messages stored, want 5", len(stored))
	}
}

// acrossDestinations has the broker refuse a key's first message, when those behind it go to destinations that work.
func acrossDestinations(t *testing.T, s *Subject) {
	t.Helper()
	if s.Refusing == nil {
		return
	}
	p := s.Publisher(t)
	warmUp := Message("warm-up", 1)
	PublishAll(t, p, warmUp)
	batch := []message.Message{
		Message("held", 1), Message("free", 1), Message("held", 2),
		Message("free", 2), Message("held", 3), Message("free", 3),
	}
	batch[0].Destination = s.Refusing(t)
	batch[3].Destination, batch[4].Destination = s.Allowed, s.Allowed
	got := publish(t, p, batch...)
	if got[0].Outcome == broker.Confirmed {
		t.Errorf("the refused one is confirmed at %s", got[0].Position)
	}
	wantOutcome(t, "behind it, to another destination", got[2], broker.Unavailable, broker.ReasonNotSent)
	wantOutcome(t, "behind both", got[4], broker.Unavailable, broker.ReasonNotSent)
	free := []message.Message{batch[1], batch[3], batch[5]}
	PublishAll(t, p, free...) // a transaction goes down with what is refused in it
	for _, one := range s.Stored(t) {
		if one.EventID() == batch[2].ID.String() || one.EventID() == batch[4].ID.String() {
			t.Errorf("a message behind the refused one is at the broker, at %s", one.Destination)
		}
	}
	wantFirst(t, "one beside it", got[1])
	wantFirst(t, "one beside it, to another destination", got[3])
	wantFirst(t, "one beside it, behind both", got[5])
}

// wantFirst checks that a message was confirmed, or not sent.
func wantFirst(t *testing.T, what string, got broker.Confirmation) {
	t.Helper()
	if got.Outcome != broker.Confirmed && got.Reason != broker.ReasonNotSent {
		t.Errorf("%s: %s %s (%s), want it confirmed or not sent", what, got.Outcome, got.Reason, got.Detail)
	}
}

func sentTwice(t *testing.T, s *Subject) {
	t.Helper()
	p := s.Publisher(t)
	m := Message("order-7", 1)
	first := publish(t, p, m)
	second := publish(t, p, m)
	wantOutcome(t, "the first time", first[0], broker.Confirmed, "")
	wantOutcome(t, "the second time", second[0], broker.Confirmed, "")
	if s.Dedupes {
		if first[0].Position != second[0].Position {
			t.Errorf("confirmed at %s, then at %s", first[0].Position, second[0].Position)
		}
	}
	wantStoredInOrder(t, s, []message.Message{m}, !s.Dedupes)
}

// sentAgain sends a message once more on purpose, when the broker knows its id: it is kept again, with the same event id,
// and a repetition of that is one of it.
func sentAgain(t *testing.T, s *Subject) {
	t.Helper()
	p := s.Publisher(t)
	first := Message("order-7", 1)
	again := first
	again.RepublishID = 7
	for _, m := range []message.Message{first, again, again} {
		PublishAll(t, p, m)
	}
	stored := s.Stored(t)
	if s.Dedupes && len(stored) != 2 || len(stored) < 2 {
		t.Fatalf("%d messages stored, want it twice", len(stored))
	}
	for i := range stored {
		if got := stored[i].EventID(); got != first.ID.String() {
			t.Errorf("event id = %q, want %q", got, first.ID)
		}
	}
}

func lostAnswer(t *testing.T, s *Subject) {
	t.Helper()
	if s.LoseAnswer == nil {
		return
	}
	p := s.Publisher(t)
	PublishAll(t, p, Message("warm-up", 1))
	m := Message("order-7", 1)
	lost := s.LoseAnswer(m.ID.String())
	late := time.After(answerTime / 2)
	got := publish(t, p, m)
	select {
	case <-late:
		t.Error("Publish waits for its deadline though the connection has ended")
	default:
	}
	<-lost
	if s.Resends {
		wantOutcome(t, "the message whose answer is lost", got[0], broker.Confirmed, "")
		wantStoredInOrder(t, s, []message.Message{m}, false)
		return
	}
	wantOutcome(t, "the message whose answer is lost", got[0], broker.Unknown, broker.ReasonNoAnswer)
	if stored := s.Stored(t); len(stored) != 2 {
		t.Fatalf("%d messages stored, want the broker to hold what it could not confirm", len(stored))
	}
	PublishAll(t, p, m)
	wantStoredInOrder(t, s, []message.Message{m}, !s.Dedupes)
}

// slowPublish sends more messages of a key than a slow broker confirms in time. A message in doubt would be suspected of
// being the cause the second time, and wait by itself, though nothing is wrong with it.
func slowPublish(t *testing.T, s *Subject) {
	t.Helper()
	if s.Slow == nil {
		return
	}
	p := s.Publisher(t)
	all := []message.Message{Message("order-1", 1)}
	PublishAll(t, p, all...)
	const delay, patience, many = 20 * time.Millisecond, 3 * time.Second, 200
	s.Slow(delay)
	for version := range int64(many) {
		all = append(all, Message("order-1", version+2))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n := 1
	for i, c := range p.Publish(ctx, all[1:]) {
		switch {
		case c.Outcome == broker.Confirmed && i == n-1:
			n++
		case c.Outcome != broker.Unavailable || c.Reason != broker.ReasonNotSent:
			t.Fatalf("message %d of a slow broker, behind %d confirmed ones, is %s %s", i, n-1, c.Outcome, c.Reason)
		}
	}
	if n == 1 {
		t.Error("not one message was confirmed")
	}
	s.Slow(0)
	PublishAll(t, p, all[n:]...)
	wantStoredInOrder(t, s, all, false)
}

func silentPublish(t *testing.T, s *Subject) {
	t.Helper()
	if s.Silence == nil {
		return
	}
	p := s.Publisher(t)
	PublishAll(t, p, Message("warm-up", 1))
	s.Silence()
	batch := Interleaved(3, 3)
	for i := range batch { // more than sockets buffer
		batch[i].Payload = make([]byte, s.MaxPayload/2)
		batch[i].Size = len(batch[i].Payload)
	}
	const patience, slack = 400 * time.Millisecond, 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	late := make(chan struct{})
	timer := time.AfterFunc(patience+slack, func() { close(late) })
	defer timer.Stop()
	answered := make(chan []broker.Confirmation, 1)
	go func() { answered <- p.Publish(ctx, batch) }()
	var got []broker.Confirmation
	select {
	case got = <-answered:
	case <-late:
		t.Fatalf("Publish is not back %s after its deadline", slack)
	}
	for i, c := range got {
		if c.Outcome != broker.Unknown && c.Outcome != broker.Unavailable {
			t.Errorf("message %d of a silent broker is %s", i, c.Outcome)
		}
	}
	s.Restore()
	PublishAll(t, p, batch...)
	wantStoredInOrder(t, s, batch, true)
}

func endedContext(t *testing.T, s *Subject) {
	t.Helper()
	p := s.Publisher(t)
	PublishAll(t, p, Message("warm-up", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := Message("order-7", 1)
	got := p.Publish(ctx, []message.Message{m})
	if len(got) != 1 || got[0].Outcome == broker.Rejected || got[0].Outcome == broker.Ambiguous {
		t.Errorf("answers %+v", got)
	}
	if got[0].Outcome == broker.Unavailable && len(s.Stored(t)) != 1 {
		t.Error("a message that was not sent is at the broker")
	}
	PublishAll(t, p, m)
}

func publishThroughCuts(t *testing.T, s *Subject) {
	t.Helper()
	if s.Cut == nil {
		return
	}
	publishThrough(t, s, func() { s.Cut() })
}

func publishThroughKill(t *testing.T, s *Subject) {
	t.Helper()
	if s.Kill == nil {
		return
	}
	publishThrough(t, s, func() {
		s.Kill(t)
		s.Start(t)
	})
}

// publishThrough keeps publishing batches while a fault happens three times.
func publishThrough(t *testing.T, s *Subject, fault func()) {
	t.Helper()
	p := s.Publisher(t)
	var all []message.Message
	for round := range 3 {
		batch := Interleaved(4, 25)
		all = append(all, batch...)
		var under sync.WaitGroup
		under.Go(fault)
		for start := 0; start < len(batch); start += 20 {
			PublishAll(t, p, batch[start:start+20]...)
		}
		under.Wait()
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	wantStoredInOrder(t, s, all, true)
}

func concurrentBatches(t *testing.T, s *Subject) {
	t.Helper()
	p := s.Publisher(t)
	var mu sync.Mutex
	var all []message.Message
	var lanes sync.WaitGroup
	for range 4 {
		lanes.Go(func() {
			batch := Interleaved(3, 20)
			mu.Lock()
			all = append(all, batch...)
			mu.Unlock()
			for i, c := range publish(t, p, batch...) {
				wantOutcome(t, "message "+batch[i].OrderingKey, c, broker.Confirmed, "")
			}
		})
	}
	lanes.Wait()
	wantStoredInOrder(t, s, all, false)
}
