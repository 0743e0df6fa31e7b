package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// TestMain removes the commands that some test has built.
func TestMain(m *testing.M) {
	code := m.Run()
	commands.remove()
	os.Exit(code)
}

// commands are the workers' binaries, built by the first test that asks.
var commands built

type built struct {
	once sync.Once
	dir  string
	err  error
}

// in returns the folder that the binaries are in.
func (b *built) in(t *testing.T) string {
	t.Helper()
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "postrider-commands-"); b.err != nil { //nolint:usetesting // of all tests
			return
		}
		all := context.WithoutCancel(t.Context()) // not this test's alone
		cmd := exec.CommandContext(all, "go", "build", "-o", b.dir+"/", "./cmd/relay", "./cmd/consumer")
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if b.err != nil {
		t.Fatalf("building the commands: %v", b.err)
	}
	return b.dir
}

func (b *built) remove() {
	if b.dir != "" {
		_ = os.RemoveAll(b.dir) // a temporary folder
	}
}

const (
	// ackWait is when the broker gives what a dead consumer held to another.
	ackWait = 3 * time.Second
	// leaseDuration is close to the shortest that a relay takes: what a dead relay held is free after it.
	leaseDuration = 6 * time.Second
	accounts      = 24
	// duplicateWindow is as short as a stream takes it.
	duplicateWindow = 100 * time.Millisecond
)

// bank is a shop whose books must balance: each committed sale of the source is one message, whose effect is one
// entry of the target's ledger. The oracle counts neither messages nor metrics of ours: it compares the sums of the
// two databases by account, and reads the tables and the stream as `postrider verify` does.
type bank struct {
	*shop
	js  jetstream.JetStream
	log *slog.Logger
	way way
}

// way is a broker between a relay and a consumer, as the oracle sees it.
type way struct {
	// look says where what was published is found.
	look func(*verify.Relay, *verify.Consumer)
	// done says whether everything is acknowledged.
	done func() bool
	// partly says that the broker does not show all that verify looks at.
	partly bool
}

// bankOptions say where a bank is. What is left out is on the servers that the tests share.
type bankOptions struct {
	orders, billing []testkit.PostgresOption
	broker          *testkit.Broker
}

func newBank(t *testing.T, o bankOptions) *bank {
	t.Helper()
	if o.broker == nil {
		o.broker = testkit.NATS(t)
	}
	b := &bank{
		shop: &shop{t: t, broker: o.broker},
		log:  slog.New(slog.NewTextHandler(testkit.NewLog(t), &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	b.js = b.broker.JetStream(nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	b.orders = newPlace(t, schema.Outbox, schema.RoleRelay, o.orders...)
	b.orders.Exec("CREATE TABLE sale (account text NOT NULL, amount bigint NOT NULL)")
	b.billing = newPlace(t, schema.Inbox, schema.RoleConsumer, o.billing...)
	b.billing.Exec(`CREATE TABLE ledger (entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id text NOT NULL,
		account text NOT NULL, version bigint NOT NULL, amount bigint NOT NULL)`)
	b.billing.Exec("GRANT INSERT ON ledger TO " + pgx.Identifier{b.billing.user}.Sanitize())
	// The server forgets ids at once: what is sent twice is in the stream twice, as after a longer outage.
	b.stream, b.way = b.broker.Stream(jetstream.StreamConfig{Duplicates: duplicateWindow}), b.overNATS()
	var err error
	if b.writer, err = outbox.New(outbox.Config{Source: "bank", Schema: b.orders.Schema}); err != nil {
		t.Fatal(err)
	}
	b.relay = b.relayConfig()
	b.relay.Lease = config.Duration(leaseDuration)
	b.relay.Batch.PublishTimeout = config.Duration(leaseDuration - config.LeaseMargin - 100*time.Millisecond)
	b.consumer = b.consumerConfig()
	b.consumer.SQL.Routes = []config.SQLRoute{{
		EventTypes: []string{"sale.*"},
		Statement: "INSERT INTO " + pgx.Identifier{b.billing.Schema, "ledger"}.Sanitize() + `
			(event_id, account, version, amount)
			VALUES (@event_id, @ordering_key, @aggregate_version, (@data->>'amount')::bigint)`,
	}}
	_, err = b.js.CreateConsumer(t.Context(), b.stream.Name, jetstream.ConsumerConfig{
		Durable: b.consumer.NATS.Durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
	})
	if err != nil {
		t.Fatalf("making the durable: %v", err)
	}
	return b
}

// sale is what one transaction of the bank writes.
type sale struct {
	account string
	amount  int64
	// destination is another than the relay's default; padding makes the message larger by so many bytes.
	destination string
	padding     int
}

// message is how a sale is told to others.
func (s sale) message() outbox.Message {
	return outbox.Message{
		Type: "sale.made", OrderingKey: s.account, Destination: s.destination,
		Payload: fmt.Appendf(nil, `{"amount": %d, "card": %q, "padding": %q}`,
			s.amount, payloadCanary, strings.Repeat("x", s.padding)),
	}
}

// commit writes sales and their messages in one transaction, and takes them back where roll says so.
func (b *bank) commit(ctx context.Context, roll bool, sales ...sale) error {
	tx, err := b.orders.Pool().Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit it does nothing
	messages := make([]outbox.Message, len(sales))
	for i, s := range sales {
		if _, err := tx.Exec(
			ctx,
			"INSERT INTO sale (account, amount) VALUES ($1, $2)",
			s.account,
			s.amount,
		); err != nil {
			return err
		}
		messages[i] = s.message()
	}
	if _, err := b.writer.Write(ctx, tx, messages...); err != nil {
		return err
	}
	if roll {
		return nil
	}
	return tx.Commit(ctx)
}

// sell commits each sale in a transaction of its own.
func (b *bank) sell(sales ...sale) {
	b.t.Helper()
	for _, s := range sales {
		if err := b.commit(b.t.Context(), false, s); err != nil {
			b.t.Fatalf("selling: %v", err)
		}
	}
}

// trade lets some writers make sales at the same time, on accounts that they share. Every seventh transaction is
// rolled back. While a server is down a writer tries again, as an application does.
func (b *bank) trade(writers, transactions int) {
	b.t.Helper()
	if err := <-b.trading(writers, transactions); err != nil {
		b.t.Fatalf("trading: %v", err)
	}
}

// trading does so beside the test.
func (b *bank) trading(writers, transactions int) <-chan error {
	ended := make(chan error, 1)
	group, ctx := errgroup.WithContext(b.t.Context())
	for w := range writers {
		group.Go(func() error { return b.tradeAlone(ctx, w, transactions) })
	}
	go func() { ended <- group.Wait() }()
	return ended
}

func (b *bank) tradeAlone(ctx context.Context, writer, transactions int) error {
	random := rand.New(rand.NewPCG(7, uint64(writer)))
	for n := range transactions {
		sales := make([]sale, 1+random.IntN(3))
		for i := range sales {
			sales[i] = sale{account: fmt.Sprintf("account-%d", random.IntN(accounts)), amount: 1 + random.Int64N(1000)}
		}
		for {
			err := b.commit(ctx, n%7 == 6, sales...)
			if err == nil {
				break
			}
			if pause(ctx) != nil {
				return errors.Join(err, ctx.Err())
			}
		}
	}
	return nil
}

// pause is a moment between two tries.
func pause(ctx context.Context) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// entries counts the ledger; published the archive; stored the messages in the stream.
func (b *bank) entries() int {
	b.t.Helper()
	return testkit.Value[int](b.billing.DB, "SELECT count(*) FROM ledger")
}

func (b *bank) published() int {
	b.t.Helper()
	return testkit.Value[int](b.orders.DB, "SELECT count(*) FROM message_outbox_published")
}

func (b *bank) stored() int {
	b.t.Helper()
	stream, err := b.js.Stream(b.t.Context(), b.stream.Name)
	if err != nil {
		b.t.Fatalf("looking at the stream: %v", err)
	}
	return int(stream.CachedInfo().State.Msgs)
}

// forgotten waits until the server has forgotten the ids of all messages, as after a longer outage: it would not store
// another copy before.
func (b *bank) forgotten() {
	b.t.Helper()
	testkit.Eventually(b.t, patience, "the server has forgotten the ids of its messages", func() bool {
		stream, err := b.js.Stream(b.t.Context(), b.stream.Name)
		return err == nil && time.Since(stream.CachedInfo().State.LastTime) > 3*duplicateWindow
	})
}

// durable tells how far the consumer on the stream is.
func (b *bank) durable() *jetstream.ConsumerInfo {
	b.t.Helper()
	c, err := b.js.Consumer(b.t.Context(), b.stream.Name, b.consumer.NATS.Durable)
	if err != nil {
		b.t.Fatalf("looking at the durable: %v", err)
	}
	return c.CachedInfo()
}

// total is what one account has had: how many sales, of what sum.
type total struct{ Count, Sum int64 }

// balanced waits until every committed sale has its entry, and then asks the oracle.
func (b *bank) balanced() verify.Report {
	b.t.Helper()
	sales := testkit.Value[int](b.orders.DB, "SELECT count(*) FROM sale")
	testkit.Eventually(b.t, 2*patience, fmt.Sprintf("%d sales are in the ledger", sales), func() bool {
		return b.entries() >= sales
	})
	testkit.Eventually(b.t, patience, "the outbox is empty", func() bool {
		return testkit.Value[int](b.orders.DB, "SELECT count(*) FROM message_outbox") == 0
	})
	testkit.Eventually(b.t, patience, "everything is acknowledged", b.way.done)
	return b.verified()
}

// overNATS is the way over the bank's own stream.
func (b *bank) overNATS() way {
	return way{
		look: func(r *verify.Relay, c *verify.Consumer) {
			r.Stream = verify.Stream{JS: b.js, Name: b.stream.Name}
			c.Stream, c.Durable = r.Stream, b.consumer.NATS.Durable
		},
		done: func() bool {
			info := b.durable()
			return info.NumPending == 0 && info.NumAckPending == 0
		},
	}
}

// verified asks the oracle now: the sums of both databases, and what `postrider verify` looks at.
func (b *bank) verified() verify.Report {
	b.t.Helper()
	if diff := cmp.Diff(b.totals(b.orders, "sale"), b.totals(b.billing, "ledger")); diff != "" {
		b.t.Errorf("the ledger does not balance (-sales +ledger):\n%s", diff)
	}
	relay := verify.Relay{
		Name: "relay " + b.relay.Resource.String(), Pool: b.orders.Pool(),
		Tables: postgres.Names{Schema: b.orders.Schema, Outbox: b.relay.Outbox.Table},
	}
	consumer := verify.Consumer{
		Name: "consumer " + b.consumer.Resource.String(), Pool: b.billing.Pool(), Schema: b.billing.Schema,
		ConsumerName: b.consumer.ConsumerName,
		Effects: []verify.Effects{{
			Table: b.billing.Schema + ".ledger", Key: "account", Version: "version", Order: "entry", Complete: true,
		}},
	}
	b.way.look(&relay, &consumer)
	report, err := verify.Run(b.t.Context(), verify.Input{
		Relays: []verify.Relay{relay}, Consumers: []verify.Consumer{consumer},
	})
	if err != nil {
		b.t.Fatalf("verifying: %v", err)
	}
	var text strings.Builder
	if err := report.Print(&text); err != nil {
		b.t.Fatal(err)
	}
	for _, s := range report.Sections {
		for _, c := range s.Checks {
			if c.Result != verify.Kept && (!b.way.partly || c.Result != verify.NotChecked) {
				b.t.Errorf("%s %s: %s %s%s", c.Promise, c.Title, c.Result, c.First, c.Note)
			}
		}
	}
	if b.t.Failed() {
		b.t.Logf("verify printed:\n%s", &text)
	}
	return report
}

func (b *bank) totals(p *place, table string) map[string]total {
	b.t.Helper()
	rows, err := p.Pool().Query(b.t.Context(),
		"SELECT account, count(*), sum(amount)::bigint FROM "+pgx.Identifier{table}.Sanitize()+" GROUP BY account")
	if err != nil {
		b.t.Fatalf("adding up %s: %v", table, err)
	}
	sums := make(map[string]total)
	var account string
	var sum total
	if _, err := pgx.ForEachRow(rows, []any{&account, &sum.Count, &sum.Sum}, func() error {
		sums[account] = sum
		return nil
	}); err != nil {
		b.t.Fatalf("adding up %s: %v", table, err)
	}
	return sums
}

// worker is a relay or consumer within the test's process, as `postrider up` runs it.
type worker struct {
	// Kill cuts it off: nothing is settled, released or acknowledged any more.
	Kill func()
	// Report is what it says of itself.
	Report func(context.Context) statusz.Report

	t      *testing.T
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

func (b *bank) startRelay(cfg config.Relay) *worker {
	b.t.Helper()
	r, err := pipeline.NewRelay(cfg, pipeline.Options{Log: b.log.With("worker", "relay"), AllowLoopback: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return startWorker(b.t, r.Run, &worker{Kill: r.Kill, Report: r.Report})
}

func (b *bank) startConsumer(cfg config.Consumer) *worker {
	b.t.Helper()
	c, err := pipeline.NewConsumer(cfg, pipeline.Options{Log: b.log.With("worker", "consumer"), AllowLoopback: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return startWorker(b.t, c.Run, &worker{Kill: c.Kill, Report: c.Report})
}

func startWorker(t *testing.T, run func(context.Context) error, w *worker) *worker {
	t.Helper()
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	w.t, w.ended = t, make(chan struct{})
	go func() {
		defer close(w.ended)
		w.err = run(ctx)
	}()
	t.Cleanup(func() { w.drain() })
	return w
}

// drain lets it finish and release.
func (w *worker) drain() {
	w.cancel()
	select {
	case <-w.ended:
	case <-time.After(patience):
		w.t.Error("a worker does not drain")
	}
}
