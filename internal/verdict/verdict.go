// Package verdict decides what becomes of a delivered message: applied, skipped, parked, buried as a dead letter or
// known already. It holds the words in which the consumer and the inbox tables speak of it.
//
// It is pure: no clock, no random number, no database. The consumer fills in items, internal/postgres/inboxdb asks for
// decisions inside its transaction and writes them.
package verdict

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
)

// Hash names an ordering key of one consumer in message_inbox_key.
type Hash [16]byte

// KeyHash returns the first 128 bits of SHA-256 over consumer, source, stream and ordering key, each preceded by its
// length as eight bytes, so that no two quadruples run together.
func KeyHash(consumer, source, stream, key string) Hash {
	var buf [512]byte
	b := buf[:0]
	for _, s := range [...]string{consumer, source, stream, key} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return Hash(sum[:16])
}

// State is what an ordering key waits for, as message_inbox_key keeps it.
type State byte

// The states.
const (
	// Open: nothing of the key waits.
	Open State = 'O'
	// Retry: a message of the key failed, or parked ones are being drained; every later one parks behind it.
	Retry State = 'R'
	// Gap: a version is missing; later ones park, the missing one applies.
	Gap State = 'G'
	// Blocked: a dead letter holds the key until it is replayed or discarded.
	Blocked State = 'B'
)

// Key is an ordering key's place.
type Key struct {
	// Last is the version applied last; it stays 0 where versions are off.
	Last  int64
	State State
}

// Versions says what a message's version means.
type Versions uint8

// The ways to read versions.
const (
	// Enforce applies the versions of a key one after the other.
	Enforce Versions = iota
	// IgnoreOlder applies what is newer than the last applied and skips the rest.
	IgnoreOlder
	// Off applies in the order of arrival.
	Off
)

// Rules are what the resource says about order.
type Rules struct {
	Versions Versions
	// GapTimeout is how long a gap may last where ApplyAfterGap says to go on then.
	GapTimeout    time.Duration
	ApplyAfterGap bool
}

// Statement is what a handler wants to run for a message.
type Statement struct {
	// Route is the place of the statement in the resource.
	Route int
	SQL   string
	Args  []any
}

// Refusal says why a message can never be applied. Detail is fixed text of ours without any value of the message.
type Refusal struct {
	Reason deadletter.Reason
	Detail string
}

// Item is one delivered message on its way into the inbox.
type Item struct {
	message.Envelope
	Record message.Record
	// Position names the record at its source.
	Position string
	Digest   [sha256.Size]byte
	// Keyed says whether the message keeps its place among others of Key.
	Keyed bool
	Key   Hash
	// Statement is nil for a marker and where no route wants the message: it only takes its place.
	Statement *Statement
	// Refusal is set where the message can never be applied; it is buried when its turn comes.
	Refusal *Refusal
}

// ID is what makes a message unique within a consumer.
type ID struct{ Source, EventID string }

// Inbox returns the message's name in message_inbox.
func (it *Item) Inbox() ID { return ID{it.Source, it.EventID} }

// Action is what becomes of a message.
type Action uint8

// The actions.
const (
	// Undecided: nothing was written. The message stays where it is, and so does every later one of its key.
	Undecided Action = iota
	// Apply: the handler's statement was run.
	Apply
	// Skip: the message takes its place without a statement.
	Skip
	// Park: the message is kept in message_parked.
	Park
	// Bury: the message is a dead letter.
	Bury
	// Repeat: the message was decided before.
	Repeat
)

// String returns the action as metrics name it.
func (a Action) String() string {
	switch a {
	case Apply:
		return "applied"
	case Skip:
		return "skipped"
	case Park:
		return "parked"
	case Bury:
		return "dead_lettered"
	case Repeat:
		return "duplicate"
	default:
		return "undecided"
	}
}

// Outcome returns the letter that message_inbox keeps: what a later delivery of the same id learns.
func (a Action) Outcome() string {
	switch a {
	case Skip:
		return "S"
	case Park:
		return "P"
	case Bury:
		return "D"
	default:
		return "A"
	}
}

// Decision is what becomes of one message, and why.
type Decision struct {
	Action Action
	// Reason is why the message is buried.
	Reason deadletter.Reason
	// Gap says that the message is parked because a version before it is missing.
	Gap bool
	// Ripe says that the message was what a gap waited for: parked ones may follow it now.
	Ripe bool
	// Failure is set where the message is parked because its statement failed.
	Failure *Failure
}

// Failure is how a handler's statement failed.
type Failure struct {
	Class deadletter.Class
	// Code is the SQLSTATE.
	Code string
	// Pause is how long the message waits.
	Pause time.Duration
}

// Decide says what becomes of a message that was never seen before, its key being as given. It changes nothing.
//
// What a message's version alone settles is settled in every state: waiting would not change it.
func (r Rules) Decide(k Key, it *Item) Decision {
	if !it.Keyed {
		return it.turn()
	}
	if r.Versions != Off && it.AggregateVersion == 0 {
		return Decision{Action: Bury, Reason: deadletter.VersionMissing}
	}
	if r.Versions == Enforce && it.AggregateVersion <= k.Last {
		return Decision{Action: Bury, Reason: deadletter.VersionConflict}
	}
	if k.State == Retry || k.State == Blocked {
		return Decision{Action: Park}
	}
	if r.Versions == Enforce && it.AggregateVersion > k.Last+1 {
		return Decision{Action: Park, Gap: true}
	}
	if r.Versions == IgnoreOlder && it.AggregateVersion <= k.Last {
		return Decision{Action: Skip}
	}
	return it.turn()
}

// turn is what happens to a message whose turn it is.
func (it *Item) turn() Decision {
	switch {
	case it.Refusal != nil:
		return Decision{Action: Bury, Reason: it.Refusal.Reason}
	case it.Statement == nil:
		return Decision{Action: Skip}
	default:
		return Decision{Action: Apply}
	}
}

// After returns the key once the decision is written.
func (r Rules) After(k Key, it *Item, d Decision) Key {
	if !it.Keyed {
		return k
	}
	switch d.Action {
	case Apply, Skip:
		if r.Versions != Off {
			k.Last = max(k.Last, it.AggregateVersion)
		}
	case Park:
		if d.Failure != nil {
			k.State = Retry
		} else if d.Gap && k.State == Open {
			k.State = Gap
		}
	case Bury:
		if d.Reason.HoldsKey() {
			k.State = Blocked
		}
	default:
	}
	return k
}

// Job is what the tables' owner needs to know beside the messages.
type Job struct {
	Rules Rules
	// HandlerTimeout bounds one statement of the handler, and about a whole transaction.
	HandlerTimeout time.Duration
	// Pause returns how long a message waits after a failure: its attempts so far, this one included, and the time
	// since its first failure.
	Pause func(attempts int, failing time.Duration) time.Duration
	// Wait makes Apply wait for a key that another process holds, for a short time, instead of leaving it out.
	Wait bool
	// Apart is for when the same work has failed several times in a row by no fault of any message, as far as the error
	// tells: it finds out whether the error comes with one of them all the same, and lets that one wait by itself.
	Apart bool
}

// Drained is what became of the parked messages of one key.
type Drained struct {
	// Found says that something was due.
	Found     bool
	Decisions []Decision
	// Skipped counts the ranges of versions that were given up.
	Skipped int
}

// Owner names the resource that uses a consumer name.
type Owner struct {
	Resource string // namespace/name
	UID      string
	// Lease is how long the name stays taken without a further heartbeat.
	Lease time.Duration
}

// Counts is how a consumer's tables stand. A count of MaxCount means at least so many.
type Counts struct {
	At               time.Time // by the database's clock
	Parked           int64
	Gaps             int64
	BlockedKeys      int64
	DeadLetters      int64
	OldestDeadLetter *time.Time
}

// MaxCount is where counting stops.
const MaxCount = 100_001
