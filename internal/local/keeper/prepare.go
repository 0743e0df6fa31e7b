package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// lockDescriptor is where a preparing child finds the lock of the cache.
const lockDescriptor = 3

// Preparation says which PostgreSQL to fetch and where to put it.
type Preparation struct {
	Version  string `json:"version"`
	Archive  string `json:"archive"`  // the folder of the fetched archive
	Binaries string `json:"binaries"` // where bin, lib and share go
	Data     string `json:"data"`     // a fresh data folder, made and shut down cleanly
	Runtime  string `json:"runtime"`  // scratch
	Port     uint32 `json:"port"`     // a free one, used for a moment
	Password string `json:"password"` // of the superuser "postgres" in Data

	// RunAs is the account of the child, which starts PostgreSQL; nil means the own one. An account that cannot reach
	// the own executable needs a copy of it, named by Executable.
	RunAs      *User  `json:"-"`
	Executable string `json:"-"`
}

// Prepare fetches and unpacks PostgreSQL and makes a data folder, in a child that may run as another user. The child
// keeps lock open: should this process be killed, no other may use the folders before the child is done.
func Prepare(ctx context.Context, p Preparation, lock *os.File) error {
	cmd, err := command(rolePrepare)
	if err != nil {
		return err
	}
	if p.Executable != "" {
		cmd.Path = p.Executable
	}
	cmd.SysProcAttr.Credential = p.RunAs.credential()
	input, err := json.Marshal(p) //nolint:gosec // goes through a pipe to our own child
	if err != nil {
		return fmt.Errorf("writing down what to prepare: %w", err)
	}
	var output bytes.Buffer
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.ExtraFiles = []*os.File{lock}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting a child: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return errors.New(strings.TrimSpace(output.String()))
		}
		return nil
	case <-ctx.Done():
		// Not killed: it would leave the server behind that it may just have started. It ends by itself.
		return context.Cause(ctx)
	}
}

// prepare is the child's side of Prepare.
func prepare(in io.Reader, log io.Writer) error {
	syscall.CloseOnExec(lockDescriptor) // the server must not hold the lock
	var p Preparation
	if err := json.NewDecoder(in).Decode(&p); err != nil {
		return fmt.Errorf("reading what to prepare: %w", err)
	}
	db := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(p.Version)).
		CachePath(p.Archive).
		BinariesPath(p.Binaries).
		RuntimePath(p.Runtime).
		DataPath(p.Data).
		Port(p.Port).
		Password(p.Password).
		Locale("C").
		Encoding("UTF8").
		StartParameters(map[string]string{"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}).
		StartTimeout(time.Minute).
		Logger(log))
	if err := db.Start(); err != nil {
		return err
	}
	return db.Stop()
}
