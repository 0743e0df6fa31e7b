package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/statusz"
)

// migrationTimeout bounds one try, waiting for the same step of another Pod included.
const migrationTimeout = 5 * time.Minute

// migrationPause is short: a Pod waits for it, and a person for what it says.
var migrationPause = retry.Backoff{Initial: time.Second, Max: 15 * time.Second}

// Migration makes the tables of a resource before its worker starts, and then ends. While it cannot, it reports why and
// tries again without end. Where the worker finds its tables in order the owner's credentials are not needed, so a
// worker starts again even if those are wrong by then.
type Migration[C any] struct {
	o        Options
	id       string
	target   func(C) migrationTarget
	ownerDir string
	wake     chan struct{}
	killed   chan struct{}
	kill     sync.Once

	mu   sync.Mutex
	cfg  C
	err  error
	done bool
}

// migrationTarget is what of a config says where the tables are and whose they are.
type migrationTarget struct {
	resource  config.Resource
	runPolicy string
	worker    config.Postgres
	names     postgres.Names
	options   schema.Options
	role      schema.Role
}

// NewRelayMigration returns the step before a relay. ownerDir holds the credentials of the tables' owner.
func NewRelayMigration(cfg config.Relay, ownerDir string, o Options) *Migration[config.Relay] {
	return newMigration(cfg, ownerDir, o, relayTarget)
}

// NewConsumerMigration returns the step before a consumer. ownerDir holds the credentials of the tables' owner.
func NewConsumerMigration(cfg config.Consumer, ownerDir string, o Options) *Migration[config.Consumer] {
	return newMigration(cfg, ownerDir, o, consumerTarget)
}

func relayTarget(cfg config.Relay) migrationTarget {
	return migrationTarget{
		resource: cfg.Resource, runPolicy: cfg.RunPolicy, worker: cfg.Source, role: schema.RoleRelay,
		names:   postgres.Names{Schema: cfg.Source.Schema, Outbox: cfg.Outbox.Table},
		options: outboxOptions(cfg),
	}
}

// outboxOptions say which tables a relay needs.
func outboxOptions(cfg config.Relay) schema.Options {
	return schema.Options{
		Components: []schema.Component{schema.Outbox}, Shards: cfg.Outbox.Shards,
		Columns: cfg.Outbox.Columns, Unordered: cfg.Ordering == config.OrderingNone,
		Notify: cfg.Batch.WakeUp == config.WakeUpNotify,
	}
}

func consumerTarget(cfg config.Consumer) migrationTarget {
	return migrationTarget{
		resource: cfg.Resource, runPolicy: cfg.RunPolicy, worker: cfg.Inbox.Postgres, role: schema.RoleConsumer,
		names:   postgres.Names{Schema: cfg.Inbox.Postgres.Schema},
		options: schema.Options{Components: []schema.Component{schema.Inbox}},
	}
}

// MakeRelayTables makes the tables of a relay, and gives its user the rights on them, over a connection of their
// owner.
func MakeRelayTables(ctx context.Context, conn *pgx.Conn, cfg config.Relay) error {
	return relayTarget(cfg).create(ctx, conn)
}

// MakeConsumerTables makes the tables of a consumer, and gives its user the rights on them, over a connection of their
// owner.
func MakeConsumerTables(ctx context.Context, conn *pgx.Conn, cfg config.Consumer) error {
	return consumerTarget(cfg).create(ctx, conn)
}

func newMigration[C any](cfg C, ownerDir string, o Options, target func(C) migrationTarget) *Migration[C] {
	return &Migration[C]{
		o: o.complete(), id: newWorkerID(), target: target, ownerDir: ownerDir, cfg: cfg,
		wake: make(chan struct{}, 1), killed: make(chan struct{}),
	}
}

// Run returns nil when the tables are as they must be.
func (m *Migration[C]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-m.killed:
			cancel()
		case <-ctx.Done():
		}
	}()
	for failures := 1; ; failures++ {
		err := m.try(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if m.note(err) {
			m.o.Log.WarnContext(ctx, "The tables are not ready, trying again", "err", postgres.SafeError(err))
		}
		if err == nil {
			m.o.Log.InfoContext(ctx, "The tables are ready")
			return nil
		}
		timer := time.NewTimer(migrationPause.Pause(failures, m.o.Random()))
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// note keeps what the last try came to and says whether it is worth a line.
func (m *Migration[C]) note(err error) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	news = err != nil && (m.err == nil || postgres.SafeError(m.err) != postgres.SafeError(err))
	m.err, m.done = err, err == nil
	return news
}

// Done says whether the tables are as they must be.
func (m *Migration[C]) Done() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done
}

// try looks whether the worker has all it needs, and else makes it as the owner.
func (m *Migration[C]) try(ctx context.Context) error {
	m.mu.Lock()
	target := m.target(m.cfg)
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, migrationTimeout)
	defer cancel()
	m.o.Steps.Step(statusz.StepSchema, migrationTimeout)
	defer m.o.Steps.Done(statusz.StepSchema)

	err := m.connected(ctx, target.worker, func(conn *pgx.Conn) error {
		return schema.Verify(ctx, conn, target.names, schema.Expected{Options: target.options, Role: target.role})
	})
	if err == nil {
		return nil
	}
	if _, reason, _ := postgres.Classify(err); reason == postgres.ReasonUnreachable {
		return err // nobody else gets further
	}
	owner := target.worker
	owner.CredentialsDir = m.ownerDir
	return m.connected(ctx, owner, func(conn *pgx.Conn) error { return target.create(ctx, conn) })
}

// connected runs a piece of work on a connection of its own.
func (m *Migration[C]) connected(ctx context.Context, as config.Postgres, do func(*pgx.Conn) error) error {
	conn, err := postgres.Connect(ctx, as, postgres.Options{
		ApplicationName: "postrider schema", AllowLoopback: m.o.AllowLoopback,
	})
	if err != nil {
		return err
	}
	err = do(conn)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, conn.Close(closing))
}

// create applies the migrations and gives the worker's user its rights, as the owner. A table that the team has must be
// there already: nothing is made beside one that is not.
func (t migrationTarget) create(ctx context.Context, conn *pgx.Conn) error {
	if columns := t.options.Columns; columns != nil {
		if _, err := mapped.Read(ctx, conn, mapped.Table{
			Names: t.names, Map: *columns, Unordered: t.options.Unordered, Shards: int(t.options.Shards),
		}); err != nil {
			return err
		}
	}
	if err := schema.Apply(ctx, conn, t.names, t.options); err != nil {
		return err
	}
	file := filepath.Join(t.worker.CredentialsDir, "username")
	user, err := os.ReadFile(file) //nolint:gosec // a path of the config
	if err != nil {
		return &postgres.Error{
			Reason: postgres.ReasonCredentialsInvalid, Err: err,
			Message: file + " cannot be read: it names the user whom the tables are for",
		}
	}
	for _, statement := range t.options.Grants(t.names, t.role, strings.TrimSpace(string(user))) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("grant the worker its rights: %w", err)
		}
	}
	return nil
}

// Reconfigure takes another place of the tables over; the next try is at once.
func (m *Migration[C]) Reconfigure(cfg C) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := fixedResource(m.target(m.cfg).resource, m.target(cfg).resource); err != nil {
		return err
	}
	m.cfg = cfg
	m.nudge()
	return nil
}

// Refresh says that Secret files changed.
func (m *Migration[C]) Refresh() { m.nudge() }

func (m *Migration[C]) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Kill ends Run at once. A transaction that has not committed leaves nothing behind.
func (m *Migration[C]) Kill() { m.kill.Do(func() { close(m.killed) }) }

// Report says what keeps the tables from being made. It speaks of the schema alone, and of the database where that
// cannot be reached: the owner's credentials are not the worker's.
func (m *Migration[C]) Report(context.Context) statusz.Report {
	m.mu.Lock()
	target, err := m.target(m.cfg), m.err
	m.mu.Unlock()
	r := statusz.Report{
		Version: statusz.Version, Worker: m.id, Step: statusz.StepSchema,
		Namespace: target.resource.Namespace, Name: target.resource.Name, Generation: target.resource.Generation,
		RunPolicy: target.runPolicy,
	}
	if err == nil {
		setCondition(&r, condition(schemaReady, statusUnknown, reasonStarting, "the tables are being looked at"))
		return r
	}
	_, reason, _ := postgres.Classify(err)
	text := "the tables cannot be made: " + safeText(err)
	switch {
	case isSchema(reason):
		setCondition(&r, condition(schemaReady, statusFalse, string(reason), text))
	case reason == postgres.ReasonAuthFailed || reason == postgres.ReasonCredentialsInvalid:
		setCondition(&r, condition(schemaReady, statusFalse, databaseReason(reason), "as their owner, "+text))
	default:
		setCondition(&r, condition(databaseReachable, statusFalse, databaseReason(reason), safeText(err)))
		setCondition(&r, condition(schemaReady, statusUnknown, databaseReason(reason), "the database cannot be asked"))
	}
	return r
}
