package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Survey is what one look at a database shows of what may hurt later.
type Survey struct {
	// Loose are the settings, as "fsync = off", under which the server may lose what it said was committed.
	Loose []string
	// DeadRows is the server's estimate of how many rows of the table are dead and not cleaned away yet.
	DeadRows int64
	// Holders may keep dead rows from being cleaned away, the likelier ones first.
	Holders []Holder
}

// Holder is a transaction, or something that stands for one, that may still have to see rows which are dead for others.
type Holder struct {
	// ID is its own for as long as it lives.
	ID string
	// What names it for a person, Remedy is the statement that ends it.
	What, Remedy string
}

// looseSQL and holdersSQL ask for what every role may see. A session's snapshot is not among it, but that a transaction is
// open, by its virtual id, and that it has an id of its own and so has written. Where the role may see more
// (pg_read_all_stats), what has neither snapshot nor id is left out. Transactions of other databases do not count, a
// standby's does; cleaning itself, which has no user, holds nothing back.
const (
	looseSQL = `
SELECT coalesce(array_agg(name || ' = off' ORDER BY name), '{}'),
  coalesce(pg_catalog.pg_stat_get_dead_tuples(pg_catalog.to_regclass($1)), 0)
FROM pg_catalog.pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'`

	holdersSQL = `
SELECT 'prepared ' || p.gid, pg_catalog.format('the prepared transaction %L', p.gid),
  pg_catalog.format('ROLLBACK PREPARED %L', p.gid)
FROM pg_catalog.pg_prepared_xacts p WHERE p.database = pg_catalog.current_database()
UNION ALL
SELECT 'slot ' || s.slot_name, pg_catalog.format('the replication slot %I', s.slot_name),
  pg_catalog.format('SELECT pg_drop_replication_slot(%L)', s.slot_name)
FROM pg_catalog.pg_replication_slots s WHERE s.xmin IS NOT NULL
UNION ALL
(SELECT 'session ' || l.virtualtransaction,
  pg_catalog.format('a transaction of process %s, user %I', a.pid, a.usename)
    || coalesce(', application "' || nullif(a.application_name, '') || '"', ''),
  pg_catalog.format('SELECT pg_terminate_backend(%s)', a.pid)
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.pid <> pg_catalog.pg_backend_pid()
  AND a.usename IS NOT NULL AND (a.datname IS NULL OR a.datname = pg_catalog.current_database())
  AND (a.state IS NULL OR a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
ORDER BY EXISTS (SELECT FROM pg_catalog.pg_locks own WHERE own.pid = l.pid AND own.locktype = 'transactionid'
  AND own.mode = 'ExclusiveLock' AND own.granted) DESC)`
)

// Look returns what the database shows now. The table is named as the session finds it, quoted.
func Look(ctx context.Context, pool *pgxpool.Pool, table string) (Survey, error) {
	var s Survey
	if err := pool.QueryRow(ctx, looseSQL, table).Scan(&s.Loose, &s.DeadRows); err != nil {
		return Survey{}, fmt.Errorf("look at the database: %w", err)
	}
	rows, err := pool.Query(ctx, holdersSQL)
	if err == nil {
		s.Holders, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Holder])
	}
	if err != nil {
		return Survey{}, fmt.Errorf("look at open transactions: %w", err)
	}
	return s, nil
}
