package outbox

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"
)

// EventID is the globally unique id of a message, a UUID: the same at every delivery, and what consumers
// recognise a duplicate by. uuid.UUID of the usual packages converts to it.
type EventID [16]byte

// String returns the id in the usual hyphenated form.
func (id EventID) String() string {
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

// ParseEventID reads the hyphenated form of a UUID.
func ParseEventID(s string) (EventID, error) {
	var id EventID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return EventID{}, errors.New("outbox: event id is not a UUID")
	}
	if _, err := hex.Decode(id[:], []byte(s[0:8]+s[9:13]+s[14:18]+s[19:23]+s[24:36])); err != nil {
		return EventID{}, errors.New("outbox: event id is not a UUID")
	}
	return id, nil
}

// newEventID makes a version 7 UUID: 48 bits of milliseconds, 12 bits of their fraction, 62 random ones. Ids of
// neighbours in time are neighbours in the index.
func newEventID(now time.Time, random io.Reader) (EventID, error) {
	var id EventID
	if _, err := io.ReadFull(random, id[8:]); err != nil {
		return EventID{}, fmt.Errorf("make an event id: %w", err)
	}
	micros := uint64(now.UnixMicro())
	binary.BigEndian.PutUint64(id[:8], micros/1000<<16|0x7000|micros%1000*4096/1000)
	id[8] = id[8]&0x3f | 0x80
	return id, nil
}

// Message is what to publish.
type Message struct {
	// ID is the event id. Where it is zero, the writer makes a version 7 UUID.
	ID EventID
	// Type is the event type, such as "order.paid": 1 to 200 letters, digits, dots, slashes, hyphens or
	// underscores. The prefix "postrider." is reserved.
	Type string
	// SchemaVersion is the version of the payload's form; 1 where 0.
	SchemaVersion int32
	// OrderingKey is the key whose messages keep their order, such as an order's id, 1 to 1,024 bytes.
	OrderingKey string
	// Unordered says that the message has no key and no place among others. OrderingKey is then empty.
	Unordered bool
	// Version is a version of the caller's own, above the last one of the key. Where it is 0, the writer gives the
	// next one. A consumer that enforces versions waits for what a version of one's own leaves out.
	Version int64
	// Destination is where the message goes, at most 512 bytes; empty stands for the relay's default.
	Destination string
	// ContentType describes the payload; "application/json" where empty.
	ContentType string
	// Payload is carried byte by byte. It must not be nil; an empty slice is an empty payload.
	Payload []byte
	// Headers travel with the message. Names have the form ^[a-z][a-z0-9-]{0,62}$, are not reserved, and values are
	// UTF-8 without NUL and line breaks.
	Headers map[string]string
	// Traceparent is the trace context in W3C form; empty where there is none.
	Traceparent string
	// OccurredAt is when it happened; the database's time of writing where zero.
	OccurredAt time.Time
	// ExpiresAt is when an unordered message is no longer worth publishing; zero: never.
	ExpiresAt time.Time
}

// Written is what a message became.
type Written struct {
	EventID EventID
	// Version is the message's number within its source, destination and ordering key; 0 where unordered.
	Version int64
}
