package outboxdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/shard"
)

// TableInUseError says that another relay uses this outbox table.
type TableInUseError struct {
	// Relay is its namespace and name.
	Relay string
	// Recreated says that it is an earlier resource of the same name whose processes may still run.
	Recreated bool
}

// Error implements error.
func (e *TableInUseError) Error() string {
	if e.Recreated {
		return "an earlier relay " + e.Relay + " used this outbox table until a moment ago; waiting for its end"
	}
	return "the outbox table is in use by relay " + e.Relay + "; stop it, or give this one a table of its own"
}

// The statements of the owner row. It is locked first, so that two relays never both think it theirs.
const (
	ownerSQL = `
SELECT coalesce(relay, ''), coalesce(relay_uid, ''), coalesce(seen_until <= clock_timestamp(), true),
  coalesce(source, ''), shards, hash_vector = hashtextextended('postrider' COLLATE "C", 0),
  CASE WHEN isfinite(seen_until) THEN seen_until END
FROM {outbox_owner} FOR NO KEY UPDATE`

	ownSQL = `
UPDATE {outbox_owner} SET relay = $1, relay_uid = $2, seen_until = clock_timestamp() + $3::interval
RETURNING seen_until`

	// dispossessSQL ends the leases of relays that owned the table before: their processes may wake up and still
	// find their own lease rows current.
	dispossessSQL = `
UPDATE {outbox_lease} SET holder = NULL, term = term + 1, held_until = '-infinity' WHERE relay <> $1`

	// leasesSQL makes the lease rows that are missing.
	leasesSQL = `
INSERT INTO {outbox_lease} (relay, shard) SELECT $1, s FROM generate_series(0, $2::int - 1) s
ON CONFLICT (relay, shard) DO NOTHING`

	joinSQL = `
INSERT INTO {outbox_member} (relay, holder, seen_until) VALUES ($1, $2, clock_timestamp() + $3::interval)
ON CONFLICT (relay, holder) DO UPDATE SET seen_until = excluded.seen_until`

	// forgetSQL drops processes that are long gone.
	forgetSQL = `DELETE FROM {outbox_member} WHERE seen_until < clock_timestamp() - 10 * $1::interval`

	adoptSQL = `
UPDATE {outbox_owner} SET source = coalesce(source, $2) WHERE relay = $1 RETURNING source`

	leaveSQL = `DELETE FROM {outbox_member} WHERE relay = $1 AND holder = $2`

	// disownSQL lets the next relay in at once when the last process leaves.
	disownSQL = `
UPDATE {outbox_owner} o SET seen_until = '-infinity' WHERE o.relay = $1 AND o.relay_uid = $2 AND NOT EXISTS (
  SELECT 1 FROM {outbox_member} m WHERE m.relay = $1 AND m.seen_until > clock_timestamp())`
)

// owner is the owner row.
type owner struct {
	relay, uid string
	expired    bool
	source     string
	shards     int16
	hashes     bool
	until      *time.Time // nil: nobody says so
}

// Join says that this process is there for the given time and that the table is its relay's. It is called again
// long before that time is over. A table that another relay uses gives a *TableInUseError.
func (s *Store) Join(ctx context.Context, until time.Duration) (joined shard.Joined, err error) {
	err = s.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		o, err := s.lockOwner(ctx, tx)
		if err != nil {
			return err
		}
		joined = shard.Joined{Source: o.source}
		if o.relay == s.cfg.Relay && o.uid == s.cfg.RelayUID {
			joined.Before = o.until
		}
		b := &pgx.Batch{}
		b.Queue(s.sql.own, s.ownership(until)...).QueryRow(func(row pgx.Row) error { return row.Scan(&joined.Until) })
		if o.relay != "" && o.relay != s.cfg.Relay {
			b.Queue(s.sql.dispossess, s.cfg.Relay)
		}
		b.Queue(s.sql.leases, s.cfg.Relay, s.cfg.Shards)
		b.Queue(s.sql.forget, interval(until))
		b.Queue(s.sql.join, s.cfg.Relay, s.cfg.Holder, interval(until))
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return shard.Joined{}, fmt.Errorf("join the relay's processes: %w", err)
	}
	return joined, nil
}

// lockOwner reads the owner row, locks it and refuses a table that is another relay's or not what it must be.
func (s *Store) lockOwner(ctx context.Context, tx pgx.Tx) (owner, error) {
	var o owner
	err := tx.QueryRow(ctx, s.sql.owner).Scan(
		&o.relay, &o.uid, &o.expired, &o.source, &o.shards, &o.hashes, &o.until)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return owner{}, invalid("table %s_owner has no row; it was emptied by hand", s.cfg.Names.Outbox)
	case err != nil:
		return owner{}, err
	case int(o.shards) != s.cfg.Shards:
		return owner{}, invalid("table %s was made with %d shards, the relay says %d; "+
			"the number of shards of a table cannot change", s.cfg.Names.Outbox, o.shards, s.cfg.Shards)
	case !o.hashes:
		return owner{}, invalid("this server hashes keys otherwise than the one table %s was made on; "+
			"move the rows into a new table", s.cfg.Names.Outbox)
	case o.expired || o.relay == "" || (o.relay == s.cfg.Relay && o.uid == s.cfg.RelayUID):
		return o, nil
	default:
		return owner{}, &TableInUseError{Relay: o.relay, Recreated: o.relay == s.cfg.Relay}
	}
}

func invalid(format string, args ...any) error {
	return &postgres.Error{Reason: postgres.ReasonSchemaInvalid, Message: fmt.Sprintf(format, args...)}
}

// AdoptSource makes the name the table's one source unless it has one, and returns the one it has.
func (s *Store) AdoptSource(ctx context.Context, source string) (string, error) {
	var has string
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.adopt, s.cfg.Relay, source).QueryRow(func(row pgx.Row) error { return row.Scan(&has) })
	})
	if err != nil {
		return "", fmt.Errorf("adopt the table's source: %w", err)
	}
	return has, nil
}

// Leave says that this process ends. When it is the relay's last, the table is free at once.
func (s *Store) Leave(ctx context.Context) error {
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.owner) // its lock makes two that leave see each other go
		b.Queue(s.sql.leave, s.cfg.Relay, s.cfg.Holder)
		b.Queue(s.sql.disown, s.cfg.Relay, s.cfg.RelayUID)
	})
	if err != nil {
		return fmt.Errorf("leave the relay's processes: %w", err)
	}
	return nil
}

// The two looks at who shares the work.
const (
	membersSQL = `
SELECT holder FROM {outbox_member} WHERE relay = $1 AND seen_until > clock_timestamp() ORDER BY holder`

	freeSQL = `
SELECT shard FROM {outbox_lease}
WHERE relay = $1 AND shard < $2 AND (holder IS NULL OR holder = $3 OR held_until <= clock_timestamp())
ORDER BY shard`
)

// Look returns who shares the work: the holder ids of the processes that are there, in order, and the shards that
// this process may acquire, since they are free, their lease is over, or it held them in an earlier term.
func (s *Store) Look(ctx context.Context) (live [][16]byte, takeable []int16, err error) {
	err = s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.members, s.cfg.Relay).Query(func(rows pgx.Rows) (err error) {
			live, err = pgx.CollectRows(rows, pgx.RowTo[[16]byte])
			return err
		})
		b.Queue(s.sql.free, s.cfg.Relay, s.cfg.Shards, s.cfg.Holder).Query(func(rows pgx.Rows) (err error) {
			takeable, err = pgx.CollectRows(rows, pgx.RowTo[int16])
			return err
		})
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look who shares the work: %w", err)
	}
	return live, takeable, nil
}

// identitySQL compares the identity of the position column with the highest ready position of each shard. The
// last value is NULL for a role that may not see it.
const identitySQL = `
SELECT q.seqcache, coalesce(pg_sequence_last_value(q.seqrelid), 0), coalesce(h.highest, 0), q.seqrelid::regclass::text
FROM pg_sequence q CROSS JOIN LATERAL (
  SELECT max(x.position) AS highest FROM generate_series(0, $2::int - 1) s(shard) CROSS JOIN LATERAL (
    SELECT o.position FROM {outbox} o WHERE o.shard = s.shard AND NOT o.held ORDER BY o.position DESC LIMIT 1) x) h
WHERE q.seqrelid = pg_get_serial_sequence($1, 'position')::regclass`

// Preflight checks what must be true of the table for order to hold: positions are given one by one, and above
// those of the rows that wait. A copy made by logical replication has the rows but not the counter.
func (s *Store) Preflight(ctx context.Context) error {
	if s.cfg.Columns != nil {
		return nil // nothing there counts positions
	}
	var cache, last, highest int64
	var sequence string
	table := pgx.Identifier{s.cfg.Names.Schema, s.cfg.Names.Outbox}.Sanitize()
	err := s.pipelined(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.identity, table, s.cfg.Shards).QueryRow(func(row pgx.Row) error {
			return row.Scan(&cache, &last, &highest, &sequence)
		})
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return invalid("column position of table %s is no identity column", s.cfg.Names.Outbox)
	case err != nil:
		return fmt.Errorf("check the outbox table: %w", err)
	case cache != 1:
		return invalid("sequence %s gives positions out of order; run: ALTER SEQUENCE %s CACHE 1", sequence, sequence)
	case last != 0 && last < highest:
		return invalid("sequence %s is behind the rows of its table; run: SELECT setval('%s', %d)",
			sequence, strings.ReplaceAll(sequence, "'", "''"), highest)
	default:
		return nil
	}
}
