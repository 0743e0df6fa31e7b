package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/local"
)

const drainText = `Fill an outbox, drain it, and compare the relay with the least that could do the
same work: the same SQL in a bare loop, and a minimal loop that keeps order. The
broker is a null one, so that the database and our own code are all that is
measured. The contestants take turns; the median of the runs counts.

An embedded PostgreSQL is started unless --postgres names one, where the tables
get a schema of their own that is dropped at the end. Only ratios of one run mean
anything: do nothing else on the machine meanwhile.

Exit codes: 0 the relay reaches the bar, 1 it does not or could not be measured,
2 what was given is wrong.`

// errBelowBar says that the relay is slower than it is allowed to be.
var errBelowBar = errors.New("the relay is below the bar")

// newBenchCommand returns the command that measures.
func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure Postrider on this machine, against the least that could do its work",
	}
	cmd.AddCommand(newBenchDrainCommand())
	return cmd
}

// drainFlags are the command line of `postrider bench drain`.
type drainFlags struct {
	cfg      bench.DrainConfig
	postgres string
	json     string
	bar      float64
}

func newBenchDrainCommand() *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:     "drain",
		Short:   "Drain an outbox into a null broker",
		Long:    drainText,
		Example: "  postrider bench drain --json drain.json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.IntVar(&f.cfg.Rows, "rows", 200_000, "rows to drain in each run")
	flags.IntVar(&f.cfg.Keys, "keys", 1000, "ordering keys that the rows belong to")
	flags.IntVar(&f.cfg.PayloadBytes, "payload-bytes", 300, "length of a payload")
	flags.IntVar(&f.cfg.Batch, "batch", 500, "messages read and settled at once")
	flags.IntVar(&f.cfg.Runs, "runs", 5, "drains of each contestant; their median counts")
	flags.StringVar(&f.postgres, "postgres", "",
		"connection string of a PostgreSQL to use, its password in PGPASSWORD or a passfile (default: an embedded one)")
	flags.StringVar(&f.json, "json", "", "write the result to this file too")
	flags.Float64Var(&f.bar, "bar", 70, "percent of the bare loop's rate that the relay must reach")
	return cmd
}

func (f *drainFlags) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	url := f.postgres
	if url == "" {
		server, err := local.StartPostgres(ctx, local.PostgresConfig{Parameters: local.BenchParameters()})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
		url = server.URL("postgres")
	}
	if f.cfg.Postgres, err = pgxpool.ParseConfig(url); err != nil {
		return wrong(
			errors.New("--postgres is not a connection string"),
		) // the error may quote it, and a password in it
	}
	f.cfg.Progress = cmd.ErrOrStderr()
	report, err := bench.Drain(ctx, f.cfg)
	if errors.Is(err, bench.ErrInvalidConfig) {
		return wrong(err)
	}
	if err != nil {
		return err
	}
	if err := report.Print(cmd.OutOrStdout()); err != nil {
		return err
	}
	if err := f.writeJSON(report); err != nil {
		return err
	}
	return f.verdict(cmd, report)
}

func (f *drainFlags) writeJSON(report bench.Report) (err error) {
	if f.json == "" {
		return nil
	}
	file, err := os.Create(f.json)
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return report.WriteJSON(file)
}

// verdict compares the relay with the bar.
func (f *drainFlags) verdict(cmd *cobra.Command, report bench.Report) error {
	relay, _ := report.Result(bench.Relay) // a report of Drain has all contestants
	reached := 100 * relay.OfLimit
	if reached < f.bar {
		fmt.Fprintf(
			cmd.OutOrStdout(),
			"NOT OK: the relay reaches %.0f %% of the bare loop, the bar is %.0f %%\n",
			reached,
			f.bar,
		)
		return reported(1, errBelowBar)
	}
	fmt.Fprintf(
		cmd.OutOrStdout(),
		"OK: the relay reaches %.0f %% of the bare loop, the bar is %.0f %%\n",
		reached,
		f.bar,
	)
	return nil
}
