package message

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reason is why a message cannot be encoded or a record not decoded: a closed set.
type Reason string

// The reasons.
const (
	// TooLarge: a text or the headers together are beyond their bound, or the payload was too large to be loaded.
	TooLarge Reason = "TooLarge"
	// InvalidHeader: a header of the row has a name or value that brokers do not carry, or a reserved name.
	InvalidHeader Reason = "InvalidHeader"
	// InvalidEnvelope: a header of the envelope is missing, doubled or malformed.
	InvalidEnvelope Reason = "InvalidEnvelope"
	// UnstorableText: a text is not UTF-8 or holds NUL, so that no PostgreSQL text column takes it.
	UnstorableText Reason = "UnstorableText"
)

// Error says why a message cannot be encoded or a record not decoded. It holds our own words and at most a header's
// name of the allowed form, never a value: it may be logged and stored.
type Error struct {
	Reason Reason
	// Field is the header concerned, or "headers", "payload".
	Field string
	// Detail says what is wrong with it.
	Detail string
}

// Error implements error.
func (e *Error) Error() string { return string(e.Reason) + ": " + e.Field + " " + e.Detail }

// ReasonOf returns the reason of an error from this package, and false for another error.
func ReasonOf(err error) (Reason, bool) {
	var e *Error
	if !errors.As(err, &e) {
		return "", false
	}
	return e.Reason, true
}

func refuse(reason Reason, field, detail string) error {
	return &Error{Reason: reason, Field: field, Detail: detail}
}

// Encode returns the record that carries the message. Its headers are in a fixed order, first the envelope's, then the
// row's by name, and their values are escaped (EscapeValue). The body is the payload itself, not a copy.
//
// It refuses, with *Error, what no consumer could read back or a broker could take for an instruction.
func Encode(m *Message) (Record, error) {
	if err := checkMessage(m); err != nil {
		return Record{}, err
	}
	headers, err := appendHeaders(appendEnvelope(make([]Header, 0, 10+len(m.Headers)), m), m.Headers)
	if err != nil {
		return Record{}, err
	}
	return Record{Key: []byte(m.OrderingKey), Headers: headers, Body: m.Payload}, nil
}

// checkMessage refuses what no format carries.
func checkMessage(m *Message) error {
	if m.Payload == nil && m.Size > 0 {
		return refuse(TooLarge, "payload", "is larger than the relay's batch.maxBytes")
	}
	if len(m.Headers) > MaxHeaders {
		return refuse(TooLarge, "headers", "are more than 64")
	}
	return checkTexts(m)
}

// checkTexts refuses envelope texts that a consumer's Decode would refuse.
func checkTexts(m *Message) error {
	for _, f := range [...]struct {
		name, value string
		limit       int
		required    bool
	}{
		{HeaderEventType, m.Type, MaxTextBytes, true},
		{HeaderSource, m.Source, MaxTextBytes, true},
		{HeaderOrderingKey, m.OrderingKey, MaxKeyBytes, true},
		{HeaderContentType, m.ContentType, MaxTextBytes, false},
		{HeaderStream, m.Destination, MaxTextBytes, false},
		{HeaderTraceparent, m.Traceparent, MaxTextBytes, false},
	} {
		if err := checkText(f.name, f.value, f.limit, f.required); err != nil {
			return err
		}
	}
	if year := m.OccurredAt.UTC().Year(); year < 0 || year > 9999 {
		return refuse(InvalidEnvelope, HeaderOccurredAt, "is not between the years 0 and 9999")
	}
	if m.AggregateVersion < 0 {
		return refuse(InvalidEnvelope, HeaderAggregateVersion, "is negative")
	}
	return nil
}

func checkText(name, value string, limit int, required bool) error {
	switch {
	case value == "" && required:
		return refuse(InvalidEnvelope, name, "is empty")
	case len(value) > limit:
		return refuse(TooLarge, name, "is longer than "+strconv.Itoa(limit)+" bytes")
	case !storable(value):
		return refuse(UnstorableText, name, "is not UTF-8 text without NUL")
	}
	return nil
}

// appendEnvelope appends the envelope's headers. The generated values share one string.
func appendEnvelope(headers []Header, m *Message) []Header {
	var buf [128]byte
	b := append(buf[:0], m.ID.String()...)
	idEnd := len(b)
	b = strconv.AppendInt(b, int64(m.SchemaVersion), 10)
	schemaEnd := len(b)
	b = strconv.AppendInt(b, m.AggregateVersion, 10)
	versionEnd := len(b)
	b = m.OccurredAt.UTC().AppendFormat(b, time.RFC3339Nano)
	s := string(b)
	headers = append(headers,
		Header{HeaderEventID, s[:idEnd]},
		Header{HeaderEventType, EscapeValue(m.Type)},
		Header{HeaderSchemaVersion, s[idEnd:schemaEnd]},
		Header{HeaderOrderingKey, EscapeValue(m.OrderingKey)})
	if m.Ordered() {
		headers = append(headers, Header{HeaderAggregateVersion, s[schemaEnd:versionEnd]})
	}
	headers = append(headers,
		Header{HeaderOccurredAt, s[versionEnd:]},
		Header{HeaderSource, EscapeValue(m.Source)},
		Header{HeaderContentType, EscapeValue(m.ContentType)},
		Header{HeaderStream, EscapeValue(m.Destination)})
	if m.Traceparent != "" {
		headers = append(headers, Header{HeaderTraceparent, EscapeValue(m.Traceparent)})
	}
	return headers
}

// appendHeaders appends the row's own headers in the order of their names, so that equal messages make equal records, and
// bounds all headers together.
func appendHeaders(headers []Header, own map[string]string) ([]Header, error) {
	start := len(headers)
	for name, value := range own {
		switch {
		case !validName(name):
			return nil, refuse(InvalidHeader, "headers", "hold a name not of the form ^[a-z][a-z0-9-]{0,62}$")
		case reserved(name):
			return nil, refuse(InvalidHeader, name, "is a reserved header name")
		case strings.ContainsAny(value, "\r\n\x00"):
			return nil, refuse(InvalidHeader, name, "has a line break or NUL in its value")
		case len(value) > MaxHeaderBytes:
			return nil, refuse(TooLarge, name, "is larger than 48 KiB")
		case !storable(value):
			return nil, refuse(UnstorableText, name, "is not UTF-8 text")
		}
		headers = append(headers, Header{name, EscapeValue(value)})
	}
	slices.SortFunc(headers[start:], func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	sum := 0
	for i := range headers {
		sum += len(headers[i].Name) + len(headers[i].Value)
	}
	if sum > MaxHeaderBytes {
		return nil, refuse(TooLarge, "headers", "are larger than 48 KiB together")
	}
	return headers, nil
}

// Decode reads the envelope of a record, whichever Format it has: a consumer needs not be told, and a producer may change
// from one to another under way. The envelope's data is the record's body, not a copy, unless the format is structured.
//
// Event id, type and source must be there. A record without an ordering key is unordered: its key is the event id.
// Errors are *Error: the record will never decode.
func Decode(r *Record) (Envelope, error) {
	if err := checkBounds(r); err != nil {
		return Envelope{}, err
	}
	switch formatOf(r) {
	case CloudEventsBinary:
		return decodeBinary(r)
	case CloudEventsStructured:
		return decodeStructured(r)
	default:
		return decodeNative(r)
	}
}

func decodeNative(r *Record) (Envelope, error) {
	e := Envelope{SchemaVersion: 1, Data: r.Body}
	var seen uint16
	for i := range r.Headers {
		h := &r.Headers[i]
		bit, ours := fieldOf(h.Name)
		if !ours {
			if err := e.addHeader(h); err != nil {
				return Envelope{}, err
			}
			continue
		}
		if seen&bit != 0 {
			return Envelope{}, refuse(InvalidEnvelope, h.Name, "is there twice")
		}
		seen |= bit
		if err := e.setField(h); err != nil {
			return Envelope{}, err
		}
	}
	if err := e.complete(r.Key); err != nil {
		return Envelope{}, err
	}
	return e, nil
}

// checkBounds looks at lengths only, before anything is copied.
func checkBounds(r *Record) error {
	if len(r.Headers) > maxRecordHeaders {
		return refuse(TooLarge, "headers", "are more than 256")
	}
	sum := 0
	for i := range r.Headers {
		sum += len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	if sum > maxRecordHeaderBytes {
		return refuse(TooLarge, "headers", "are larger than 256 KiB together")
	}
	return nil
}

// addHeader keeps a header that is not the envelope's. Of several with one name the first counts, as for Record.Header.
// A value that is not escaped as ours are is kept as it is: other producers need not escape.
func (e *Envelope) addHeader(h *Header) error {
	if hopHeader(h.Name) {
		return nil
	}
	value, ok := UnescapeValue(h.Value)
	if !ok {
		value = h.Value
	}
	if !storable(h.Name) || !storable(value) {
		return refuse(UnstorableText, "headers", "hold a name or value that is not UTF-8 text without NUL")
	}
	if e.Headers == nil {
		e.Headers = make(map[string]string)
	}
	if _, twice := e.Headers[h.Name]; !twice {
		e.Headers[h.Name] = value
	}
	return nil
}

func (e *Envelope) setField(h *Header) error {
	switch h.Name {
	case HeaderSchemaVersion:
		return e.setSchemaVersion(h.Name, h.Value)
	case HeaderAggregateVersion:
		return e.setAggregateVersion(h.Name, h.Value)
	case HeaderOccurredAt:
		return e.setOccurredAt(h.Name, h.Value)
	default:
		return e.setText(h)
	}
}

// The fields that are no text, by whatever name the format has for them.

func (e *Envelope) setSchemaVersion(name, value string) error {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return refuse(InvalidEnvelope, name, "is not a number of 32 bits")
	}
	e.SchemaVersion = int32(n)
	return nil
}

func (e *Envelope) setAggregateVersion(name, value string) error {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 1 {
		return refuse(InvalidEnvelope, name, "is not a number from 1 on")
	}
	e.AggregateVersion = n
	return nil
}

func (e *Envelope) setOccurredAt(name, value string) error {
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return refuse(InvalidEnvelope, name, "is not a time as RFC 3339 writes it")
	}
	e.OccurredAt = t.UTC()
	return nil
}

func (e *Envelope) setText(h *Header) error {
	limit := MaxTextBytes
	var field *string
	switch h.Name {
	case HeaderEventID:
		field = &e.EventID
	case HeaderEventType:
		field = &e.Type
	case HeaderSource:
		field = &e.Source
	case HeaderOrderingKey:
		field, limit = &e.OrderingKey, MaxKeyBytes
	case HeaderContentType:
		field = &e.ContentType
	case HeaderStream:
		field = &e.Stream
	default:
		field = &e.Traceparent
	}
	if len(h.Value) > 3*limit {
		return refuse(TooLarge, h.Name, "is longer than "+strconv.Itoa(limit)+" bytes")
	}
	value, ok := UnescapeValue(h.Value)
	if !ok {
		return refuse(InvalidEnvelope, h.Name, "has a percent sign that no two hexadecimal digits follow")
	}
	*field = value
	return checkText(h.Name, value, limit, false)
}

// complete checks what must be there once all headers are read.
func (e *Envelope) complete(key []byte) error {
	switch {
	case e.EventID == "":
		return refuse(InvalidEnvelope, HeaderEventID, "is missing or empty")
	case e.Type == "":
		return refuse(InvalidEnvelope, HeaderEventType, "is missing or empty")
	case e.Source == "":
		return refuse(InvalidEnvelope, HeaderSource, "is missing or empty")
	}
	if e.OrderingKey == "" {
		if len(key) > MaxKeyBytes {
			return refuse(TooLarge, HeaderOrderingKey, "is longer than "+strconv.Itoa(MaxKeyBytes)+" bytes")
		}
		e.OrderingKey = string(key)
	}
	if e.OrderingKey == "" {
		if e.AggregateVersion > 0 {
			return refuse(InvalidEnvelope, HeaderOrderingKey, "is missing or empty beside an aggregate version")
		}
		e.OrderingKey = e.EventID
	}
	return checkText(HeaderOrderingKey, e.OrderingKey, MaxKeyBytes, true)
}

// Digest is the fingerprint that tells a repeated message from another one under the same id: SHA-256 over event type,
// ordering key and data, each preceded by its length as eight bytes, so that no two triples run together.
// Headers are not part of it: hops change them.
func Digest(eventType, key string, data []byte) [sha256.Size]byte {
	var buf [256]byte
	b := binary.BigEndian.AppendUint64(buf[:0], uint64(len(eventType)))
	b = append(b, eventType...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(key)))
	b = append(b, key...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(data)))
	h := sha256.New()
	h.Write(b)
	h.Write(data)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}
