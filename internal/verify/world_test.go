package verify_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/testkit"
)

const (
	source       = "shop"
	consumerName = "billing"
	durable      = "billing"
)

// world is a shop whose messages went all the way: an outbox, a stream, an inbox and the handler's ledger. A test
// breaks one thing in it.
type world struct {
	t       *testing.T
	outbox  *testkit.DB
	inbox   *testkit.DB
	names   postgres.Names
	js      jetstream.JetStream
	stream  testkit.Stream
	durable jetstream.Consumer
	grace   time.Duration
	effects []verify.Effects
	// retention is the inbox's memory; accept says that the durable begins where it does on purpose.
	retention time.Duration
	accept    bool
}

// newWorld makes an empty one on a real PostgreSQL and a real JetStream.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, outbox: testkit.Postgres(t), inbox: testkit.Postgres(t)}
	w.names = postgres.Names{Schema: w.outbox.Schema, Outbox: "message_outbox"}
	apply := func(db *testkit.DB, names postgres.Names, component schema.Component) {
		options := schema.Options{Components: []schema.Component{component}}
		if err := schema.Apply(t.Context(), db.Pool(), names, options); err != nil {
			t.Fatal(err)
		}
	}
	apply(w.outbox, w.names, schema.Outbox)
	apply(w.inbox, postgres.Names{Schema: w.inbox.Schema}, schema.Inbox)
	w.outbox.Exec(`UPDATE message_outbox_owner SET source = $1`, source)
	w.inbox.Exec(`CREATE TABLE ledger (entry bigint PRIMARY KEY, order_id text, version bigint)`)
	broker := testkit.NATS(t)
	w.js, w.stream = broker.JetStream(), broker.Stream(jetstream.StreamConfig{})
	w.effects = []verify.Effects{
		{Table: "ledger", Key: "order_id", Version: "version", Order: "entry", Complete: true},
	}
	return w
}

// subscribe makes the durable, which begins where a test says or at the stream's first message.
func (w *world) subscribe(begin ...func(*jetstream.ConsumerConfig)) {
	w.t.Helper()
	cfg := jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: []string{w.stream.Prefix + ".orders"},
	}
	for _, b := range begin {
		b(&cfg)
	}
	var err error
	w.durable, err = w.js.CreateConsumer(w.t.Context(), w.stream.Name, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
}

// atBroker is the world's stream as it is at the broker.
func (w *world) atBroker() jetstream.Stream {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), w.stream.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	return stream
}

// event is the message of a key's version, with an id that tells both.
func event(key, version int) message.Message {
	m := message.Message{
		Type: "order.changed", SchemaVersion: 1, Source: source, OrderingKey: fmt.Sprintf("order-%d", key),
		AggregateVersion: int64(version), ContentType: "application/json",
		Payload: fmt.Appendf(nil, `{"version":%d}`, version), OccurredAt: time.Unix(1_800_000_000, 0),
	}
	m.ID = message.ID{14: byte(key), 15: byte(version)}
	return m
}

// publish stores the message's record and returns its sequence.
func (w *world) publish(m message.Message) uint64 {
	w.t.Helper()
	record, err := message.Encode(&m)
	if err != nil {
		w.t.Fatal(err)
	}
	msg := &nats.Msg{Subject: w.stream.Subject("orders"), Data: record.Body, Header: nats.Header{}}
	for _, h := range record.Headers {
		msg.Header[h.Name] = append(msg.Header[h.Name], h.Value)
	}
	return w.store(msg)
}

func (w *world) store(msg *nats.Msg) uint64 {
	w.t.Helper()
	ack, err := w.js.PublishMsg(w.t.Context(), msg)
	if err != nil {
		w.t.Fatal(err)
	}
	return ack.Sequence
}

func (w *world) position(sequence uint64) string {
	return fmt.Sprintf("%s@%d", w.stream.Name, sequence)
}

// archive writes the row of a settled message.
func (w *world) archive(m message.Message, sequence uint64) {
	w.t.Helper()
	w.outbox.Exec(
		`INSERT INTO message_outbox_published (position, shard, event_id, event_type, schema_version, source,
		ordering_key, aggregate_version, destination, content_type, payload, occurred_at, created_at, attempts, unknowns,
		broker_position, slot)
		VALUES ($1, 0, $2, $3, 1, $4, $5, $6, $7, $8, $9, now(), now(), 0, 0, $10, 0)`,
		int64(
			sequence,
		),
		m.ID.String(),
		m.Type,
		m.Source,
		m.OrderingKey,
		m.AggregateVersion,
		m.Destination,
		m.ContentType,
		m.Payload,
		w.position(sequence),
	)
}

// pending writes a row that waits in the outbox since the given age.
func (w *world) pending(m message.Message, held bool, age time.Duration) {
	w.t.Helper()
	w.outbox.Exec(`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload,
		occurred_at, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, now(), clock_timestamp() - make_interval(secs => $7))`,
		m.ID.String(), m.Type, m.Source, m.OrderingKey, m.AggregateVersion, m.Payload, age.Seconds())
	w.outbox.Exec(`UPDATE message_outbox SET held = $1 WHERE event_id = $2`, held, m.ID.String())
}

// gate writes the gate of a key, which must have a row in the outbox that tells its shard.
func (w *world) gate(m message.Message, state string, due any) {
	w.t.Helper()
	w.outbox.Exec(`INSERT INTO message_outbox_gate (shard, ordering_key, state, due)
		SELECT shard, ordering_key, $2, $3 FROM message_outbox WHERE event_id = $1`, m.ID.String(), state, due)
}

// failure writes an open dead letter.
func (w *world) failure(db *testkit.DB, origin string, m message.Message, sourcePosition string) {
	w.t.Helper()
	db.Exec(`INSERT INTO message_failure (origin, origin_name, source, event_id, event_type, ordering_key, destination,
		source_position, payload_digest, reason, attempts, first_failed_at, last_failed_at)
		VALUES ($1, $7, $2, $3, $4, $5, '', $6, '', 'x', 1, now(), now())`,
		origin, m.Source, m.ID.String(), m.Type, m.OrderingKey, sourcePosition, consumerName)
}

// remember writes the inbox row of a message: A applied, S skipped, P parked, D dead-lettered.
func (w *world) remember(m message.Message, outcome string) {
	w.t.Helper()
	digest := message.Digest(m.Type, m.OrderingKey, m.Payload)
	w.inbox.Exec(`INSERT INTO message_inbox (consumer_name, source, event_id, payload_digest, outcome)
		VALUES ($1, $2, $3, $4, $5)`, consumerName, m.Source, m.ID.String(), digest[:], outcome)
}

// effect writes the handler's row of a message.
func (w *world) effect(m message.Message) {
	w.t.Helper()
	w.inbox.Exec(`INSERT INTO ledger SELECT count(*), $1, $2 FROM ledger`, m.OrderingKey, m.AggregateVersion)
}

// keyHash stands for the hash of a message's key.
func keyHash(m message.Message) string {
	return "00000000-0000-0000-0000-0000000000" + fmt.Sprintf("%02x", m.ID[14])
}

// park writes a parked message and its key.
func (w *world) park(m message.Message, state string, due any) {
	w.t.Helper()
	w.inbox.Exec(`INSERT INTO message_inbox_key (key_hash, consumer_name, state, due_at) VALUES ($1, $2, $3, $4)`,
		keyHash(m), consumerName, state, due)
	w.parkedRow(m, keyHash(m), nil)
}

func (w *world) parkedRow(m message.Message, hash, due any) {
	w.t.Helper()
	w.inbox.Exec(
		`INSERT INTO message_parked (consumer_name, source, event_id, event_type, key_hash, stream, ordering_key,
		aggregate_version, raw_body, raw_headers, payload_digest, source_position, due_at)
		VALUES ($1, $2, $3, $4, $5, '', $6, $7, '', '', '', '', $8)`,
		consumerName,
		m.Source,
		m.ID.String(),
		m.Type,
		hash,
		m.OrderingKey,
		m.AggregateVersion,
		due,
	)
}

// through takes a message all the way.
func (w *world) through(m message.Message) {
	w.t.Helper()
	w.archive(m, w.publish(m))
	w.remember(m, "A")
	w.effect(m)
}

// acknowledge lets the durable consumer acknowledge the next n messages of the stream.
func (w *world) acknowledge(n int) {
	w.t.Helper()
	batch, err := w.durable.Fetch(n, jetstream.FetchMaxWait(10*time.Second))
	if err != nil {
		w.t.Fatal(err)
	}
	acked := 0
	for msg := range batch.Messages() {
		if err := msg.DoubleAck(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		acked++
	}
	if err := batch.Error(); err != nil || acked != n {
		w.t.Fatalf("acknowledged %d of %d messages: %v", acked, n, err)
	}
}

// input is everything there is to check.
func (w *world) input() verify.Input {
	stream := verify.Stream{JS: w.js, Name: w.stream.Name}
	return verify.Input{
		Grace: w.grace,
		Relays: []verify.Relay{
			{Name: "relay shop/orders", Pool: w.outbox.Pool(), Tables: w.names, Stream: stream},
		},
		Consumers: []verify.Consumer{{
			Name: "consumer shop/billing", Pool: w.inbox.Pool(), Schema: w.inbox.Schema, ConsumerName: consumerName,
			Stream: stream, Durable: durable, Effects: w.effects, Retention: w.retention, AcceptStart: w.accept,
		}},
	}
}

// verify runs all checks.
func (w *world) verify() verify.Report {
	w.t.Helper()
	report, err := verify.Run(w.t.Context(), w.input())
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

// withoutTemporaryTables connects as a role that has no right to make any.
func withoutTemporaryTables(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	role := pgx.Identifier{db.Database}.Sanitize() // the database's name is unique on the server
	db.Exec("REVOKE TEMPORARY ON DATABASE " + role + " FROM PUBLIC")
	db.Exec("CREATE ROLE " + role)
	t.Cleanup(func() {
		if _, err := db.Pool().Exec(context.Background(), "DROP ROLE "+role); err != nil {
			t.Errorf("dropping the role: %v", err)
		}
	})
	cfg := db.Pool().Config()
	cfg.ConnConfig.RuntimeParams["role"] = db.Database
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
