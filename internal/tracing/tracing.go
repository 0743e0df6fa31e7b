// Package tracing tells an OpenTelemetry collector how messages travel: a relay's publishes link to the transactions
// that wrote the messages, and a consumer's work continues their traces.
//
// It promises to cost nothing where no collector is named, to follow the writer's decision which messages are traced,
// and that no span holds a payload, a header or an ordering key. A collector that does not answer delays nothing: its
// spans are dropped. It wraps the edges of relay and consumer, which know nothing of it.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The variables that OpenTelemetry names and this package looks at itself. The exporter and the SDK read the others:
// OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES, ….
const (
	envEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	envTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envProtocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	envTracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	envDisabled       = "OTEL_SDK_DISABLED"
)

const (
	protocolHTTP = "http/protobuf"
	// stopTimeout bounds the export of the last spans when the process ends.
	stopTimeout = 2 * time.Second
	// tellEvery bounds how often a collector that does not answer is told of in the log.
	tellEvery = time.Minute
	scope     = "github.com/postrider/postrider"
)

// ErrProtocol says that spans were asked for in a protocol other than http/protobuf.
var ErrProtocol = errors.New("only the OTLP protocol http/protobuf is spoken")

// Process is what a process says of itself.
type Process struct {
	// Name is the service's name, such as "postrider-relay". OTEL_SERVICE_NAME overrides it.
	Name    string
	Version string
}

// Start returns the tracer that the environment asks for, nil where it names no collector, and what exports the last spans
// within two seconds. It fails with ErrProtocol, or where the environment is malformed; a
// collector that is not there is told of in the log, once a minute at most.
func Start(ctx context.Context, p Process, log *slog.Logger) (_ trace.Tracer, stop func(context.Context), err error) {
	if !wanted() {
		return nil, func(context.Context) {}, nil
	}
	if protocol := first(envTracesProtocol, envProtocol); protocol != "" && protocol != protocolHTTP {
		return nil, nil, fmt.Errorf("%w: set %s to it, not to %q", ErrProtocol, envProtocol, protocol)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the export of traces: %w", err)
	}
	about, err := resource.New(
		ctx,
		resource.WithAttributes(
			attribute.String("service.name", p.Name),
			attribute.String("service.version", p.Version),
		),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(&teller{log: log, now: time.Now})
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return provider.Tracer(scope, trace.WithInstrumentationVersion(p.Version)), func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.DebugContext(ctx, "Last traces not exported", "err", err)
		}
	}, nil
}

// wanted says whether the environment names a collector.
func wanted() bool {
	return first(envTracesEndpoint, envEndpoint) != "" && os.Getenv(envDisabled) != "true"
}

func first(names ...string) string {
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			return value
		}
	}
	return ""
}

// teller tells of spans that could not be exported.
type teller struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (t *teller) Handle(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); t.last.IsZero() || now.Sub(t.last) >= tellEvery {
		t.last = now
		t.log.Warn("Traces are not exported", "err", err)
	}
}

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
