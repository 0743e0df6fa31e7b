package outboxdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/lease"
)

// acquireSQL takes a shard that is free or whose lease is over. The term grows at each acquire, also when the same
// holder takes it again: what it started in the term before must not pass the fence. It waits for a settle that
// runs under the old term.
const acquireSQL = `
UPDATE {outbox_lease} SET holder = $3, term = term + 1, held_until = clock_timestamp() + $4::interval
WHERE relay = $1 AND shard = $2 AND (holder IS NULL OR holder = $3 OR held_until <= clock_timestamp())
RETURNING term`

// Acquire takes the shard for the duration, or says that another holder has it. The lease's TrustUntil is the
// caller's to set: it knows when it asked.
func (s *Store) Acquire(ctx context.Context, shard int16, duration time.Duration) (l lease.Lease, ok bool, err error) {
	l = lease.Lease{Relay: s.cfg.Relay, Shard: shard, Holder: s.cfg.Holder}
	err = s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.acquire, l.Relay, l.Shard, l.Holder, interval(duration)).QueryRow(
			func(row pgx.Row) error { return optional(row.Scan(&l.Term)) })
	})
	if err != nil {
		return lease.Lease{}, false, fmt.Errorf("acquire shard %d: %w", shard, err)
	}
	return l, l.Term > 0, nil
}

// renewSQL prolongs a lease that nobody took over, also where its time was over.
const renewSQL = `
UPDATE {outbox_lease} SET held_until = clock_timestamp() + $5::interval
WHERE relay = $1 AND shard = $2 AND holder = $3 AND term = $4 RETURNING true`

// Renew prolongs the lease by the duration from now, or returns lease.ErrLost.
func (s *Store) Renew(ctx context.Context, l lease.Lease, duration time.Duration) error {
	var held bool
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.renew, l.Relay, l.Shard, l.Holder, l.Term, interval(duration)).QueryRow(
			func(row pgx.Row) error { return optional(row.Scan(&held)) })
	})
	if err != nil {
		return fmt.Errorf("renew shard %d: %w", l.Shard, err)
	}
	if !held {
		return lease.ErrLost
	}
	return nil
}

// giveBackSQL gives a shard back, so that the next holder need not wait for the lease's end.
const giveBackSQL = `
UPDATE {outbox_lease} SET holder = NULL, held_until = '-infinity'
WHERE relay = $1 AND shard = $2 AND holder = $3 AND term = $4`

// GiveBack frees the shard for the next holder. A lease that was lost is free already.
func (s *Store) GiveBack(ctx context.Context, l lease.Lease) error {
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.giveBack, l.Relay, l.Shard, l.Holder, l.Term)
	})
	if err != nil {
		return fmt.Errorf("give back shard %d: %w", l.Shard, err)
	}
	return nil
}

// optional turns the absence of a row into no error.
func optional(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}
