package pipeline_test

import (
	"testing"

	"github.com/postrider/postrider/test/testkit"
)

// A12: a relay that loses its connections to database and broker again and again holds no more for it, here and at the
// server.
func TestReconnectsOfARelayLeaveNothingBehind(t *testing.T) { //nolint:paralleltest // counts what the process holds
	const few = 4 // connections
	o := newOrders(t, testkit.OwnDatabase(nil))
	database, broker := testkit.Proxy(t, o.db.Addr()), testkit.Proxy(t, o.broker.Addr())
	cfg, nats := o.cfg, *o.cfg.NATS
	cfg.Source.Hosts, cfg.Source.Port, cfg.Source.MaxConnections = []string{database.Host}, int32(database.Port), few
	nats.Servers = []string{"nats://" + broker.Addr()}
	cfg.NATS = &nats
	o.start(cfg)
	written := 0
	through := func() {
		t.Helper()
		o.write(9)
		written += 9
		o.published(written)
	}
	sessions := func() int {
		t.Helper()
		return testkit.Value[int](o.db, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'postrider relay shop/orders'`)
	}
	for range 3 {
		through()
	}
	shrinks := testkit.Footprint(t)
	for range 30 {
		database.Reset()
		broker.Reset()
		through()
	}
	shrinks(5 * few) // connections are made as they are needed, each with goroutines of the proxy
	testkit.Eventually(t, patience, "the server has no more sessions than the pool may have", func() bool {
		return sessions() <= few
	})
}
