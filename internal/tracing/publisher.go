package tracing

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// maxLinks bounds the links of a span: OpenTelemetry keeps as many unless it is told otherwise.
const maxLinks = 128

// Publisher wraps a relay's publisher: each batch that holds a traced message is a span of kind PRODUCER that links to
// the spans which wrote its messages, to the first 128 of them. The messages themselves keep their traceparent. Without
// a tracer it is the publisher itself.
func Publisher(next broker.Publisher, tracer trace.Tracer, system, destination string) broker.Publisher {
	if tracer == nil {
		return next
	}
	p := &publisher{next: next, tracer: tracer, system: system, destination: destination}
	if router, ok := next.(broker.Router); ok {
		return routing{p, router}
	}
	return p
}

// routing is a publisher that tells the broker's parts apart as the one it wraps does.
type routing struct {
	*publisher
	broker.Router
}

type publisher struct {
	next                broker.Publisher
	tracer              trace.Tracer
	system, destination string
}

// Publish implements broker.Publisher.
func (p *publisher) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	links := linksOf(ctx, batch)
	if len(links) == 0 {
		return p.next.Publish(ctx, batch)
	}
	ctx, span := p.tracer.Start(ctx, "publish "+p.destination, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithLinks(links...), trace.WithAttributes(aboutPublish(p.system, p.destination, len(batch))...))
	defer span.End()
	got := p.next.Publish(ctx, batch)
	if n, why := notConfirmed(got); n > 0 {
		span.SetAttributes(notConfirmedKey.Int(n))
		span.SetStatus(codes.Error, string(why))
	}
	return got
}

func linksOf(ctx context.Context, batch []message.Message) []trace.Link {
	var links []trace.Link
	for i := range batch {
		if len(links) == maxLinks {
			break
		}
		if written, traced := contextOf(ctx, batch[i].Traceparent); traced {
			links = append(links, trace.Link{SpanContext: written})
		}
	}
	return links
}

// notConfirmed counts the messages that the broker did not confirm, and says why the first was not.
func notConfirmed(got []broker.Confirmation) (n int, why broker.Reason) {
	for i := range got {
		if got[i].Outcome == broker.Confirmed {
			continue
		}
		if n == 0 {
			why = got[i].Reason
		}
		n++
	}
	return n, why
}
