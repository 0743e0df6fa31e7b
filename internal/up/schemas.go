package up

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/pipeline"
)

// prepareEmbedded makes the tables in the embedded databases, whatever the schemaPolicy, since these begin empty. Then
// it runs the SQL of --init. What goes beside a table of the team's own comes with the step before its relay, which waits
// for that table.
func (r *runner) prepareEmbedded(ctx context.Context) error {
	for i := range r.relays {
		f := &r.relays[i]
		if f.cfg.Outbox.Columns != nil {
			continue
		}
		err := r.inEmbedded(ctx, f.cfg.Source, func(conn *pgx.Conn) error {
			return pipeline.MakeRelayTables(ctx, conn, f.cfg)
		})
		if err != nil {
			return fmt.Errorf("make the tables of %s: %w", f.name, err)
		}
	}
	for i := range r.inboxes {
		f := &r.inboxes[i]
		err := r.inEmbedded(ctx, f.cfg.Inbox.Postgres, func(conn *pgx.Conn) error {
			return pipeline.MakeConsumerTables(ctx, conn, f.cfg)
		})
		if err != nil {
			return fmt.Errorf("make the tables of %s: %w", f.name, err)
		}
	}
	return r.runInit(ctx)
}

// inEmbedded makes something in a schema of an embedded database, as its owner.
func (r *runner) inEmbedded(ctx context.Context, pg config.Postgres, do func(*pgx.Conn) error) (err error) {
	conn, err := r.ownerConn(ctx, pg.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	create := "CREATE SCHEMA IF NOT EXISTS " + pgx.Identifier{pg.Schema}.Sanitize()
	if _, err := conn.Exec(ctx, create); err != nil {
		return fmt.Errorf("create schema %s: %w", pg.Schema, err)
	}
	return do(conn)
}

// runInit runs the SQL files as the owner of their database.
func (r *runner) runInit(ctx context.Context) error {
	for _, init := range r.cfg.Init {
		if err := r.runFile(ctx, init); err != nil {
			return fmt.Errorf("--init %s=%s: %w", init.Database, init.File, err)
		}
	}
	return nil
}

func (r *runner) runFile(ctx context.Context, init InitSQL) (err error) {
	script, err := os.ReadFile(init.File)
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	conn, err := r.ownerConn(ctx, init.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	_, err = conn.Exec(ctx, string(script))
	return err
}

// ownerConn connects as the superuser and becomes the database's owner, so that what is made is the owner's.
func (r *runner) ownerConn(ctx context.Context, database string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, r.servers.postgres.URL(database))
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", database, err)
	}
	const becomeOwnerSQL = `SELECT set_config('role', (SELECT pg_get_userbyid(datdba) FROM pg_database
		WHERE datname = current_database()), false)`
	if _, err := conn.Exec(ctx, becomeOwnerSQL); err != nil {
		return nil, errors.Join(fmt.Errorf("act as the owner of database %s: %w", database, err), conn.Close(ctx))
	}
	return conn, nil
}
