package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/mount"
)

// Options are what the process decides about its connections.
type Options struct {
	// ApplicationName shows in pg_stat_activity.
	ApplicationName string
	// AllowLoopback permits servers on this machine, as `postrider up` and tests have them.
	AllowLoopback bool
	// RuntimeParams are further session defaults. Behind a transaction-mode pooler there should be none.
	RuntimeParams map[string]string
	// KeepStatements has each session plan a statement once, with indexes wherever there are some, unless a pooler comes
	// between. Default: a statement is planned each time.
	KeepStatements bool
	// Log hears of changed credentials. Nil means nobody does.
	Log *slog.Logger
}

// Pool is a pool of connections whose credentials and certificates follow their files.
//
// A new connection always uses what the files hold then. When they change, the pool proves the new ones
// with a connection of its own before it replaces those that are open: a wrong new password breaks
// nothing that works. Callers bound each statement by a deadline in its context.
type Pool struct {
	*pgxpool.Pool
	cfg  config.Postgres
	log  *slog.Logger
	stop context.CancelFunc
	done sync.WaitGroup

	mu sync.Mutex
	// replaced is closed when the connections that are open are replaced.
	replaced chan struct{}
}

// Open checks the settings and returns a pool. It dials nothing: the first statement does, and says
// what is wrong if the server cannot be reached. Close must be called.
func Open(ctx context.Context, cfg config.Postgres, o Options) (*Pool, error) {
	if err := validate(cfg); err != nil {
		return nil, fmt.Errorf("postgres settings: %w", err)
	}
	pc, err := poolConfig(cfg, o)
	if err != nil {
		return nil, err
	}
	if o.KeepStatements {
		KeepStatements(pc)
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{cfg: cfg, log: log, replaced: make(chan struct{})}
	files := mount.NewFollower(cfg.SecretPaths(), p.prove, p.refused) // before there is a connection
	if p.Pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("create pool: %w", err)
	}
	// The watch ends with Close, not with the caller's context, as the pool does.
	ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.done.Go(func() { p.watch(ctx, files) })
	return p, nil
}

// Connect returns one connection made the same way, for a short piece of work such as migrations. Close must be called.
func Connect(ctx context.Context, cfg config.Postgres, o Options) (*pgx.Conn, error) {
	cfg.MaxConnections = 1
	if err := validate(cfg); err != nil {
		return nil, fmt.Errorf("postgres settings: %w", err)
	}
	pc, err := poolConfig(cfg, o)
	if err != nil {
		return nil, err
	}
	return dial(ctx, pc)
}

// dial connects once with what the files hold now.
func dial(ctx context.Context, pc *pgxpool.Config) (*pgx.Conn, error) {
	if pc.BeforeConnect != nil {
		if err := pc.BeforeConnect(ctx, pc.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, pc.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", pc.ConnConfig.Database, err)
	}
	return conn, nil
}

// Close ends the watch of the files, waits for connections in use to be released and closes all.
func (p *Pool) Close() {
	p.stop()
	p.done.Wait()
	p.Pool.Close()
}

// watch replaces open connections once changed files have proved good.
func (p *Pool) watch(ctx context.Context, files *mount.Follower) {
	for files.Next(ctx) == nil {
		p.Reset()
		p.tellReplaced()
		p.log.InfoContext(ctx, "Database credentials changed, connections are replaced", "database", p.cfg.Database)
	}
}

// tellReplaced ends what is done over connections that are none of the pool's, and made as they are.
func (p *Pool) tellReplaced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.replaced)
	p.replaced = make(chan struct{})
}

// nextReplaced returns what is closed when the connections are replaced next.
func (p *Pool) nextReplaced() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replaced
}

// prove connects once with what the files hold now.
func (p *Pool) prove(ctx context.Context) error {
	conn, err := dial(ctx, p.Config())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func (p *Pool) refused(ctx context.Context, err error) {
	p.log.WarnContext(ctx, "New database credentials do not work, open connections are kept",
		"database", p.cfg.Database, "err", SafeError(err))
}
