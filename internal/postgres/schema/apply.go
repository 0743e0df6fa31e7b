package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres"
)

// lockSQL lets one Apply at a time work on a schema. The lock ends with the transaction, so it works
// behind a pooler; whoever waited sees what the other has committed, as each statement takes a new snapshot.
const lockSQL = `SELECT pg_advisory_xact_lock(hashtextextended('postrider schema ' || $1, 0))`

// schemaExistsSQL comes before CREATE SCHEMA, which wants a right on the database even where nothing is to be made.
const schemaExistsSQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`

// versionTableSQL makes the table that remembers what was applied.
const versionTableSQL = `CREATE TABLE IF NOT EXISTS {message_schema_version} (
  component  text NOT NULL,
  name       text NOT NULL,
  version    int NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (component, name, version)
)`

// appliedSQL returns the newest version of a component's table.
const appliedSQL = `SELECT coalesce(max(version), 0) FROM {message_schema_version} WHERE component = $1 AND name = $2`

// recordSQL remembers an applied step.
const recordSQL = `INSERT INTO {message_schema_version} (component, name, version) VALUES ($1, $2, $3)`

// shardsSQL returns the number of shards the outbox was made with.
const shardsSQL = `SELECT shards FROM {outbox_owner}`

// Apply brings the asked tables up to the newest version this program knows, in one transaction.
// It does nothing where they are there already, leaves newer ones alone, and may run in several
// processes at once. The schema itself is made if it is missing and the role may.
func Apply(ctx context.Context, db Beginner, names postgres.Names, o Options) error {
	o, err := o.validate(names)
	if err != nil {
		return err
	}
	steps, err := o.migrations()
	if err != nil {
		return err
	}
	// Stated, since a database default of REPEATABLE READ would hide what a concurrent Apply did.
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := prepare(ctx, tx, names); err != nil {
			return err
		}
		for _, step := range steps {
			if err := applyStep(ctx, tx, step, names, o); err != nil {
				return err
			}
		}
		return checkShards(ctx, tx, names, o)
	})
	if err != nil {
		return fmt.Errorf("apply schema %s: %w", names.Schema, err)
	}
	return nil
}

func prepare(ctx context.Context, tx pgx.Tx, names postgres.Names) error {
	if _, err := tx.Exec(ctx, lockSQL, names.Schema); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	var exists bool
	if err := tx.QueryRow(ctx, schemaExistsSQL, names.Schema).Scan(&exists); err != nil {
		return fmt.Errorf("look for the schema: %w", err)
	}
	if !exists {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{names.Schema}.Sanitize()); err != nil {
			return fmt.Errorf("create the schema: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, names.SQL(versionTableSQL)); err != nil {
		return fmt.Errorf("create the version table: %w", err)
	}
	return nil
}

func applyStep(ctx context.Context, tx pgx.Tx, step migration, names postgres.Names, o Options) error {
	table := step.component.table(names)
	var applied int
	if err := tx.QueryRow(ctx, names.SQL(appliedSQL), step.component, table).Scan(&applied); err != nil {
		return fmt.Errorf("read the applied version of %s: %w", step.component, err)
	}
	if applied >= step.version {
		return nil
	}
	// The simple protocol takes a file of several statements.
	if _, err := tx.Exec(ctx, step.render(names, o), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("migration %s %d: %w", step.component, step.version, err)
	}
	if _, err := tx.Exec(ctx, names.SQL(recordSQL), step.component, table, step.version); err != nil {
		return fmt.Errorf("record migration %s %d: %w", step.component, step.version, err)
	}
	return nil
}

func checkShards(ctx context.Context, tx pgx.Tx, names postgres.Names, o Options) error {
	if !o.has(Outbox) {
		return nil
	}
	var shards int32
	if err := tx.QueryRow(ctx, names.SQL(shardsSQL)).Scan(&shards); err != nil {
		return fmt.Errorf("read the number of shards: %w", err)
	}
	if shards != o.Shards {
		return fmt.Errorf("%w: %s has %d, asked for %d", ErrShardsDiffer, names.Outbox, shards, o.Shards)
	}
	return nil
}
