package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/verify"
)

const verifyText = `Prove from outside that every message arrived, unchanged, in order per key, and
was applied once. It reads the databases and the stream, never the workers' own
numbers, and may run beside live workers. It dials the hosts that the resources
name; with --data, the embedded servers of a postrider up that is running.

What a RabbitMQ queue holds cannot be read without being taken: what the relays
among the resources published to it stands for it, and what that does not show
is reported as not checked.

It changes nothing: what it needs of a stream is copied into temporary tables.
The users of the resources need the right to make them (PostgreSQL's default) and
to read the outbox, inbox and effects tables.

Exit codes: 0 every promise that could be checked is kept, 1 one is broken or
something could not be read, 2 what was given is wrong.`

// verifyFlags are the command line of `postrider verify`.
type verifyFlags struct {
	paths    []string
	data     string
	grace    time.Duration
	effects  []string
	complete bool
	accepted bool
}

// errBroken says that the report names a broken promise.
var errBroken = errors.New("a promise is broken")

// newVerifyCommand returns the command that checks the contract.
func newVerifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify -f DIR",
		Short: "Prove that every message arrived, once, in order, and was applied once",
		Long:  verifyText,
		Example: `  postrider verify -f config/samples --data /tmp/postrider --grace 0s \
    --effects ledger:order_id:version:entry
  postrider verify -f resources/ --effects shop/billing=ledger:order_id:version:entry`,
		Args: onlyResources,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	resourcesFlag(cmd, &f.paths)
	flags.StringVar(
		&f.data,
		"data",
		"",
		"look at the embedded servers of the postrider up that runs with this `folder`, not at the hosts in the resources",
	)
	flags.DurationVar(&f.grace, "grace", 30*time.Second,
		"how long a message may be on its way; 0 once the writers have stopped and everything has drained")
	flags.StringArrayVar(
		&f.effects,
		"effects",
		nil,
		"[NAMESPACE/NAME=]`TABLE:KEY:VERSION`[:ORDER]: a table that the handler writes, its columns that hold a message's\n"+
			"ordering key and version, and one that grows as rows are written; without any, effects are not checked",
	)
	flags.BoolVar(&f.complete, "effects-complete", false,
		"every applied message must have a row in each effects table")
	flags.BoolVar(
		&f.accepted,
		"accept-start",
		false,
		"the durables were made on purpose to begin where they do: messages below, which nobody handled, are counted and\n"+
			"not covered; without it they break a promise",
	)
	return cmd
}

func (f *verifyFlags) run(cmd *cobra.Command) error {
	if f.grace < 0 {
		return wrong(fmt.Errorf("--grace %s: want 0 or more", f.grace))
	}
	set, err := loadResources(cmd, manifest.Options{}, f.paths)
	if err != nil {
		return err
	}
	effects, err := f.parseEffects(set)
	if err != nil {
		return wrong(err)
	}
	sources, err := openSources(cmd.Context(), set, f.data)
	if err != nil {
		return err
	}
	defer sources.close(cmd.Context())
	in := sources.input
	in.Grace = f.grace
	for i := range in.Consumers {
		in.Consumers[i].Effects = effects[in.Consumers[i].Name]
		in.Consumers[i].AcceptStart = f.accepted
	}
	report, err := verify.Run(cmd.Context(), in)
	if err != nil {
		return err
	}
	if err := report.Print(cmd.OutOrStdout()); err != nil {
		return err
	}
	if !report.OK() {
		return reported(1, errBroken)
	}
	return nil
}

// parseEffects returns the effects tables by the consumer they belong to. With a single consumer it need not be named.
func (f *verifyFlags) parseEffects(set *manifest.Set) (map[string][]verify.Effects, error) {
	known := make(map[string]bool)
	only := ""
	for _, c := range set.Consumers {
		only = consumerTitle(c.Namespace, c.Name)
		known[only] = true
	}
	effects := make(map[string][]verify.Effects)
	for _, text := range f.effects {
		consumer := only
		description := text
		if named, rest, ok := strings.Cut(text, "="); ok {
			consumer, description = "consumer "+named, rest
		} else if len(known) != 1 {
			return nil, fmt.Errorf(
				"--effects %q: there are %d consumers: say NAMESPACE/NAME=%s",
				text,
				len(known),
				text,
			)
		}
		if !known[consumer] {
			return nil, fmt.Errorf("--effects %q: there is no %s in %s", text, consumer, strings.Join(f.paths, ", "))
		}
		e, err := verify.ParseEffects(description)
		if err != nil {
			return nil, fmt.Errorf("--effects: %w", err)
		}
		e.Complete = f.complete
		effects[consumer] = append(effects[consumer], e)
	}
	return effects, nil
}

func relayTitle(namespace, name string) string { return "relay " + namespace + "/" + name }

func consumerTitle(namespace, name string) string { return "consumer " + namespace + "/" + name }
