package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/local/keeper"
)

const (
	natsStartTimeout = 30 * time.Second
	natsStopTimeout  = 10 * time.Second
)

// NATSUser may log in to an embedded NATS. Without Publish and Subscribe lists it may use every subject.
type NATSUser = keeper.NATSUser

// NATSConfig says how an embedded NATS is run. The zero value is a server with JetStream and without users on a free
// port, in a folder of its own that is removed at the end.
type NATSConfig struct {
	// Dir keeps the streams beyond the server's end: a later start goes on with them. Empty means a temporary folder.
	Dir string
	// Port to listen on; 0 means a free one.
	Port int
	// Users may log in; none means that nobody has to.
	Users []NATSUser
	// MaxPayload is the largest message in bytes; 0 means the server's default, 1 MiB.
	MaxPayload int32
}

// NATS is a running NATS server with JetStream. It ends with this process.
type NATS struct {
	cfg    NATSConfig
	dir    string
	port   int
	keeper *keeper.Keeper
}

// StartNATS starts a server and returns when it takes connections.
func StartNATS(ctx context.Context, cfg NATSConfig) (*NATS, error) {
	if cfg.Port != 0 {
		if err := checkPort("NATS", cfg.Port); err != nil {
			return nil, err
		}
	}
	n := &NATS{cfg: cfg, dir: cfg.Dir}
	var err error
	if n.dir == "" {
		n.dir, err = os.MkdirTemp("", "postrider-nats-")
	} else {
		err = os.MkdirAll(n.dir, 0o700)
	}
	if err != nil {
		return nil, n.abandon(fmt.Errorf("making the folder of NATS: %w", err))
	}
	if err := n.launch(ctx); err != nil {
		return nil, n.abandon(err)
	}
	return n, nil
}

// abandon removes what a failed start left and names the reason where a person can mend it.
func (n *NATS) abandon(err error) error {
	dir := n.dir
	if n.cfg.Dir == "" && dir != "" {
		err = errors.Join(err, os.RemoveAll(dir))
		dir = filepath.Dir(dir)
	}
	return diskFull("NATS", dir, err)
}

func (n *NATS) launch(ctx context.Context) error {
	var err error
	for range portTries {
		n.port = n.cfg.Port
		if n.port == 0 {
			if n.port, err = freePort(); err != nil {
				return err
			}
		}
		if err = n.launchOn(ctx); !saysPortInUse(err) {
			return err
		}
		if n.cfg.Port != 0 {
			return &PortInUseError{Server: "NATS", Port: n.port}
		}
	}
	return err
}

func (n *NATS) launchOn(ctx context.Context) error {
	ready := filepath.Join(n.dir, "ready")
	content, err := json.Marshal(keeper.NATSConfig{
		Host: loopback, Port: n.port, StoreDir: n.dir,
		MaxPayload: n.cfg.MaxPayload, Users: n.cfg.Users, Ready: ready,
	})
	if err != nil {
		return fmt.Errorf("writing the config of NATS: %w", err)
	}
	file := filepath.Join(n.dir, "nats.json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("writing the config of NATS: %w", err)
	}
	spec := keeper.NATSCommand(keeper.Spec{
		Dir:          n.dir,
		Log:          n.LogFile(),
		Ready:        ready,
		StartTimeout: natsStartTimeout,
		StopSignal:   syscall.SIGTERM,
		StopTimeout:  natsStopTimeout,
		DeathSignal:  syscall.SIGKILL,
	}, file)
	if n.cfg.Dir == "" {
		spec.Remove = n.dir
	}
	k, err := keeper.Launch(spec)
	if err != nil {
		return err
	}
	if _, err := k.Start(ctx); err != nil {
		return errors.Join(err, k.Close(context.WithoutCancel(ctx)))
	}
	n.keeper = k
	return nil
}

// Host is the address the server listens on.
func (n *NATS) Host() string { return loopback }

// Port is the port the server listens on. It stays the same over a restart.
func (n *NATS) Port() int { return n.port }

// LogFile is the file the server logs to.
func (n *NATS) LogFile() string { return filepath.Join(n.dir, "nats.log") }

// URL is the server's address, without a user.
func (n *NATS) URL() string {
	u := url.URL{Scheme: "nats", Host: loopback + ":" + strconv.Itoa(n.port)}
	return u.String()
}

// Lost is closed when the server has ended without being asked to; Err then says why.
func (n *NATS) Lost() <-chan struct{} { return n.keeper.Lost() }

// Err says why the server was lost, nil while it was not.
func (n *NATS) Err() error { return diskFull("NATS", n.dir, n.keeper.Err()) }

// Kill ends the server with kill -9; the streams stay.
func (n *NATS) Kill(ctx context.Context) error { return n.keeper.Kill(ctx) }

// Start starts a server that was killed or lost, on the same streams and port.
func (n *NATS) Start(ctx context.Context) error {
	_, err := n.keeper.Start(ctx)
	return diskFull("NATS", n.dir, err)
}

// Restart kills the server and starts it again, on the same streams and port.
func (n *NATS) Restart(ctx context.Context) error {
	if err := n.Kill(ctx); err != nil {
		return err
	}
	return n.Start(ctx)
}

// Stop ends the server for good and removes its folder, unless the configuration named one.
func (n *NATS) Stop(ctx context.Context) error {
	if err := n.keeper.Close(ctx); err != nil {
		return fmt.Errorf("stopping NATS: %w", err)
	}
	return nil
}
