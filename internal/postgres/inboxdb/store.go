// Package inboxdb holds the SQL of a consumer: inbox, ordering keys, parked messages, dead letters and the claim on a
// consumer name.
//
// It promises that a message's effect, its place in the inbox and the move of its key commit together or not at all, and
// that nothing is reported as decided before it is committed. What becomes of a message is decided by package verdict;
// which statement a handler runs is decided by the handler.
package inboxdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/verdict"
)

const (
	// queryTimeout bounds a statement that waits for no one.
	queryTimeout = 10 * time.Second
	// overhead is how much longer than the handler's statements a transaction may take.
	overhead = 5 * time.Second
	// rollbackTimeout bounds a rollback; a connection that does not answer is dropped.
	rollbackTimeout = 5 * time.Second
	// keyWait is how long a new key waits for another process that is just adding it, in milliseconds.
	keyWait = 200
	// lockWait is how long a lane waits for a key that another process holds, in milliseconds. It is short, since the
	// lane's other keys wait meanwhile, and long enough to get a turn between two transactions.
	lockWait = 500
	// maxSavepoints bounds the messages of a transaction that runs them one by one.
	maxSavepoints = 64
	// maxDrain bounds the parked messages of a transaction, maxDrainBytes their bodies.
	maxDrain      = 50
	maxDrainBytes = 16 << 20
)

// Store runs the statements for one consumer name. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	consumer string
	sql      statements
	seen     *keyCache
	now      func() time.Time
}

// New returns a store for one consumer name. The names of its tables are fixed within the schema.
func New(pool *pgxpool.Pool, names postgres.Names, consumer string) *Store {
	return &Store{pool: pool, consumer: consumer, sql: newStatements(names), seen: newKeyCache(), now: time.Now}
}

// readCommitted is stated in every BEGIN: with a database default of REPEATABLE READ or SERIALIZABLE, a batch that waited
// for another would not see what the other committed.
func readCommitted() pgx.TxOptions { return pgx.TxOptions{IsoLevel: pgx.ReadCommitted} }

// commitError marks an error of COMMIT itself.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// beginError marks an error from before anything was sent.
type beginError struct{ err error }

func (e *beginError) Error() string { return "begin: " + e.err.Error() }
func (e *beginError) Unwrap() error { return e.err }

// inTx runs f in a transaction of at most the given length. A connection whose transaction's end is not known is dropped.
func (s *Store) inTx(ctx context.Context, limit time.Duration, f func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tx, err := s.pool.BeginTx(ctx, readCommitted())
	if err != nil {
		return &beginError{err}
	}
	if err := f(ctx, tx); err != nil {
		s.rollback(ctx, tx)
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return &commitError{err}
	}
	return nil
}

// rollback ends the transaction also when the caller's time is over. Its error tells nothing: a connection that cannot
// roll back is closed, and the server rolls back then.
func (s *Store) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// trouble says what an error of our own statements means. n is the number of messages in the transaction.
func trouble(err error, n int) *verdict.Trouble {
	if known, ok := errors.AsType[*verdict.Trouble](err); ok {
		return known
	}
	class, reason, state := postgres.Classify(err)
	t := &verdict.Trouble{Reason: string(reason), Code: state, Text: postgres.SafeError(err), Err: err}
	var atCommit *commitError
	var atBegin *beginError
	switch {
	case class == postgres.ClassShutdown:
		t.Kind = verdict.Stopping
	case errors.As(err, &atBegin):
		t.Kind = verdict.Environment
	case errors.As(err, &atCommit) && state == "":
		t.Kind = verdict.OutcomeUnknown
	case class == postgres.ClassRetry:
		t.Kind = verdict.Again
	case n > 1 && (errors.Is(err, context.DeadlineExceeded) || reason == postgres.ReasonStatementTimeout):
		t.Kind = verdict.Slow
	default:
		t.Kind = verdict.Environment
	}
	return t
}

func doing(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
