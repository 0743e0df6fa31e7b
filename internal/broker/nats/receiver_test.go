package nats

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// source is a stream with messages in it, and how to read and change it.
type source struct {
	*testkit.Broker
	testkit.Stream

	js   jetstream.JetStream
	conn *Conn
}

func newSource(t *testing.T, cfg jetstream.StreamConfig, messages int) *source {
	t.Helper()
	server := testkit.NATS(t)
	s := &source{Broker: server, Stream: server.Stream(cfg), js: server.JetStream()}
	s.conn = dial(t, testConfig(server.Addr(), s.Stream.Name))
	s.add(t, messages)
	return s
}

func (s *source) add(t *testing.T, n int) {
	t.Helper()
	p := newPublisher(t, s.conn, PublisherConfig{Subject: s.Subject("a")})
	for _, c := range publish(t, p, numbered(n)...) {
		want(t, c, broker.Confirmed, "")
	}
}

func (s *source) createDurable(t *testing.T, cfg jetstream.ConsumerConfig) jetstream.Consumer {
	t.Helper()
	c, err := s.js.CreateConsumer(t.Context(), s.Stream.Name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *source) deleteDurable(t *testing.T, name string) {
	t.Helper()
	if err := s.js.DeleteConsumer(t.Context(), s.Stream.Name, name); err != nil {
		t.Fatal(err)
	}
}

func (s *source) durable(t *testing.T, name string) *jetstream.ConsumerInfo {
	t.Helper()
	c, err := s.js.Consumer(t.Context(), s.Stream.Name, name)
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo()
}

// receive returns the next n deliveries, or fails.
func receive(t *testing.T, r *Receiver, n int) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []broker.Delivery
	for len(got) < n {
		batch, err := r.Receive(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d deliveries came (%v, state %v)", len(got), n, err, r.state())
		}
		if err != nil {
			wait(ctx, 10*time.Millisecond) // the environment is not ready
		}
		got = append(got, batch...)
	}
	return got
}

// failure waits until Receive says why nothing comes.
func failure(t *testing.T, r *Receiver, reason broker.Reason) *broker.Error {
	t.Helper()
	var e *broker.Error
	testkit.Eventually(t, 20*time.Second, "Receive fails with "+string(reason), func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := r.Receive(ctx)
		return errors.As(err, &e) && e.Reason == reason
	})
	return e
}

func quiet(t *testing.T, r *Receiver, d time.Duration, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if got, err := r.Receive(ctx); len(got) > 0 {
		t.Errorf("%s came: %s", got[0].Position, why)
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Receive: %v", err)
	}
}

func ackAll(t *testing.T, deliveries []broker.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func warned(t *testing.T, r *Receiver, reason broker.WarningReason) bool {
	t.Helper()
	warnings, _ := r.Check(t.Context())
	for _, w := range warnings {
		if w.Reason == reason && w.Detail != "" {
			return true
		}
	}
	return false
}

func TestDeletedDurableIsMadeAgainFromTheStoredPosition(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 10)
	var position atomic.Uint64 // what a consumer's database holds
	r := newReceiver(t, s.conn, ReceiverConfig{
		Durable: "d", Prefetch: 100,
		StartSequence: func(context.Context, string) (uint64, bool, error) {
			p := position.Load()
			return p, p > 0, nil
		},
	})
	got := receive(t, r, 10)
	ackAll(t, got[:6])
	position.Store(7)
	if warned(t, r, broker.WarnConsumerLost) {
		t.Error("a durable made for the first time is called lost")
	}
	s.deleteDurable(t, "d")
	again := receive(t, r, 4)
	if again[0].Sequence != 7 || again[0].Deliveries != 1 {
		t.Errorf("the durable was made again from %d", again[0].Sequence)
	}
	if !warned(t, r, broker.WarnConsumerLost) {
		t.Error("nobody is told that the durable was lost")
	}
	ackAll(t, got) // of the durable that is no more: not this one's
	ackAll(t, again)
	testkit.Eventually(t, 10*time.Second, "everything is acknowledged", func() bool {
		lag, err := r.Lag(t.Context())
		return err == nil && lag.Messages == 0 && lag.OldestTime == nil
	})
}

func TestStoredPositionOfAnotherStreamSkipsNothing(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 3)
	r := newReceiver(t, s.conn, ReceiverConfig{
		Durable: "d", StartSequence: func(context.Context, string) (uint64, bool, error) { return 1000, true, nil },
	})
	if got := receive(t, r, 3); got[0].Sequence != 1 {
		t.Errorf("begins at %d", got[0].Sequence)
	}
}

func TestStoredPositionOfAStreamThatWasMadeAgainSkipsNothing(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 5)
	noted := make(map[string]uint64) // what a consumer's database holds
	cfg := ReceiverConfig{
		Durable: "d", StartSequence: func(_ context.Context, stream string) (uint64, bool, error) {
			p, known := noted[stream]
			return p + 1, known, nil
		},
	}
	old := newReceiver(t, s.conn, cfg)
	ackAll(t, receive(t, old, 5))
	testkit.Eventually(t, 10*time.Second, "the acknowledgements count", func() bool {
		stream, finished, err := old.Finished(t.Context())
		noted[stream] = finished
		return err == nil && finished == 5
	})
	closeWithin(t, old.Close)
	s.deleteDurable(t, "d")
	same := newReceiver(t, s.conn, cfg)
	quiet(t, same, 500*time.Millisecond, "it is finished, and the stream is the same")
	closeWithin(t, same.Close)

	if err := s.js.DeleteStream(t.Context(), s.Stream.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: s.Stream.Name, Subjects: []string{s.Subject(">")},
	}); err != nil {
		t.Fatal(err)
	}
	s.add(t, 8) // longer by now than the old one was
	got := receive(t, newReceiver(t, s.conn, cfg), 8)
	if got[0].Sequence != 1 {
		t.Errorf("begins at %d, so that what comes before it is never handled", got[0].Sequence)
	}
}

func TestStoredPositionThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 3)
	var up atomic.Bool
	r := newReceiver(t, s.conn, ReceiverConfig{
		Durable: "d", StartSequence: func(context.Context, string) (uint64, bool, error) {
			if !up.Load() {
				return 0, false, errors.New("database is down")
			}
			return 2, true, nil
		},
	})
	_ = failure(t, r, broker.ReasonNotSent)
	up.Store(true)
	if got := receive(t, r, 2); got[0].Sequence != 2 {
		t.Errorf("begins at %d", got[0].Sequence)
	}
}

func TestStreamThatComesLater(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	js := server.JetStream()
	if err := js.DeleteStream(t.Context(), stream.Name); err != nil {
		t.Fatal(err)
	}
	r := newReceiver(t, dial(t, testConfig(server.Addr(), stream.Name)), ReceiverConfig{Durable: "d"})
	if e := failure(t, r, broker.ReasonStreamMissing); !strings.Contains(e.Detail, "nats stream add "+stream.Name) {
		t.Errorf("the error does not say how to make the stream: %v", e)
	}
	if _, err := r.Check(t.Context()); err == nil {
		t.Error("Check finds nothing wrong")
	}
	_, err := js.CreateStream(
		t.Context(),
		jetstream.StreamConfig{Name: stream.Name, Subjects: []string{stream.Prefix + ".>"}},
	)
	if err == nil {
		_, err = js.Publish(t.Context(), stream.Subject("x"), []byte("hello"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := receive(t, r, 1); string(got[0].Body) != "hello" {
		t.Errorf("body %q", got[0].Body)
	}
}

func TestExistingDurableIsNeverChanged(t *testing.T) {
	t.Parallel()
	base := jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy}
	cases := map[string]struct {
		change func(*jetstream.ConsumerConfig)
		want   string // part of the error; empty: it is used as it is
	}{
		"another filter": {func(c *jetstream.ConsumerConfig) { c.FilterSubject = "%.x" }, "filters"},
		"no acks":        {func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckNonePolicy }, "ack policy"},
		"headers only":   {func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }, "headers only"},
		"original pace": {
			func(c *jetstream.ConsumerConfig) { c.ReplayPolicy = jetstream.ReplayOriginalPolicy },
			"pace",
		},
		"other limits": {func(c *jetstream.ConsumerConfig) {
			c.MaxAckPending, c.AckWait, c.MaxDeliver, c.InactiveThreshold = 7, 3*time.Second, 5, time.Hour
		}, ""},
		"limits on requests": {func(c *jetstream.ConsumerConfig) {
			c.MaxRequestBatch, c.MaxRequestExpires, c.MaxRequestMaxBytes = 2, time.Second, 5000
		}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, jetstream.StreamConfig{}, 3)
			cfg := base
			tc.change(&cfg)
			cfg.FilterSubject = strings.Replace(cfg.FilterSubject, "%", s.Prefix, 1)
			s.createDurable(t, cfg)
			before := s.durable(t, "d")
			r := newReceiver(t, s.conn, ReceiverConfig{Durable: "d"})
			if tc.want == "" {
				ackAll(t, receive(t, r, 3))
			} else if e := failure(t, r, broker.ReasonStreamMismatch); !strings.Contains(e.Detail, tc.want) {
				t.Errorf("%v, want %q", e, tc.want)
			}
			if after := s.durable(
				t,
				"d",
			); after.Created != before.Created || after.Config.MaxDeliver != before.Config.MaxDeliver ||
				after.Config.FilterSubject != before.Config.FilterSubject ||
				after.Config.AckPolicy != before.Config.AckPolicy {
				t.Errorf("the durable was changed: %+v", after.Config)
			}
			if name == "other limits" &&
				(!warned(t, r, broker.WarnDeliveryLimit) || !warned(t, r, broker.WarnMayExpire)) {
				t.Error("a limit below our budget is not warned of")
			}
		})
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 3)
	for _, subject := range []string{"b", "c", "d"} {
		if _, err := s.js.Publish(t.Context(), s.Subject(subject), []byte(subject)); err != nil {
			t.Fatal(err)
		}
	}
	r := newReceiver(
		t,
		s.conn,
		ReceiverConfig{Durable: "two", FilterSubjects: []string{s.Subject("b"), s.Subject("d")}},
	)
	if got := receive(t, r, 2); string(got[0].Body)+string(got[1].Body) != "bd" {
		t.Errorf("bodies %q, %q", got[0].Body, got[1].Body)
	}
	lag, err := r.Lag(t.Context())
	if err != nil || lag.Messages != 2 || lag.OldestTime == nil {
		t.Errorf("lag %+v, %v", lag, err)
	}
	none := newReceiver(t, s.conn, ReceiverConfig{Durable: "none", FilterSubjects: []string{"elsewhere.x"}})
	_ = failure(t, none, broker.ReasonStreamMismatch)
}

func TestHeldDeliveriesAreExtended(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 3)
	r := newReceiver(t, s.conn, ReceiverConfig{Durable: "d", AckWait: 600 * time.Millisecond})
	got := receive(t, r, 3)
	other := newReceiver(t, s.conn, ReceiverConfig{Durable: "d", AckWait: 600 * time.Millisecond})
	quiet(t, other, 2*time.Second, "though another process works on it")
	quiet(t, r, 50*time.Millisecond, "though it is held here")
	if err := got[0].InProgress(t.Context()); err != nil {
		t.Error(err)
	}
	ackAll(t, got)
	testkit.Eventually(t, 10*time.Second, "the acknowledgements arrive", func() bool {
		info := s.durable(t, "d")
		return info.NumAckPending == 0 && info.NumRedelivered == 0
	})
}

func TestHeldDeliveryThatComesAgainIsNotHandedOutTwice(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 1)
	proxy := testkit.Proxy(t, s.Addr())
	r := newReceiver(t, dial(t, testConfig(proxy.Addr(), s.Stream.Name)), ReceiverConfig{
		Durable: "d", AckWait: 400 * time.Millisecond,
	})
	got := receive(t, r, 1)
	proxy.HalfOpen() // no extension arrives
	testkit.Eventually(t, 10*time.Second, "the broker delivers again", func() bool {
		return s.durable(t, "d").NumRedelivered > 0
	})
	proxy.Resume()
	quiet(t, r, time.Second, "though it is held here")
	ackAll(t, got)
	testkit.Eventually(t, 10*time.Second, "the acknowledgement counts", func() bool {
		return s.durable(t, "d").NumAckPending == 0
	})
}

func TestAcknowledgementsOutliveAConnection(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 20)
	proxy := testkit.Proxy(t, s.Addr())
	r := newReceiver(
		t,
		dial(t, testConfig(proxy.Addr(), s.Stream.Name)),
		ReceiverConfig{Durable: "d", AckWait: time.Minute},
	)
	got := receive(t, r, 20)
	proxy.Cut()
	testkit.Eventually(t, 10*time.Second, "the connection is gone", func() bool { return r.conn.State() != nil })
	ackAll(t, got)
	proxy.Resume()
	testkit.Eventually(t, 20*time.Second, "the acknowledgements arrive", func() bool {
		return s.durable(t, "d").NumAckPending == 0
	})
}

func TestAcknowledgementsThatCouldNotBeSentAreKept(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 0)
	dead, _, _ := s.conn.look()
	dead.cut()
	<-dead.done
	r := &Receiver{conn: s.conn, pull: pull{left: 1}, replies: []reply{{"a", nil}, {"b", nil}}, now: time.Now}
	w := &server{r: r, s: dead}
	if err := w.send(); !errors.Is(err, errSessionEnded) {
		t.Errorf("send() = %v", err)
	}
	if len(r.replies) != 2 || r.replies[0].subject != "a" {
		t.Errorf("kept %v", r.replies)
	}
}

func TestCloseGivesBackWhatWasNotHandedOut(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 5)
	r := newReceiver(t, s.conn, ReceiverConfig{Durable: "d", AckWait: time.Minute})
	got := receive(t, r, 5)
	s.add(t, 5)
	testkit.Eventually(t, 10*time.Second, "five more are in the buffer", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.buffer) == 5
	})
	ackAll(t, got)
	closeWithin(t, r.Close)
	testkit.Eventually(t, 10*time.Second, "the acknowledgements count", func() bool {
		return s.durable(t, "d").AckFloor.Stream == 5
	})
	next := newReceiver(t, s.conn, ReceiverConfig{Durable: "d"})
	again := receive(t, next, 5) // at once, not after a minute
	sum := uint64(0)
	for _, d := range again {
		sum += d.Sequence
	}
	if len(again) != 5 || sum != 6+7+8+9+10 {
		t.Errorf("%d deliveries from %d came again", len(again), again[0].Sequence)
	}
	if err := got[0].Ack(t.Context()); err != nil {
		t.Errorf("a second ack: %v", err)
	}
}

func TestBytesBoundWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 0)
	sizes := []int{30_000, 30_000, 30_000, 100, 200_000, 100, 30_000}
	for _, size := range sizes {
		if _, err := s.js.Publish(t.Context(), s.Subject("a"), make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	const limit = 70_000
	r := newReceiver(t, s.conn, ReceiverConfig{Durable: "d", PrefetchBytes: limit})
	var all []broker.Delivery
	for len(all) < len(sizes) {
		got := receive(t, r, 1)
		sum := 0
		for _, d := range got {
			sum += len(d.Body)
		}
		if sum > limit && len(got) > 1 {
			t.Errorf("%d bytes in %d deliveries at once, the limit is %d", sum, len(got), limit)
		}
		ackAll(t, got)
		all = append(all, got...)
	}
	for i, d := range all {
		if len(d.Body) != sizes[i] {
			t.Errorf("delivery %d has %d bytes, want %d", i, len(d.Body), sizes[i])
		}
	}
}

func TestSaturatedAckPendingIsSaid(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 20)
	holder := newReceiver(t, s.conn, ReceiverConfig{Durable: "d", MaxAckPending: 5})
	got := receive(t, holder, 5)
	if !warned(t, holder, broker.WarnAckPending) {
		t.Error("a durable that delivers nothing more is not warned of")
	}
	ackAll(t, got)
	ackAll(t, receive(t, holder, 5))
}

func TestStalledConsumerIsSubscribedAnew(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 0)
	r := newReceiver(t, s.conn, ReceiverConfig{
		Durable: "d", Heartbeat: 100 * time.Millisecond, StallTimeout: 500 * time.Millisecond,
	})
	quiet(t, r, 200*time.Millisecond, "from an empty stream")
	// A paused consumer lives, sends its heartbeats, holds messages, and delivers none.
	if _, err := s.js.PauseConsumer(t.Context(), s.Stream.Name, "d", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	s.add(t, 3)
	testkit.Eventually(
		t,
		20*time.Second,
		"the stall is noticed",
		func() bool { return warned(t, r, broker.WarnStalled) },
	)
	if _, err := s.js.ResumeConsumer(t.Context(), s.Stream.Name, "d"); err != nil {
		t.Fatal(err)
	}
	ackAll(t, receive(t, r, 3))
}

func TestLostRequestIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 0)
	r := newReceiver(t, s.conn, ReceiverConfig{Durable: "d", Heartbeat: 100 * time.Millisecond})
	quiet(t, r, 200*time.Millisecond, "from an empty stream")
	// The broker forgets the request and tells nobody: as seen from here, one that it never knew.
	r.mu.Lock()
	r.pull.subject, r.pull.signs = "forgotten", r.now().Add(-time.Minute)
	r.mu.Unlock()
	testkit.Eventually(t, 10*time.Second, "a new request is open", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.pull.subject != "forgotten" && r.pull.left > 0
	})
	s.add(t, 3)
	ackAll(t, receive(t, r, 3))
}

func TestRecordOfAnyProducer(t *testing.T) {
	t.Parallel()
	s := newSource(t, jetstream.StreamConfig{}, 0)
	m := numbered(1)[0]
	m.Headers = map[string]string{"b": " x ", "a": "é"}
	for c := byte(1); c < 128; c++ { // a key may hold what a header line may not
		m.OrderingKey += string(rune(c))
	}
	p := newPublisher(t, s.conn, PublisherConfig{Subject: s.Subject("a")})
	want(t, publish(t, p, m)[0], broker.Confirmed, "")
	r := newReceiver(t, s.conn, ReceiverConfig{Durable: "d"})
	d := receive(t, r, 1)[0]
	names := make([]string, 0, len(d.Headers))
	for _, h := range d.Headers {
		names = append(names, h.Name)
	}
	if got := strings.Join(
		names,
		" ",
	); got != "Nats-Expected-Stream Nats-Msg-Id a aggregate-version b content-type event-id "+
		"event-type occurred-at ordering-key schema-version source stream" {
		t.Errorf("headers %s", got)
	}
	e, err := message.Decode(&d.Record)
	if err != nil || e.Headers["b"] != " x " || e.Headers["a"] != "é" || len(e.Headers) != 2 ||
		e.OrderingKey != m.OrderingKey {
		t.Errorf("decoded %+v of key %q, %v", e.Headers, e.OrderingKey, err)
	}
}

func TestReceiverConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []ReceiverConfig{{}, {Durable: "a.b"}, {Durable: "a b"}, {Durable: "d", FilterSubjects: []string{""}}} {
		if _, err := NewReceiver(t.Context(), nil, cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
