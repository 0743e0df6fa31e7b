package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
)

// tables are what one resource needs in a database.
type tables struct {
	worker  config.Postgres // whose user works on them
	owner   config.Postgres // whose user makes them, with schemaPolicy Managed
	managed bool
	names   postgres.Names
	options schema.Options
	role    schema.Role
}

func (r *runner) relayTables(f *relayFleet) tables {
	in := desired.Inputs{Root: r.rootOf("relay", f.resource.Namespace, f.resource.Name)}
	owner, managed := desired.RelayMigration(&f.resource, in)
	return tables{
		worker: f.cfg.Source, owner: owner, managed: managed,
		names:   postgres.Names{Schema: f.cfg.Source.Schema, Outbox: f.cfg.Outbox.Table},
		options: schema.Options{Components: []schema.Component{schema.Outbox}, Shards: f.cfg.Outbox.Shards},
		role:    schema.RoleRelay,
	}
}

func (r *runner) consumerTables(f *consumerFleet) tables {
	in := desired.Inputs{Root: r.rootOf("consumer", f.resource.Namespace, f.resource.Name)}
	owner, managed := desired.ConsumerMigration(&f.resource, in)
	return tables{
		worker: f.cfg.Inbox.Postgres, owner: owner, managed: managed,
		names:   postgres.Names{Schema: f.cfg.Inbox.Postgres.Schema},
		options: schema.Options{Components: []schema.Component{schema.Inbox}},
		role:    schema.RoleConsumer,
	}
}

// prepareEmbedded makes the tables in the embedded databases, whatever the schemaPolicy, since these begin empty. Then
// it runs the SQL of --init.
func (r *runner) prepareEmbedded(ctx context.Context) error {
	for i := range r.relays {
		f := &r.relays[i]
		if err := r.makeEmbedded(ctx, r.relayTables(f)); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	for i := range r.inboxes {
		f := &r.inboxes[i]
		if err := r.makeEmbedded(ctx, r.consumerTables(f)); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return r.runInit(ctx)
}

func (r *runner) makeEmbedded(ctx context.Context, t tables) (err error) {
	conn, err := r.ownerConn(ctx, t.worker.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	create := "CREATE SCHEMA IF NOT EXISTS " + pgx.Identifier{t.names.Schema}.Sanitize()
	if _, err := conn.Exec(ctx, create); err != nil {
		return fmt.Errorf("create schema %s in database %s: %w", t.names.Schema, t.worker.Database, err)
	}
	if err := t.make(ctx, conn); err != nil {
		return fmt.Errorf("make the tables in database %s: %w", t.worker.Database, err)
	}
	return nil
}

// migration returns what makes the tables in a real database, as the init container of a Pod does with schemaPolicy
// Managed; nil with Verify, where they are only looked at.
func (r *runner) migration(t tables) func(context.Context) error {
	if !r.cfg.External || !t.managed {
		return nil
	}
	return func(ctx context.Context) (err error) {
		conn, err := postgres.Connect(ctx, t.owner, postgres.Options{
			ApplicationName: "postrider schema", AllowLoopback: true,
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
		return t.make(ctx, conn)
	}
}

// make makes the tables and gives the worker its rights on them.
func (t *tables) make(ctx context.Context, conn *pgx.Conn) error {
	if err := schema.Apply(ctx, conn, t.names, t.options); err != nil {
		return err
	}
	user, err := os.ReadFile(filepath.Join(t.worker.CredentialsDir, v1alpha1.KeyUsername))
	if err != nil {
		return fmt.Errorf("read the worker's user: %w", err)
	}
	for _, statement := range schema.Grants(t.names, t.role, strings.TrimSpace(string(user))) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("grant the worker its rights: %w", err)
		}
	}
	return nil
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
