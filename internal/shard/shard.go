// Package shard holds the words in which a relay and the store of its outbox speak about one shard: the
// window a lane reads, the rows it claims, what a settle moved, which keys wait.
//
// It exists so that the relay knows no SQL and the store knows no broker. It holds structs, and no logic but a sum.
package shard

import (
	"time"

	"github.com/postrider/postrider/internal/message"
)

// Window says which part of a shard a lane wants to read.
type Window struct {
	// Floor is a position at or below which no row can appear any more that the lane does not know.
	Floor message.Position
	// Read is the highest position the lane has read. Between Floor and Read the answer holds positions only,
	// above it whole rows.
	Read message.Position
	// MaxMessages bounds the whole rows, MaxBytes the sum of their payloads and headers: the row that reaches it is the
	// last one. A payload that is larger than MaxBytes by itself is not loaded, nor are headers no record could carry.
	MaxMessages int
	MaxBytes    int64
	// MaxBelow bounds the positions.
	MaxBelow int
	// Next is where the look at what lies below Read goes on, in a store whose looks stop (Look); 0: anywhere.
	Next message.Position
}

// Row is one row of the outbox as a lane claims it.
type Row struct {
	message.Message
	// Gated says that the row's key waits: the row is to be held, not sent.
	Gated bool
	// Expired says that nobody wants the message any more: it is archived unsent.
	Expired bool
	// Defect is why the row can never become a message, such as "InvalidHeader"; empty for a sound row.
	Defect string
	// HeadersSize is what the headers count for in a batch, beside the payload's Size, loaded or not.
	HeadersSize int
	// Failed says that the message has failed before, SinceFailed how long ago by the database's clock, and FailingFor
	// for how long it has been failing as far as that counts against its budget. They are read with held rows only.
	Failed      bool
	SinceFailed time.Duration
	FailingFor  time.Duration
}

// Bytes is what the row counts for in a batch.
func (r *Row) Bytes() int64 { return int64(r.Size) + int64(r.HeadersSize) }

// Claim is what one snapshot of the database showed of a window, in position order.
type Claim struct {
	// Server is when the server that answered was started. One that was restored or promoted is another than before.
	Server time.Time
	// Xmin is the snapshot's lowest transaction id that was still running, Running are all of them.
	Xmin    uint64
	Running []uint64
	// Below are the positions in (Floor, Read]; BelowCut says that there are more of them.
	Below    []message.Position
	BelowCut bool
	// Rows lie above Read; Cut says that there may be more of them, or more below Read where the look stopped there.
	Rows []Row
	Cut  bool
	// Look is how far the claim went, in a store whose looks stop.
	Look Look
}

// Look is how far a claim went that passes over rows which may not be sent yet, as it does in a table of the team's own: it
// stops after so many, however few rows it found. It is the zero Look where it ended at the last row that was wanted.
type Look struct {
	// Reached is the last place above Read that was looked at: of that part all rows are in the claim. 0: there was none.
	Reached message.Position
	// Stopped is the place after which the next look has to go on, above Read or below it. 0: there was no more.
	Stopped message.Position
	// Long says that it passed over so much that the look for all idle lanes would not get to its end.
	Long bool
}

// Work is what one look for all idle lanes shows.
type Work struct {
	// Server is when the server that answered was started, Running are the transaction ids that were still running.
	Server  time.Time
	Running []uint64
	// Shards have ready rows above their floor, or a key that is due, or are too much for a look.
	Shards []int16
}

// Joined is what the table says when a process says that it is there. Its times are by the database's clock.
type Joined struct {
	// Source is the one source name of the table's rows, empty where none is known.
	Source string
	// Before is until when a process of the relay had said that it is there, nil where the table knows of none. Until is what
	// it says now.
	Before *time.Time
	Until  time.Time
}

// Held is what became of rows whose key waits.
type Held struct {
	// Positions are those of the rows that are held now; the gate of the others was gone.
	Positions []message.Position
	// Xid is the holding transaction's id.
	Xid uint64
}

// Settlement is what became of confirmed rows.
type Settlement struct {
	// Moved counts the rows that this settle moved to the archive.
	Moved int
	// Already counts those that were in the archive: an earlier settle, whose answer was lost, moved them.
	Already int
	// Vanished counts those that are in neither table: somebody deleted them.
	Vanished int
	// Unclear counts missing rows that could not be looked up in time.
	Unclear int
	// Xid is the settling transaction's id.
	Xid uint64
}

// Refusal is a row that the broker refused, or that failed in a way nobody can explain yet.
type Refusal struct {
	ID message.ID
	// Gate is the key that waits from now on: the ordering key, or the event id where nothing is ordered.
	Gate string
	// Attempts and Unknowns are the row's new counts. They are values, not increments, so that a
	// transaction whose commit got no answer may be repeated.
	Attempts int
	Unknowns int
	// Counted says that the failure is the message's own; else nothing tells yet whose it is. FailingFor is the row's
	// new failing time, a value too.
	Counted    bool
	FailingFor time.Duration
	// Code is the reason, from a closed set; Detail says more in fixed text of ours.
	Code   string
	Detail string
	// Wait is how long the key waits.
	Wait time.Duration
	// Spent says that the message's budget is spent: it becomes a dead letter, and Wait means nothing.
	Spent bool
}

// Delay puts off a key that is due.
type Delay struct {
	Gate string
	Wait time.Duration
}

// Head is one of the first held rows of a key, without its payload. Size is what it counts for in a batch.
type Head struct {
	ID       message.ID
	Size     int
	Unknowns int
}

// DueGate is a key that may be tried again.
type DueGate struct {
	Gate string
	// Draining says that the key's first message got through and the others follow; else the key is in Retry
	// and only the first one may be sent.
	Draining bool
	// Heads are the first held rows in position order, at most as many as asked for; one in Retry.
	Heads []Head
}

// Released is what became of a key whose gate was to be opened.
type Released struct {
	Gate string
	// Open says that the gate is gone and its rows are ready again, the lowest at First; 0 where there were none.
	Open  bool
	First message.Position
}

// Backlog counts the rows of some shards that are not settled, at one time of the database's clock.
type Backlog struct {
	ObservedAt time.Time
	Ready      int64
	Retrying   int64
	Blocked    int64
	// BlockedKeys counts the keys behind an open dead letter.
	BlockedKeys int64
	// Ambiguous counts the messages that have failed for long while nothing told whose fault it is.
	Ambiguous int64
	// AtLeast says that counting stopped at its bound.
	AtLeast bool
	// OldestAt is when the oldest row that is not blocked was written, OldestBlockedAt the oldest blocked one;
	// nil where there is none.
	OldestAt        *time.Time
	OldestBlockedAt *time.Time
	// DeadLetters counts the open dead letters of the whole relay, OldestDeadLetterAt is when the oldest failed last.
	DeadLetters        int64
	OldestDeadLetterAt *time.Time
}
