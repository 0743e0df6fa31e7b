package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
)

// schemaTimeout bounds one apply or verify, waiting for another apply included.
const schemaTimeout = 5 * time.Minute

// schemaFlags say which tables are meant and where they are.
type schemaFlags struct {
	schema, table string
	shards        int32
	db            config.Postgres
	step          stepFlags
	mapped        columnFlags
	notify        bool
	allowLoopback bool
	roles         map[schema.Role]*string
}

func newSchemaCommand() *cobra.Command {
	f := &schemaFlags{}
	command := &cobra.Command{
		Use:   "schema",
		Short: "Print, apply or verify the tables in PostgreSQL and the rights on them",
	}
	flags := command.PersistentFlags()
	flags.StringVar(&f.schema, "schema", "public", "schema that holds the tables")
	flags.StringVar(&f.table, "table", "message_outbox", "outbox table; the others follow it by suffix")
	flags.Int32Var(&f.shards, "shards", schema.DefaultShards, "shards of the outbox, 1 to 64; they never change")
	flags.BoolVar(&f.notify, "notify", false, "with the trigger that tells relays of commits (batch.wakeUp: Notify)")
	f.mapped.register(flags)
	command.AddCommand(f.printCommand(), f.applyCommand(), f.verifyCommand())
	return command
}

func (f *schemaFlags) printCommand() *cobra.Command {
	var roles bool
	command := &cobra.Command{
		Use:       "print [outbox] [inbox]",
		Short:     "Print the statements that make the tables, or with --roles the least grants",
		ValidArgs: []string{string(schema.Outbox), string(schema.Inbox)},
		Args:      usage(cobra.OnlyValidArgs),
		RunE: func(command *cobra.Command, args []string) error {
			names := f.names()
			o, err := f.options(args)
			if err != nil {
				return wrong(err)
			}
			err = schema.Print(io.Discard, names, o) // says what is wrong before anything is printed
			switch {
			case err != nil:
				return wrong(err)
			case roles:
				return schema.Roles(command.OutOrStdout(), names, o, f.roleNames())
			default:
				return schema.Print(command.OutOrStdout(), names, o)
			}
		},
	}
	command.Flags().
		BoolVar(&roles, "roles", false, "print the least grants for application, relay, consumer and migrator")
	f.roles = make(map[schema.Role]*string)
	for _, role := range []schema.Role{schema.RoleApplication, schema.RoleRelay, schema.RoleConsumer, schema.RoleMigrator} {
		f.roles[role] = command.Flags().
			String(string(role)+"-role", "postrider_"+string(role), "name of the "+string(role)+"'s role")
	}
	return command
}

func (f *schemaFlags) applyCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "apply outbox|inbox ...",
		Short: "Bring the tables up to the newest version this program knows",
		Long: "Bring the tables up to the newest version this program knows, in one transaction. It goes only forward, does " +
			"nothing where they are there already, and may run in several places at once.",
		Example: "  postrider schema apply outbox --host orders-db --database orders --credentials-dir /etc/orders-db-owner",
	}
	f.connecting(command, func(ctx context.Context, pool *postgres.Pool, o schema.Options, out io.Writer) error {
		if err := schema.Apply(ctx, pool, f.names(), o); err != nil {
			return err
		}
		fmt.Fprintf(out, "OK: schema %s has the %s tables\n", f.schema, join(o.Components))
		return nil
	})
	f.asStep(command)
	return command
}

func (f *schemaFlags) verifyCommand() *cobra.Command {
	var role string
	command := &cobra.Command{
		Use:   "verify outbox|inbox ...",
		Short: "Check the tables without changing anything and print the statements that are missing",
	}
	command.Flags().StringVar(&role, "role", "", "also check the user's rights as application, relay or consumer")
	f.connecting(command, func(ctx context.Context, pool *postgres.Pool, o schema.Options, out io.Writer) error {
		x := schema.Expected{Options: o, Role: schema.Role(role)}
		switch x.Role {
		case "", schema.RoleApplication, schema.RoleRelay, schema.RoleConsumer:
		default:
			return wrong(errors.New("--role is application, relay or consumer"))
		}
		if err := schema.Verify(ctx, pool, f.names(), x); err != nil {
			return err
		}
		if x.Role == schema.RoleConsumer {
			if err := schema.VerifyPowers(ctx, pool); err != nil {
				return err
			}
		}
		fmt.Fprintf(out, "OK: schema %s has the %s tables as they must be\n", f.schema, join(o.Components))
		writeLimits(out, o)
		return nil
	})
	return command
}

// connecting gives a command the flags of a connection and runs it with a pool.
func (f *schemaFlags) connecting(
	command *cobra.Command, run func(context.Context, *postgres.Pool, schema.Options, io.Writer) error,
) {
	command.ValidArgs = []string{string(schema.Outbox), string(schema.Inbox)}
	command.Args = usage(cobra.MatchAll(cobra.MinimumNArgs(1), cobra.OnlyValidArgs))
	connectionFlags(command.Flags(), &f.db)
	command.RunE = func(command *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(command.Context(), schemaTimeout)
		defer cancel()
		o, err := f.options(args)
		if err != nil {
			return wrong(err)
		}
		if err := schema.Print(io.Discard, f.names(), o); err != nil {
			return wrong(err)
		}
		if err := addressed(f.db); err != nil {
			return wrong(err)
		}
		cfg := f.db
		cfg.Schema, cfg.MaxConnections = f.schema, 1
		pool, err := postgres.Open(ctx, cfg, postgres.Options{ApplicationName: "postrider schema", AllowLoopback: true})
		if err != nil {
			return wrong(err)
		}
		defer pool.Close()
		return shown(run(ctx, pool, o, command.OutOrStdout()))
	}
}

// connectionFlags are those that say how to reach a database.
func connectionFlags(flags *pflag.FlagSet, db *config.Postgres) {
	flags.StringSliceVar(&db.Hosts, "host", nil, "database host; of several the writable one is used")
	flags.Int32Var(&db.Port, "port", 5432, "database port")
	flags.StringVar(&db.Database, "database", "", "database name")
	flags.StringVar(&db.CredentialsDir, "credentials-dir", "", "folder with the files username and password")
	flags.StringVar(&db.TLS.Mode, "tls-mode", "VerifyFull", "VerifyFull, VerifyCA or Insecure (plain text)")
	flags.StringVar(&db.TLS.CAFile, "ca-file", "", "PEM bundle; the system's roots where empty")
	flags.StringVar(&db.TLS.ClientCertificateDir, "client-certificate-dir", "", "folder with tls.crt and tls.key")
}

// addressed says, in the words of connectionFlags, what is missing to reach a database.
func addressed(db config.Postgres) error {
	var missing []string
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"--host", len(db.Hosts) > 0}, {"--database", db.Database != ""}, {"--credentials-dir", db.CredentialsDir != ""},
	} {
		if !flag.given {
			missing = append(missing, flag.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf(
		"which database? give %s, such as --host orders-db --database orders --credentials-dir /etc/orders-db",
		strings.Join(missing, ", "),
	)
}

// shown keeps what the server says out of the terminal's log, except for what is ours to say.
func shown(err error) error {
	var exit *exitError
	var invalid *schema.Error
	switch {
	case err == nil, errors.As(err, &exit), errors.As(err, &invalid), errors.Is(err, schema.ErrShardsDiffer):
		return err
	default:
		return errors.New(postgres.SafeError(err))
	}
}

// usage makes what cobra refuses the caller's mistake: exit code 2.
func usage(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, given []string) error {
		if err := args(command, given); err != nil {
			return wrong(err)
		}
		return nil
	}
}

func (f *schemaFlags) names() postgres.Names {
	return postgres.Names{Schema: f.schema, Outbox: f.table}
}

// options turns arguments into options; none mean all tables.
func (f *schemaFlags) options(args []string) (schema.Options, error) {
	columns, err := f.mapped.mapping()
	if err != nil {
		return schema.Options{}, err
	}
	if f.shards < 1 { // which Options takes for the default
		return schema.Options{}, wrong(fmt.Errorf("--shards is %d, want 1 to %d", f.shards, schema.MaxShards))
	}
	o := schema.Options{
		Shards: f.shards, Columns: columns, Unordered: f.mapped.ordering == config.OrderingNone, Notify: f.notify,
	}
	for _, a := range args {
		o.Components = append(o.Components, schema.Component(a))
	}
	if len(args) == 0 {
		o.Components = []schema.Component{schema.Outbox, schema.Inbox}
	}
	return o, nil
}

func (f *schemaFlags) roleNames() schema.RoleNames {
	names := make(schema.RoleNames, len(f.roles))
	for role, name := range f.roles {
		names[role] = *name
	}
	return names
}

func join(components []schema.Component) string {
	words := make([]string, 0, len(components))
	for _, c := range components {
		words = append(words, string(c))
	}
	return strings.Join(words, " and ")
}
