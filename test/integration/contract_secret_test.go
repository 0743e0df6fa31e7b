package integration

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/telemetry"
	"github.com/postrider/postrider/internal/up"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

// What is printed when all is well is looked at elsewhere. Here everything goes wrong of which a library likes to tell
// with the bytes at hand: a value that does not convert, a row that breaks a constraint, a message that nobody can
// decode, one that is refused, connections that end, a password that is wrong.
func TestG12WorkersInTroublePrintNoCredentialAndNoPayload(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	b.billing.Exec("ALTER TABLE ledger ADD card text, ADD CONSTRAINT small CHECK (amount < 1000)")
	b.consumer.SQL.Routes[0].Statement = strings.NewReplacer("amount)", "amount, card)", "::bigint)", "::bigint, @data->>'card')").
		Replace(b.consumer.SQL.Routes[0].Statement)
	toOrders, toBilling := testkit.Proxy(t, b.orders.Addr()), testkit.Proxy(t, b.billing.Addr())
	b.billing.credentials(b.billing.user, passwordCanary+"-wrong")
	bin := commands.in(t)
	relay := launch(t, bin, "relay", b.relayBehind(toOrders, nil))
	consumer := launch(t, bin, "consumer", b.consumerBehind(toBilling, nil))
	consumer.becomes("DatabaseReachable", "False AuthFailed")
	b.billing.credentials(b.billing.user, b.billing.password)

	b.sell(
		sale{account: "good", amount: 1},
		sale{account: "constraint", amount: 5000},                       // DETAIL tells the row
		sale{account: "refused", amount: 2, destination: "not.allowed"}, // the relay's
	)
	b.publishRecord("conversion", `{"amount": "`+payloadCanary+`"}`) // the error's text tells the value
	b.publishRecord("syntax", `{"amount": `+payloadCanary)
	testkit.Eventually(t, patience, "what is good is applied", func() bool { return b.entries() == 1 })
	testkit.Eventually(t, patience, "what is bad is parked or a dead letter", func() bool {
		return testkit.Value[int](b.billing.DB, `SELECT (SELECT count(*) FROM message_parked WHERE attempts > 1)
			+ (SELECT count(*) FROM message_failure)`) == 3
	})
	for _, p := range []*testkit.Faulty{toOrders, toBilling} {
		p.Reset()
		p.Cut()
	}
	consumer.becomes("DatabaseReachable", "False Unreachable")
	relay.becomes("DatabaseReachable", "False Unreachable")
	for _, p := range []*process{relay, consumer} {
		for _, path := range []string{"/metrics", "/statusz", "/readyz", "/livez"} {
			_, body := p.get(path)
			silent(t, path+" of the "+p.name, body)
		}
		silent(t, "what the "+p.name+" printed", p.output())
	}
	for _, seen := range testkit.Values[string](b.billing.DB, `SELECT concat_ws(' ', reason, error_code, error_detail)
		FROM message_failure UNION ALL SELECT error_code FROM message_parked`) {
		silent(t, "the reason of a failure", seen)
	}
	silent(t, "the error code of a refused row", fmt.Sprint(
		testkit.Values[*string](b.orders.DB, "SELECT last_error_code FROM message_outbox")))
}

// publishRecord publishes a record as another producer makes it.
func (b *bank) publishRecord(account, body string) {
	b.t.Helper()
	msg := &nats.Msg{Subject: b.relay.NATS.Subject, Data: []byte(body), Header: nats.Header{
		message.HeaderEventID:   {uuid.NewString()},
		message.HeaderEventType: {"sale.made"}, message.HeaderSchemaVersion: {"1"}, message.HeaderSource: {"bank"},
		message.HeaderOrderingKey: {account}, message.HeaderAggregateVersion: {"1"},
		message.HeaderContentType: {"application/json"}, message.HeaderOccurredAt: {"2026-01-02T03:04:05Z"},
	}}
	if _, err := b.js.PublishMsg(b.t.Context(), msg); err != nil {
		b.t.Fatalf("publishing: %v", err)
	}
}

// screen is what `postrider up` prints.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// The samples with other passwords, a message that is applied and one that cannot be.
func TestG12UpPrintsNoCredentialAndNoPayload(t *testing.T) {
	t.Parallel()
	resources, data := t.TempDir(), testkit.SharedDir(t)
	copySamples(t, resources)
	schemas, err := manifest.LoadSchemas()
	if err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Load(t.Context(), schemas, manifest.Options{}, resources)
	if err != nil {
		t.Fatal(err)
	}
	var printed, logged screen
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- up.Run(ctx, up.Config{
			Set: set, Data: data, Out: &printed, Log: telemetry.NewLogger(&logged, slog.LevelDebug),
			Init: []up.InitSQL{
				{Database: "orders", File: "../../internal/shop/orders.sql"},
				{Database: "billing", File: "../../internal/shop/billing.sql"},
			},
		})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
		silent(t, "what up printed", printed.String())
		silent(t, "what up logged", logged.String())
		if !strings.Contains(printed.String(), "billing") {
			t.Errorf("up printed nothing of its consumer: %q", printed.String())
		}
	}()

	var endpoints up.Endpoints
	testkit.Eventually(t, 2*patience, "the embedded servers are there", func() bool {
		var err error
		endpoints, err = up.ReadEndpoints(data)
		return err == nil
	})
	orders, billing := connect(t, endpoints, "orders"), connect(t, endpoints, "billing")
	writer, err := outbox.New(outbox.Config{Source: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, "the outbox is there", func() bool {
		return pgx.BeginFunc(t.Context(), orders, func(tx pgx.Tx) error {
			_, err := writer.Write(t.Context(), tx,
				outbox.Message{
					Type: "order.paid", OrderingKey: "good",
					Payload: []byte(`{"amount": 1, "state": "paid", "card": "` + payloadCanary + `"}`),
				},
				outbox.Message{
					Type: "order.paid", OrderingKey: "bad",
					Payload: []byte(`{"amount": "` + payloadCanary + `", "state": "paid"}`),
				})
			return err
		}) == nil
	})
	testkit.Eventually(t, patience, "one is applied and the other parked", func() bool {
		var both bool
		err := billing.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ledger WHERE order_id = 'good') = 1
			AND (SELECT count(*) FROM message_parked) + (SELECT count(*) FROM message_failure) = 1`).Scan(&both)
		return err == nil && both
	})
}

// copySamples copies the samples with passwords that are canaries.
func copySamples(t *testing.T, to string) {
	t.Helper()
	const from = "../../config/samples"
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			continue // as for kubectl
		}
		content, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.ReplaceAll(content, []byte("password: sample"), []byte("password: "+passwordCanary))
		if err := os.WriteFile(filepath.Join(to, e.Name()), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// connect opens a database of `postrider up` as its owner.
func connect(t *testing.T, e up.Endpoints, database string) *pgx.Conn {
	t.Helper()
	host, port, err := net.SplitHostPort(e.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	u := url.URL{
		Scheme: "postgres", Host: net.JoinHostPort(host, port), Path: database, RawQuery: "sslmode=disable",
		User: url.UserPassword(database+"_owner", passwordCanary+"-"+database+"-owner"),
	}
	conn, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatalf("connecting to %s: %v", database, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
