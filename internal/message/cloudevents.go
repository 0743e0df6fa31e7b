package message

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Attributes of a CloudEvent: those of version 1.0, those of its documented extensions that we use, and our own.
const (
	attributeSpecVersion = "specversion"
	attributeID          = "id"
	attributeSource      = "source"
	attributeType        = "type"
	attributeTime        = "time"
	attributeSubject     = "subject" // the ordering key; none where the message is unordered
	attributeContentType = "datacontenttype"
	attributeTraceparent = "traceparent"  // extension Distributed Tracing
	attributePartition   = "partitionkey" // extension Partitioning: others' ordering key; we have it as the subject

	attributeSchemaVersion    = "schemaversion"
	attributeAggregateVersion = "aggregateversion"
	attributeStream           = "stream"

	memberData       = "data"
	memberDataBase64 = "data_base64"

	specVersion = "1.0"
)

// attribute is one of an event, in the order in which it is written.
type attribute struct {
	name, value string
	number      bool // a CloudEvents Integer, which has 32 bits
}

// EncodeAs is Encode for a format, with headers as the broker's binding names them. In all formats the row's own headers
// are headers of the record.
//
// Besides what Encode refuses, CloudEvents refuses a source that is no URI reference and texts with control characters.
func EncodeAs(m *Message, format Format, binding Binding) (Record, error) {
	if format == "" || format == Native {
		return Encode(m)
	}
	if err := checkMessage(m); err != nil {
		return Record{}, err
	}
	attributes, err := attributesOf(m)
	if err != nil {
		return Record{}, err
	}
	rec := Record{Key: []byte(m.OrderingKey), Body: m.Payload}
	headers := make([]Header, 0, len(attributes)+len(m.Headers)+1)
	switch {
	case format == CloudEventsBinary && binding.contentType() == HeaderContentType && hasMediaType(m.ContentType):
		return Record{}, refuse(InvalidEnvelope, HeaderContentType, "says that the body is a structured event, which "+
			"binary events cannot carry: use CloudEventsStructured")
	case format == CloudEventsStructured:
		headers = append(headers, Header{HeaderContentType, structuredType})
		rec.Body = structured(m, attributes)
	default:
		headers = binding.appendAttributes(headers, m, attributes)
	}
	if rec.Headers, err = appendHeaders(headers, m.Headers); err != nil {
		return Record{}, err
	}
	return rec, nil
}

// attributesOf returns a message's attributes but the content type of its data.
func attributesOf(m *Message) ([]attribute, error) {
	if !isURIReference(m.Source) {
		return nil, refuse(InvalidEnvelope, HeaderSource, "is no URI reference, which CloudEvents needs: letters, "+
			"digits and -._~:/?#@ and the like")
	}
	all := append(make([]attribute, 0, 12),
		attribute{name: attributeSpecVersion, value: specVersion},
		attribute{name: attributeID, value: m.ID.String()},
		attribute{name: attributeSource, value: m.Source},
		attribute{name: attributeType, value: m.Type},
		attribute{name: attributeTime, value: m.OccurredAt.UTC().Format(time.RFC3339Nano)},
		attribute{name: attributeSchemaVersion, value: strconv.Itoa(int(m.SchemaVersion)), number: true})
	if m.Ordered() {
		all = append(all,
			attribute{name: attributeSubject, value: m.OrderingKey},
			attribute{name: attributeAggregateVersion, value: strconv.FormatInt(m.AggregateVersion, 10)})
	}
	if m.Destination != "" {
		all = append(all, attribute{name: attributeStream, value: m.Destination})
	}
	if m.Traceparent != "" {
		all = append(all, attribute{name: attributeTraceparent, value: m.Traceparent})
	}
	for _, a := range append(all, attribute{name: attributeContentType, value: m.ContentType}) {
		if strings.ContainsFunc(a.value, unicode.IsControl) {
			return nil, refuse(InvalidEnvelope, a.name, "holds control characters, which CloudEvents has no way for")
		}
	}
	return all, nil
}

// isURIReference says whether a text has the form of RFC 3986.
func isURIReference(s string) bool {
	const others = "-._~:/?#[]@!$&'()*+,;=%"
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	_, err := url.Parse(s)
	return err == nil && s != ""
}

func (b Binding) appendAttributes(headers []Header, m *Message, attributes []attribute) []Header {
	for _, a := range attributes {
		headers = append(headers, Header{string(b) + a.name, b.value(a.value)})
	}
	if m.ContentType != "" {
		headers = append(headers, Header{b.contentType(), b.value(m.ContentType)})
	}
	return headers
}

// value returns an attribute's value as it travels in a header: on NATS with %XX for what is not plain ASCII, as in HTTP.
func (b Binding) value(s string) string {
	if b != NATSBinding {
		return s
	}
	plain := func(c byte) bool { return c > ' ' && c <= '~' && c != '"' && c != '%' }
	var out strings.Builder
	for _, c := range []byte(s) {
		if plain(c) {
			out.WriteByte(c)
			continue
		}
		out.WriteByte('%')
		out.WriteByte(hexDigits[c>>4])
		out.WriteByte(hexDigits[c&15])
	}
	return out.String()
}

// structured returns the event as a JSON object. A payload that is JSON is a part of it, byte for byte; every other is
// base64.
func structured(m *Message, attributes []attribute) []byte {
	b := make([]byte, 0, len(m.Payload)+512)
	b = append(b, '{')
	member := func(name string) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(appendQuoted(b, name), ':')
	}
	for _, a := range attributes {
		member(a.name)
		if a.number {
			b = append(b, a.value...)
		} else {
			b = appendQuoted(b, a.value)
		}
	}
	if m.ContentType != "" {
		member(attributeContentType)
		b = appendQuoted(b, m.ContentType)
	}
	switch {
	case len(m.Payload) == 0:
	case isJSON(m.ContentType) && embeddable(m.Payload):
		member(memberData)
		b = append(b, m.Payload...)
	default:
		member(memberDataBase64)
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, m.Payload)
		b = append(b, '"')
	}
	return append(b, '}')
}

// appendQuoted appends a text, which is UTF-8, as JSON has it.
func appendQuoted(b []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil { // a string always has a form in JSON
		return append(b, `""`...)
	}
	return append(b, quoted...)
}

// isJSON says whether data of the content type are JSON. Without a content type a structured event's are.
func isJSON(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "" || strings.HasSuffix(kind, "/json") || strings.HasSuffix(kind, "+json")
}

// embeddable says whether a payload can stand in a JSON object and be read back byte for byte: white space around a value
// would be lost.
func embeddable(payload []byte) bool {
	const space = " \t\r\n"
	return strings.IndexByte(space, payload[0]) < 0 && strings.IndexByte(space, payload[len(payload)-1]) < 0 &&
		utf8.Valid(payload) && json.Valid(payload)
}
