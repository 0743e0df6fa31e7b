package pipeline_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// tablesOnADisk is a database whose tables have a disk of their own.
func tablesOnADisk(t *testing.T, disk string) *orders {
	t.Helper()
	server := testkit.PostgresServer(t, local.PostgresConfig{})
	dir := filepath.Join(disk, "tables")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.ForPostgres(t, dir)
	testkit.Postgres(t, testkit.OnServer(server)).Exec("CREATE TABLESPACE small LOCATION '" + dir + "'")
	return newOrders(t, testkit.OnServer(server), testkit.OwnDatabase(map[string]string{"default_tablespace": "small"}))
}

const (
	flowing = 18  // rows
	waiting = 900 // more than there is room for in the archive's last page
)

// onFullDisk has rows wait for the broker, fills the disk and lets the relay publish them.
func (o *orders) onFullDisk(disk string, budget config.Budget) (life *life, free func()) {
	o.t.Helper()
	broker := testkit.Proxy(o.t, o.broker.Addr())
	cfg, nats := o.cfg, *o.cfg.NATS
	nats.Servers = []string{"nats://" + broker.Addr()}
	cfg.NATS, cfg.Budget = &nats, budget
	cfg.Lease, cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	_, life = o.start(cfg)
	o.write(flowing)
	o.published(flowing)
	broker.Cut()
	o.write(waiting)
	free = testkit.Fill(o.t, disk)
	broker.Resume()
	life.becomes("DatabaseReachable", "False DatabaseFull")
	return life, free
}

// wellAgain checks that all rows are published, and that nothing is lost, out of order or counted.
func (o *orders) wellAgain(life *life, rows int) {
	o.t.Helper()
	o.published(rows)
	life.becomes("DatabaseReachable", "True Reachable")
	o.db.Uncounted()
	if report := o.verified(); !report.OK() {
		o.t.Errorf("verify: %+v", report)
	}
}

// P8: the disk that the tables are on is full, so the database takes back every settle, for longer than the whole budget
// of a message. The relay says so and holds nothing against any message; all flows by itself when there is room.
func TestAsRootAFullDiskOfTheDatabaseIsAStateAndHeals(t *testing.T) {
	t.Parallel()
	disk := testkit.Disk(t, "size=48m")
	o := tablesOnADisk(t, disk)
	budget := o.cfg.Budget
	budget.MaxAttempts, budget.MaxElapsed = 2, config.Duration(2*time.Second)
	life, free := o.onFullDisk(disk, budget)
	full := time.Now()
	testkit.Eventually(t, patience, "the disk is full for longer than the budget", func() bool {
		o.db.Uncounted()
		return time.Since(full) > 2*budget.MaxElapsed.D()
	})
	life.becomes("DatabaseReachable", "False DatabaseFull")
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM message_outbox`); n == 0 {
		t.Fatal("everything was settled: the disk is not full")
	}
	free()
	o.wellAgain(life, flowing+waiting)
}

// P8: the disk of the whole server is full, its log with it, and the server ends, as PostgreSQL does then. When there is
// room and it has been started, all flows.
func TestAsRootADatabaseThatAFullDiskHasEndedIsRecoveredFrom(t *testing.T) {
	t.Parallel()
	disk := testkit.Disk(t, "size=256m")
	server := testkit.PostgresServer(t, local.PostgresConfig{Dir: filepath.Join(disk, "postgres")})
	o := newOrders(t, testkit.OnServer(server))
	life, free := o.onFullDisk(disk, o.cfg.Budget)
	testkit.Eventually(t, patience, "a log that cannot grow ends the server", func() bool {
		growLog(t, server)
		select {
		case <-server.Lost():
			return true
		default:
			return false
		}
	})
	life.becomes("DatabaseReachable", "False Unreachable")
	free()
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.db.Pool().Reset()
	o.write(flowing)
	o.wellAgain(life, flowing+waiting+flowing)
}

// growLog makes the database's log grow by some segments. The database may end of it.
func growLog(t *testing.T, server *local.Postgres) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		return // it has ended
	}
	defer conn.Close(t.Context()) //nolint:errcheck // it may be gone
	const growSQL = `SELECT pg_logical_emit_message(false, 'growth', repeat('x', 10000000)) FROM generate_series(1, 10)`
	_, _ = conn.Exec(t.Context(), growSQL) // see above
}
