package telemetry

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
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The variables that OpenTelemetry names and this package looks at itself. The exporter and the SDK read the others:
// OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES.
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
	tellEvery  = time.Minute
	tracerName = "github.com/postrider/postrider"
)

// ErrTraceProtocol says that spans were asked for in a protocol other than http/protobuf.
var ErrTraceProtocol = errors.New("only the OTLP protocol http/protobuf is spoken")

// StartTracer returns the tracer that the environment asks for, nil where it names no collector, and what exports the last
// spans within two seconds. The service is the process's name, such as "postrider-relay"; OTEL_SERVICE_NAME overrides it.
// It fails with ErrTraceProtocol, or where the environment is malformed; a collector that is not there is told of in the
// log, once a minute at most, and delays nothing: its spans are dropped.
func StartTracer(
	ctx context.Context, service string, build Build, log *slog.Logger,
) (_ trace.Tracer, stop func(context.Context), err error) {
	if !wanted() {
		return nil, func(context.Context) {}, nil
	}
	if protocol := first(envTracesProtocol, envProtocol); protocol != "" && protocol != protocolHTTP {
		return nil, nil, fmt.Errorf("%w: set %s to it, not to %q", ErrTraceProtocol, envProtocol, protocol)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the export of traces: %w", err)
	}
	about, err := resource.New(
		ctx,
		resource.WithAttributes(
			attribute.String("service.name", service),
			attribute.String("service.version", build.Version),
		),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(&teller{log: log, now: time.Now})
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return provider.Tracer(tracerName, trace.WithInstrumentationVersion(build.Version)), func(ctx context.Context) {
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
