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

const upText = `Run the resources of a folder on this machine, as a cluster would run them.

One embedded PostgreSQL and one embedded NATS stand in for every host that the
resources name, with databases, users and streams made as named. TLS is not used
on them. With --external the real hosts are dialled instead.

Ctrl-C drains: what is in flight is finished, leases are given back.`

// newUpCommand returns the command that runs resources locally.
func newUpCommand() *cobra.Command {
	var (
		cfg     up.Config
		paths   []string
		inits   []string
		logFile string
	)
	cmd := &cobra.Command{
		Use:   "up -f DIR",
		Short: "Run resources on this machine, with embedded servers in place of their hosts",
		Long:  upText,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := parseInits(&cfg, inits); err != nil {
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
			cfg.Log, cfg.Out, cfg.Width = log, cmd.OutOrStdout(), terminalWidth(cmd)
			return errors.Join(up.Run(cmd.Context(), cfg), closeLog())
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&paths, "filename", "f", nil, "folder or file with the resources and their Secrets")
	flags.BoolVar(&cfg.External, "external", false, "dial the hosts that the resources name; start no server")
	flags.StringVar(&cfg.Data, "data", "", "keep the embedded servers' data in this folder (default: a temporary one)")
	flags.IntVar(&cfg.PostgresPort, "postgres-port", 0, "port of the embedded PostgreSQL (default: a free one)")
	flags.IntVar(&cfg.NATSPort, "nats-port", 0, "port of the embedded NATS (default: a free one)")
	flags.StringArrayVar(&inits, "init", nil,
		"DATABASE=FILE: run an SQL file in an embedded database first, as your service's migrations would")
	flags.DurationVar(&cfg.DropEvery, "drop-every", 0,
		"end one relay and one consumer of each resource this often, as kill -9 would, and start others")
	flags.StringVar(&logFile, "log", "", "write the workers' logs to this file, - for standard error (default: none)")
	_ = cmd.MarkFlagRequired("filename")
	return cmd
}

// parseInits reads DATABASE=FILE.
func parseInits(cfg *up.Config, inits []string) error {
	for _, init := range inits {
		database, file, ok := strings.Cut(init, "=")
		if !ok || database == "" || file == "" {
			return fmt.Errorf("--init %q: want DATABASE=FILE, such as orders=schema.sql", init)
		}
		cfg.Init = append(cfg.Init, up.InitSQL{Database: database, File: file})
	}
	if cfg.External && (len(cfg.Init) > 0 || cfg.Data != "" || cfg.PostgresPort != 0 || cfg.NATSPort != 0) {
		return errors.New("--external starts no server: leave out --init, --data, --postgres-port and --nats-port")
	}
	if cfg.DropEvery < 0 || (cfg.DropEvery > 0 && cfg.DropEvery < time.Second) {
		return fmt.Errorf("--drop-every %s: want at least 1s", cfg.DropEvery)
	}
	return nil
}

const logFlags = os.O_CREATE | os.O_APPEND | os.O_WRONLY

// openLog opens the workers' log.
func openLog(cmd *cobra.Command, file string) (log *slog.Logger, closeLog func() error, err error) {
	none := func() error { return nil }
	switch file {
	case "":
		return slog.New(slog.DiscardHandler), none, nil
	case "-":
		return telemetry.NewLogger(cmd.ErrOrStderr(), slog.LevelInfo), none, nil
	default:
		f, err := os.OpenFile(
			file,
			os.O_CREATE|os.O_APPEND|os.O_WRONLY,
			0o600,
		)
		if err != nil {
			return nil, nil, fmt.Errorf("--log: %w", err)
		}
		return telemetry.NewLogger(f, slog.LevelInfo), f.Close, nil
	}
}

// terminalWidth returns how wide the terminal is, or nil where the output is none.
func terminalWidth(cmd *cobra.Command) func() int {
	f, ok := cmd.OutOrStdout().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return width
	}
}
