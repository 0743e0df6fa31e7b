package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verdict"
)

// Store wraps a consumer's store: the work on each traced message is a span of kind CONSUMER that continues the trace in
// which it was written. The messages of one transaction share its time. A message that was parked has a span for each
// time that something became of it. Without a tracer it is the store itself.
func Store(next consumer.Store, tracer trace.Tracer, system, destination string) consumer.Store {
	if tracer == nil {
		return next
	}
	return &store{Store: next, tracer: tracer, system: system, destination: destination, now: time.Now}
}

type store struct {
	consumer.Store
	tracer              trace.Tracer
	system, destination string
	now                 func() time.Time
}

// Apply implements consumer.Applier.
func (s *store) Apply(ctx context.Context, job verdict.Job, items []*verdict.Item) ([]verdict.Decision, error) {
	began := s.now()
	decisions, err := s.Store.Apply(ctx, job, items)
	s.tell(ctx, began, items, decisions, err)
	return decisions, err
}

// Drain implements consumer.Applier.
func (s *store) Drain(
	ctx context.Context, job verdict.Job, admit func(message.Record, string) *verdict.Item,
) (verdict.Drained, error) {
	began := s.now()
	var admitted []*verdict.Item
	drained, err := s.Store.Drain(ctx, job, func(r message.Record, position string) *verdict.Item {
		it := admit(r, position)
		admitted = append(admitted, it)
		return it
	})
	// Decisions are those of the first messages that were read; the others were not worked on.
	if last := lastTry(admitted); len(drained.Decisions) <= len(last) {
		s.tell(ctx, began, last[:len(drained.Decisions)], drained.Decisions, err)
	}
	return drained, err
}

// lastTry returns the messages that were read last: a transaction that is run again reads the same ones again.
func lastTry(admitted []*verdict.Item) []*verdict.Item {
	if len(admitted) == 0 {
		return nil
	}
	first, from := admitted[0].Inbox(), 0
	for i, it := range admitted {
		if it.Inbox() == first {
			from = i
		}
	}
	return admitted[from:]
}

// tell makes the spans of a transaction's messages. What was not decided although nothing failed waits for its turn and
// was not worked on.
func (s *store) tell(
	ctx context.Context, began time.Time, items []*verdict.Item, decisions []verdict.Decision, err error,
) {
	for i, it := range items {
		var d verdict.Decision
		if i < len(decisions) {
			d = decisions[i]
		}
		written, traced := contextOf(ctx, it.Traceparent)
		if !traced || (d.Action == verdict.Undecided && err == nil) {
			continue
		}
		_, span := s.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, written), "process "+s.destination,
			trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(aboutProcess(s.system, s.destination, it.EventID)...))
		span.SetAttributes(outcomeKey.String(d.Action.String()))
		switch {
		case d.Action == verdict.Undecided:
			span.SetStatus(codes.Error, "not committed")
		case d.Action == verdict.Bury:
			span.SetStatus(codes.Error, string(d.Reason))
		case d.Failure != nil:
			span.SetStatus(codes.Error, d.Failure.Code)
		default:
		}
		span.End()
	}
}
