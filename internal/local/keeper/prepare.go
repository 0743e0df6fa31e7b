package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	Binaries string `json:"binaries"` // where bin, lib and share go
	Data     string `json:"data"`     // a fresh data folder, made and shut down cleanly
	Scratch  string `json:"scratch"`  // the folder for what is needed on the way
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
	cmd.Env = append(cmd.Env, "TMPDIR="+p.Scratch) // the library leaves files behind
	input, err := json.Marshal(p)                  //nolint:gosec // goes through a pipe to our own child
	if err != nil {
		return fmt.Errorf("writing down what to prepare: %w", err)
	}
	var complaint bytes.Buffer
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stderr = &complaint
	cmd.ExtraFiles = []*os.File{lock}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting a child: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return errors.New(strings.TrimSpace(complaint.String()))
		}
		return nil
	case <-ctx.Done():
		// Not killed: it would leave the server behind that it may just have started. It ends by itself.
		return context.Cause(ctx)
	}
}

// prepare is the child's side of Prepare.
func prepare(in io.Reader) error {
	syscall.CloseOnExec(lockDescriptor) // the server must not hold the lock
	var p Preparation
	if err := json.NewDecoder(in).Decode(&p); err != nil {
		return fmt.Errorf("reading what to prepare: %w", err)
	}
	db := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(p.Version)).
		CachePath(filepath.Join(p.Scratch, "archive")).
		BinariesPath(p.Binaries).
		RuntimePath(filepath.Join(p.Scratch, "runtime")).
		DataPath(p.Data).
		Port(p.Port).
		Password(p.Password).
		Locale("C").
		Encoding("UTF8").
		StartParameters(map[string]string{"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}).
		StartTimeout(time.Minute).
		Logger(io.Discard)) // its errors hold what matters
	if err := db.Start(); err != nil {
		return err
	}
	return db.Stop()
}
