package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
)

// republishFlags say which messages of the archive are meant.
type republishFlags struct {
	desk                       deskFlags
	from, to                   string
	keys, destinations, events []string
	limit                      int
	dryRun                     bool
	by                         outboxdb.Decision
}

func newRepublishCommand() *cobra.Command {
	f := &republishFlags{}
	command := &cobra.Command{
		Use:   "republish [--from TIME] [--to TIME] [--key KEY ...] [--event ID ...] --dry-run|--why TEXT",
		Short: "Send published messages of the archive again, with the same event ids",
		Long: "Send published messages of the archive again, with the same event ids: consumers that had them take them\n" +
			"for duplicates, and others get them. Those of a key are sent in order, before what of the key still waits. With\n" +
			"--dry-run it lists them, with the position that the broker gave each. Every message is written to message_audit\n" +
			"with who sent it again and why. Messages leave the archive until they are published again: run again with the\n" +
			"same --from and --to, it goes on where it was interrupted.",
		Example: "  postrider republish --from 2026-03-01T10:00:00Z --to 2026-03-01T11:00:00Z --dry-run \\\n" +
			"    --host orders-db --database orders --credentials-dir /etc/orders-db\n" +
			"  postrider republish --key order-7 --key order-9 --why \"the broker lost a disk\" …",
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error { return f.run(command) },
	}
	flags := command.Flags()
	f.desk.register(flags)
	flags.StringVar(&f.from, "from", "", "only what was published at this time (RFC 3339) or after")
	flags.StringVar(&f.to, "to", "", "only what was published before this time (RFC 3339)")
	flags.StringArrayVar(&f.keys, "key", nil, "only messages of this ordering key; may be given several times")
	flags.StringArrayVar(&f.destinations, "destination", nil,
		"only messages whose row names this destination; \"\" is the relay's default")
	flags.StringArrayVar(&f.events, "event", nil, "only the message with this event id; may be given several times")
	flags.IntVar(&f.limit, "limit", 10_000, "how many at most; more than that are refused")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only list the messages")
	flags.DurationVar(&f.desk.timeout, "timeout", 5*time.Minute, "bound of the look at the archive, and of the whole")
	whoAndWhy(command, &f.by)
	return command
}

func (f *republishFlags) run(command *cobra.Command) error {
	s, err := f.selection()
	if err != nil {
		return wrong(err)
	}
	return f.desk.with(command, func(ctx context.Context, desk *outboxdb.Desk, out io.Writer) error {
		chosen, more, err := desk.Archived(ctx, s)
		switch {
		case err != nil:
			return err
		case f.dryRun:
			return printArchived(out, chosen, more)
		case more:
			return wrong(fmt.Errorf("more than %d messages are chosen: narrow the choice or raise --limit", f.limit))
		}
		done, err := desk.Republish(ctx, chosen, f.by)
		if err != nil {
			return err
		}
		return printRepublished(out, done)
	})
}

// selection reads the flags.
func (f *republishFlags) selection() (outboxdb.Selection, error) {
	s := outboxdb.Selection{Keys: f.keys, Destinations: f.destinations, Limit: f.limit}
	var err error
	if s.From, err = momentOf("--from", f.from); err != nil {
		return s, err
	}
	if s.To, err = momentOf("--to", f.to); err != nil {
		return s, err
	}
	for _, text := range f.events {
		id, err := message.ParseID(text)
		if err != nil {
			return s, fmt.Errorf("--event: %w", err)
		}
		s.Events = append(s.Events, id)
	}
	switch {
	case f.limit < 1:
		return s, errors.New("--limit is less than 1")
	case f.dryRun:
		return s, nil
	case f.by.Why == "":
		return s, errors.New("--why is required: it is kept with each message; or look first, with --dry-run")
	case f.from+f.to == "" && len(f.keys)+len(f.destinations)+len(f.events) == 0:
		return s, errors.New("choose messages by --from, --to, --key, --destination or --event")
	default:
		return s, nil
	}
}

// momentOf reads a time; nothing is the zero time.
func momentOf(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is not a time such as 2026-03-01T10:00:00Z", flag)
	}
	return at, nil
}

func printArchived(out io.Writer, chosen []outboxdb.Archived, more bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "EVENT\tTYPE\tKEY\tVERSION\tDESTINATION\tPUBLISHED\tBROKER POSITION")
	for i := range chosen {
		a := &chosen[i]
		fmt.Fprintf(w, "%s\t%s\t%q\t%s\t%q\t%s\t%s\n", a.ID, a.Type, a.OrderingKey, number(a.Version), a.Destination,
			a.PublishedAt.UTC().Format(time.RFC3339Nano), a.BrokerPosition)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	atLeast := ""
	if more {
		atLeast = "more than "
	}
	_, err := fmt.Fprintf(out, "%s%s chosen\n", atLeast, counted(len(chosen), "message"))
	return err
}

func printRepublished(out io.Writer, done outboxdb.Republished) error {
	text := fmt.Sprintf("OK: %s on the way again\n", counted(done.Moved, "message"))
	if done.Blocked > 0 {
		text += fmt.Sprintf("Note: %s left in the archive: an open dead letter blocks the key; decide about it first\n",
			counted(done.Blocked, "message"))
	}
	if done.Gone > 0 {
		text += fmt.Sprintf("Note: %s left alone: on the way already, or not in the archive any more\n",
			counted(done.Gone, "message"))
	}
	_, err := io.WriteString(out, text)
	return err
}
