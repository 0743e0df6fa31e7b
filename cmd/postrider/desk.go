package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
)

// deskTimeout bounds one look or decision.
const deskTimeout = 30 * time.Second

// deskFlags say which outbox is meant and where it is.
type deskFlags struct {
	schema, table string
	db            config.Postgres
	// timeout bounds what is done there; 0 means deskTimeout.
	timeout time.Duration
}

func (f *deskFlags) register(flags *pflag.FlagSet) {
	connectionFlags(flags, &f.db)
	flags.StringVar(&f.schema, "schema", "public", "schema that holds the tables")
	flags.StringVar(&f.table, "table", "message_outbox", "outbox table")
}

// with runs something at the desk of the outbox. What the server says stays out of the terminal; what is ours to say,
// such as why a decision is refused, is the caller's mistake: exit code 2.
func (f *deskFlags) with(command *cobra.Command, do func(context.Context, *outboxdb.Desk, io.Writer) error) error {
	names := postgres.Names{Schema: f.schema, Outbox: f.table}
	if err := names.Validate(); err != nil {
		return wrong(err)
	}
	if err := addressed(f.db); err != nil {
		return wrong(err)
	}
	timeout := cmp.Or(f.timeout, deskTimeout)
	ctx, cancel := context.WithTimeout(command.Context(), timeout)
	defer cancel()
	cfg := f.db
	cfg.Schema, cfg.MaxConnections = f.schema, 1
	pool, err := postgres.Open(ctx, cfg, postgres.Options{ApplicationName: command.CommandPath(), AllowLoopback: true})
	if err != nil {
		return wrong(err)
	}
	defer pool.Close()
	err = do(ctx, outboxdb.NewDesk(pool, names, timeout), command.OutOrStdout())
	if refused, ok := errors.AsType[*outboxdb.RefusedError](err); ok {
		return wrong(refused)
	}
	return shown(err)
}

func newStatusCommand() *cobra.Command {
	f := &deskFlags{}
	command := &cobra.Command{
		Use:     "status",
		Short:   "Show what waits in an outbox: backlog, retries, dead letters, blocked keys",
		Example: "  postrider status --host orders-db --database orders --credentials-dir /etc/orders-db",
		Args:    usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return f.with(command, func(ctx context.Context, desk *outboxdb.Desk, out io.Writer) error {
				o, err := desk.Overview(ctx)
				if err != nil {
					return err
				}
				return printOverview(out, f.table, &o)
			})
		},
	}
	f.register(command.Flags())
	return command
}

func printOverview(out io.Writer, table string, o *outboxdb.Overview) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	relay := o.Relay
	if relay == "" {
		relay = "none yet"
	}
	line("outbox", "%s, relay %s", table, relay)
	line("leases", "%d of %d shards held", o.Held, o.Shards)
	atLeast := ""
	if o.AtLeast {
		atLeast = "at least "
	}
	line(
		"backlog",
		"%s%s%s",
		atLeast,
		counted(int(o.Ready+o.Retrying+o.Blocked), "message"),
		since(", oldest", o.OldestAt),
	)
	line(
		"retrying",
		"%s, %d of them for long without anybody knowing why",
		counted(int(o.Retrying), "message"),
		o.Ambiguous,
	)
	line("blocked", "%s behind %s%s", counted(int(o.Blocked), "message"), counted(int(o.BlockedKeys), "key"),
		since(", oldest", o.OldestBlockedAt))
	line("dead letters", "%d open%s", o.DeadLetters, since(", oldest", o.OldestDeadLetterAt))
	for _, r := range o.Reasons {
		line("", "%d %s", r.Count, r.Reason)
	}
	if len(o.BlockedBy) > 0 {
		fmt.Fprintln(w, "\nBLOCKED KEY\tDEAD LETTER\tREASON\tMESSAGES BEHIND IT")
	}
	for _, k := range o.BlockedBy {
		fmt.Fprintf(w, "%q\t%d\t%s\t%d\n", k.OrderingKey, k.FailureID, k.Reason, k.Waiting)
	}
	return w.Flush()
}

// since writes a time that may be absent.
func since(what string, at *time.Time) string {
	if at == nil {
		return ""
	}
	return what + " " + at.UTC().Format(time.RFC3339)
}

func newDeadLettersCommand() *cobra.Command {
	f := &deskFlags{}
	command := &cobra.Command{
		Use:   "dead-letters",
		Short: "Look at dead letters, and decide about those of a relay",
		Long: "Look at dead letters, and decide about those of a relay: send one again at its place, give it up, or make a\n" +
			"dead letter of a message that fails for ever. Every decision is kept with who made it and why. Running relays\n" +
			"act on it at once.",
	}
	f.register(command.PersistentFlags())
	command.AddCommand(f.listCommand(), f.showCommand(), f.replayCommand(), f.discardCommand(), f.moveCommand())
	return command
}

func (f *deskFlags) listCommand() *cobra.Command {
	filter := outboxdb.Filter{}
	all := false
	command := &cobra.Command{
		Use:   "list",
		Short: "List dead letters of relays and consumers, the oldest first, without their payloads",
		Args:  usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if all {
				filter.State = ""
			}
			return f.with(command, func(ctx context.Context, desk *outboxdb.Desk, out io.Writer) error {
				letters, err := desk.List(ctx, filter)
				if err != nil {
					return err
				}
				return printLetters(out, letters)
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&filter.State, "state", "Open", "Open, Replaying, Replayed, Discarded or Superseded")
	flags.BoolVar(&all, "all", false, "whatever the state")
	flags.StringVar(&filter.Origin, "origin", "", "Relay or Consumer")
	flags.StringVar(&filter.OriginName, "name", "", "namespace/name of a relay, or the name of a consumer")
	flags.StringVar(&filter.Reason, "reason", "", "only those with this reason")
	flags.StringVar(&filter.OrderingKey, "key", "", "only those of this ordering key")
	flags.IntVar(&filter.Limit, "limit", 100, "how many at most")
	return command
}

func printLetters(out io.Writer, letters []outboxdb.Letter) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tORIGIN\tNAME\tEVENT\tTYPE\tKEY\tVERSION\tREASON\tATTEMPTS\tLAST FAILED\tSTATE")
	for i := range letters {
		l := &letters[i]
		fmt.Fprintf(w, "%d\t%s\t%s\t%q\t%s\t%q\t%s\t%s\t%d\t%s\t%s\n", l.ID, l.Origin, l.OriginName, l.EventID, l.Type,
			l.OrderingKey, number(l.Version), l.Reason, l.Attempts, l.LastFailedAt.UTC().Format(time.RFC3339), l.State)
	}
	return w.Flush()
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

func (f *deskFlags) showCommand() *cobra.Command {
	payload := false
	command := &cobra.Command{
		Use:   "show ID",
		Short: "Show one dead letter, its payload only with --payload",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			id, err := letterID(args[0])
			if err != nil {
				return err
			}
			return f.with(command, func(ctx context.Context, desk *outboxdb.Desk, out io.Writer) error {
				l, err := desk.Get(ctx, id, payload)
				if err != nil {
					return err
				}
				return printLetter(out, &l, payload)
			})
		},
	}
	command.Flags().BoolVar(&payload, "payload", false, "print headers and payload too: they may hold personal data")
	return command
}

func printLetter(out io.Writer, l *outboxdb.Letter, payload bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	line("id", l.ID)
	line("state", fmt.Sprintf("%s, generation %d", l.State, l.Generation))
	line("origin", l.Origin+" "+l.OriginName)
	line("event", fmt.Sprintf("%q of source %q, type %s", l.EventID, l.Source, l.Type))
	line("key", fmt.Sprintf("%q, version %s, destination %q", l.OrderingKey, number(l.Version), l.Destination))
	line("blocks its key", l.BlocksKey)
	line("source position", l.SourcePosition)
	line("reason", fmt.Sprintf("%s %s %s", l.Reason, l.Code, l.Detail))
	line("attempts", l.Attempts)
	line("failed", l.FirstFailedAt.UTC().Format(time.RFC3339)+" to "+l.LastFailedAt.UTC().Format(time.RFC3339))
	line("payload", fmt.Sprintf("%d bytes of %s, digest %x", l.Size, l.ContentType, l.Digest))
	if err := w.Flush(); err != nil || !payload {
		return err
	}
	_, err := fmt.Fprintf(out, "\nheaders %q\n\n%s\n", l.Headers, l.Payload)
	return err
}

// decisionFlags say who decides and why.
func decisionFlags(command *cobra.Command, by *outboxdb.Decision) {
	whoAndWhy(command, by)
	_ = command.MarkFlagRequired("why") // the flag is there
}

func whoAndWhy(command *cobra.Command, by *outboxdb.Decision) {
	actor := "unknown"
	if u, err := user.Current(); err == nil {
		actor = u.Username
	}
	command.Flags().StringVar(&by.Actor, "by", actor, "who decides")
	command.Flags().StringVar(&by.Why, "why", "", "why; it is kept, and required")
}

// deciding makes a command that carries a decision out for each of some dead letters.
func (f *deskFlags) deciding(
	use, short, done string, decide func(context.Context, *outboxdb.Desk, int64, outboxdb.Decision) error,
) *cobra.Command {
	by := outboxdb.Decision{}
	command := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  usage(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			ids := make([]int64, len(args))
			for i, arg := range args {
				var err error
				if ids[i], err = letterID(arg); err != nil {
					return err
				}
			}
			return f.with(command, func(ctx context.Context, desk *outboxdb.Desk, out io.Writer) error {
				for _, id := range ids {
					if err := decide(ctx, desk, id, by); err != nil {
						return err
					}
					fmt.Fprintf(out, "OK: dead letter %d %s\n", id, done)
				}
				return nil
			})
		},
	}
	decisionFlags(command, &by)
	return command
}

func (f *deskFlags) replayCommand() *cobra.Command {
	outOfOrder := false
	command := f.deciding(
		"replay ID ... --why TEXT",
		"Send dead letters of a relay again, with the same event id, at their place",
		"is on its way again",
		func(ctx context.Context, desk *outboxdb.Desk, id int64, by outboxdb.Decision) error {
			return desk.Replay(ctx, id, by, outOfOrder)
		},
	)
	command.Flags().BoolVar(&outOfOrder, "out-of-order", false,
		"also where the key went on without it (SkipMessage, or no order): consumers that compare versions refuse it then")
	return command
}

func (f *deskFlags) discardCommand() *cobra.Command {
	return f.deciding("discard ID ... --why TEXT", "Give dead letters of a relay up; their keys go on behind a marker",
		"is discarded", func(ctx context.Context, desk *outboxdb.Desk, id int64, by outboxdb.Decision) error {
			return desk.Discard(ctx, id, by)
		})
}

func (f *deskFlags) moveCommand() *cobra.Command {
	by := outboxdb.Decision{}
	command := &cobra.Command{
		Use:   "move EVENT-ID --why TEXT",
		Short: "Make a dead letter of a message that fails and waits, whatever is left of its budget",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			event, err := message.ParseID(args[0])
			if err != nil {
				return wrong(err)
			}
			return f.with(command, func(ctx context.Context, desk *outboxdb.Desk, out io.Writer) error {
				id, err := desk.Move(ctx, event, by)
				if err != nil {
					return err
				}
				fmt.Fprintf(out, "OK: event %s is dead letter %d now; replay or discard it\n", event, id)
				return nil
			})
		},
	}
	decisionFlags(command, &by)
	return command
}

func letterID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, wrong(fmt.Errorf("%q is not the id of a dead letter: postrider dead-letters list prints them", text))
	}
	return id, nil
}
