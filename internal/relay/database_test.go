package relay_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// poolWith returns a pool whose sessions are made so.
func (w *world) poolWith(db *testkit.DB, change func(*pgxpool.Config)) *pgxpool.Pool {
	w.t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL())
	if err != nil {
		w.t.Fatalf("read the connection string: %v", err)
	}
	change(cfg)
	pool, err := pgxpool.NewWithConfig(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatalf("make a pool: %v", err)
	}
	w.t.Cleanup(pool.Close)
	return pool
}

// awaitWorking waits until the relay says that the database works.
func (w *world) awaitWorking(p *process) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, "the database works", func() bool {
		return p.condition("DatabaseReachable") == "True Working "
	})
}

// untouched checks that nothing counts against any message.
func (w *world) untouched() {
	w.t.Helper()
	if n := testkit.Value[int64](w.DB, `SELECT (SELECT count(*) FROM message_failure) +
		(SELECT count(*) FROM message_outbox_published WHERE attempts + unknowns > 0) +
		(SELECT count(*) FROM message_outbox WHERE attempts + unknowns > 0)`); n != 0 {
		w.t.Errorf("%d messages bear marks of the database's trouble", n)
	}
}

// P3, P5, P7, P8: whatever the server answers to a settle that it rolls back, the state is told, the same settle is run
// again, and nothing is sent meanwhile. The trigger is the server's own answer without its cause.
func TestASettleThatTheDatabaseRefusesIsRepeatedUntilItIsTaken(t *testing.T) {
	t.Parallel()
	for state, reason := range map[string]postgres.Reason{
		"53100": postgres.ReasonDiskFull, "53200": postgres.ReasonOutOfResources,
		"57014": postgres.ReasonStatementTimeout, "55P03": postgres.ReasonLockTimeout,
		"40001": postgres.ReasonSerialization, "40P01": postgres.ReasonDeadlock,
		"25006": postgres.ReasonReadOnly, "XX000": postgres.ReasonServerError,
	} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.Exec(fmt.Sprintf(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
				'BEGIN RAISE EXCEPTION USING ERRCODE = ''%s''; END'`, state))
			w.Exec(`CREATE TRIGGER refuse BEFORE DELETE ON message_outbox FOR EACH STATEMENT EXECUTE FUNCTION refuse()`)
			h := &hooks{}
			var tries atomic.Int64
			h.settle = func(call func() (shard.Settlement, error)) (shard.Settlement, error) {
				tries.Add(1)
				return call()
			}
			w.put("a", 3)
			p := w.start(options{wrap: h.wrap})
			testkit.Eventually(t, patience, "the state is told", func() bool {
				return strings.HasPrefix(p.condition("DatabaseReachable"), "False "+string(reason)+" ")
			})
			seen := tries.Load()
			w.put("a", 1)
			w.put("b", 2)
			testkit.Eventually(t, patience, "the settle is repeated", func() bool { return tries.Load() > seen+5 })
			w.inOrder("a", 3)
			if got := w.broker.versions("b"); len(got) > 0 {
				t.Errorf("versions %v of b were sent while the settle failed", got)
			}
			w.Exec(`DROP TRIGGER refuse ON message_outbox`)
			w.awaitEmpty()
			w.inOrder("a", 4)
			w.inOrder("b", 2)
			w.untouched()
			w.awaitWorking(p)
		})
	}
}

// slow has a time limit that few rows at once do not exceed.
type slow struct {
	relay.Store
	most int
}

// Claim and Settle fail as the store does at its time limit.
func (s slow) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	if w.MaxMessages > s.most {
		return shard.Claim{}, context.DeadlineExceeded
	}
	return s.Store.Claim(ctx, l, w)
}

func (s slow) Settle(ctx context.Context, l lease.Lease, ids []message.ID, at []string) (shard.Settlement, error) {
	if len(ids) > s.most/2 {
		return shard.Settlement{}, context.DeadlineExceeded
	}
	return s.Store.Settle(ctx, l, ids, at)
}

// P3: what exceeds a time limit with a full batch goes in smaller ones, and nothing is sent twice for it.
func TestWhatExceedsATimeLimitGoesInSmallerBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("k", 150)
	w.put("l", 50)
	w.start(options{
		wrap:   func(s relay.Store) relay.Store { return slow{s, 12} },
		config: func(c *relay.Config) { c.Backoff = retry.Backoff{Initial: time.Millisecond, Max: 5 * time.Millisecond} },
	})
	w.awaitEmpty()
	w.inOrder("k", 150)
	w.inOrder("l", 50)
}

// P6 and P3: somebody alters the table, and holds its lock for longer than the relay waits. It stands in no queue for
// ever, says what is wrong, and goes on by itself.
func TestATableThatIsLockedIsWaitedForInBounds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		setting string
		reason  postgres.Reason
	}{
		"by lock_timeout":          {"lock_timeout", postgres.ReasonLockTimeout},
		"by statement_timeout":     {"statement_timeout", postgres.ReasonStatementTimeout},
		"by the relay's own bound": {"", postgres.ReasonNoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			pool := w.poolWith(w.DB, func(c *pgxpool.Config) {
				if tc.setting != "" {
					c.ConnConfig.RuntimeParams[tc.setting] = "200ms"
				}
			})
			w.put("a", 1)
			p := w.start(options{pool: pool, config: func(c *relay.Config) {
				if tc.setting == "" {
					c.QueryTimeout = 500 * time.Millisecond
				}
			}})
			w.awaitEmpty()
			locked, err := w.Connect().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := locked.Exec(t.Context(), `LOCK TABLE message_outbox IN ACCESS EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"a", "b"} {
				if _, err := write(t.Context(), locked, key); err != nil {
					t.Fatal(err)
				}
			}
			testkit.Eventually(t, patience, "the lock is told of", func() bool {
				return strings.HasPrefix(p.condition("DatabaseReachable"), "False "+string(tc.reason)+" ")
			})
			if err := locked.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.awaitEmpty()
			w.inOrder("a", 2)
			w.inOrder("b", 1)
			w.untouched()
			w.awaitWorking(p)
		})
	}
}

// P7: the server has no connection left for the relay.
func TestARelayThatGetsNoConnectionSaysSoAndGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	worker := w.Ordinary()
	w.Exec(fmt.Sprintf(`GRANT %q TO %q`, w.User, worker.User)) // what the tables' owner may do, and no superuser
	pool := w.poolWith(worker, func(*pgxpool.Config) {})
	w.put("a", 1)
	p := w.start(options{pool: pool})
	w.awaitEmpty()
	w.Exec(fmt.Sprintf(`ALTER ROLE %q CONNECTION LIMIT 0`, worker.User))
	w.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, worker.User)
	testkit.Eventually(t, patience, "the missing connection is told of", func() bool {
		return strings.HasPrefix(p.condition("DatabaseReachable"), "False TooManyConnections ")
	})
	w.put("a", 2)
	w.put("b", 2)
	w.Exec(fmt.Sprintf(`ALTER ROLE %q CONNECTION LIMIT -1`, worker.User))
	w.awaitEmpty()
	if diff := cmp.Diff(upTo(3), once(w.broker.versions("a"))); diff != "" {
		t.Errorf("first deliveries (-want +got):\n%s", diff)
	}
	w.untouched()
}

// S22: eight lanes, their renewals and the look for members share one connection. They wait for each other, and nothing
// that waited counts as failed.
func TestOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	w.start(options{pool: w.poolWith(w.DB, func(c *pgxpool.Config) { c.MaxConns = 1 })})
	const keys, each = 40, 10
	for i := range keys {
		w.put(fmt.Sprintf("k%d", i), each)
	}
	w.awaitEmpty()
	for i := range keys {
		if diff := cmp.Diff(upTo(each), once(w.broker.versions(fmt.Sprintf("k%d", i)))); diff != "" {
			t.Errorf("first deliveries of k%d (-want +got):\n%s", i, diff)
		}
	}
	w.untouched()
}

// P9: a team adds a column to the outbox, or an index or a trigger, while relays have their statements planned.
func TestAnAlteredTableStopsNoRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	pool := w.poolWith(w.DB, postgres.KeepStatements)
	p := w.start(options{pool: pool})
	written := 0
	for _, change := range []string{
		`ALTER TABLE message_outbox ADD COLUMN note text`,
		`ALTER TABLE message_outbox ALTER COLUMN event_type TYPE varchar(300)`,
		`CREATE INDEX ON message_outbox (event_type)`,
		`ALTER TABLE message_outbox DROP COLUMN note`,
	} {
		w.put("k", 5)
		w.awaitEmpty()
		w.Exec(change)
		w.put("k", 5)
		written += 10
		w.awaitEmpty()
		w.inOrder("k", written)
	}
	w.untouched()
	for _, c := range []string{"DatabaseReachable", "SchemaReady"} {
		testkit.Eventually(t, patience, c, func() bool { return p.condition(c) == "True Working " })
	}
}

// hanging is a broker that answers nothing until it is let.
type hanging struct {
	*ledger
	entered chan struct{}
	free    chan struct{}
}

func newHanging(l *ledger) *hanging {
	return &hanging{ledger: l, entered: make(chan struct{}, 100), free: make(chan struct{})}
}

func (h *hanging) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	h.entered <- struct{}{}
	select {
	case <-h.free:
		return h.ledger.Publish(ctx, batch)
	case <-ctx.Done():
		return make([]broker.Confirmation, len(batch)) // all Unknown
	}
}

// S14: no transaction is open and nothing is locked while the broker is waited for: a slow broker would hold up vacuum,
// takeovers and the application.
func TestNothingIsOpenInTheDatabaseWhileTheBrokerIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	name := w.Schema + "_relay"
	pool := w.poolWith(w.DB, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name })
	slow := newHanging(w.broker)
	w.put("a", 2)
	w.put("b", 2)
	w.start(
		options{pool: pool, publisher: slow, config: func(c *relay.Config) { c.Batch.PublishTimeout = patience / 4 }},
	)
	<-slow.entered
	entered := testkit.Value[time.Time](w.DB, `SELECT clock_timestamp()`)
	testkit.Eventually(t, patience, "no transaction from before the publish is open", func() bool {
		return testkit.Value[int](w.DB, `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = $1 AND xact_start <= $2`, name, entered) == 0
	})
	conn := w.Connect()
	for _, statement := range []string{
		`SET lock_timeout = '5s'`, `LOCK TABLE message_outbox, message_outbox_published IN ACCESS EXCLUSIVE MODE`,
	} {
		if statement[0] == 'L' {
			statement = "BEGIN; " + statement + "; COMMIT"
		}
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Errorf("%s beside a publish: %v", statement, err)
		}
	}
	if w.left() != 4 || w.broker.count() != 0 {
		t.Error("the publish was over: this test shows nothing")
	}
	close(slow.free)
	w.awaitEmpty()
}

// A7: a relay that is told to end while a publish is under way waits for the answer, settles it, and begins nothing.
func TestADrainFinishesWhatIsUnderWayAndBeginsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	slow := newHanging(w.broker)
	w.put("k", 3)
	p := w.start(options{publisher: slow})
	<-slow.entered
	p.cancel()
	w.put("k", 2)
	w.put("l", 2)
	close(slow.free)
	if err := p.wait(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	if left, sent := w.left(), w.broker.count(); sent != 3 || left != 4 {
		t.Errorf("%d messages sent and %d rows left, want the 3 under way settled and 4 rows left", sent, left)
	}
	w.awaitSQL("the shard is free", `bool_and(holder IS NULL) FROM message_outbox_lease`)
	w.start(options{})
	w.awaitEmpty()
	w.inOrder("k", 5)
	w.inOrder("l", 2)
}

// A5: killed when a part of a batch is settled and the rest has no answer. The settled part does not come again.
func TestAKillAmidABatchRepeatsOnlyWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.put("done", 3)
	w.put("open", 3)
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.OrderingKey == "open" {
			return unknown, true
		}
		return confirmed, true
	})
	p := w.start(options{})
	w.awaitSQL(
		"the confirmed part is settled",
		`count(*) = 3 FROM message_outbox_published WHERE ordering_key = 'done'`,
	)
	p.kill()
	if n := w.left(); n != 3 {
		t.Fatalf("%d rows left, want the 3 without an answer", n)
	}
	w.broker.script(nil)
	w.start(options{})
	w.awaitEmpty()
	w.inOrder("done", 3)
	if diff := cmp.Diff(upTo(3), once(w.broker.versions("open"))); diff != "" {
		t.Errorf("first deliveries (-want +got):\n%s", diff)
	}
}

// backups are copies of the data of a world's own server.
type backups struct {
	w      *world
	server *local.Postgres
	dir    string
}

// stopped does something with the data folder while no server runs on it.
func (b *backups) stopped(args ...string) {
	b.w.t.Helper()
	// What is in the log only would move the sequences on: they are to give out the same positions again.
	b.w.Exec("CHECKPOINT")
	if err := b.server.Kill(b.w.t.Context()); err != nil {
		b.w.t.Fatal(err)
	}
	cmd := exec.CommandContext(b.w.t.Context(), args[0], args[1:]...)
	cmd.Dir = b.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.w.t.Fatalf("%v: %v: %s", args, err, out)
	}
	if err := b.server.Start(b.w.t.Context()); err != nil {
		b.w.t.Fatal(err)
	}
	b.w.Pool().Reset()
}

func (b *backups) take()    { b.stopped("cp", "-a", "data", "backup") }
func (b *backups) restore() { b.stopped("sh", "-c", "mv data lost && mv backup data") }

// P17: the database is restored to an older point, with terms, counters and floors of before. What was published since
// then comes again with its ids; nothing that is written afterwards is passed over, or passes what was written before it,
// whether the relay lived through it or not.
func TestADatabaseThatWasRestoredToAnOlderPointWedgesNothing(t *testing.T) {
	t.Parallel()
	for name, survives := range map[string]bool{"under a new relay": false, "under one that runs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testkit.ServerDir(t)
			server := testkit.PostgresServer(t, local.PostgresConfig{Dir: dir})
			w := newWorld(t, 2, testkit.OnServer(server))
			b := backups{w, server, dir}
			log := testkit.NewLog(t)
			p := w.start(options{config: short, log: log.Logger()})
			w.put("k", 5)
			w.awaitEmpty()
			var refusing atomic.Bool
			refusing.Store(true)
			w.broker.script(func(message.Message) (broker.Confirmation, bool) {
				if refusing.Load() {
					return unavailable, false
				}
				return confirmed, true
			})
			again := w.put("k", 3)
			b.take()
			refusing.Store(false)
			w.awaitEmpty()
			w.put("k", 4) // lost with the restore, and published
			w.awaitEmpty()
			backedUp := testkit.Value[time.Time](w.DB, `SELECT clock_timestamp()`)
			w.awaitSQL("the relay has said since that it is there",
				`(SELECT seen_until FROM message_outbox_owner) > $1`, backedUp.Add(2*p.cfg.LeaseDuration))
			if !survives {
				p.kill()
			}
			b.restore()
			if !survives {
				w.start(options{config: short})
			}
			w.awaitEmpty()
			w.put("k", 2)
			w.put("l", 2)
			w.awaitEmpty()
			ids := make(map[message.ID]int)
			for _, m := range w.broker.all("k") {
				ids[m.ID]++
			}
			for _, m := range again {
				if ids[m.ID] < 2 {
					t.Errorf(
						"message %d was sent %d times, want again after the restore",
						m.AggregateVersion,
						ids[m.ID],
					)
				}
			}
			want := append(append(upTo(12), 6, 7, 8), 9, 10) // 9 and 10 are other messages than those that were lost
			if diff := cmp.Diff(want, w.broker.versions("k")); diff != "" {
				t.Errorf("versions (-want +got):\n%s", diff)
			}
			w.inOrder("l", 2)
			if !survives {
				return
			}
			if !log.Contains("The database server is another one than before") {
				t.Error("nothing was said of the other server")
			}
			testkit.Eventually(t, patience, "the status says that the database went back", func() bool {
				return strings.HasPrefix(p.condition("ClockWentBack"), "True EarlierThanWritten the database shows")
			})
		})
	}
}

// The same while the server goes on, as when somebody puts the tables back to an older state. Once a relay has noticed, what is
// written is sent in order, though positions come again that it has read past.
func TestTablesThatArePutBackUnderARunningRelayAreReadAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.start(options{config: short})
	w.put("k", 5)
	w.awaitEmpty()
	tables := []string{"message_outbox_sequence", "message_outbox_owner"}
	for _, table := range tables {
		w.Exec(`CREATE TABLE saved_` + table + ` AS TABLE ` + table)
	}
	const sequence = `pg_get_serial_sequence('message_outbox', 'position')`
	last := testkit.Value[int64](w.DB, `SELECT nextval(`+sequence+`)`)
	saved := testkit.Value[time.Time](w.DB, `SELECT clock_timestamp()`)
	w.put("k", 40) // lost, and published
	w.awaitEmpty()
	w.awaitSQL("the relay has said since that it is there",
		`(SELECT seen_until FROM message_outbox_owner) > $1`, saved.Add(2*p.cfg.LeaseDuration))

	back := fmt.Sprintf(`PERFORM setval(%s, %d);`, sequence, last)
	for _, table := range tables {
		back += `DELETE FROM ` + table + `; INSERT INTO ` + table + ` TABLE saved_` + table + `;`
	}
	w.Exec(`DO $$ BEGIN ` + back + ` END $$`)
	testkit.Eventually(t, patience, "the relay notices", func() bool {
		return strings.HasPrefix(p.condition("ClockWentBack"), "True")
	})
	w.put("k", 80) // from below what was read up to above it
	w.awaitEmpty()
	var want []int64
	for v := range int64(80) {
		want = append(want, 6+v)
	}
	if diff := cmp.Diff(append(upTo(45), want...), w.broker.versions("k")); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// P15: somebody's long transaction keeps what is dead from being cleaned away. Messages flow all the same.
func TestALongTransactionOfOthersStopsNothing(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{
		"that reads":  `SELECT count(*) FROM message_outbox_published`,
		"that writes": `CREATE TABLE elsewhere ()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			conn := w.Connect()
			for _, statement := range []string{`BEGIN ISOLATION LEVEL REPEATABLE READ`, first} {
				if _, err := conn.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			w.start(options{config: func(c *relay.Config) { c.Batch.MaxMessages = 20 }})
			var writers sync.WaitGroup
			for _, key := range []string{"a", "b", "c"} {
				writers.Go(func() { w.put(key, 200) })
			}
			writers.Wait()
			w.awaitEmpty()
			for _, key := range []string{"a", "b", "c"} {
				w.inOrder(key, 200)
			}
		})
	}
}
