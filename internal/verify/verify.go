// Package verify checks the contract from outside: it reads the databases and the broker, never the workers' own
// numbers, and says of each promise how much it looked at and what was the first thing that broke it.
//
// It changes nothing but temporary tables of its own sessions, into which it copies what it needs of a stream; sorting
// and comparing is PostgreSQL's work, so memory stays bounded however long the history is. It may run beside live
// workers: what is newer than the start of the check, or than the grace, is left out. It needs a session of its own,
// so not a transaction-mode pooler, and the right to make temporary tables.
package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker/kafka"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
)

// Input says what to check. Any part may be left out; what could therefore not be checked is in the report.
type Input struct {
	Relays    []Relay
	Consumers []Consumer
	// Grace is how long a message may be on its way. 0 means that everything committed before the check has arrived
	// and was applied.
	Grace time.Duration
}

// Relay is one outbox and the stream it is published to.
type Relay struct {
	// Name is shown in the report, such as "relay shop/orders".
	Name   string
	Pool   *pgxpool.Pool
	Tables postgres.Names
	// Columns, unless nil, say that the outbox is a table which the team already has (layout StatusColumns), as
	// mapped.Read found it.
	Columns *mapped.Table
	Stream  Stream
}

// Consumer is one inbox and the stream it is fed from.
type Consumer struct {
	// Name is shown in the report, such as "consumer shop/billing".
	Name   string
	Pool   *pgxpool.Pool
	Schema string
	// ConsumerName is the inbox's scope.
	ConsumerName string
	Stream       Stream
	// Durable is the consumer on the stream: its filters say what has to arrive, its acknowledgements what must have. Of
	// Kafka's topics it is the group.
	Durable string
	// FilterSubjects say what has to arrive where no durable is named.
	FilterSubjects []string
	// Retention is how long the inbox remembers: older messages of the stream need no row. 0 means for ever.
	Retention time.Duration
	// AcceptStart says that the durable was made on purpose to begin where it does. Without it, messages below that
	// place which nobody handled break a promise: Postrider itself makes no durable that leaves any out.
	AcceptStart bool
	// Queue is the source where it is a RabbitMQ queue, in place of Stream.
	Queue   *Queue
	Effects []Effects
}

// Stream is a JetStream stream, or topics of Kafka. Without JS and Kafka it is not looked at.
type Stream struct {
	JS   jetstream.JetStream
	Name string
	// Kafka reads the topics; Name says which they are, for people.
	Kafka *kafka.Reader
	// Unreadable says why the broker shows nobody what it holds; empty where it does.
	Unreadable string
}

// Run checks everything in the input. A broken promise is in the report; an error means that something could not be
// read.
func Run(ctx context.Context, in Input) (Report, error) {
	var report Report
	for _, r := range in.Relays {
		s, err := verifyRelay(ctx, r, in.Grace)
		if err != nil {
			return Report{}, fmt.Errorf("verify %s: %w", r.Name, err)
		}
		report.Sections = append(report.Sections, s)
	}
	for _, c := range in.Consumers {
		s, err := verifyConsumer(ctx, c, in.Grace)
		if err != nil {
			return Report{}, fmt.Errorf("verify %s: %w", c.Name, err)
		}
		report.Sections = append(report.Sections, s)
	}
	return report, nil
}

// session is one connection with a copy of a stream in a temporary table and, once opened, one snapshot of the
// database that is newer than the copy.
type session struct {
	conn  *pgxpool.Conn
	names postgres.Names
	tx    pgx.Tx
}

func openSession(ctx context.Context, pool *pgxpool.Pool, names postgres.Names) (*session, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if _, err := conn.Exec(ctx, patientSQL); err != nil {
		conn.Release()
		return nil, fmt.Errorf("lift the role's time limits: %w", err)
	}
	return &session{conn: conn, names: names}, nil
}

// The workers' roles bound their statements; comparing a long history takes as long as it takes.
const (
	patientSQL = `SELECT set_config('statement_timeout', '0', false),
		set_config('idle_in_transaction_session_timeout', '0', false)`
	impatientSQL = `RESET statement_timeout; RESET idle_in_transaction_session_timeout`
)

// snapshot fixes what the following checks see. It takes no transaction id: a relay's floor moves on meanwhile.
func (s *session) snapshot(ctx context.Context) error {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("open a snapshot: %w", err)
	}
	s.tx = tx
	return nil
}

// close gives the connection back without the temporary table.
func (s *session) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if s.tx != nil {
		_ = s.tx.Rollback(ctx) // a connection that fails here is dropped by the pool
	}
	// Where this fails the session is broken, and the server drops the table with it.
	_, _ = s.conn.Exec(ctx, dropCopySQL+"; "+impatientSQL)
	s.conn.Release()
}

const closeTimeout = 10 * time.Second

// A check is one statement that returns how much it looked at, how much of it is broken, and the first offender.
type check struct {
	promise string // the contract's number
	title   string
	sql     string
	args    []any
}

// run runs the checks over the snapshot.
func (s *session) run(ctx context.Context, checks []check) ([]Check, error) {
	results := make([]Check, 0, len(checks))
	for _, c := range checks {
		r := Check{Promise: c.promise, Title: c.title, Result: Kept}
		var first *string
		err := s.tx.QueryRow(ctx, s.names.SQL(c.sql), c.args...).Scan(&r.Looked, &r.Broken, &first)
		if err != nil {
			return nil, fmt.Errorf("check that %s: %w", c.title, err)
		}
		if r.Broken > 0 {
			r.Result = Broken
		}
		if first != nil {
			r.First = *first
		}
		results = append(results, r)
	}
	return results, nil
}

// notChecked reports checks that could not be made, and why.
func notChecked(checks []check, why string) []Check {
	results := make([]Check, 0, len(checks))
	for _, c := range checks {
		results = append(results, Check{Promise: c.promise, Title: c.title, Result: NotChecked, Note: why})
	}
	return results
}
