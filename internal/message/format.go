package message

import (
	"fmt"
	"strings"
)

// Format is how a message is laid out in a record.
type Format string

// The formats. Empty means Native.
const (
	// Native has the envelope in headers of our own names, and the payload as the body.
	Native Format = "Native"
	// CloudEventsBinary has the envelope in headers as the broker's CloudEvents binding names them, and the payload as the
	// body.
	CloudEventsBinary Format = "CloudEventsBinary"
	// CloudEventsStructured has envelope and payload in a JSON object, which is the body.
	CloudEventsStructured Format = "CloudEventsStructured"
)

// Validate says whether the format is one of those there are.
func (f Format) Validate() error {
	switch f {
	case "", Native, CloudEventsBinary, CloudEventsStructured:
		return nil
	default:
		return fmt.Errorf("messageFormat is none of %s, %s, %s", Native, CloudEventsBinary, CloudEventsStructured)
	}
}

// Binding is how CloudEvents travel in the headers of one kind of broker: what an attribute's name has in front.
type Binding string

// The bindings, as the CloudEvents project describes each.
const (
	KafkaBinding Binding = "ce_"
	NATSBinding  Binding = "ce-"
	AMQPBinding  Binding = "cloudEvents:"
)

// contentType is the header that holds the content type of the data in binary mode. The adapter for AMQP makes it a
// property of the message; on NATS a content type says nothing but that an event is structured.
func (b Binding) contentType() string {
	if b == NATSBinding {
		return string(b) + attributeContentType
	}
	return HeaderContentType
}

// mediaType is what the content type of a structured event begins with, and structuredType what ours is.
const (
	mediaType      = "application/cloudevents"
	structuredType = mediaType + "+json; charset=UTF-8"
)

// attributeOf returns the attribute that a header of a binary event holds, whoever sent it, and the binding that says how
// to read the value.
func attributeOf(name string) (attribute string, binding Binding, ok bool) {
	// The last is AMQP's where a name cannot hold a colon.
	for _, b := range [...]Binding{KafkaBinding, NATSBinding, AMQPBinding, "cloudEvents_"} {
		if len(name) > len(b) && strings.EqualFold(name[:len(b)], string(b)) {
			return strings.ToLower(name[len(b):]), b, true
		}
	}
	return "", "", false
}

// formatOf says how a record is laid out. Our own event id in a header is the sign of Native, whatever else is there: its
// payload may well be somebody's CloudEvent.
func formatOf(r *Record) Format {
	format := Native
	for i := range r.Headers {
		h := &r.Headers[i]
		if h.Name == HeaderEventID {
			return Native
		}
		if strings.EqualFold(h.Name, HeaderContentType) && hasMediaType(h.Value) {
			format = CloudEventsStructured
		}
		if format != Native {
			continue
		}
		if attribute, _, ok := attributeOf(h.Name); ok && attribute == attributeID {
			format = CloudEventsBinary
		}
	}
	return format
}

func hasMediaType(value string) bool {
	return len(value) >= len(mediaType) && strings.EqualFold(value[:len(mediaType)], mediaType)
}
