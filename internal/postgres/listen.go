package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrNotTold says that a connection which listens is not told of what another one notifies.
var ErrNotTold = errors.New("a notification did not come")

const (
	// listenTimeout bounds connecting and the proof that notifications come.
	listenTimeout = 10 * time.Second
	// proofPeriod is how often a connection that listens is proved: a pooler or a firewall may cut it without a word.
	proofPeriod = time.Minute
)

// Listen calls told after each NOTIFY of a channel that has the payload, over a connection of its own, made as those of
// the pool are. Before, and once a minute, it proves by a notification of its own that they come: behind a pooler that
// gives each transaction another session none does, and ErrNotTold is returned. It calls heard after each proof. It
// returns when ctx ends, the connection breaks, or a proof fails: whoever listens again has missed what was committed
// meanwhile, and looks.
func Listen(ctx context.Context, pool *pgxpool.Pool, channel, payload string, heard, told func()) error {
	conn, err := connectBeside(ctx, pool)
	if err != nil {
		return err
	}
	defer closeListener(ctx, conn)
	l := listener{conn: conn, pool: pool, channel: channel, payload: payload, told: told}
	if _, err := conn.Exec(
		ctx,
		"LISTEN "+pgx.Identifier{channel}.Sanitize(),
		pgx.QueryExecModeSimpleProtocol,
	); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		if err := l.prove(ctx); err != nil {
			return err
		}
		heard()
		if err := l.follow(ctx, proofPeriod); err != nil {
			return err
		}
	}
}

// connectBeside makes a connection as the pool does, which is none of its own: a small pool is not made smaller.
func connectBeside(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	return dial(ctx, pool.Config())
}

func closeListener(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server forgets who listened either way
}

// listener is a connection that listens.
type listener struct {
	conn             *pgx.Conn
	pool             *pgxpool.Pool
	channel, payload string
	told             func()
}

// proveSQL notifies with a payload that is nobody's schema: names have no space.
const proveSQL = `SELECT pg_notify($1, $2)`

// prove notifies over the pool and waits for that. What else comes meanwhile is told too.
func (l *listener) prove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	proof := fmt.Sprintf("proof %d", l.conn.PgConn().PID())
	if _, err := l.pool.Exec(ctx, proveSQL, l.channel, proof); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	for {
		n, err := l.conn.WaitForNotification(ctx)
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return ErrNotTold
		case err != nil:
			return fmt.Errorf("wait for a notification: %w", err)
		case n.Payload == proof:
			return nil
		case n.Payload == l.payload:
			l.told()
		}
	}
}

// follow tells of notifications for some time.
func (l *listener) follow(ctx context.Context, during time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	for {
		n, err := l.conn.WaitForNotification(waiting)
		switch {
		case err == nil && n.Payload == l.payload:
			l.told()
		case err == nil:
		case ctx.Err() == nil && waiting.Err() != nil && !l.conn.IsClosed():
			return nil
		default:
			return fmt.Errorf("wait for a notification: %w", err)
		}
	}
}

// Listen is the function of that name, over the pool's connections. It also returns once changed credentials have proved
// good: the connection is one of those that they replace.
func (p *Pool) Listen(ctx context.Context, channel, payload string, heard, told func()) error {
	replaced := p.nextReplaced()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-replaced:
			cancel(errReplaced)
		case <-ctx.Done():
		}
	}()
	return Listen(ctx, p.Pool, channel, payload, heard, told)
}

// errReplaced ends what is done over connections that changed credentials replace.
var errReplaced = errors.New("connections are replaced")
