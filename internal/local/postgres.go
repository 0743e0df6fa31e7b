package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/local/keeper"
)

// The embedded versions of PostgreSQL.
const (
	Postgres15 = "15.14.0"
	Postgres16 = "16.10.0"
	Postgres17 = "17.6.0" // the default
	Postgres18 = "18.6.0"
)

// superuser is the role every embedded server is made with.
const superuser = "postgres"

const (
	postgresStartTimeout = 60 * time.Second // recovery after a crash included
	postgresStopTimeout  = 10 * time.Second
	memoryPollInterval   = 50 * time.Millisecond
	portTries            = 5 // a free port may be taken by another process before the server has it
)

// PostgresConfig says how an embedded PostgreSQL is run. The zero value is a server of version 17 on a free port, in a
// folder of its own that is removed at the end.
type PostgresConfig struct {
	// Version is one of the above; empty means Postgres17.
	Version string
	// Dir keeps the server's data beyond its end: a later start goes on with it. Empty means a temporary folder.
	Dir string
	// Port to listen on; 0 means a free one.
	Port int
	// Parameters are added to the server's configuration.
	Parameters map[string]string
	// Cache is the folder that holds what was fetched; empty means CacheDir.
	Cache string
}

// Postgres is a running PostgreSQL server. It ends with this process.
type Postgres struct {
	cfg      PostgresConfig
	dir      string
	port     int
	password string
	keeper   *keeper.Keeper
}

// BenchParameters are the settings for measurements: room for one run's log, so that no contestant pays for another's
// checkpoint. What makes a commit durable stays on.
func BenchParameters() map[string]string {
	return map[string]string{"max_wal_size": "4GB", "shared_buffers": "512MB"}
}

// StartPostgres starts a server and returns when it takes connections. It fetches PostgreSQL when the cache does not
// hold it, which needs the network once; after that a start takes about a second.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if cfg.Version == "" {
		cfg.Version = Postgres17
	}
	if cfg.Port != 0 {
		if err := checkPort("PostgreSQL", cfg.Port); err != nil {
			return nil, err
		}
	}
	store, err := openCache(cfg.Cache)
	if err != nil {
		return nil, err
	}
	install, err := store.postgres(ctx, cfg.Version)
	if err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg, dir: cfg.Dir}
	if err := p.prepareDir(install); err != nil {
		return nil, p.abandon(err)
	}
	if err := p.launch(ctx, install); err != nil {
		return nil, p.abandon(err)
	}
	return p, nil
}

// abandon removes what a failed start left and names the reason where a person can mend it.
func (p *Postgres) abandon(err error) error {
	dir := p.dir
	if p.cfg.Dir == "" && dir != "" {
		err = errors.Join(err, os.RemoveAll(dir))
		dir = filepath.Dir(dir)
	}
	return diskFull("PostgreSQL", dir, err)
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

// prepareDir makes the folder ready: the data, unless it is there, and what the server's account needs to run.
func (p *Postgres) prepareDir(install postgresInstall) error {
	var err error
	if p.dir == "" {
		p.dir, err = os.MkdirTemp("", "postrider-postgres-")
	} else {
		err = os.MkdirAll(p.dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("making the folder of PostgreSQL: %w", err)
	}
	account := serverAccount()
	if account != nil {
		if err := checkReachable(p.dir, account); err != nil {
			return err
		}
		// The account passes through to its data, and lists nothing on the way.
		if err := os.Chmod(p.dir, 0o711); err != nil { //nolint:gosec // see above
			return fmt.Errorf("opening the folder to the account PostgreSQL runs as: %w", err)
		}
	}
	passwordFile := filepath.Join(p.dir, "password")
	if _, err := os.Stat(p.data()); errors.Is(err, os.ErrNotExist) {
		if err := copyFresh(install, p.data(), passwordFile, account); err != nil {
			return err
		}
	}
	password, err := os.ReadFile(passwordFile) //nolint:gosec // our own
	if err != nil {
		return fmt.Errorf("reading the superuser's password: %w", err)
	}
	p.password = string(password)
	return nil
}

// copyFresh puts a fresh data folder and its superuser's password in place.
func copyFresh(install postgresInstall, data, passwordFile string, account *keeper.User) error {
	// The data are there under their name only when they are complete.
	partial := data + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return fmt.Errorf("removing unfinished data: %w", err)
	}
	if err := copyTree(install.data(), partial, account, false); err != nil {
		return err
	}
	password, err := os.ReadFile(install.password())
	if err != nil {
		return fmt.Errorf("reading the superuser's password: %w", err)
	}
	if err := os.WriteFile(passwordFile, password, 0o600); err != nil { //nolint:gosec // our own
		return fmt.Errorf("writing the superuser's password: %w", err)
	}
	if err := os.Rename(partial, data); err != nil {
		return fmt.Errorf("putting the data in its place: %w", err)
	}
	return nil
}

// launch starts the keeper and the server, on another port when a free one was taken meanwhile.
func (p *Postgres) launch(ctx context.Context, install postgresInstall) error {
	programs := install.programs()
	account := serverAccount()
	if account != nil { // which cannot get to root's cache
		programs = filepath.Join(p.dir, "programs")
		if err := os.RemoveAll(programs); err != nil {
			return fmt.Errorf("removing old programs: %w", err)
		}
		if err := copyTree(install.programs(), programs, account, true); err != nil {
			return err
		}
	}
	var err error
	for range portTries {
		p.port = p.cfg.Port
		if p.port == 0 {
			if p.port, err = freePort(); err != nil {
				return err
			}
		}
		if err = p.launchOn(ctx, programs, account); !saysPortInUse(err) {
			return err
		}
		if p.cfg.Port != 0 {
			return &PortInUseError{Server: "PostgreSQL", Port: p.port}
		}
	}
	return err
}

func (p *Postgres) launchOn(ctx context.Context, programs string, account *keeper.User) error {
	spec := keeper.Spec{
		Command:      filepath.Join(programs, "bin", "postgres"),
		Args:         p.arguments(),
		Dir:          p.data(),
		RunAs:        account,
		Log:          p.LogFile(),
		Ready:        filepath.Join(p.data(), "postmaster.pid"),
		StartTimeout: postgresStartTimeout,
		StopSignal:   syscall.SIGINT, // fast: roll back, write a checkpoint, end
		StopTimeout:  postgresStopTimeout,
		DeathSignal:  syscall.SIGQUIT,
	}
	if p.cfg.Dir == "" {
		spec.Remove = p.dir
	}
	k, err := keeper.Launch(spec)
	if err != nil {
		return err
	}
	if _, err := k.Start(ctx); err != nil {
		return errors.Join(err, k.Close(context.WithoutCancel(ctx)))
	}
	p.keeper = k
	return nil
}

func (p *Postgres) arguments() []string {
	parameters := map[string]string{
		"listen_addresses":        loopback,
		"port":                    strconv.Itoa(p.port),
		"unix_socket_directories": "", // no file outside the folder, no limit on its path
		"lc_messages":             "C",
	}
	maps.Copy(parameters, p.cfg.Parameters)
	args := []string{"-D", p.data()}
	for name, value := range parameters {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// Host is the address the server listens on.
func (p *Postgres) Host() string { return loopback }

// Port is the port the server listens on. It stays the same over a restart.
func (p *Postgres) Port() int { return p.port }

// User is the superuser; Password its password, random for each cache.
func (p *Postgres) User() string { return superuser }

// Password is the superuser's.
func (p *Postgres) Password() string { return p.password }

// LogFile is the file the server logs to.
func (p *Postgres) LogFile() string { return filepath.Join(p.dir, "postgres.log") }

// URL is the superuser's connection string for a database. It holds the password: it is not for logs.
func (p *Postgres) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, p.password),
		Host:     loopback + ":" + strconv.Itoa(p.port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Lost is closed when the server has ended without being asked to; Err then says why.
func (p *Postgres) Lost() <-chan struct{} { return p.keeper.Lost() }

// Err says why the server was lost, nil while it was not.
func (p *Postgres) Err() error { return diskFull("PostgreSQL", p.dir, p.keeper.Err()) }

// Kill ends all of the server with kill -9. The data stays.
func (p *Postgres) Kill(ctx context.Context) error { return p.keeper.Kill(ctx) }

// Start starts a server that was killed or lost, on the same data and port.
func (p *Postgres) Start(ctx context.Context) error {
	again := time.NewTicker(memoryPollInterval)
	defer again.Stop()
	for {
		_, err := p.keeper.Start(ctx)
		// What is left of the killed server ends by itself, and the new one refuses to start before that.
		if err == nil || !strings.Contains(err.Error(), "pre-existing shared memory block") {
			return diskFull("PostgreSQL", p.dir, err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Restart kills the server and starts it again, on the same data and port.
func (p *Postgres) Restart(ctx context.Context) error {
	if err := p.Kill(ctx); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Stop ends the server for good and removes its folder, unless the configuration named one.
func (p *Postgres) Stop(ctx context.Context) error {
	if err := p.keeper.Close(ctx); err != nil {
		return fmt.Errorf("stopping PostgreSQL: %w", err)
	}
	return nil
}

// Login is a role that may log in.
type Login struct {
	Name     string
	Password string
}

// Database is a database to create and the roles that use it.
type Database struct {
	Name string
	// Owner owns the database and may do everything in it; nil leaves it to the superuser.
	Owner *Login
}

// EnsureDatabase creates the database and its owner if they are not there. The owner's password is set either way.
func (p *Postgres) EnsureDatabase(ctx context.Context, d Database) error {
	return EnsureDatabase(ctx, p.URL(superuser), d)
}

// EnsureDatabase does the same on any server, as the superuser that the URL names.
func EnsureDatabase(ctx context.Context, superuserURL string, d Database) error {
	conn, err := pgx.Connect(ctx, superuserURL)
	if err != nil {
		return fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending
	if d.Owner != nil {
		if err := ensureLogin(ctx, conn, *d.Owner); err != nil {
			return err
		}
	}
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", d.Name).Scan(&exists)
	if err != nil {
		return fmt.Errorf("looking for database %q: %w", d.Name, err)
	}
	name := pgx.Identifier{d.Name}.Sanitize()
	if !exists {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
			return fmt.Errorf("creating database %q: %w", d.Name, err)
		}
	}
	if d.Owner != nil {
		owner := pgx.Identifier{d.Owner.Name}.Sanitize()
		if _, err := conn.Exec(ctx, "ALTER DATABASE "+name+" OWNER TO "+owner); err != nil {
			return fmt.Errorf("giving database %q to its owner: %w", d.Name, err)
		}
	}
	return nil
}

// EnsureLogin creates a role that may log in, or sets its password.
func (p *Postgres) EnsureLogin(ctx context.Context, l Login) error {
	return EnsureLogin(ctx, p.URL(superuser), l)
}

// EnsureLogin does the same on any server, as the superuser that the URL names.
func EnsureLogin(ctx context.Context, superuserURL string, l Login) error {
	conn, err := pgx.Connect(ctx, superuserURL)
	if err != nil {
		return fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending
	return ensureLogin(ctx, conn, l)
}

func ensureLogin(ctx context.Context, conn *pgx.Conn, l Login) error {
	var exists bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", l.Name).Scan(&exists)
	if err != nil {
		return fmt.Errorf("looking for role %q: %w", l.Name, err)
	}
	verb := "CREATE"
	if exists {
		verb = "ALTER"
	}
	// Utility statements take no parameters; the server quotes both for us.
	var statement string
	err = conn.QueryRow(ctx, "SELECT format($1 || ' ROLE %I LOGIN PASSWORD %L', $2::text, $3::text)",
		verb, l.Name, l.Password).Scan(&statement)
	if err != nil {
		return fmt.Errorf("preparing role %q: %w", l.Name, err)
	}
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("creating role %q: %w", l.Name, err)
	}
	return nil
}

func saysPortInUse(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "address already in use")
}
