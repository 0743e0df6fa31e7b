package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// natsReadyTimeout is how long an embedded NATS may take until it serves.
	natsReadyTimeout = 30 * time.Second
	// natsLookPeriod is how often an embedded NATS is looked at.
	natsLookPeriod = 500 * time.Millisecond
)

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
	s.ConfigureLogger()
	s.Start()
	if !s.ReadyForConnections(natsReadyTimeout) || !s.JetStreamEnabled() {
		return errors.New("the server did not come up")
	}
	if err := os.WriteFile(cfg.Ready, fmt.Appendf(nil, "%d\nready\n", os.Getpid()), 0o600); err != nil {
		return fmt.Errorf("saying that the server is ready: %w", err)
	}
	err = watchNATS(s, terminate)
	s.Shutdown()
	s.WaitForShutdown()
	return err
}

// watchNATS waits until the server is asked to end, or has given JetStream up, as it does when its disk is full. It
// would never take it up again, and it serves nothing else here.
func watchNATS(s *server.Server, terminate <-chan os.Signal) error {
	look := time.NewTicker(natsLookPeriod)
	defer look.Stop()
	for {
		select {
		case <-terminate:
			return nil
		case <-look.C:
			if !s.JetStreamEnabled() {
				return errors.New("the server gave JetStream up")
			}
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
