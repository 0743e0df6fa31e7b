// Command postrider is Postrider for people: check resources, run them on a laptop, look after schemas
// and prove that every message arrived.
//
// Exit codes: 0 all is well, 1 something went wrong on the way, 2 what was given is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/telemetry"
)

// exitWrong is the exit code for wrong input: nothing was started, the same call fails again.
const exitWrong = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program without its process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var started bool
	root := newRootCommand()
	onStart(root, func() { started = true })
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	exit := &exitError{code: 1}
	if !started {
		exit.code = exitWrong // unknown command, flag or argument: no command has run
	}
	_ = errors.As(err, &exit)
	if !exit.reported {
		_, _ = fmt.Fprintf(stderr, "postrider: %v\n", err)
	}
	return exit.code
}

// onStart calls started when any command begins its work, which is after its flags and arguments were accepted.
func onStart(command *cobra.Command, started func()) {
	if run := command.RunE; run != nil {
		command.RunE = func(command *cobra.Command, args []string) error {
			started()
			return run(command, args)
		}
	}
	for _, sub := range command.Commands() {
		onStart(sub, started)
	}
}

// newRootCommand returns the command with all its subcommands. Each lives in a file of its own.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "postrider",
		Short:         "Reliable messaging pipelines from PostgreSQL through a broker into another database",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       telemetry.ThisBuild().String(),
	}
	root.SetVersionTemplate("postrider {{.Version}}\n") // as the workers print theirs
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrong(err) })
	for _, command := range []func() *cobra.Command{
		newValidateCommand,
		newSchemaCommand,
		newUpCommand,
		newVerifyCommand,
		newStatusCommand,
		newDeadLettersCommand,
		newRepublishCommand,
		newBenchCommand,
	} {
		root.AddCommand(command())
	}
	return root
}

// exitError carries the exit code that an error asks for.
type exitError struct {
	code int
	err  error
	// reported says that the command has told the user everything, so that main adds nothing.
	reported bool
}

// Error implements error.
func (e *exitError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// wrong marks an error as the caller's: exit code 2.
func wrong(err error) error { return &exitError{code: exitWrong, err: err} }

// reported marks an error that the command has printed itself.
func reported(code int, err error) error { return &exitError{code: code, err: err, reported: true} }
