// Package outboxdb is the SQL of the outbox: leases and members, floor reads, settle, the key gate, the
// archive ring and the counts for status.
//
// It promises that nothing is written for a shard unless the lease's holder and term are current, that
// every statement has a deadline, and that each runs READ COMMITTED whatever the database's default is.
// What to send, to hold or to settle it does not decide: that is package relay.
package outboxdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
)

// Config says whose outbox a Store works on and for whom.
type Config struct {
	Names postgres.Names
	// Relay is the namespace and name of the resource; its leases carry it. RelayUID tells a recreated
	// resource from the one before.
	Relay    string
	RelayUID string
	// Holder is this process's random id.
	Holder [16]byte
	// Shards is the number that was written into the table.
	Shards int
	// Unordered is ordering mode None: a message that waits holds up no other, so its event id is its gate.
	Unordered bool
	// SkipDeadLetters is ordering.onDeadLetter SkipMessage: a marker takes the place of a dead letter and the key goes
	// on; else the key waits until somebody decides.
	SkipDeadLetters bool
	// QueryTimeout bounds each transaction.
	QueryTimeout time.Duration
	// Columns, unless nil, say that the outbox is a table which the team already has (layout StatusColumns), as
	// mapped.Read found it; its Names, Shards, Unordered and Relay are taken from this Config.
	Columns *mapped.Table
}

// ErrInvalidConfig says that a Config lacks something.
var ErrInvalidConfig = errors.New("invalid outbox store config")

// Validate refuses a config without a name, holder or bound.
func (c Config) Validate() error {
	switch {
	case c.Names.Schema == "" || c.Names.Outbox == "":
		return fmt.Errorf("%w: schema or table has no name", ErrInvalidConfig)
	case c.Relay == "":
		return fmt.Errorf("%w: the relay has no name", ErrInvalidConfig)
	case c.Holder == [16]byte{}:
		return fmt.Errorf("%w: the holder has no id", ErrInvalidConfig)
	case c.Shards < 1 || c.Shards > 64:
		return fmt.Errorf("%w: shards is %d, want 1 to 64", ErrInvalidConfig, c.Shards)
	case c.QueryTimeout <= 0:
		return fmt.Errorf("%w: query timeout is %v, want more than 0", ErrInvalidConfig, c.QueryTimeout)
	default:
		return nil
	}
}

// DB starts transactions: *pgxpool.Pool does.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// Store runs the statements of one relay process on one outbox. It is safe for concurrent use.
type Store struct {
	db  DB
	cfg Config
	sql statements
}

// New returns a store. It sends nothing.
func New(db DB, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{db: db, cfg: cfg, sql: newStatements(cfg.Names)}
	if cfg.Columns != nil {
		s.sql.onColumns(cfg)
	}
	return s, nil
}

// statements are the SQL texts with the configured names written in.
type statements struct {
	lock, claim, fetch, waiting                 string
	settle, archived                            string
	holdGated, holdRows, refuse, gate           string
	bury, buriedGate                            string
	due, load, release, postpone                string
	owner, own, dispossess, adopt, disown       string
	leases, join, forget, leave, members, free  string
	acquire, renew, giveBack                    string
	ringCurrent, ringNext, ringLeave, ringEnter string
	backlog, failures, identity                 string
}

func newStatements(n postgres.Names) statements {
	return statements{
		lock: n.SQL(lockSQL), claim: n.SQL(claimSQL), fetch: n.SQL(fetchSQL), waiting: n.SQL(lookSQL(waitingSQL)),
		settle: n.SQL(settleSQL), archived: n.SQL(archivedSQL),
		holdGated: n.SQL(holdGatedSQL), holdRows: n.SQL(holdRowsSQL), refuse: n.SQL(refuseSQL), gate: n.SQL(gateSQL),
		bury: n.SQL(burySQL), buriedGate: n.SQL(buriedGateSQL),
		due: n.SQL(dueSQL), load: n.SQL(loadSQL), release: n.SQL(releaseSQL), postpone: n.SQL(postponeSQL),
		owner: n.SQL(ownerSQL), own: n.SQL(ownSQL), dispossess: n.SQL(dispossessSQL), adopt: n.SQL(adoptSQL),
		disown: n.SQL(disownSQL), leases: n.SQL(leasesSQL), join: n.SQL(joinSQL), forget: n.SQL(forgetSQL),
		leave: n.SQL(leaveSQL), members: n.SQL(membersSQL), free: n.SQL(freeSQL),
		acquire: n.SQL(acquireSQL), renew: n.SQL(renewSQL), giveBack: n.SQL(giveBackSQL),
		ringCurrent: n.SQL(ringCurrentSQL), ringNext: n.SQL(ringNextSQL),
		ringLeave: n.SQL(ringLeaveSQL), ringEnter: n.SQL(ringEnterSQL),
		backlog: n.SQL(backlogSQL), failures: n.SQL(failuresSQL), identity: n.SQL(identitySQL),
	}
}

// beginSQL opens every pipelined transaction. The isolation level is stated here, in the transaction, and not
// by a session setting: a transaction-mode pooler refuses or forgets those. A database whose default is
// REPEATABLE READ or SERIALIZABLE would otherwise keep the snapshot from before a lock was waited for, which
// leaves held rows without a gate.
const (
	beginSQL  = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
	commitSQL = "COMMIT"
)

// pipelined runs statements in one transaction and one round trip. No statement may depend on another's answer.
func (s *Store) pipelined(ctx context.Context, queue func(*pgx.Batch)) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(beginSQL)
	queue(batch)
	batch.Queue(commitSQL)
	return s.db.SendBatch(ctx, batch).Close()
}

// transaction runs statements that depend on each other.
func (s *Store) transaction(ctx context.Context, run func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	return pgx.BeginTxFunc(ctx, s.db, options, func(tx pgx.Tx) error { return run(ctx, tx) })
}

// lockSQL says whether the lease of a shard is this holder's in this term, and keeps it so until the
// transaction ends. It also returns the transaction's id.
//
// Everything that touches held or a gate comes after it, as a statement of its own: a statement that waits
// for the lock itself keeps its snapshot from before the wait and would miss what the other one wrote.
// FOR NO KEY UPDATE, since FOR SHARE would let settles starve a takeover.
const lockSQL = `
SELECT coalesce(holder = $3 AND term = $4, false), pg_current_xact_id() FROM {outbox_lease}
WHERE relay = $1 AND shard = $2 FOR NO KEY UPDATE`

// fenced runs statements that only the lease's holder may run, and returns the id of their transaction. It returns
// lease.ErrLost, and changes nothing, when the shard has passed on.
func (s *Store) fenced(
	ctx context.Context, l lease.Lease, run func(context.Context, pgx.Tx) error,
) (xid uint64, err error) {
	err = s.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var holds bool
		err := tx.QueryRow(ctx, s.sql.lock, l.Relay, l.Shard, l.Holder, l.Term).Scan(&holds, &xid)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return lease.ErrLost
		case err != nil:
			return fmt.Errorf("lock lease: %w", err)
		case !holds:
			return lease.ErrLost
		}
		return run(ctx, tx)
	})
	return xid, err
}
