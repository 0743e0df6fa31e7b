package tracing

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verdict"
)

// traceparent names the span of a transaction that wrote messages.
func traceparent(n int, sampled bool) string {
	flags := "00"
	if sampled {
		flags = "01"
	}
	return fmt.Sprintf("00-%032x-%016x-%s", n, n, flags)
}

// recorder returns a tracer and what it has recorded.
func recorder(t *testing.T) (trace.Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	return provider.Tracer("test"), spans
}

// told is what matters of a span.
type told struct {
	Name, Kind, Parent string
	Links              []string
	Status             codes.Code
	Why                string
	Attributes         map[string]string
}

func tell(span sdktrace.ReadOnlySpan) told {
	s := told{
		Name: span.Name(), Kind: span.SpanKind().String(), Status: span.Status().Code, Why: span.Status().Description,
		Attributes: make(map[string]string),
	}
	if span.Parent().IsValid() {
		s.Parent = span.Parent().TraceID().String()
	}
	for _, l := range span.Links() {
		s.Links = append(s.Links, l.SpanContext.TraceID().String())
	}
	for _, a := range span.Attributes() {
		s.Attributes[string(a.Key)] = a.Value.String()
	}
	return s
}

func traceID(n int) string { return fmt.Sprintf("%032x", n) }

// answering is a publisher that confirms as it is told.
type answering func(batch []message.Message) []broker.Confirmation

func (a answering) Publish(_ context.Context, batch []message.Message) []broker.Confirmation {
	return a(batch)
}

func TestABatchWithTracedMessagesIsOneSpanThatLinksToTheirWriters(t *testing.T) {
	t.Parallel()
	tracer, spans := recorder(t)
	p := Publisher(answering(func(batch []message.Message) []broker.Confirmation {
		got := make([]broker.Confirmation, len(batch))
		for i := range got {
			got[i].Outcome = broker.Confirmed
		}
		got[1] = broker.Confirmation{Outcome: broker.Rejected, Reason: broker.ReasonTooLarge}
		return got
	}), tracer, "nats", "orders")
	p.Publish(t.Context(), []message.Message{
		{Traceparent: traceparent(1, true)},
		{Traceparent: traceparent(2, false)},
		{},
		{Traceparent: "nonsense"},
		{Traceparent: traceparent(3, true), Payload: []byte("canary"), OrderingKey: "canary"},
	})
	want := told{
		Name: "publish orders", Kind: "producer", Links: []string{traceID(1), traceID(3)},
		Status: codes.Error, Why: "TooLarge",
		Attributes: map[string]string{
			"messaging.system": "nats", "messaging.operation.name": "publish", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "messaging.batch.message_count": "5",
			"postrider.not_confirmed.message_count": "1",
		},
	}
	ended := spans.Ended()
	if len(ended) != 1 {
		t.Fatalf("%d spans, want 1", len(ended))
	}
	if diff := cmp.Diff(want, tell(ended[0])); diff != "" {
		t.Errorf("span (-want +got):\n%s", diff)
	}
}

func TestABatchWithoutTracedMessagesIsNoSpan(t *testing.T) {
	t.Parallel()
	tracer, spans := recorder(t)
	p := Publisher(answering(func([]message.Message) []broker.Confirmation { return nil }), tracer, "nats", "orders")
	p.Publish(t.Context(), []message.Message{{}, {Traceparent: traceparent(2, false)}})
	if n := len(spans.Started()); n != 0 {
		t.Errorf("%d spans, want none", n)
	}
}

// partly is a publisher to a broker of several parts.
type partly struct{ answering }

func (partly) Unit(m *message.Message) string { return m.OrderingKey }
func (partly) Units() []string                { return nil }

func TestATracedPublisherTellsTheBrokersPartsApartAsTheOneItWraps(t *testing.T) {
	t.Parallel()
	tracer, _ := recorder(t)
	if _, ok := Publisher(answering(nil), tracer, "nats", "orders").(broker.Router); ok {
		t.Error("a broker that is one unit has become several")
	}
	router, ok := Publisher(partly{}, tracer, "kafka", "orders").(broker.Router)
	if !ok || router.Unit(&message.Message{OrderingKey: "a"}) != "a" {
		t.Error("the broker's parts are not told apart any more")
	}
}

func TestWithoutATracerNothingIsWrapped(t *testing.T) {
	t.Parallel()
	next := answering(nil)
	if _, same := Publisher(next, nil, "nats", "orders").(answering); !same {
		t.Error("the publisher is wrapped")
	}
	kept := &deciding{}
	if Store(kept, nil, "nats", "ORDERS") != consumer.Store(kept) {
		t.Error("the store is wrapped")
	}
}

func TestALargeBatchHasABoundedNumberOfLinks(t *testing.T) {
	t.Parallel()
	batch := make([]message.Message, 1000)
	for i := range batch {
		batch[i].Traceparent = traceparent(i+1, true)
	}
	if got := len(linksOf(t.Context(), batch)); got != maxLinks {
		t.Errorf("%d links, want %d", got, maxLinks)
	}
}

// deciding is a store that decides as it is told.
type deciding struct {
	consumer.Store
	parked    []string // the traceparents of parked messages
	tries     int
	decisions []verdict.Decision
	err       error
}

func (d *deciding) Apply(context.Context, verdict.Job, []*verdict.Item) ([]verdict.Decision, error) {
	return d.decisions, d.err
}

func (d *deciding) Drain(
	_ context.Context, _ verdict.Job, admit func(message.Record, string) *verdict.Item,
) (verdict.Drained, error) {
	for range d.tries {
		for _, parent := range d.parked {
			admit(message.Record{Headers: []message.Header{{Name: message.HeaderTraceparent, Value: parent}}}, "")
		}
	}
	return verdict.Drained{Found: true, Decisions: d.decisions}, d.err
}

func items(parents ...string) []*verdict.Item {
	out := make([]*verdict.Item, len(parents))
	for i, parent := range parents {
		out[i] = &verdict.Item{Envelope: message.Envelope{EventID: fmt.Sprint(i), Traceparent: parent}}
	}
	return out
}

func TestTheWorkOnATracedMessageContinuesItsTrace(t *testing.T) {
	t.Parallel()
	lost := errors.New("the connection was lost")
	cases := map[string]struct {
		decision verdict.Decision
		err      error
		want     *told
	}{
		"an applied message": {
			decision: verdict.Decision{Action: verdict.Apply},
			want:     &told{Attributes: map[string]string{"postrider.outcome": "applied"}},
		},
		"a dead letter names its reason": {
			decision: verdict.Decision{Action: verdict.Bury, Reason: deadletter.VersionMissing},
			want: &told{
				Status: codes.Error, Why: string(deadletter.VersionMissing),
				Attributes: map[string]string{"postrider.outcome": "dead_lettered"},
			},
		},
		"a statement that failed names its SQLSTATE": {
			decision: verdict.Decision{Action: verdict.Park, Failure: &verdict.Failure{Code: "23514"}},
			want: &told{
				Status: codes.Error, Why: "23514", Attributes: map[string]string{"postrider.outcome": "parked"},
			},
		},
		"a transaction that was not committed": {
			err: lost,
			want: &told{
				Status:     codes.Error,
				Why:        "not committed",
				Attributes: map[string]string{"postrider.outcome": "undecided"},
			},
		},
		"a message that waits for its turn was not worked on": {decision: verdict.Decision{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tracer, spans := recorder(t)
			s := Store(&deciding{decisions: []verdict.Decision{{Action: verdict.Apply}, tc.decision}, err: tc.err},
				tracer, "nats", "ORDERS")
			batch := items("", traceparent(7, true))
			if _, err := s.Apply(t.Context(), verdict.Job{}, batch); !errors.Is(err, tc.err) {
				t.Fatalf("Apply() = %v, want %v", err, tc.err)
			}
			ended := spans.Ended()
			if tc.want == nil {
				if len(ended) != 0 {
					t.Errorf("%d spans, want none", len(ended))
				}
				return
			}
			if len(ended) != 1 {
				t.Fatalf("%d spans, want 1", len(ended))
			}
			want := *tc.want
			want.Name, want.Kind, want.Parent = "process ORDERS", "consumer", traceID(7)
			for _, a := range aboutProcess("nats", "ORDERS", "1") {
				want.Attributes[string(a.Key)] = a.Value.String()
			}
			if diff := cmp.Diff(want, tell(ended[0])); diff != "" {
				t.Errorf("span (-want +got):\n%s", diff)
			}
		})
	}
}

// The transaction is run again, and only the first of three parked messages is decided.
func TestAParkedMessageHasASpanWhenSomethingBecomesOfIt(t *testing.T) {
	t.Parallel()
	tracer, spans := recorder(t)
	s := Store(&deciding{
		parked: []string{traceparent(1, true), traceparent(2, true), traceparent(3, true)}, tries: 2,
		decisions: []verdict.Decision{{Action: verdict.Apply}},
	}, tracer, "nats", "ORDERS")
	n := 0
	_, err := s.Drain(t.Context(), verdict.Job{}, func(r message.Record, _ string) *verdict.Item {
		parent, _ := r.Header(message.HeaderTraceparent)
		n++
		return &verdict.Item{Envelope: message.Envelope{EventID: fmt.Sprint(n % 3), Traceparent: parent}}
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := spans.Ended()
	if len(ended) != 1 {
		t.Fatalf("%d spans, want 1", len(ended))
	}
	if got := tell(ended[0]); got.Parent != traceID(1) || got.Attributes["postrider.outcome"] != "applied" {
		t.Errorf("span = %+v", got)
	}
}
