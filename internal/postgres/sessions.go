package postgres

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SQLSTATEs of a prepared statement that another session has, or that this one has already.
const (
	statementMissing = "26000"
	statementThere   = "42P05"
)

// keepsStatements marks a connection that prepares its statements once.
const keepsStatements = "keepsStatements"

// planForGrowth keeps an index in plans that were made when a table was empty: what is planned once must still be right when
// a broker has been down for a night.
const planForGrowth = "SET enable_seqscan = off"

// sessions finds out whether a pool's connections are sessions of the server. Planning a statement once a session saves a
// fifth of a drain; behind a pooler that gives each transaction another session such a statement would be missing in
// the next.
//
// A pooler answers cancel requests, so the process id that a client is told at its start is the pooler's own; the server
// knows its session by another. One that passes on the server's is told by the first statement that is missing.
type sessions struct{ pooled atomic.Bool }

// KeepStatements has the connections of a pool keep their statements where they may, as Options.KeepStatements says.
func KeepStatements(pc *pgxpool.Config) {
	s := &sessions{}
	before, onError := pc.BeforeConnect, pc.ConnConfig.OnPgError
	pc.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		if s.pooled.Load() {
			c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
		if before == nil {
			return nil
		}
		return before(ctx, c)
	}
	pc.AfterConnect = s.look
	pc.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) { return s.fits(c), nil }
	pc.ConnConfig.OnPgError = func(c *pgconn.PgConn, e *pgconn.PgError) bool {
		if e.Code == statementMissing || e.Code == statementThere {
			s.pooled.Store(true)
			return false
		}
		return onError == nil || onError(c, e)
	}
}

// look compares whom the client and the server take the session for, and readies one that keeps its statements.
func (s *sessions) look(ctx context.Context, c *pgx.Conn) error {
	if s.pooled.Load() {
		return nil
	}
	c.PgConn().CustomData()[keepsStatements] = true
	var pid uint32
	// Exec mode prepares nothing that has a name.
	err := c.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid)
	if err != nil {
		return fmt.Errorf("look at the session: %w", err)
	}
	if pid != c.PgConn().PID() {
		s.pooled.Store(true)
		return nil
	}
	if _, err := c.Exec(ctx, planForGrowth, pgx.QueryExecModeExec); err != nil {
		return fmt.Errorf("ready the session: %w", err)
	}
	return nil
}

// fits says whether a connection may be used: one that keeps its statements is of no use behind a pooler.
func (s *sessions) fits(c *pgx.Conn) bool {
	return !s.pooled.Load() || c.PgConn().CustomData()[keepsStatements] == nil
}
