package brokers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/postrider/postrider/internal/local"
)

// poolerPackages are PgBouncer and those of its libraries that a system may lack.
var poolerPackages = []string{"pgbouncer", "libc-ares2", "libevent-2.1-7"} //nolint:gochecknoglobals // a constant

// PgBouncerConfig says for which server a PgBouncer pools connections.
type PgBouncerConfig struct {
	// Server is the address of PostgreSQL.
	Host string
	Port int
	// Users are those who may connect, with their passwords.
	Users map[string]string
	// PoolSize is how many connections to the server a user has.
	PoolSize int
}

// PgBouncer is a running PgBouncer in transaction mode: between two transactions a client's connection to the server may
// change.
type PgBouncer struct {
	server

	port int
}

// StartPgBouncer starts a PgBouncer and returns when it takes connections.
func StartPgBouncer(ctx context.Context, cfg PgBouncerConfig) (*PgBouncer, error) {
	command, libraries, err := poolerInstall(ctx)
	if err != nil {
		return nil, err
	}
	for range portTries {
		var p *PgBouncer
		if p, err = startPooler(ctx, command, libraries, cfg); !portTaken(err) {
			return p, err
		}
	}
	return nil, err
}

// poolerInstall returns an installed PgBouncer, or one unpacked into the cache with its libraries.
func poolerInstall(ctx context.Context) (command, libraries string, err error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if found, err := exec.LookPath(name); err == nil {
			return found, "", nil
		}
	}
	if !canUnpack() {
		return "", "", &MissingError{
			"PgBouncer, for the tests,",
			"apt-get install pgbouncer, or brew install pgbouncer",
		}
	}
	dir, err := local.Cached(ctx, "pgbouncer-"+distribution(), func(ctx context.Context, dir string) error {
		return unpack(ctx, dir, poolerPackages)
	})
	if err != nil {
		return "", "", fmt.Errorf("getting PgBouncer for the tests: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "usr/lib/*/libcares.so.2"))
	if err != nil || len(found) != 1 {
		return "", "", errors.New("getting PgBouncer for the tests: the packages hold no libcares.so.2")
	}
	return filepath.Join(dir, "usr/sbin/pgbouncer"), filepath.Dir(found[0]), nil
}

func startPooler(ctx context.Context, command, libraries string, cfg PgBouncerConfig) (_ *PgBouncer, err error) {
	ports, err := freePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	p := &PgBouncer{port: ports[0]}
	if p.dir, err = os.MkdirTemp("", "postrider-pgbouncer-"); err != nil {
		return nil, fmt.Errorf("making the folder of PgBouncer: %w", err)
	}
	settings, users := filepath.Join(p.dir, "pgbouncer.ini"), filepath.Join(p.dir, "users.txt")
	for name, content := range map[string]string{settings: p.settings(cfg, users), users: poolerUsers(cfg.Users)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("writing PgBouncer's settings: %w", err), os.RemoveAll(p.dir))
		}
	}
	var env []string
	if libraries != "" {
		env = []string{"LD_LIBRARY_PATH=" + libraries}
	}
	if err := p.start(ctx, p.spec(command, []string{settings}, env, p.port)); err != nil {
		return nil, errors.Join(fmt.Errorf("starting PgBouncer: %w", err), os.RemoveAll(p.dir))
	}
	return p, nil
}

func (p *PgBouncer) settings(cfg PgBouncerConfig, users string) string {
	lines := []string{
		"[databases]", fmt.Sprintf("* = host=%s port=%d", cfg.Host, cfg.Port),
		"[pgbouncer]", "listen_addr = " + loopback, fmt.Sprintf("listen_port = %d", p.port), "unix_socket_dir =",
		"auth_type = trust", "auth_file = " + users, "pool_mode = transaction",
		fmt.Sprintf("default_pool_size = %d", cfg.PoolSize), "max_client_conn = 200",
	}
	if os.Geteuid() == 0 {
		lines = append(lines, "user = nobody") // it refuses to stay root
	}
	return strings.Join(lines, "\n") + "\n"
}

func poolerUsers(users map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(users)) {
		fmt.Fprintf(&b, "%q %q\n", name, users[name])
	}
	return b.String()
}

// Port is where it listens on loopback.
func (p *PgBouncer) Port() int { return p.port }

// Stop ends it, and removes its folder.
func (p *PgBouncer) Stop(ctx context.Context) error {
	if err := p.keeper.Close(ctx); err != nil {
		return fmt.Errorf("stopping PgBouncer: %w", err)
	}
	return nil
}
