package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/logger"
	"github.com/nats-io/nats-server/v2/server"
)

// natsReadyTimeout is how long an embedded NATS may take until it serves.
const natsReadyTimeout = 30 * time.Second

// NATSConfig is the file an embedded NATS server is started with.
type NATSConfig struct {
	Host       string     `json:"host"`
	Port       int        `json:"port"`
	StoreDir   string     `json:"storeDir"`
	MaxPayload int32      `json:"maxPayload,omitempty"`
	Users      []NATSUser `json:"users,omitempty"`
	Ready      string     `json:"ready"` // see Spec.Ready
}

// NATSUser is an account that may log in. Without Publish or Subscribe lists it may use every subject.
type NATSUser struct {
	Name      string   `json:"name"`
	Password  string   `json:"password"`
	Publish   []string `json:"publish,omitempty"`
	Subscribe []string `json:"subscribe,omitempty"`
}

// NATSCommand completes a spec so that it keeps an embedded NATS server with the given config file.
func NATSCommand(spec Spec, configFile string) Spec {
	spec.Command = Self
	spec.Args = []string{configFile}
	spec.Env = append(spec.Env, roleVariable+"="+roleNATS)
	return spec
}

// serveNATS is the whole life of an embedded NATS server.
func serveNATS(args []string) error {
	if len(args) != 1 {
		return errors.New("want one argument, the config file")
	}
	content, err := os.ReadFile(args[0]) //nolint:gosec // named by our own process
	if err != nil {
		return fmt.Errorf("reading the config: %w", err)
	}
	var cfg NATSConfig
	if err := json.Unmarshal(content, &cfg); err != nil {
		return fmt.Errorf("reading the config: %w", err)
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)

	s, err := server.NewServer(natsOptions(cfg))
	if err != nil {
		return fmt.Errorf("making the server: %w", err)
	}
	log := &natsLog{
		Logger: logger.NewStdLogger(true, false, false, false, true), broken: make(chan string, 1),
	}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	if !s.ReadyForConnections(natsReadyTimeout) || !s.JetStreamEnabled() {
		return errors.New("the server did not come up")
	}
	if err := os.WriteFile(cfg.Ready, fmt.Appendf(nil, "%d\nready\n", os.Getpid()), 0o600); err != nil {
		return fmt.Errorf("saying that the server is ready: %w", err)
	}
	select {
	case <-terminate:
	case reason := <-log.broken:
		err = fmt.Errorf("the server cannot write any more: %s", reason)
	}
	s.Shutdown()
	s.WaitForShutdown()
	return err
}

// natsLog is the server's log. It notices when the server has given a stream, or all, up because it could not write, as
// it does on a full disk: it never takes them up again by itself, and only its log tells.
type natsLog struct {
	*logger.Logger
	broken chan string
}

// Errorf implements server.Logger.
func (l *natsLog) Errorf(format string, args ...any) {
	l.Logger.Errorf(format, args...)
	for _, words := range []string{"ritical write error", "will be DISABLED"} {
		if !strings.Contains(format, words) {
			continue
		}
		select {
		case l.broken <- fmt.Sprintf(format, args...):
		default: // it was noticed before
		}
	}
}

func natsOptions(cfg NATSConfig) *server.Options {
	o := &server.Options{
		ServerName: "postrider-local",
		Host:       cfg.Host,
		Port:       cfg.Port,
		JetStream:  true,
		StoreDir:   cfg.StoreDir,
		MaxPayload: cfg.MaxPayload,
		NoSigs:     true,
		Logtime:    true,
	}
	for _, u := range cfg.Users {
		user := &server.User{Username: u.Name, Password: u.Password}
		if len(u.Publish)+len(u.Subscribe) > 0 {
			user.Permissions = &server.Permissions{}
			if len(u.Publish) > 0 {
				user.Permissions.Publish = &server.SubjectPermission{Allow: u.Publish}
			}
			if len(u.Subscribe) > 0 {
				user.Permissions.Subscribe = &server.SubjectPermission{Allow: u.Subscribe}
			}
		}
		o.Users = append(o.Users, user)
	}
	return o
}
