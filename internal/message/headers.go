package message

import (
	"strings"
	"unicode/utf8"
)

// Names of the headers that every record carries. AggregateVersion is left out of unordered messages, Traceparent
// of messages whose row has none.
const (
	HeaderEventID          = "event-id"
	HeaderEventType        = "event-type"
	HeaderSchemaVersion    = "schema-version"
	HeaderOrderingKey      = "ordering-key"
	HeaderAggregateVersion = "aggregate-version"
	HeaderOccurredAt       = "occurred-at"
	HeaderSource           = "source"
	HeaderContentType      = "content-type"
	HeaderStream           = "stream"
	HeaderTraceparent      = "traceparent"
)

// Bounds of a record. The lengths of texts keep every index row that holds them below PostgreSQL's limit of a third
// of a page; the sums keep a record's headers below the 64 KiB that JetStream takes.
const (
	// MaxKeyBytes bounds an ordering key.
	MaxKeyBytes = 1024
	// MaxTextBytes bounds the event id, type, source, stream, content type and traceparent, each.
	MaxTextBytes = 512
	// MaxHeaders bounds the number of headers that a row may add.
	MaxHeaders = 64
	// MaxHeaderBytes bounds the names and values of a record's headers together, as they travel.
	MaxHeaderBytes = 48 << 10

	// maxRecordHeaders bounds the headers of a record that is read: others' hops add their own.
	maxRecordHeaders = 256
	// maxRecordHeaderBytes bounds the names and values of the headers of a record that is read.
	maxRecordHeaderBytes = 256 << 10

	maxNameBytes = 63
)

// fieldOf says which header, if any, is part of the envelope: its place in a bit set, so that one that comes twice is
// found without allocating.
func fieldOf(name string) (bit uint16, ok bool) {
	switch name {
	case HeaderEventID:
		return 1 << 0, true
	case HeaderEventType:
		return 1 << 1, true
	case HeaderSchemaVersion:
		return 1 << 2, true
	case HeaderOrderingKey:
		return 1 << 3, true
	case HeaderAggregateVersion:
		return 1 << 4, true
	case HeaderOccurredAt:
		return 1 << 5, true
	case HeaderSource:
		return 1 << 6, true
	case HeaderContentType:
		return 1 << 7, true
	case HeaderStream:
		return 1 << 8, true
	case HeaderTraceparent:
		return 1 << 9, true
	default:
		return 0, false
	}
}

// validName says whether a header name has the one form that every broker carries unchanged: ^[a-z][a-z0-9-]{0,62}$.
func validName(name string) bool {
	if name == "" || len(name) > maxNameBytes || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for i := 1; i < len(name); i++ {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// reserved says whether a row may not use the header name: the envelope's own, and names by which a broker or a
// gateway can be told to purge, expire, copy, delay or re-route (NATS's Nats-Rollup, AMQP's CC and x-delay).
func reserved(name string) bool {
	if _, ours := fieldOf(name); ours {
		return true
	}
	switch name {
	case "cc", "bcc", "expiration", "user-id", "reply-to", "delivery-mode", "priority", "cluster-id":
		return true
	}
	for _, prefix := range [...]string{"nats-", "ce-", "x-", "amq", "kafka-", "postrider-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// hopHeader says whether a header belongs to the transport and not to the producer's message.
func hopHeader(name string) bool {
	const prefix = "nats-"
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// storable says whether PostgreSQL can keep the text: valid UTF-8 without NUL.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

const hexDigits = "0123456789ABCDEF"

// mustEscape says whether a byte of a header value travels as %XX: what is not printable ASCII, the percent sign
// itself, and a space at either end, which NATS and HTTP trim.
func mustEscape(s string, i int) bool {
	c := s[i]
	if c == ' ' {
		return i == 0 || i == len(s)-1
	}
	return c < ' ' || c > '~' || c == '%'
}

// EscapeValue returns a header value as it travels: unchanged where all brokers carry it unchanged, else with %XX in
// place of the bytes they would not. UnescapeValue gives it back byte for byte.
func EscapeValue(s string) string {
	n := 0
	for i := range len(s) {
		if mustEscape(s, i) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 2*n)
	for i := range len(s) {
		if !mustEscape(s, i) {
			b.WriteByte(s[i])
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hexDigits[s[i]>>4])
		b.WriteByte(hexDigits[s[i]&15])
	}
	return b.String()
}

// UnescapeValue returns the value that EscapeValue was given, and false where s is not what it writes: a percent sign
// that two hexadecimal digits do not follow.
func UnescapeValue(s string) (string, bool) {
	at := strings.IndexByte(s, '%')
	if at < 0 {
		return s, true
	}
	var b strings.Builder
	b.Grow(len(s))
	b.WriteString(s[:at])
	for i := at; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		high, okHigh := unhex(s[i+1])
		low, okLow := unhex(s[i+2])
		if !okHigh || !okLow {
			return "", false
		}
		b.WriteByte(high<<4 | low)
		i += 2
	}
	return b.String(), true
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	default:
		return 0, false
	}
}
