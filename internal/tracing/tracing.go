// Package tracing shows how messages travel: a relay's publishes link to the transactions that wrote the messages, and a
// consumer's work continues their traces.
//
// It promises to follow the writer's decision which messages are traced, and that no span holds a payload, a header or an
// ordering key. It wraps the edges of relay and consumer, which know nothing of it; without a tracer it wraps nothing.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// contextOf returns the context of the span that wrote a message, and whether it is traced.
func contextOf(ctx context.Context, traceparent string) (trace.SpanContext, bool) {
	if traceparent == "" {
		return trace.SpanContext{}, false
	}
	none := trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // not the caller's own
	written := propagation.TraceContext{}.Extract(none, propagation.MapCarrier{"traceparent": traceparent})
	span := trace.SpanContextFromContext(written)
	return span, span.IsSampled()
}
