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
	resource string
	worker   config.Postgres // whose user works on them
	owner    config.Postgres // whose user makes them, with schemaPolicy Managed
	managed  bool
	names    postgres.Names
	options  schema.Options
	role     schema.Role
}

func (r *runner) tables() []tables {
	var all []tables
	for i := range r.relays {
		f := &r.relays[i]
		owner, managed := desired.RelayMigration(&f.resource, desired.Inputs{
			Root: r.rootOf("relay", f.resource.Namespace, f.resource.Name),
		})
		all = append(all, tables{
			resource: f.name, worker: f.cfg.Source, owner: owner, managed: managed,
			names:   postgres.Names{Schema: f.cfg.Source.Schema, Outbox: f.cfg.Outbox.Table},
			options: schema.Options{Components: []schema.Component{schema.Outbox}, Shards: f.cfg.Outbox.Shards},
			role:    schema.RoleRelay,
		})
	}
	for i := range r.inboxes {
		f := &r.inboxes[i]
		owner, managed := desired.ConsumerMigration(&f.resource, desired.Inputs{
			Root: r.rootOf("consumer", f.resource.Namespace, f.resource.Name),
		})
		all = append(all, tables{
			resource: f.name, worker: f.cfg.Inbox.Postgres, owner: owner, managed: managed,
			names:   postgres.Names{Schema: f.cfg.Inbox.Postgres.Schema},
			options: schema.Options{Components: []schema.Component{schema.Inbox}},
			role:    schema.RoleConsumer,
		})
	}
	return all
}

// prepareSchemas makes the tables: with schemaPolicy Managed as the init container of a Pod does, and in embedded
// databases always, since they begin empty. Then it runs the SQL of --init.
func (r *runner) prepareSchemas(ctx context.Context) error {
	for _, t := range r.tables() {
		if r.cfg.External && !t.managed {
			continue
		}
		if err := r.prepare(ctx, t); err != nil {
			return fmt.Errorf("%s: make its tables in database %s: %w", t.resource, t.worker.Database, err)
		}
	}
	return r.runInit(ctx)
}

func (r *runner) prepare(ctx context.Context, t tables) (err error) {
	conn, err := r.schemaConn(ctx, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if !r.cfg.External {
		create := "CREATE SCHEMA IF NOT EXISTS " + pgx.Identifier{t.names.Schema}.Sanitize()
		if _, err := conn.Exec(ctx, create); err != nil {
			return fmt.Errorf("create schema %s: %w", t.names.Schema, err)
		}
	}
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

// schemaConn connects as the one who owns the tables.
func (r *runner) schemaConn(ctx context.Context, t tables) (*pgx.Conn, error) {
	if !r.cfg.External {
		return r.ownerConn(ctx, t.worker.Database)
	}
	return postgres.Connect(ctx, t.owner, postgres.Options{ApplicationName: "postrider schema", AllowLoopback: true})
}
