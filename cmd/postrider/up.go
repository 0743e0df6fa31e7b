package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/telemetry"
	"github.com/postrider/postrider/internal/up"
)

const upText = `Run the resources of a folder on this machine, as a cluster would run them: the
same schema, rules and defaults, the same relays and consumers.

One embedded PostgreSQL, one embedded NATS and a stand-in for Kafka take the place
of every host that the resources name, as far as they name such, with databases,
users, streams and topics made as named and Postrider's tables made in them. TLS
is not used on them. RabbitMQ has no stand-in. Your service's own tables come from
--init. With --external the real hosts are dialled instead, and tables are made
only where schemaPolicy is Managed.

Whatever is wrong with a server is shown beside the resource it holds up, and what
is mended is picked up without a restart. On a terminal a table is redrawn in
place, elsewhere lines are written when something changes. Secrets are never shown.
There - means that nothing waits, ? that a number is not known, and 7+ at least 7.

Ctrl-C drains: what is in flight is finished, leases are given back.

Exit codes: 0 it ran and drained, 1 something went wrong on the way, 2 what was
given is wrong.`

const upExample = `  # The samples, with the services' own tables
  postrider up -f config/samples \
    --init orders=internal/shop/orders.sql --init billing=internal/shop/billing.sql

  # Keep the data, and while it runs prove from another terminal what became of it
  postrider up -f config/samples --init billing=internal/shop/billing.sql --data /tmp/postrider
  postrider verify -f config/samples --data /tmp/postrider

  # The real hosts
  postrider up -f resources/ --external`

// newUpCommand returns the command that runs resources locally.
func newUpCommand() *cobra.Command {
	var (
		cfg     up.Config
		paths   []string
		inits   []string
		logFile string
	)
	cmd := &cobra.Command{
		Use:     "up -f DIR",
		Short:   "Run resources on this machine, with embedded servers in place of their hosts",
		Long:    upText,
		Example: upExample,
		Args:    onlyResources,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := parseInits(&cfg, inits); err != nil {
				return wrong(err)
			}
			if err := checkUpFlags(&cfg); err != nil {
				return wrong(err)
			}
			set, err := loadResources(cmd, manifest.Options{}, paths)
			if err != nil {
				return err
			}
			cfg.Set = set
			log, closeLog, err := openLog(cmd, logFile)
			if err != nil {
				return wrong(err)
			}
			cfg.Log, cfg.Out, cfg.Size = log, cmd.OutOrStdout(), terminalSize(cmd)
			err = errors.Join(up.Run(cmd.Context(), cfg), closeLog())
			if _, input := errors.AsType[*up.InputError](err); input {
				return wrong(err)
			}
			return err
		},
	}
	flags := cmd.Flags()
	resourcesFlag(cmd, &paths)
	flags.BoolVar(&cfg.External, "external", false, "dial the hosts that the resources name; start no server")
	flags.StringVar(
		&cfg.Data,
		"data",
		"",
		"keep the embedded servers' data in this `folder` (default: a temporary one)",
	)
	flags.IntVar(&cfg.PostgresPort, "postgres-port", 0, "`port` of the embedded PostgreSQL (default: a free one)")
	flags.IntVar(&cfg.NATSPort, "nats-port", 0, "`port` of the embedded NATS (default: a free one)")
	flags.IntVar(&cfg.KafkaPort, "kafka-port", 0, "`port` of the stand-in for Kafka (default: a free one)")
	flags.StringArrayVar(&inits, "init", nil,
		"run an SQL file in an embedded database first (`DATABASE=FILE`), as your service's migrations would; "+
			"may be repeated")
	flags.DurationVar(&cfg.DropEvery, "drop-every", 0,
		"end one relay and one consumer of each resource this often, as kill -9 would, and start others")
	flags.IntVar(&cfg.DropCount, "drop-count", 0, "stop --drop-every after this many times (default: never)")
	flags.StringVar(&logFile, "log", "", "write the workers' logs to this `file`, - for standard error (default: none)")
	return cmd
}

// parseInits reads DATABASE=FILE.
func parseInits(cfg *up.Config, inits []string) error {
	for _, init := range inits {
		database, file, ok := strings.Cut(init, "=")
		if !ok || database == "" || file == "" {
			return fmt.Errorf("--init %q: want DATABASE=FILE, such as orders=schema.sql", init)
		}
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("--init %q: there is no file %s", init, file)
		}
		cfg.Init = append(cfg.Init, up.InitSQL{Database: database, File: file})
	}
	return nil
}

// checkUpFlags finds flags that contradict each other or themselves.
func checkUpFlags(cfg *up.Config) error {
	const maxPort = 65535
	ports := [...]struct {
		flag string
		port int
	}{{"--postgres-port", cfg.PostgresPort}, {"--nats-port", cfg.NATSPort}, {"--kafka-port", cfg.KafkaPort}}
	ownServers := len(cfg.Init) > 0 || cfg.Data != ""
	taken := make(map[int]string)
	for _, p := range ports {
		if p.port < 0 || p.port > maxPort {
			return fmt.Errorf("%s %d: want 1 to %d, or 0 for a free one", p.flag, p.port, maxPort)
		}
		if p.port == 0 {
			continue
		}
		if other, is := taken[p.port]; is {
			return fmt.Errorf("%s and %s are the same: choose two", other, p.flag)
		}
		taken[p.port], ownServers = p.flag, true
	}
	if cfg.External && ownServers {
		return errors.New("--external starts no server: leave out --init, --data, --postgres-port, --nats-port and " +
			"--kafka-port")
	}
	return checkDrops(cfg)
}

func checkDrops(cfg *up.Config) error {
	switch {
	case cfg.DropEvery < 0 || (cfg.DropEvery > 0 && cfg.DropEvery < time.Second):
		return fmt.Errorf("--drop-every %s: want at least 1s", cfg.DropEvery)
	case cfg.DropCount < 0 || (cfg.DropCount > 0 && cfg.DropEvery == 0):
		return fmt.Errorf("--drop-count %d: want 1 or more, and --drop-every beside it", cfg.DropCount)
	default:
		return nil
	}
}

// openLog opens the workers' log.
func openLog(cmd *cobra.Command, file string) (log *slog.Logger, closeLog func() error, err error) {
	none := func() error { return nil }
	switch file {
	case "":
		return slog.New(slog.DiscardHandler), none, nil
	case "-":
		return telemetry.NewLogger(cmd.ErrOrStderr(), slog.LevelInfo), none, nil
	default:
		//nolint:gosec // the file is the user's own argument
		f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("--log: %w", err)
		}
		return telemetry.NewLogger(f, slog.LevelInfo), f.Close, nil
	}
}

// terminalSize returns how large the terminal is, or nil where the output is none.
func terminalSize(cmd *cobra.Command) func() (width, height int) {
	f, ok := cmd.OutOrStdout().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() (width, height int) {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0, 0
		}
		return width, height
	}
}
