package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/testkit"
)

// shopYAML names the real servers of a test: PostgreSQL's host, port, database and schema, NATS's address and the stream.
const shopYAML = `
apiVersion: postrider.dev/v1alpha1
kind: OutboxRelay
metadata: {name: orders, namespace: shop}
spec:
  source:
    postgres:
      hosts: ["%[1]s"]
      port: %[2]s
      database: %[3]s
      schema: %[4]s
      credentialsSecretRef: {name: database}
      tls: {mode: Insecure}
  outbox: {schemaPolicy: Verify}
  destination:
    nats: {servers: ["%[5]s"], stream: %[6]s, subject: %[7]s, tls: {mode: Insecure}}
---
apiVersion: postrider.dev/v1alpha1
kind: InboxConsumer
metadata: {name: billing, namespace: shop}
spec:
  consumerName: shop/billing
  source:
    nats: {servers: ["%[5]s"], stream: %[6]s, filterSubjects: [%[7]s], tls: {mode: Insecure}}
  inbox:
    postgres:
      hosts: ["%[1]s"]
      port: %[2]s
      database: %[3]s
      schema: %[4]s
      credentialsSecretRef: {name: database}
      tls: {mode: Insecure}
    schemaPolicy: Verify
  handler:
    sql:
      routes: [{eventTypes: ["order.*"], statement: "SELECT 1"}]
      onUnmatched: DeadLetter
  ordering: {mode: PerKey, versions: Enforce}
---
apiVersion: v1
kind: Secret
metadata: {name: database, namespace: shop}
stringData: {username: "%[8]s", password: "%[9]s"}
`

// shop writes resources for real servers with the tables made, and returns their folder.
func shop(t *testing.T) (dir string, db *testkit.DB) {
	t.Helper()
	db = testkit.Postgres(t)
	options := schema.Options{Components: []schema.Component{schema.Outbox, schema.Inbox}}
	names := postgres.Names{Schema: db.Schema, Outbox: "message_outbox"}
	if err := schema.Apply(t.Context(), db.Pool(), names, options); err != nil {
		t.Fatal(err)
	}
	broker := testkit.NATS(t)
	stream := broker.Stream(jetstream.StreamConfig{})
	_, err := broker.JetStream().CreateConsumer(t.Context(), stream.Name, jetstream.ConsumerConfig{
		Durable: "shop_billing", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(db.Addr())
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(shopYAML, host, port, db.Database, db.Schema, broker.Addr(), stream.Name,
		stream.Subject("orders"), db.User, db.Password)
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, db
}

func TestVerifyLooksAtTheHostsThatTheResourcesName(t *testing.T) {
	t.Parallel()
	dir, db := shop(t)
	db.Exec(`CREATE TABLE ledger (entry bigint, order_id text, version bigint)`)
	var out, errs bytes.Buffer
	args := []string{
		"verify",
		"-f",
		dir,
		"--grace",
		"0s",
		"--effects",
		"shop/billing=" + db.Schema + ".ledger:order_id:version:entry",
	}

	if code := run(t.Context(), args, &out, &errs); code != 0 {
		t.Fatalf("exit code %d of a shop without business\n%s%s", code, &out, &errs)
	}
	for _, part := range []string{"relay shop/orders", "consumer shop/billing", ".ledger are in order", "\nOK: "} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in:\n%s", part, &out)
		}
	}

	db.Exec(`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, payload, occurred_at)
		VALUES (gen_random_uuid(), 'order.paid', 'shop', 'order-1', '', now())`)
	out.Reset()
	if code := run(t.Context(), args, &out, &errs); code != 1 || !strings.Contains(out.String(), "\nNOT OK: 1 of ") {
		t.Errorf("exit code %d with a row that nobody relays\n%s%s", code, &out, &errs)
	}
	if strings.Contains(out.String()+errs.String(), db.Password) {
		t.Error("the password was printed")
	}
}

func TestVerifyRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()

	dir, _ := shop(t)
	cases := map[string]struct {
		args []string
		want string
	}{
		"no resources": {
			args: nil,
			want: "no resources: name their folder, as in postrider verify -f config/samples",
		},
		"negative grace":  {args: []string{"-f", dir, "--grace", "-1s"}, want: "--grace -1s: want 0 or more"},
		"half an effects": {args: []string{"-f", dir, "--effects", "ledger:order_id"}, want: "--effects: "},
		"effects of nobody": {
			args: []string{"-f", dir, "--effects", "shop/nobody=ledger:order_id:version"},
			want: "there is no consumer shop/nobody in ",
		},
		"a data folder without servers": {
			args: []string{"-f", dir, "--data", dir}, want: "no `postrider up --data ",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := run(t.Context(), append([]string{"verify"}, tc.args...), &out, &errs)
			if code != exitWrong || !strings.Contains(errs.String(), tc.want) {
				t.Errorf("exit code %d, want %d with %q\n%s%s", code, exitWrong, tc.want, &out, &errs)
			}
		})
	}
}
