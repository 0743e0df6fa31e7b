// Package statusz is what a worker reports about itself at /statusz: versioned, bounded JSON that the
// manager, `postrider up` and people read.
//
// Unknown fields are ignored and one version back is understood. A count that nobody knows is absent,
// never 0. It holds structs only.
package statusz

import "time"

// Version is the version of the report that this code writes.
const Version = 1

// StepSchema is the step that makes the tables.
const StepSchema = "schema"

// MaxBytes bounds a report; a reader refuses a larger one.
const MaxBytes = 64 << 10

// Report is one worker's view of its resource.
type Report struct {
	Version int `json:"version"`
	// Worker is the process's random id, the lease holder of a relay.
	Worker string `json:"worker"`
	// Step names what reports in the place of a worker that has not started yet, such as StepSchema; empty for a
	// worker. A step knows only whether it can go on.
	Step      string `json:"step,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Generation is that of the config in force.
	Generation int64 `json:"generation"`
	// ConfigError says why a newer config file was refused; empty when the file read last is in force.
	ConfigError string `json:"configError,omitempty"`
	RunPolicy   string `json:"runPolicy"`
	// ObservedTime is when the counts were taken, by the database's clock.
	ObservedTime *time.Time  `json:"observedTime,omitempty"`
	Conditions   []Condition `json:"conditions"`
	Relay        *Relay      `json:"relay,omitempty"`
	Consumer     *Consumer   `json:"consumer,omitempty"`
}

// Condition is a state with its reason. Types and reasons are those of api/v1alpha1.
type Condition struct {
	Type string `json:"type"`
	// Status is True, False or Unknown.
	Status string `json:"status"`
	Reason string `json:"reason"`
	// Message says what to do next; at most 256 bytes of our own text.
	Message string `json:"message,omitempty"`
}

// Relay is what a relay process knows of the shards it holds. Sums over processes give the whole table.
type Relay struct {
	Backlog           *Backlog   `json:"backlog,omitempty"`
	PublishedTotal    int64      `json:"publishedTotal"`
	PublishedPerSec   *int64     `json:"publishedPerSecond,omitempty"`
	ArrivedPerSec     *int64     `json:"arrivedPerSecond,omitempty"`
	DeadLetters       *Count     `json:"deadLetters,omitempty"`
	Shards            int        `json:"shards"`
	HeldShards        []int16    `json:"heldShards"`
	LastPublishedTime *time.Time `json:"lastPublishedTime,omitempty"`
	Destination       string     `json:"destination"`
}

// Backlog counts the rows of the held shards that are not settled.
type Backlog struct {
	Messages int64 `json:"messages"`
	// Precision is Exact, or AtLeast where counting stopped at its bound.
	Precision         string     `json:"precision"`
	OldestMessageTime *time.Time `json:"oldestMessageTime,omitempty"`
	OldestBlockedTime *time.Time `json:"oldestBlockedTime,omitempty"`
	InFlight          int64      `json:"inFlight"`
	Retrying          int64      `json:"retrying"`
	BlockedMessages   int64      `json:"blockedMessages"`
	BlockedKeys       int64      `json:"blockedKeys"`
}

// Count is a number of open things and the time of the oldest.
type Count struct {
	Open       int64      `json:"open"`
	OldestTime *time.Time `json:"oldestTime,omitempty"`
}

// Consumer is what a consumer process knows. Counters are of this process, states of the whole consumer.
type Consumer struct {
	Lag             *Lag       `json:"lag,omitempty"`
	AppliedTotal    int64      `json:"appliedTotal"`
	DuplicatesTotal int64      `json:"duplicatesTotal"`
	AppliedPerSec   *int64     `json:"appliedPerSecond,omitempty"`
	Parked          *int64     `json:"parked,omitempty"`
	Gaps            *int64     `json:"gaps,omitempty"`
	BlockedKeys     *int64     `json:"blockedKeys,omitempty"`
	DeadLetters     *Count     `json:"deadLetters,omitempty"`
	LastAppliedTime *time.Time `json:"lastAppliedTime,omitempty"`
	Source          string     `json:"source"`
}

// Lag counts what the broker holds for this consumer and has not been applied.
type Lag struct {
	Messages          int64      `json:"messages"`
	OldestMessageTime *time.Time `json:"oldestMessageTime,omitempty"`
}
