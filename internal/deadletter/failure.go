// Package deadletter says what a dead letter is: the failure that is kept, why it is kept, and how a database
// error counts.
//
// It promises that the bytes of what failed are kept as they came and that no text of it can fail to be stored.
// It decides and does no I/O: the SQL is in internal/postgres.
package deadletter

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider/internal/message"
)

// Origin is the kind of worker that gave a message up.
type Origin string

// The origins.
const (
	Relay    Origin = "Relay"
	Consumer Origin = "Consumer"
)

// Reason is why a message is a dead letter: a closed set, used in conditions, metrics and message_failure.
type Reason string

// Reasons of a consumer. The first four concern a message's place among others, and never hold its key.
const (
	// DuplicateIDDifferentPayload: the id is known with another type, key or data.
	DuplicateIDDifferentPayload Reason = "DuplicateIdDifferentPayload"
	// VersionMissing: versions are compared and the message has none.
	VersionMissing Reason = "VersionMissing"
	// VersionConflict: another message had this version of the key.
	VersionConflict Reason = "VersionConflict"
	// LateVersion: the version was skipped on purpose before the message came.
	LateVersion Reason = "LateVersion"
	// InvalidEnvelope: the record has no readable envelope, so neither id nor key is known.
	InvalidEnvelope Reason = "InvalidEnvelope"
	// PayloadTooLarge: the body or its headers are larger than the resource allows.
	PayloadTooLarge Reason = "PayloadTooLarge"
	// PayloadTooDeep: the JSON is nested deeper than the resource allows.
	PayloadTooDeep Reason = "PayloadTooDeep"
	// InvalidPayload: the route reads the data as JSON and it is none.
	InvalidPayload Reason = "InvalidPayload"
	// UnstorableText: a text holds what PostgreSQL cannot store, such as NUL.
	UnstorableText Reason = "UnstorableText"
	// Unmatched: no route takes the event type, and the resource says that this is an error.
	Unmatched Reason = "Unmatched"
	// Panic: reading the message made this program panic.
	Panic Reason = "Panic"
)

// Reasons lists every reason, for closed metric labels.
func Reasons() []Reason {
	return []Reason{
		DuplicateIDDifferentPayload, VersionMissing, VersionConflict, LateVersion, InvalidEnvelope,
		PayloadTooLarge, PayloadTooDeep, InvalidPayload, UnstorableText, Unmatched, Panic,
	}
}

// HoldsKey says whether later messages of the key wait until the dead letter is replayed or discarded. A message that
// has no place of its own in the key's order holds nothing.
func (r Reason) HoldsKey() bool {
	switch r {
	case DuplicateIDDifferentPayload, VersionMissing, VersionConflict, LateVersion:
		return false
	default:
		return true
	}
}

// Bounds of a failure's texts.
const (
	maxTextBytes   = 512
	maxKeyBytes    = 1024
	maxDetailBytes = 256
)

// Failure is one dead letter, as message_failure keeps it.
type Failure struct {
	Origin     Origin
	OriginName string
	Envelope   message.Envelope
	Record     message.Record
	// Destination is the row's destination, or the stream of a consumed message.
	Destination string
	// Position names the record at its source, such as "ORDERS@17".
	Position string
	Digest   [32]byte
	Reason   Reason
	// Code is a SQLSTATE or another short code; Detail at most 256 bytes of our own words.
	Code   string
	Detail string
	// Attempts counts the refusals; FirstFailed is zero where this failure is the first.
	Attempts    int
	FirstFailed time.Time
}

// Text makes a text storable and short: what is not UTF-8 and every NUL become U+FFFD, and what is longer than limit
// bytes is cut at the end of a character. The raw bytes beside it tell the whole.
func Text(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// Storable returns the failure with every text made storable, so that a dead letter can never fail for what is in it.
func (f Failure) Storable() Failure {
	e := &f.Envelope
	for _, s := range []*string{&e.EventID, &e.Type, &e.Source, &e.ContentType, &e.Traceparent, &f.Destination, &f.Position} {
		*s = Text(*s, maxTextBytes)
	}
	e.OrderingKey = Text(e.OrderingKey, maxKeyBytes)
	f.Code, f.Detail = Text(f.Code, maxDetailBytes), Text(f.Detail, maxDetailBytes)
	return f
}
