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
	// Alone says that a commit waits for no copy of the server.
	Alone bool
	// DeadRows is the server's estimate of how many rows of the table are dead and not cleaned away yet.
	DeadRows int64
	// Holders keep dead rows from being cleaned away, the one that holds back most at first.
	Holders []Holder
}

// Holder is a transaction, or something that stands for one, that may still have to see rows which are dead for others.
type Holder struct {
	// ID is its own, and another one when it no longer holds back what it did.
	ID string
	// What names it for a person, Remedy says what ends it.
	What, Remedy string
}

// looseSQL and holdersSQL ask for what every role may see. The settings are those of the worker's own sessions: what was set
// for another role alone is not among them.
//
// A transaction holds back cleaning by its snapshot (backend_xmin) or by its own id, which bounds all snapshots that are
// taken while it runs, in whatever database, and so comes first. A snapshot counts in its own database only, but for a
// standby's, by its slot or its sender. VACUUM itself holds nothing back: autovacuum has no user.
const (
	looseSQL = `
SELECT coalesce(array_agg(name || ' = off' ORDER BY name), '{}'),
  pg_catalog.current_setting('synchronous_standby_names') = ''
    OR pg_catalog.current_setting('synchronous_commit') IN ('off', 'local'),
  coalesce(pg_catalog.pg_stat_get_dead_tuples(pg_catalog.to_regclass($1)), 0)
FROM pg_catalog.pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'`

	holdersSQL = `
SELECT x.kind || ' ' || x.name || ' ' || x.xid, x.what, x.remedy FROM (
  SELECT 'session' AS kind, a.pid::text AS name, a.backend_xid IS NOT NULL AS own,
    CASE WHEN a.backend_xid IS NULL OR (a.datname IS NOT DISTINCT FROM pg_catalog.current_database()
        AND pg_catalog.age(a.backend_xmin) > pg_catalog.age(a.backend_xid))
      THEN a.backend_xmin ELSE a.backend_xid END AS xid,
    pg_catalog.format('a transaction of process %s, user %I', a.pid, a.usename)
      || coalesce(', application "' || nullif(a.application_name, '') || '"', '') AS what,
    pg_catalog.format('SELECT pg_terminate_backend(%s)', a.pid) AS remedy
  FROM pg_catalog.pg_stat_activity a
  WHERE a.pid <> pg_catalog.pg_backend_pid() AND a.usename IS NOT NULL
    AND (a.datname IS NULL OR a.datname = pg_catalog.current_database() OR a.backend_xid IS NOT NULL)
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum v WHERE v.pid = a.pid)
  UNION ALL
  SELECT 'prepared', p.gid, true, p.transaction, pg_catalog.format('the prepared transaction %L', p.gid),
    pg_catalog.format('ROLLBACK PREPARED %L', p.gid)
  FROM pg_catalog.pg_prepared_xacts p
  UNION ALL
  SELECT 'slot', s.slot_name, false, s.xmin, pg_catalog.format('the replication slot %I', s.slot_name),
    CASE WHEN s.active THEN 'look for a long query on its standby'
      ELSE pg_catalog.format('SELECT pg_drop_replication_slot(%L)', s.slot_name) END
  FROM pg_catalog.pg_replication_slots s) x
WHERE x.xid IS NOT NULL
ORDER BY pg_catalog.age(x.xid) DESC, x.own DESC, x.kind, x.name`
)

// Look returns what the database shows now. The table is named as the session finds it, quoted.
func Look(ctx context.Context, pool *pgxpool.Pool, table string) (Survey, error) {
	var s Survey
	if err := pool.QueryRow(ctx, looseSQL, table).Scan(&s.Loose, &s.Alone, &s.DeadRows); err != nil {
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
