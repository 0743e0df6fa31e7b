package outboxdb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// slots is the number of the archive's partitions, which the migration made.
const slots = 8

// The statements of one turn of the archive ring. The current slot's row is locked first: of several processes that
// find it time, one turns and the others see it done.
const (
	ringLockTimeoutSQL = `SET LOCAL lock_timeout = '3s'`

	ringCurrentSQL = `
SELECT slot, since <= clock_timestamp() - $1::interval / 7 FROM {outbox_ring} WHERE current FOR UPDATE`

	ringNextSQL = `
SELECT left_at IS NULL OR left_at <= clock_timestamp() - $2::interval FROM {outbox_ring} WHERE slot = $1`

	ringLeaveSQL = `UPDATE {outbox_ring} SET current = false, left_at = clock_timestamp() WHERE slot = $1`
	ringEnterSQL = `UPDATE {outbox_ring} SET current = true, since = clock_timestamp() WHERE slot = $1`
)

// TurnRing lets the archive go on to its next slot, and empties that, when the current slot is a seventh of the
// retention old: rows are kept for 1 to 1.15 times the retention. It says whether it turned. A reader in the next
// slot only delays the turn.
func (s *Store) TurnRing(ctx context.Context, retention time.Duration) (turned bool, err error) {
	if s.cfg.Columns != nil {
		return false, nil // published rows stay where they are, or are gone
	}
	err = s.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, ringLockTimeoutSQL); err != nil {
			return err
		}
		var current int
		var old, free bool
		err := tx.QueryRow(ctx, s.sql.ringCurrent, interval(retention)).Scan(&current, &old)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // another process has just turned it
		}
		if err != nil || !old {
			return err
		}
		next := (current + 1) % slots
		if err := tx.QueryRow(ctx, s.sql.ringNext, next, interval(retention)).Scan(&free); err != nil || !free {
			return err
		}
		b := &pgx.Batch{}
		b.Queue("TRUNCATE " + s.cfg.Names.SQL("{outbox_published_"+strconv.Itoa(next)+"}"))
		b.Queue(s.sql.ringLeave, current)
		b.Queue(s.sql.ringEnter, next)
		turned = true
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return false, fmt.Errorf("turn the archive ring: %w", err)
	}
	return turned, nil
}
