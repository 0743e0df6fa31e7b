// Package broker states the two contracts every broker adapter keeps: Publisher for the relay and
// Receiver for the consumer, with the words for what a broker's answer means.
//
// It promises that no message is dropped between a batch and its confirmations. It holds no client
// library: the adapters live in the packages below it and pass the suite in brokertest.
package broker

import (
	"context"
	"time"

	"github.com/postrider/postrider/internal/message"
)

// Outcome is a broker's answer for one message, as far as it is known.
type Outcome uint8

// The outcomes. The zero value is Unknown: a message whose answer was never set was perhaps sent.
const (
	// Unknown: sent, no answer. The same id is sent again.
	Unknown Outcome = iota
	// Confirmed: the broker holds the message durably at Position.
	Confirmed
	// Rejected: this message will never be accepted as it is. It counts an attempt.
	Rejected
	// Ambiguous: this message failed alone, and the error cannot tell whether it or its surroundings are the cause.
	Ambiguous
	// Unavailable: the broker, or our right to it, is not there. It counts no attempt.
	Unavailable
)

// String returns the outcome as metrics and logs name it.
func (o Outcome) String() string {
	switch o {
	case Confirmed:
		return "confirmed"
	case Rejected:
		return "rejected"
	case Ambiguous:
		return "ambiguous"
	case Unavailable:
		return "unavailable"
	default:
		return "unknown"
	}
}

// Reason is why an outcome is not Confirmed: a closed set, used in conditions, metrics and error codes.
type Reason string

// Reasons of Rejected.
const (
	ReasonTooLarge           Reason = "TooLarge"
	ReasonInvalidHeader      Reason = "InvalidHeader"
	ReasonInvalidDestination Reason = "InvalidDestination"
	ReasonNotAllowed         Reason = "DestinationNotAllowed"
	ReasonUnroutable         Reason = "Unroutable"
	ReasonPanic              Reason = "Panic"
	ReasonSourceMismatch     Reason = "SourceMismatch"
	ReasonRefused            Reason = "RefusedByBroker"
)

// Reasons of Unavailable, Ambiguous and Unknown.
const (
	ReasonUnreachable      Reason = "Unreachable"
	ReasonTLSFailed        Reason = "TLSFailed"
	ReasonAuthFailed       Reason = "AuthFailed"
	ReasonNoCredentials    Reason = "CredentialsMissing"
	ReasonPermissionDenied Reason = "PermissionDenied"
	ReasonStreamMissing    Reason = "StreamMissing"
	ReasonStreamFull       Reason = "StreamFull"
	ReasonStreamMismatch   Reason = "TopologyMismatch"
	ReasonNotReplicated    Reason = "NotEnoughReplicas"
	ReasonFenced           Reason = "Fenced"
	ReasonBlocked          Reason = "BrokerBlocked"
	ReasonNoAnswer         Reason = "NoAnswer"
	ReasonNotSent          Reason = "NotSent"
	// ReasonDuplicateLost: the broker takes the message for one that it has had, and does not show that one.
	ReasonDuplicateLost Reason = "DuplicateNotHeld"
	// ReasonOffsetGone: the next message of a partition was deleted before it was read.
	ReasonOffsetGone  Reason = "OffsetOutOfRange"
	ReasonBrokerError Reason = "BrokerError"
)

// Reasons lists every reason, for closed metric labels.
func Reasons() []Reason {
	return []Reason{
		ReasonTooLarge, ReasonInvalidHeader, ReasonInvalidDestination, ReasonNotAllowed, ReasonUnroutable, ReasonPanic,
		ReasonSourceMismatch, ReasonRefused,
		ReasonUnreachable, ReasonTLSFailed, ReasonAuthFailed, ReasonNoCredentials, ReasonPermissionDenied,
		ReasonStreamMissing, ReasonStreamFull, ReasonStreamMismatch, ReasonNotReplicated, ReasonFenced, ReasonBlocked,
		ReasonNoAnswer, ReasonNotSent, ReasonDuplicateLost, ReasonOffsetGone, ReasonBrokerError,
	}
}

// Confirmation is the broker's word on one message.
type Confirmation struct {
	Outcome Outcome
	// Position names where the broker keeps a confirmed message, such as "ORDERS@17".
	Position string
	// Reason says why the outcome is not Confirmed.
	Reason Reason
	// Detail is fixed text of ours, at most 256 bytes, never the remote end's words, a payload or a credential.
	Detail string
}

// WholeBroker says whether the failure concerns the connection, and so every message, whatever its destination.
func (c *Confirmation) WholeBroker() bool {
	switch c.Reason {
	case ReasonUnreachable, ReasonTLSFailed, ReasonAuthFailed, ReasonNoCredentials, ReasonBlocked:
		return true
	case ReasonNoAnswer: // not to a message, which would be Unknown: nobody says whether messages can be sent at all
		return c.Outcome == Unavailable
	default:
		return false
	}
}

// Answered says that a broker itself has told why it does not take the message: it is there.
func (c *Confirmation) Answered() bool {
	said := c.Outcome == Ambiguous || c.Outcome == Unavailable
	return said && c.Reason != ReasonNotSent && !c.WholeBroker()
}

// Publisher sends messages and waits for the broker's word on each.
type Publisher interface {
	// Publish returns one Confirmation per message, in the same order, and never drops one.
	// Messages of one key are sent in the batch's order, and no later one of a key is sent after an
	// earlier one was not confirmed: those are Unavailable with ReasonNotSent.
	// It returns at the context's end at the latest, with Unknown for what got no answer. The bytes of the payloads
	// must not be changed afterwards: they may still be on their way.
	Publish(ctx context.Context, batch []message.Message) []Confirmation
}

// Router is a Publisher whose messages go to several units: parts of the broker that can fail alone, such as the
// partitions of a Kafka topic. While one fails, the messages of the others go on.
type Router interface {
	// Unit names the part that a message goes to, as far as is known by now. It asks nobody, is quick, and is safe for
	// concurrent use.
	Unit(m *message.Message) string
	// Units names all parts that messages may go to, as far as is known by now; nil where they cannot be listed. The
	// caller must not change it.
	Units() []string
}

// Acknowledger is the consumer's word to the broker on one delivery.
type Acknowledger interface {
	// Ack says that the delivery's effect, parked copy or dead letter is durable.
	Ack(ctx context.Context) error
	// Release gives the delivery back; the broker may deliver it again after the pause.
	Release(ctx context.Context, pause time.Duration) error
	// InProgress tells the broker that the delivery is still being worked on.
	InProgress(ctx context.Context) error
}

// Delivery is one record handed to a consumer, unsettled until acknowledged or released.
type Delivery struct {
	Acknowledger
	message.Record
	// Position names the record's place at the broker, such as "ORDERS@17".
	Position string
	// Sequence is the record's number within its stream or partition, growing in broker order.
	Sequence uint64
	// Deliveries counts how often the broker has handed out this record, this time included.
	Deliveries int
}

// Receiver hands out deliveries.
type Receiver interface {
	// Receive waits for at least one delivery, or the context's end, and returns what is there, in broker
	// order, never more than its prefetch in all outstanding. An error is a state of the environment
	// (see *Error); the caller waits and calls again.
	Receive(ctx context.Context) ([]Delivery, error)
}

// Error is a broker's state that keeps an adapter from working: connection, rights or topology.
type Error struct {
	Reason Reason
	// Detail is fixed text of ours that says what to do.
	Detail string
	Err    error
}

// Error implements error.
func (e *Error) Error() string {
	s := string(e.Reason) + ": " + e.Detail
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
