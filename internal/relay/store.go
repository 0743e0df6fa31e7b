package relay

import (
	"context"
	"time"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// Claimer reads the rows of a shard that are ready to be sent.
type Claimer interface {
	// Claim returns what one snapshot shows of a window.
	Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error)
	// Fetch returns ready rows by position, up to a sum of payload bytes; cut says that there may be more.
	Fetch(
		ctx context.Context, l lease.Lease, at []message.Position, maxBytes int64,
	) (rows []shard.Row, cut bool, err error)
	// Waiting finds the shards that have ready rows above their floor or a key that is due.
	Waiting(ctx context.Context, shards []int16, floors []message.Position) (shard.Work, error)
}

// Settler archives confirmed rows. It returns lease.ErrLost, and changes nothing, for a lease that passed on.
type Settler interface {
	Settle(ctx context.Context, l lease.Lease, ids []message.ID, brokerPositions []string) (shard.Settlement, error)
	// SettleDue also opens the gates named in release, in the same transaction.
	SettleDue(
		ctx context.Context, l lease.Lease, ids []message.ID, brokerPositions, release []string, most int,
	) (shard.Settlement, []shard.Released, error)
}

// Gatekeeper changes which keys wait. It returns lease.ErrLost as Settler does.
type Gatekeeper interface {
	// Hold holds the rows whose gate exists.
	Hold(ctx context.Context, l lease.Lease, ids []message.ID) (shard.Held, error)
	// Refuse makes the keys of refused rows wait, or the rows dead letters, and holds the other rows given.
	Refuse(ctx context.Context, l lease.Lease, refused []shard.Refusal, hold []message.ID) error
	// PutAside makes keys wait and holds the rows given, without counting anything. It returns its transaction's id.
	PutAside(ctx context.Context, l lease.Lease, delays []shard.Delay, hold []message.ID) (xid uint64, err error)
	// Release opens gates; a key with more than most held rows starts to drain.
	Release(ctx context.Context, l lease.Lease, keys []string, most int) ([]shard.Released, error)
	// Postpone lets keys wait longer.
	Postpone(ctx context.Context, l lease.Lease, delays []shard.Delay) error
}

// DueFinder reads the keys that may be tried again and their held rows.
type DueFinder interface {
	Due(ctx context.Context, l lease.Lease, limit, most int) ([]shard.DueGate, error)
	Load(ctx context.Context, l lease.Lease, ids []message.ID, maxBytes int64) ([]shard.Row, error)
}

// Leaser takes, keeps and frees shards.
type Leaser interface {
	Acquire(ctx context.Context, shard int16, duration time.Duration) (l lease.Lease, ok bool, err error)
	Renew(ctx context.Context, l lease.Lease, duration time.Duration) error
	GiveBack(ctx context.Context, l lease.Lease) error
}

// Membership is a relay's place among its processes, and its right to the table.
type Membership interface {
	Preflight(ctx context.Context) error
	// Join says that this process is there for some time.
	Join(ctx context.Context, until time.Duration) (shard.Joined, error)
	// Look returns the live holders, in order, and the shards that may be acquired.
	Look(ctx context.Context) (live [][16]byte, takeable []int16, err error)
	Leave(ctx context.Context) error
	// AdoptSource makes the name the table's source unless it has one, and returns the one it has.
	AdoptSource(ctx context.Context, source string) (string, error)
}

// Keeper is what a relay needs beside the flow of messages.
type Keeper interface {
	// TurnRing lets the archive forget what is older than the retention.
	TurnRing(ctx context.Context, retention time.Duration) (bool, error)
	Backlog(ctx context.Context, shards []int16) (shard.Backlog, error)
	// Explain says which condition an error belongs to, its reason, and what to do, in words that may be shown. The reason
	// is of a closed set: it is a metric's label.
	Explain(err error) (condition, reason, message string)
}

// Mover is what a lane needs to move its shard's messages.
type Mover interface {
	Claimer
	Settler
	Gatekeeper
	DueFinder
}

// Store is the outbox as a relay needs it; *outboxdb.Store is one. Every call is bounded by the store itself.
type Store interface {
	Mover
	Leaser
	Membership
	Keeper
}

// Watchdog hears of a loop's steps, so that a loop that is stuck can be told from one that waits.
type Watchdog interface {
	// Step says that a loop is alive and makes its next step within the given time.
	Step(loop string, within time.Duration)
	// Done says that a loop has ended.
	Done(loop string)
}
