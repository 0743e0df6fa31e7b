package integration

import (
	"testing"

	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// pooled returns the port of a PgBouncer in transaction mode before a place, with fewer connections to the server than
// its clients have to it.
func pooled(t *testing.T, p *place) int32 {
	t.Helper()
	pooler := testkit.PgBouncer(t, brokers.PgBouncerConfig{
		Host: p.Host, Port: p.Port, Users: map[string]string{p.user: p.password}, PoolSize: 4,
	})
	return int32(pooler.Port())
}

// P11: behind a pooler in transaction mode nothing may rest on a session: no named statement, no setting, no lock.
func TestG1G3G4G5BehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	b.relay.Source.Port = pooled(t, b.orders)
	b.consumer.Inbox.Postgres.Port = pooled(t, b.billing)
	first := b.startRelay(b.relay)
	b.startRelay(b.relay)
	b.startConsumer(b.consumer)
	b.startConsumer(b.consumer)
	b.trade(4, 60)
	first.drain()
	b.trade(4, 60)
	b.balanced()
}
