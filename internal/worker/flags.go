package worker

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/postrider/postrider/internal/telemetry"
)

// Flags are the command line of a worker. Everything else is in the config file.
type Flags struct {
	ConfigPath    string
	Listen        string
	LogLevel      slog.Level
	DrainTimeout  time.Duration
	AllowLoopback bool
}

// ErrDone says that the command line asked for something that is done: a version or a help text was printed.
var ErrDone = errors.New("done")

// helpText stands above the flags.
const helpText = `Usage: %s [flags]

A worker of Postrider: it runs until SIGTERM. What it reads and writes is in its
config file, which docs/config.md describes; it never talks to Kubernetes.

Flags:
`

// ParseFlags reads a worker's command line. A version or help text that was asked for goes to out. An error
// other than ErrDone was told on failures already.
func ParseFlags(name string, args []string, build telemetry.Build, out, failures io.Writer) (Flags, error) {
	var f Flags
	var level string
	var version bool
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(failures)
	set.StringVar(&f.ConfigPath, "config", "/etc/postrider/config.json", "the config file, followed while it runs")
	set.StringVar(&f.Listen, "listen", ":8080", "address of /livez, /readyz, /statusz and /metrics")
	set.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	set.DurationVar(&f.DrainTimeout, "drain-timeout", DrainTimeout, "how long to finish and release after SIGTERM")
	set.BoolVar(&f.AllowLoopback, "allow-loopback", false, "permit database and broker on this machine, as in tests")
	set.BoolVar(&version, "version", false, "print the version and exit")
	set.Usage = func() {} // help goes to out, and a mistake needs one line, not all of it
	if err := set.Parse(args); err != nil {
		if !errors.Is(err, flag.ErrHelp) { // flag has printed it already
			return f, err
		}
		fmt.Fprintf(out, helpText, name)
		set.SetOutput(out)
		set.PrintDefaults()
		return f, ErrDone
	}
	if version {
		fmt.Fprintf(out, "%s %s\n", name, build)
		return f, ErrDone
	}
	return f, f.check(set, level)
}

func (f *Flags) check(set *flag.FlagSet, level string) error {
	parsed, err := telemetry.ParseLevel(level)
	f.LogLevel = parsed
	switch {
	case err != nil:
		err = fmt.Errorf("--log-level: %w", err)
	case set.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", set.Arg(0))
	case f.DrainTimeout <= 0:
		err = errors.New("--drain-timeout: must be above 0")
	}
	if err != nil {
		fmt.Fprintf(set.Output(), "%s: %v\n", set.Name(), err)
	}
	return err
}
