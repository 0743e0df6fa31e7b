// Package message holds what Postrider moves: the message of an outbox row, the record a broker
// carries and the envelope a consumer reads from it, with the one mapping between them.
//
// It promises that the payload's bytes are never changed and that a record names the message it
// came from. It does no I/O and knows no broker.
package message

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// ID is the globally unique event id of an outbox message: a UUID made once, by the writer.
type ID [16]byte

// String returns the id in the usual hyphenated form.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], id[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], id[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], id[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], id[10:16])
	return string(b[:])
}

// ErrInvalidID says that a text is not a UUID.
var ErrInvalidID = errors.New("event id is not a UUID")

// ParseID reads the hyphenated form of an id.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, ErrInvalidID
	}
	raw := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(id[:], []byte(raw)); err != nil {
		return ID{}, fmt.Errorf("%w: %q has other characters than hex digits", ErrInvalidID, s)
	}
	return id, nil
}

// SkippedType is the type of a marker: a message without data that takes the place of one that was skipped or discarded,
// so that consumers which compare versions go on.
const SkippedType = "postrider.skipped"

// Position is a message's place in its outbox table. It is given before commit, so a lower one may
// appear later: it orders the messages of one key and is never a watermark.
type Position int64

// Message is one row of an outbox: what the relay publishes.
type Message struct {
	Position Position
	ID       ID
	// Type is the event type, such as "order.paid".
	Type          string
	SchemaVersion int32
	// Source is the one name of the outbox's writer.
	Source string
	// OrderingKey is the key whose messages keep their order; the event id where the message is unordered.
	OrderingKey string
	// AggregateVersion counts the messages of (source, destination, key) densely from 1; 0 where unordered.
	AggregateVersion int64
	// Destination is the row's value; empty stands for the relay's default destination.
	Destination string
	ContentType string
	// Payload is carried byte by byte. It is nil when the row is larger than the relay's batch bound; Size still tells.
	Payload []byte
	// Size is the payload's length in bytes, also where Payload was not loaded.
	Size        int
	Headers     map[string]string
	Traceparent string
	OccurredAt  time.Time
	// Attempts counts the refusals of this message so far.
	Attempts int
	// Unknowns counts the publishes of this message that got no answer.
	Unknowns int
	// RepublishID tells apart the times that a published message was sent again on purpose; 0 for the first. A broker
	// that forgets repetitions of an id is to keep each of them.
	RepublishID int64
}

// Ordered says whether the message keeps its place among others of its key.
func (m *Message) Ordered() bool { return m.AggregateVersion > 0 }

// Header is one name and value of a record. The value may hold any bytes.
type Header struct {
	Name  string
	Value string
}

// Record is what a broker carries: raw bytes, whoever produced them.
type Record struct {
	Key     []byte
	Headers []Header
	Body    []byte
}

// Header returns the value of the first header of that name.
func (r *Record) Header(name string) (string, bool) {
	for i := range r.Headers {
		if r.Headers[i].Name == name {
			return r.Headers[i].Value, true
		}
	}
	return "", false
}

// Envelope is a message as its consumer reads it from a record.
type Envelope struct {
	// EventID is text: other producers' ids need not be UUIDs.
	EventID          string
	Type             string
	SchemaVersion    int32
	Source           string
	OrderingKey      string
	AggregateVersion int64 // 0 where the producer gave none
	// Stream is the producing row's destination value; versions count per (source, stream, key).
	Stream      string
	ContentType string
	Traceparent string
	OccurredAt  time.Time
	// Headers are those of the producer that are not part of the envelope.
	Headers map[string]string
	Data    []byte
}
