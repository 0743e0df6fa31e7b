// Package schema owns the tables and functions in PostgreSQL: it prints, applies and verifies them,
// and prints the least grants for the roles that use them.
//
// Migrations are numbered and only go forward. It never drops or rewrites what it did not make, and
// it changes nothing in a database unless Apply is called.
package schema

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
)

//go:embed migrations/*.sql
var files embed.FS

// Component is a group of tables that are migrated together.
type Component string

// The components. Failure, the dead letters, comes with each of the others and need not be asked for.
const (
	Outbox  Component = "outbox"
	Inbox   Component = "inbox"
	Failure Component = "failure"

	// notify is what tells a relay of commits: Options.Notify.
	notify Component = "notify"
	// beside are the tables beside an outbox that a team already has: Outbox with Options.Columns.
	beside Component = "columns"
)

// The bounds of Options.Shards.
const (
	DefaultShards = 8
	MaxShards     = 64
)

// Options say which tables are meant.
type Options struct {
	// Components are Outbox, Inbox or both.
	Components []Component
	// Shards is the number of independently ordered slices of the outbox, 1 to 64; 0 means 8.
	// It is written into the table and never changes.
	Shards int32
	// Columns, unless nil, say that the outbox is a table which the team already has, and how its columns are named:
	// only what the relay keeps beside it is made. Unordered is ordering mode None of such a table.
	Columns   *config.Columns
	Unordered bool
	// Notify has the outbox tell relays of commits (batch.wakeUp: Notify). Of a table that the team has it is only printed.
	Notify bool
}

// table is the team's own outbox.
func (o Options) table(names postgres.Names) mapped.Table {
	return mapped.Table{Names: names, Map: *o.Columns, Unordered: o.Unordered, Shards: int(o.Shards)}
}

// ErrShardsDiffer says that the outbox table was made with another number of shards than asked for.
var ErrShardsDiffer = errors.New("the number of shards of an outbox table cannot change")

// Beginner starts a transaction: *pgx.Conn and *pgxpool.Pool do.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// migration is one numbered step of a component.
type migration struct {
	component Component
	version   int
	sql       string
}

// validate checks names and options before anything is sent and fills in defaults.
func (o Options) validate(names postgres.Names) (Options, error) {
	if len(o.Components) == 0 {
		return o, errors.New("schema: no component given")
	}
	for _, c := range o.Components {
		if c != Outbox && c != Inbox && c != Failure {
			return o, fmt.Errorf("schema: unknown component %q", c)
		}
	}
	if o.Shards == 0 {
		o.Shards = DefaultShards
	}
	if o.Shards < 1 || o.Shards > MaxShards {
		return o, fmt.Errorf("schema: shards is %d, want 1 to %d", o.Shards, MaxShards)
	}
	if o.has(Outbox) && names.Outbox == "" {
		return o, errors.New("schema: the outbox table has no name")
	}
	if err := names.Validate(); err != nil {
		return o, fmt.Errorf("schema: %w", err)
	}
	return o, nil
}

func (o Options) has(c Component) bool { return slices.Contains(o.Components, c) }

// table is the name under which a component's version is kept: an outbox by its table, as a schema may hold several.
func (c Component) table(names postgres.Names) string {
	if c == Outbox || c == beside || c == notify {
		return names.Outbox
	}
	return "message_" + string(c)
}

// migrations returns the steps of the asked components in the order they are applied.
func (o Options) migrations() ([]migration, error) {
	var all []migration
	for _, c := range []Component{Failure, Inbox, Outbox} {
		if c != Failure && !o.has(c) {
			continue
		}
		if c == Outbox && o.Columns != nil {
			c = beside
		}
		steps, err := componentMigrations(c)
		if err != nil {
			return nil, err
		}
		all = append(all, steps...)
	}
	if o.has(Outbox) && o.Notify && o.Columns == nil { // a team's table is never altered
		steps, err := componentMigrations(notify)
		if err != nil {
			return nil, err
		}
		all = append(all, steps...)
	}
	return all, nil
}

func componentMigrations(c Component) ([]migration, error) {
	names, err := fs.Glob(files, "migrations/"+string(c)+"_[0-9][0-9][0-9][0-9].sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	slices.Sort(names)
	steps := make([]migration, 0, len(names))
	for i, name := range names {
		digits := strings.TrimSuffix(name[strings.LastIndexByte(name, '_')+1:], ".sql")
		version, err := strconv.Atoi(digits)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s is out of sequence", name)
		}
		sql, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		steps = append(steps, migration{component: c, version: version, sql: string(sql)})
	}
	return steps, nil
}

// render writes names and constants into a migration.
func (m migration) render(names postgres.Names, o Options) string {
	return names.SQL(strings.ReplaceAll(m.sql, "{shards}", strconv.Itoa(int(o.Shards))))
}
