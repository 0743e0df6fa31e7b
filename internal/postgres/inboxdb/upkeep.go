package inboxdb

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/verdict"
)

// purgeBatch is how many ids one purge forgets at once.
const purgeBatch = 1000

// Claim takes or renews the consumer name for a resource. It returns a *verdict.NameInUseError where another resource
// uses the name and its last heartbeat has not expired.
func (s *Store) Claim(ctx context.Context, o verdict.Owner) error {
	var owner string
	err := s.inTx(ctx, queryTimeout, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.sql.claim, s.consumer, o.Resource, o.UID, o.Lease.Microseconds())
		if err != nil || tag.RowsAffected() == 1 {
			return doing("claim the consumer name", err)
		}
		return doing("read the owner", tx.QueryRow(ctx, s.sql.owner, s.consumer).Scan(&owner))
	})
	switch {
	case err != nil:
		return trouble(err, 1)
	case owner != "":
		return &verdict.NameInUseError{ConsumerName: s.consumer, Owner: owner}
	default:
		return nil
	}
}

// Finish notes that everything of a stream up to a sequence is finished, so that a durable which was deleted can be made
// again from there.
func (s *Store) Finish(ctx context.Context, stream string, sequence uint64) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	_, err := s.pool.Exec(ctx, s.sql.finish, s.consumer, stream, int64(sequence)) //nolint:gosec // far below 2^63
	if err != nil {
		return trouble(doing("note the finished sequence", err), 1)
	}
	return nil
}

// Finished returns the stream that was read last, as Finish named it, and the sequence noted for it; no name and 0 where
// none was read.
func (s *Store) Finished(ctx context.Context) (stream string, sequence uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var noted int64
	err = s.pool.QueryRow(ctx, s.sql.finished, s.consumer).Scan(&stream, &noted)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", 0, trouble(doing("read the finished sequence", err), 1)
	}
	return stream, uint64(noted), nil //nolint:gosec // never negative
}

// Purge forgets ids that were applied or skipped longer than retention ago, one small batch, and says whether there may
// be more.
func (s *Store) Purge(ctx context.Context, retention time.Duration) (more bool, err error) {
	var n int64
	err = s.inTx(ctx, queryTimeout, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.sql.purge, s.consumer, retention.Microseconds(), purgeBatch)
		n = tag.RowsAffected()
		return doing("purge the inbox", err)
	})
	if err != nil {
		return false, trouble(err, 1)
	}
	return n == purgeBatch, nil
}

// Rearm makes gaps that are held due once, so that a gap time-out that was set later reaches them.
func (s *Store) Rearm(ctx context.Context) error {
	err := s.inTx(ctx, queryTimeout, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql.rearm, s.consumer)
		return doing("make held gaps due", err)
	})
	if err != nil {
		return trouble(err, 1)
	}
	return nil
}

// Counts counts what waits.
func (s *Store) Counts(ctx context.Context) (verdict.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var c verdict.Counts
	err := s.pool.QueryRow(ctx, s.sql.counts, s.consumer, verdict.MaxCount).
		Scan(&c.At, &c.Parked, &c.Gaps, &c.BlockedKeys, &c.DeadLetters, &c.OldestDeadLetter)
	if err != nil {
		return c, trouble(doing("count what waits", err), 1)
	}
	return c, nil
}

// Check proves before the first message that the tables are there, that the role may not do more than a handler should,
// and that the database accepts the handler's statements. Its errors are *verdict.PrivilegeError,
// *verdict.StatementError and *verdict.Trouble.
func (s *Store) Check(ctx context.Context, statements []string) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return trouble(&beginError{err}, 1)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, s.sql.tables); err != nil {
		return trouble(doing("look at the inbox tables", err), 1)
	}
	var right string
	err = conn.QueryRow(ctx, privilegesSQL).Scan(&right)
	switch {
	case err == nil:
		return &verdict.PrivilegeError{Right: right}
	case !errors.Is(err, pgx.ErrNoRows):
		return trouble(doing("look at the role's rights", err), 1)
	}
	for i, statement := range statements {
		if err := prepareOnce(ctx, conn.Conn(), i, statement); err != nil {
			return err
		}
	}
	return nil
}

// prepareOnce lets the server parse and plan a statement without running it. It is unnamed: nothing stays behind on a
// pooler's connection.
func prepareOnce(ctx context.Context, conn *pgx.Conn, route int, statement string) error {
	_, err := conn.PgConn().Prepare(ctx, "", statement, nil)
	if err == nil {
		return nil
	}
	var refused *pgconn.PgError
	class, _, _ := postgres.Classify(err)
	if !errors.As(err, &refused) ||
		(class != postgres.ClassStatement && refused.Code[:2] != "42" && refused.Code[:2] != "3F") {
		return trouble(doing("prepare a handler's statement", err), 1)
	}
	return &verdict.StatementError{
		Route: route, Code: refused.Code, Missing: postgres.Missing(refused), Position: int(refused.Position),
	}
}
