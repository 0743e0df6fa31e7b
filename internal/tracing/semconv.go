package tracing

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
)

// The messaging conventions are still in development: their names and their version stand in this file only.

// aboutPublish describes a batch on its way to a broker.
func aboutPublish(system, destination string, messages int) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingSystemKey.String(system),
		semconv.MessagingOperationName("publish"),
		semconv.MessagingOperationTypeSend,
		semconv.MessagingDestinationName(destination),
		semconv.MessagingBatchMessageCount(messages),
	}
}

// aboutProcess describes one message that a consumer works on.
func aboutProcess(system, destination, id string) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingSystemKey.String(system),
		semconv.MessagingOperationName("process"),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(destination),
		semconv.MessagingMessageID(id),
	}
}

// Our own attributes.
const (
	// outcomeKey says what became of a message at the consumer.
	outcomeKey = attribute.Key("postrider.outcome")
	// notConfirmedKey counts the messages of a batch that the broker did not confirm.
	notConfirmedKey = attribute.Key("postrider.not_confirmed.message_count")
)
