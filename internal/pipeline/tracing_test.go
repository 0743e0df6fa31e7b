package pipeline_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/test/testkit"
)

// One message from the transaction that wrote it to its effect: the publish links to that transaction's span, and the
// consumer's work continues its trace.
func TestATraceFollowsAMessageFromItsTransactionToItsEffect(t *testing.T) {
	t.Parallel()
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	o, b := newOrders(t), newBilling(t)
	b.tables()
	nats := *o.cfg.NATS
	nats.Subject, nats.Durable = "", "billing"
	b.cfg.NATS = &nats
	options := pipeline.Options{Log: testkit.Logger(t), AllowLoopback: true, Tracer: tracer}
	options.Registry = prometheus.NewRegistry()
	relay, err := pipeline.NewRelay(o.cfg, options)
	if err != nil {
		t.Fatal(err)
	}
	options.Registry = prometheus.NewRegistry()
	consumer, err := pipeline.NewConsumer(b.cfg, options)
	if err != nil {
		t.Fatal(err)
	}
	run(t, relay)
	run(t, consumer)
	o.db.Exec(`SELECT message_outbox_write('order-1', 'order.paid', '{}', 'shop', traceparent => $1)`,
		"00-"+traceID+"-00f067aa0ba902b7-01")
	o.db.Exec(`SELECT message_outbox_write('order-2', 'order.paid', '{}', 'shop')`)
	b.applied(2)
	testkit.Eventually(t, patience, "both spans have ended", func() bool { return len(spans.Ended()) == 2 })
	for _, span := range spans.Ended() {
		switch span.Name() {
		case "publish " + o.cfg.NATS.Subject:
			if links := span.Links(); len(links) != 1 || links[0].SpanContext.TraceID().String() != traceID {
				t.Errorf("the publish links to %v", links)
			}
		case "process " + nats.Stream:
			if got := span.SpanContext().TraceID().String(); got != traceID || !span.Parent().IsRemote() {
				t.Errorf("the consumer's work is in trace %s", got)
			}
		default:
			t.Errorf("span %q", span.Name())
		}
	}
}
