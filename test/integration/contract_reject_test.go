package integration

import (
	"fmt"
	"testing"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// Two messages that NATS will never take, among a thousand: each waits with a growing pause and holds the rest of its
// key and nothing else. When a person has mended the cause, both keys go on in order.
func TestG8AMessageThatTheBrokerRefusesHoldsItsKeyAndNothingElse(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10
	b := newBank(t, bankOptions{broker: testkit.NATSServer(t, local.NATSConfig{MaxPayload: limit})})
	b.relay.Budget.MaxAttempts = 1000 // however long the others take: nothing is given up here
	relay := b.startRelay(b.relay)
	b.startConsumer(b.consumer)
	elsewhere := b.stream.Subject("elsewhere")

	b.sell(
		sale{account: "large", amount: 1},
		sale{account: "large", amount: 2, padding: limit},
		sale{account: "large", amount: 3},
		sale{account: "forbidden", amount: 4, destination: elsewhere},
		sale{account: "forbidden", amount: 5, destination: elsewhere},
	)
	b.trade(4, 140)
	const waiting = 4 // two of each key
	others := testkit.Value[int](b.orders.DB, "SELECT count(*) FROM sale") - waiting
	testkit.Eventually(t, patience, fmt.Sprintf("the %d others have arrived", others), func() bool {
		return b.entries() == others
	})
	testkit.Eventually(t, patience, "the refused ones are tried again", func() bool {
		return testkit.Value[int](b.orders.DB, "SELECT count(*) FROM message_outbox WHERE attempts >= 3") == 2
	})
	testkit.Eventually(t, patience, "the others are settled", func() bool {
		return testkit.Value[int](b.orders.DB, "SELECT count(*) FROM message_outbox") <= waiting
	})
	for what, wrong := range map[string]string{
		"rows that wait without being held": "SELECT count(*) FROM message_outbox WHERE NOT held",
		"rows of other keys that wait": `SELECT count(*) FROM message_outbox
			WHERE ordering_key NOT IN ('large', 'forbidden')`,
		"gates that are not in Retry and due": "SELECT count(*) FROM message_outbox_gate WHERE state <> 'Retry' OR due IS NULL",
		"attempts of messages that were only held": `SELECT count(*) FROM message_outbox o WHERE attempts > 0
			AND EXISTS (SELECT FROM message_outbox p WHERE p.ordering_key = o.ordering_key AND p.position < o.position)`,
		"dead letters": "SELECT count(*) FROM message_failure",
	} {
		if n := testkit.Value[int](b.orders.DB, wrong); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	if n := testkit.Value[int](b.orders.DB, "SELECT count(*) FROM message_outbox"); n != waiting {
		t.Errorf("%d rows wait, want %d", n, waiting)
	}

	b.orders.Exec(`UPDATE message_outbox SET payload = '{"amount": 2}' WHERE octet_length(payload) > $1`, limit)
	relay.drain()
	b.relay.Allowed = []string{elsewhere}
	b.startRelay(b.relay)
	b.balanced()
}

// Under a publication of all tables PostgreSQL refuses to delete from a table without a replica identity that it can
// use: settle's DELETE, the gate's and the inbox's must all work.
func TestG1RowsMoveUnderAPublicationOfAllTables(t *testing.T) {
	t.Parallel()
	own := testkit.OwnDatabase(nil)
	cases := map[string]func(*testing.T) []testkit.PostgresOption{
		"on PostgreSQL 17": func(*testing.T) []testkit.PostgresOption { return []testkit.PostgresOption{own} },
		"on PostgreSQL 18": func(t *testing.T) []testkit.PostgresOption {
			t.Helper()
			server := testkit.PostgresServer(t, local.PostgresConfig{Version: local.Postgres18})
			return []testkit.PostgresOption{testkit.OnServer(server), own}
		},
	}
	for name, where := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := where(t)
			b := newBank(t, bankOptions{orders: options, billing: options})
			for _, p := range []*place{b.orders, b.billing} {
				p.Exec("ALTER TABLE IF EXISTS sale REPLICA IDENTITY FULL")
				p.Exec("CREATE PUBLICATION everything FOR ALL TABLES")
			}
			elsewhere := b.stream.Subject("elsewhere")
			relay := b.startRelay(b.relay)
			b.startConsumer(b.consumer)
			b.sell(sale{account: "forbidden", amount: 1, destination: elsewhere})
			b.trade(2, 20)
			testkit.Eventually(t, patience, "a refused row waits alone", func() bool {
				return testkit.Value[bool](b.orders.DB, `SELECT count(*) = 1 AND bool_and(held) AND
					(SELECT count(*) = 1 FROM message_outbox_gate) FROM message_outbox`)
			})
			relay.drain()
			b.relay.Allowed = []string{elsewhere}
			b.startRelay(b.relay)
			b.balanced()
		})
	}
}
