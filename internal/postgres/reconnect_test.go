package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/testkit"
)

// A12: connections that end, again and again, leave nothing behind: no goroutine, no socket, no place in the pool and no
// session at the server.
func TestReconnectsLeaveNothingBehind(t *testing.T) { //nolint:paralleltest // counts what the process holds
	const together = 4
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	proxy := testkit.Proxy(t, db.Addr())
	cfg := db.Config()
	cfg.Port, cfg.MaxConnections = int32(proxy.Port), together
	pool := open(t, cfg, postgres.Options{KeepStatements: true})
	answered := func() {
		t.Helper()
		var all sync.WaitGroup
		for range together {
			all.Go(func() {
				for t.Context().Err() == nil {
					if _, err := ask[int](t.Context(), pool, "SELECT 1 FROM pg_sleep(0.005)"); err == nil {
						return
					}
				}
			})
		}
		all.Wait()
	}
	sessions := func() int {
		t.Helper()
		return testkit.Value[int](db, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'pool test'`)
	}
	answered()
	shrinks := testkit.Footprint(t)
	for range 50 {
		proxy.Reset()
		answered()
	}
	shrinks(6 * together) // connections are made as they are needed, each with goroutines of the proxy
	testkit.Eventually(t, time.Minute, "the server has no session that the pool does not have", func() bool {
		stat := pool.Stat()
		return stat.AcquiredConns() == 0 && stat.TotalConns() <= together && sessions() <= int(stat.TotalConns())
	})
}
