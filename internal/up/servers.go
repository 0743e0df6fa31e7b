package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/retry"
)

// lockFile is the file of a data folder that its run holds locked.
const lockFile = "lock"

// servers are the embedded ones of a run.
type servers struct {
	postgres *local.Postgres
	nats     *local.NATS  // nil where no resource names one
	kafka    *local.Kafka // nil where no resource names one
	open     bool         // Kafka wants no login
	data     string
	lock     *os.File
}

func (s *servers) start(ctx context.Context, cfg *Config, p *plan) error {
	pg := local.PostgresConfig{Port: cfg.PostgresPort}
	nc := local.NATSConfig{Port: cfg.NATSPort, Users: p.users}
	if cfg.Data != "" {
		if err := s.takeData(cfg.Data); err != nil {
			return fmt.Errorf("--data %s: %w", cfg.Data, err)
		}
		pg.Dir, nc.Dir = filepath.Join(s.data, "postgres"), filepath.Join(s.data, "nats")
	}
	var err error
	if s.postgres, err = local.StartPostgres(ctx, pg); err != nil {
		return err
	}
	if len(p.streams) > 0 {
		if s.nats, err = local.StartNATS(ctx, nc); err != nil {
			return err
		}
	}
	if len(p.topics) > 0 {
		kc := local.KafkaConfig{Port: cfg.KafkaPort, Users: p.kafkaUsers, Topics: p.topics}
		if s.data != "" {
			kc.Dir = filepath.Join(s.data, "kafka")
		}
		s.open = len(p.kafkaUsers) == 0
		s.kafka, err = local.StartKafka(kc)
	}
	return err
}

// servers names what stands in for the resources' hosts.
func (p *plan) servers() string {
	switch {
	case len(p.topics) == 0:
		return "PostgreSQL and NATS"
	case len(p.streams) == 0:
		return "PostgreSQL and Kafka"
	default:
		return "PostgreSQL, NATS and Kafka"
	}
}

// takeData makes the data folder and holds it until the end: two servers on the same data would spoil them.
func (s *servers) takeData(folder string) error {
	data, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	//nolint:gosec // where we are root, PostgreSQL runs as another user, who must pass through
	if err := os.MkdirAll(data, 0o755); err != nil {
		return folderError(data, err)
	}
	//nolint:gosec // the folder is the user's own argument
	lock, err := os.OpenFile(filepath.Join(data, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return folderError(data, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(errors.New("another `postrider up` uses this folder: end it, or choose another folder"),
			lock.Close())
	}
	s.data, s.lock = data, lock
	return s.forgetEndpoints() // those of a run that was killed
}

func folderError(folder string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return &local.DiskFullError{Server: "PostgreSQL and NATS", Dir: folder}
	}
	return err
}

func (s *servers) forgetEndpoints() error {
	err := os.Remove(filepath.Join(s.data, EndpointsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// stop ends the servers. It may be called when they did not all start.
func (s *servers) stop(ctx context.Context) error {
	var errs []error
	if s.lock != nil {
		errs = append(errs, s.forgetEndpoints())
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Stop())
	}
	if s.nats != nil {
		errs = append(errs, s.nats.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// endpoints says where they listen.
func (s *servers) endpoints() Endpoints {
	e := Endpoints{Postgres: net.JoinHostPort(s.postgres.Host(), strconv.Itoa(s.postgres.Port())), KafkaOpen: s.open}
	if s.nats != nil {
		e.NATS = net.JoinHostPort(s.nats.Host(), strconv.Itoa(s.nats.Port()))
	}
	if s.kafka != nil {
		e.Kafka = net.JoinHostPort(s.kafka.Host(), strconv.Itoa(s.kafka.Port()))
	}
	return e
}

// keepable is a server that can be lost and started again.
type keepable interface {
	Lost() <-chan struct{}
	Err() error
	Start(ctx context.Context) error
}

// restartPause bounds the pause before a lost server is started again.
var restartPause = retry.Backoff{Initial: 500 * time.Millisecond, Max: 5 * time.Second}

// keep starts a server again whenever it is lost, until ctx ends, and tells of it: each cause once. It gives up, with
// an error, only where nothing can start the server any more.
func keep(ctx context.Context, name string, s keepable, say func(string)) error {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Lost():
		}
		if err := restart(ctx, name, s, say); err != nil {
			return err
		}
		if s.Err() == nil {
			say("the embedded " + name + " runs again")
		}
	}
	return nil
}

// restart tries until the server runs, or ctx ends.
func restart(ctx context.Context, name string, s keepable, say func(string)) error {
	told := ""
	failures := 0
	for err := s.Err(); err != nil && ctx.Err() == nil; err = s.Start(ctx) {
		if errors.Is(err, local.ErrGone) {
			return fmt.Errorf("the embedded %s is lost: %w", name, err)
		}
		if words := firstLine(err); words != told {
			say("the embedded " + name + " is lost, trying to start it again: " + words)
			told = words
		}
		failures++
		if !pause(ctx, restartPause.Ceiling(failures)) {
			break
		}
	}
	return nil
}

// pause waits, and returns false if ctx ends before that.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// firstLine leaves out the log that may follow.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSuffix(line, "; its log ends with:")
}
