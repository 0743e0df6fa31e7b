package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/brokers" //nolint:depguard // the tests' servers are measured
)

const (
	debeziumDatabase = "debezium"
	debeziumSlot     = "debezium"
	// perTransaction is how many rows a writer commits at once.
	perTransaction = 20

	connectPatience = 2 * time.Minute // on a busy machine
	connectPoll     = 50 * time.Millisecond

	debeziumTableSQL = `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
		aggregateid text NOT NULL, type text NOT NULL, payload text NOT NULL)`
	debeziumInsertSQL = `INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
		SELECT 'order', row.key, 'order.paid', row.payload
		FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS row (key, payload, number) ORDER BY row.number`
)

// debezium is Debezium's outbox event router on Kafka Connect as a racer. Its process runs all the time, so that it is warm;
// its connector runs while it races.
type debezium struct {
	connector
	connect  *brokers.Connect
	postgres *local.Postgres
}

// openDebezium starts the connector once, which makes its slot and notes where it is: from there it goes on each time.
func openDebezium(ctx context.Context, g ground) (rival bench.Rival, end func(context.Context) error, err error) {
	connect, err := brokers.StartConnect(ctx, g.broker)
	if err != nil {
		return rival, nil, err
	}
	d := debezium{newConnector(connect.URL()), connect, g.postgres}
	rival = bench.Rival{
		Racer: d, Name: "debezium", WarmUps: debeziumWarmUps, Rate: debeziumRate, Memory: debeziumMemory,
		What: "Debezium " + brokers.DebeziumVersion + " on Kafka Connect, its outbox event router, warm",
	}
	return rival, connect.Stop, d.prepare(ctx, g.topic)
}

func (d debezium) prepare(ctx context.Context, topic bench.Topic) error {
	if err := renew(ctx, d.postgres, debeziumDatabase); err != nil {
		return err
	}
	if err := execute(ctx, d.postgres, debeziumDatabase, debeziumTableSQL); err != nil {
		return err
	}
	if err := topic.Empty(ctx); err != nil {
		return err
	}
	if err := d.ask(ctx, http.MethodPut, "/config", d.config(), nil); err != nil {
		return err
	}
	if err := d.until(ctx, "the connector reads its slot", d.reads); err != nil {
		return err
	}
	if err := d.Fill(ctx, bench.Rows{Count: 1, Keys: 1, PayloadBytes: 100}); err != nil {
		return err
	}
	if err := d.until(ctx, "the first row arrives", func(ctx context.Context) (bool, error) {
		n, err := topic.Count(ctx)
		return n > 0, err
	}); err != nil {
		return err
	}
	return d.Stop(ctx)
}

// config is what Debezium's documentation asks for, with the larger batches that it advises for throughput.
func (d debezium) config() map[string]string {
	return map[string]string{
		"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1",
		"database.hostname": d.postgres.Host(), "database.port": strconv.Itoa(d.postgres.Port()),
		"database.user": d.postgres.User(), "database.password": d.postgres.Password(),
		"database.dbname": debeziumDatabase, "topic.prefix": "bench",
		"plugin.name": "pgoutput", "slot.name": debeziumSlot, "publication.autocreate.mode": "filtered",
		"table.include.list": "public.outbox", "snapshot.mode": "no_data",
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.route.topic.replacement": topic,
		"max.batch.size": "8192", "max.queue.size": "32768", "poll.interval.ms": "10",
		"producer.override.linger.ms": "5", "producer.override.batch.size": "262144",
	}
}

// Fill implements bench.Racer.
func (d debezium) Fill(ctx context.Context, rows bench.Rows) error {
	if err := execute(ctx, d.postgres, debeziumDatabase, "TRUNCATE outbox"); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, d.postgres.URL(debeziumDatabase)+"&synchronous_commit=off")
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the rows count
	var keys, payloads []string
	write := func() error {
		if _, err := conn.Exec(ctx, debeziumInsertSQL, keys, payloads); err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
		keys, payloads = keys[:0], payloads[:0]
		return nil
	}
	for key, payload := range rows.All() {
		keys, payloads = append(keys, key), append(payloads, payload)
		if len(keys) == perTransaction {
			if err := write(); err != nil {
				return err
			}
		}
	}
	return errors.Join(write(), settle(ctx, d.postgres, debeziumDatabase))
}

// Start implements bench.Racer.
func (d debezium) Start(ctx context.Context) (bench.Drainer, error) {
	return d, d.ask(ctx, http.MethodPut, "/resume", nil, nil)
}

// Stop implements bench.Drainer. The slot has to be free: else the stream would go on.
func (d debezium) Stop(ctx context.Context) error {
	broken := d.broken(ctx)
	if err := d.ask(ctx, http.MethodPut, "/stop", nil, nil); err != nil {
		return errors.Join(broken, err)
	}
	return errors.Join(
		broken,
		d.until(ctx, "the connector lets go of its slot", func(ctx context.Context) (bool, error) {
			reads, err := d.reads(ctx)
			return !reads, err
		}),
	)
}

// PeakMemory implements bench.Drainer.
func (d debezium) PeakMemory() (float64, error) { return bench.PeakMemory(d.connect.Process()) }

// Lost implements bench.Drainer.
func (d debezium) Lost() <-chan struct{} { return d.connect.Lost() }

// Err implements bench.Drainer.
func (d debezium) Err() error { return d.connect.Err() }

// reads says whether the connector reads from its slot.
func (d debezium) reads(ctx context.Context) (active bool, err error) {
	conn, err := pgx.Connect(ctx, d.postgres.URL(debeziumDatabase))
	if err != nil {
		return false, fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read
	const activeSQL = `SELECT count(*) > 0 FROM pg_replication_slots WHERE slot_name = $1 AND active`
	if err := conn.QueryRow(ctx, activeSQL, debeziumSlot).Scan(&active); err != nil {
		return false, fmt.Errorf("look at the slot: %w", err)
	}
	return active, nil
}

// until waits for what the connector does by itself, and gives up when its task has failed.
func (d debezium) until(ctx context.Context, what string, so func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, connectPatience, errors.New("it took too long"))
	defer cancel()
	tick := time.NewTicker(connectPoll)
	defer tick.Stop()
	for {
		if ok, err := so(ctx); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-d.connect.Lost():
			return fmt.Errorf("wait until %s: %w", what, d.connect.Err())
		case <-ctx.Done():
			return errors.Join(
				fmt.Errorf("wait until %s: %w", what, context.Cause(ctx)),
				d.broken(context.WithoutCancel(ctx)),
			)
		}
	}
}
