package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
)

// EndpointsFile is the file of a data folder that says where the embedded servers listen.
const EndpointsFile = "endpoints.json"

// Endpoints are the addresses of the embedded servers, as host:port. They stand in for every host that the resources
// name; users and passwords are those of the Secrets.
type Endpoints struct {
	Postgres string `json:"postgres"`
	NATS     string `json:"nats"`
}

// ReadEndpoints reads what a run with this data folder wrote.
func ReadEndpoints(data string) (Endpoints, error) {
	var e Endpoints
	raw, err := os.ReadFile(filepath.Join(data, EndpointsFile)) //nolint:gosec // the folder is the user's own argument
	if err != nil {
		return e, fmt.Errorf("find the embedded servers of `postrider up --data %s`: %w", data, err)
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return e, fmt.Errorf("read %s: %w", filepath.Join(data, EndpointsFile), err)
	}
	return e, nil
}

// Database replaces the hosts of a database by the embedded PostgreSQL.
func (e Endpoints) Database(pg *config.Postgres) error {
	host, port, err := net.SplitHostPort(e.Postgres)
	if err != nil {
		return fmt.Errorf("endpoint %q of PostgreSQL: %w", e.Postgres, err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return fmt.Errorf("port %q of PostgreSQL: %w", port, err)
	}
	pg.Hosts, pg.Port, pg.TLS = []string{host}, int32(number), plainText()
	return nil
}

// Broker replaces the servers of a stream by the embedded NATS.
func (e Endpoints) Broker(n *config.NATS) { n.Servers, n.TLS = []string{e.NATS}, plainText() }

func plainText() config.TLS { return config.TLS{Mode: string(v1alpha1.TLSModeInsecure)} }

// servers are the embedded ones of a run.
type servers struct {
	postgres *local.Postgres
	nats     *local.NATS
	data     string
}

// embed starts the stand-ins, makes in them what the resources name, and points the workers at them.
func (r *runner) embed(ctx context.Context) error {
	relays := make([]v1alpha1.OutboxRelay, len(r.relays))
	for i := range r.relays {
		relays[i] = r.relays[i].resource
	}
	consumers := make([]v1alpha1.InboxConsumer, len(r.inboxes))
	for i := range r.inboxes {
		consumers[i] = r.inboxes[i].resource
	}
	p, err := newPlan(relays, consumers, r.secretValues)
	if err != nil {
		return err
	}
	r.servers = &servers{data: r.cfg.Data}
	if err := r.servers.start(ctx, r.cfg, p); err != nil {
		return errors.Join(err, r.servers.stop(context.WithoutCancel(ctx)))
	}
	if err := r.standIn(ctx, p); err != nil {
		return errors.Join(err, r.servers.stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// secretValues reads a Secret's username and password.
func (r *runner) secretValues(namespace, name string) map[string]string {
	values := map[string]string{}
	for i := range r.cfg.Set.Secrets {
		s := &r.cfg.Set.Secrets[i]
		if s.Namespace != namespace || s.Name != name {
			continue
		}
		for _, key := range []string{v1alpha1.KeyUsername, v1alpha1.KeyPassword} {
			values[key] = string(s.Data[key].Reveal())
		}
	}
	return values
}

func (s *servers) start(ctx context.Context, cfg Config, p plan) error {
	pg := local.PostgresConfig{Port: cfg.PostgresPort}
	nc := local.NATSConfig{Port: cfg.NATSPort, Users: p.users}
	if cfg.Data != "" {
		data, err := filepath.Abs(cfg.Data)
		if err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
		if err := os.MkdirAll(
			data,
			0o755,
		); err != nil { //nolint:gosec // PostgreSQL runs as another user where we are root
			return fmt.Errorf("data folder: %w", err)
		}
		pg.Dir, nc.Dir = filepath.Join(data, "postgres"), filepath.Join(data, "nats")
	}
	var err error
	if s.postgres, err = local.StartPostgres(ctx, pg); err != nil {
		return err
	}
	s.nats, err = local.StartNATS(ctx, nc)
	return err
}

// stop ends the servers. It may be called when they did not all start.
func (s *servers) stop(ctx context.Context) error {
	var errs []error
	if s.nats != nil {
		errs = append(errs, s.nats.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	if s.data != "" {
		if err := os.Remove(filepath.Join(s.data, EndpointsFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// lost is closed when an embedded server ended by itself. Without embedded servers it never is.
func (s *servers) lost() <-chan struct{} {
	if s == nil {
		return nil
	}
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		select {
		case <-s.postgres.Lost():
		case <-s.nats.Lost():
		}
	}()
	return lost
}

func (s *servers) lostError() error {
	return errors.Join(s.postgres.Err(), s.nats.Err())
}

// standIn makes databases, users and streams as named and points the workers at the embedded servers.
func (r *runner) standIn(ctx context.Context, p plan) error {
	s := r.servers
	for _, d := range p.databases {
		if err := s.postgres.EnsureDatabase(ctx, local.Database{Name: d.name, Owner: d.owner}); err != nil {
			return err
		}
	}
	for _, l := range p.logins {
		if err := s.postgres.EnsureLogin(ctx, l); err != nil {
			return err
		}
	}
	if err := s.ensureStreams(ctx, p); err != nil {
		return err
	}
	e := Endpoints{
		Postgres: net.JoinHostPort(s.postgres.Host(), strconv.Itoa(s.postgres.Port())),
		NATS:     net.JoinHostPort(s.nats.Host(), strconv.Itoa(s.nats.Port())),
	}
	if err := r.pointAt(e); err != nil {
		return err
	}
	return r.announce(p, e)
}

func (r *runner) pointAt(e Endpoints) error {
	for i := range r.relays {
		if err := e.Database(&r.relays[i].cfg.Source); err != nil {
			return err
		}
		e.Broker(r.relays[i].cfg.NATS)
	}
	for i := range r.inboxes {
		if err := e.Database(&r.inboxes[i].cfg.Inbox.Postgres); err != nil {
			return err
		}
		e.Broker(r.inboxes[i].cfg.NATS)
	}
	if r.cfg.Data == "" {
		return nil
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode endpoints: %w", err)
	}
	// Whole or not at all: others wait for this file to appear.
	file := filepath.Join(r.cfg.Data, EndpointsFile)
	if err := os.WriteFile(file+".new", append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write endpoints: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("write endpoints: %w", err)
	}
	return nil
}

// ensureStreams makes the streams that the resources name, as durable as one server can.
func (s *servers) ensureStreams(ctx context.Context, p plan) error {
	var opts []nats.Option
	if len(p.users) > 0 {
		opts = append(opts, nats.UserInfo(p.users[0].Name, p.users[0].Password))
	}
	nc, err := nats.Connect(net.JoinHostPort(s.nats.Host(), strconv.Itoa(s.nats.Port())), opts...)
	if err != nil {
		return fmt.Errorf("connect to the embedded NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use JetStream of the embedded NATS: %w", err)
	}
	for _, st := range p.streams {
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: st.name, Subjects: st.subjects, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		})
		if err != nil {
			return fmt.Errorf("make stream %s with subjects %v in the embedded NATS: %w", st.name, st.subjects, err)
		}
	}
	return nil
}

// announce says what stands in for what.
func (r *runner) announce(p plan, e Endpoints) error {
	lines := []string{
		fmt.Sprintf(
			"PostgreSQL 17 at %s and NATS at %s stand in for every host that the resources name",
			e.Postgres,
			e.NATS,
		),
		"TLS is not used on them; users and passwords are those of the Secrets",
	}
	for _, d := range p.databases {
		owner := "postgres"
		if d.owner != nil {
			owner = d.owner.Name
		}
		lines = append(lines, fmt.Sprintf("database %s, owner %s", d.name, owner))
	}
	for _, st := range p.streams {
		lines = append(lines, fmt.Sprintf("stream %s with subjects %v", st.name, st.subjects))
	}
	for _, line := range append(lines, p.notices...) {
		if _, err := fmt.Fprintln(r.cfg.Out, line); err != nil {
			return fmt.Errorf("say what runs: %w", err)
		}
	}
	return nil
}

// runInit runs the SQL files as the owner of their database.
func (r *runner) runInit(ctx context.Context) error {
	for _, init := range r.cfg.Init {
		script, err := os.ReadFile(init.File)
		if err != nil {
			return fmt.Errorf("read the SQL for database %s: %w", init.Database, err)
		}
		conn, err := r.ownerConn(ctx, init.Database)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, string(script))
		closeErr := conn.Close(ctx)
		if err := errors.Join(err, closeErr); err != nil {
			return fmt.Errorf("run %s in database %s: %w", init.File, init.Database, err)
		}
	}
	return nil
}

// ownerConn connects as the superuser and becomes the database's owner, so that what is made is the owner's.
func (r *runner) ownerConn(ctx context.Context, database string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, r.servers.postgres.URL(database))
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", database, err)
	}
	const becomeOwnerSQL = `SELECT set_config('role', (SELECT pg_get_userbyid(datdba) FROM pg_database
		WHERE datname = current_database()), false)`
	if _, err := conn.Exec(ctx, becomeOwnerSQL); err != nil {
		return nil, errors.Join(fmt.Errorf("act as the owner of database %s: %w", database, err), conn.Close(ctx))
	}
	return conn, nil
}
