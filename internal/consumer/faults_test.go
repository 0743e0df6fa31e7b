package consumer_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/consumer/handler/sql"
	"github.com/postrider/postrider/test/testkit"
)

// lockEffects takes the effect table, so that every handler's statement waits, and returns what gives it back.
func (s *shop) lockEffects() (release func()) {
	s.t.Helper()
	conn := s.Connect()
	for _, statement := range []string{"BEGIN", "LOCK TABLE effect IN SHARE MODE"} {
		if _, err := conn.Exec(s.t.Context(), statement); err != nil {
			s.t.Fatalf("%s: %v", statement, err)
		}
	}
	return func() {
		s.t.Helper()
		if _, err := conn.Exec(s.t.Context(), "COMMIT"); err != nil {
			s.t.Fatalf("giving the table back: %v", err)
		}
	}
}

// through puts a proxy between the worker and the database.
func (s *shop) through(p *testkit.Faulty) func(*options) {
	return func(o *options) {
		_, port, err := net.SplitHostPort(p.Addr())
		if err != nil {
			s.t.Fatalf("reading the proxy's address: %v", err)
		}
		n, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			s.t.Fatalf("reading the proxy's port: %v", err)
		}
		o.postgres.Port = int32(n)
	}
}

func TestAKillBeforeTheCommitLosesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	s.publish(ev("k", 1))
	s.acked(1, w)
	release := s.lockEffects()
	s.publish(ev("k", 2), ev("k", 3))
	s.blocked(1)

	w.crash()
	release()

	if got := s.countEffects(); got != 1 {
		t.Fatalf("effects after the kill = %d, want the one from before", got)
	}
	s.acked(2, s.start())
	if diff := cmp.Diff([]string{"k@1", "k@2", "k@3"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	s.tidy()
}

func TestAKillBetweenCommitAndAcknowledgementRepeatsNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) { o.config.RunPolicy = "Pause" })
	w.hooks.onAck(func(*broker.Delivery) error {
		w.Kill()
		return errors.New("killed")
	})
	s.publish(ev("k", 1), ev("l", 1), ev("k", 2))
	cfg := s.options().config
	if live, err := w.Reconfigure(cfg); !live || err != nil {
		t.Fatalf("Reconfigure() = %v, %v", live, err)
	}
	<-w.ended
	if got := w.receiver.Acked(); len(got) > 0 {
		t.Fatalf("acknowledged in spite of the kill: %v", got)
	}

	next := s.start()
	s.acked(3, next)

	if got := s.countEffects(); got != 3 {
		t.Errorf("effects = %d, want 3", got)
	}
	s.once()
	if next.metric("postrider_inbox_duplicates_total") == 0 {
		t.Error("the redelivery was not recognised as a duplicate: the kill came before the commit")
	}
}

func TestACommitWhoseAnswerIsLostHappensOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := testkit.Proxy(t, s.Addr())
	w := s.start(s.through(p), withoutDrain) // its transactions commit as well
	s.publish(ev("k", 1))
	s.acked(1, w)

	lost := p.LoseAnswer("commit\x00") // not "read committed"
	s.publish(ev("k", 2))
	<-lost
	s.acked(2, w)

	if diff := cmp.Diff([]string{"k@1", "k@2"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	if got := w.metric("postrider_inbox_transaction_retries_total", "outcome unknown"); got < 1 {
		t.Errorf("unknown outcomes = %v, want at least 1", got)
	}
	if got := w.metric("postrider_inbox_duplicates_total"); got != 1 {
		t.Errorf("duplicates = %v, want 1: the second try finds what the first committed", got)
	}
}

func TestADatabaseThatIsDownKeepsItsMessagesAndRecovers(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := testkit.Proxy(t, s.Addr())
	w := s.start(s.through(p), func(o *options) { o.prefetch = 8 })
	s.publish(ev("k", 1))
	s.acked(1, w)

	p.Cut()
	for v := range int64(30) {
		s.publish(ev("k", v+2))
	}
	c := w.says("DatabaseReachable", "False", "Unreachable")
	if c.Message == "" {
		t.Error("the condition says nothing to a person")
	}
	before := w.hooks.beats()
	testkit.Eventually(t, patience, "the broker hears that deliveries are in progress", func() bool {
		return w.hooks.beats() >= before+16
	})
	if got := w.receiver.Acked(); len(got) != 1 {
		t.Errorf("acknowledged without a database: %v", got)
	}
	if received := w.metric("postrider_inbox_received_messages_total"); received > 1+8 {
		t.Errorf("received %v messages while nothing could be applied, want at most the prefetch", received)
	}

	p.Resume()
	s.acked(31, w)
	w.says("DatabaseReachable", "True", "Reachable")
	s.once()
	if dead := s.failures(); len(dead) > 0 || s.countEffects() != 31 {
		t.Errorf("effects = %d, dead letters = %v", s.countEffects(), dead)
	}
}

func TestTwoConsumersShareOneNameAndApplyOnce(t *testing.T) {
	t.Parallel()
	for name, database := range map[string][]testkit.PostgresOption{
		"with the usual isolation":                nil,
		"with a database default of SERIALIZABLE": {testkit.Serializable()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, database...)
			small := func(o *options) { o.config.MaxBatch, o.prefetch = 20, 40 }
			a, b := s.start(small), s.start(small)

			const keys, versions = 20, 30
			for v := range int64(versions) {
				for k := range keys { // each version twice, the copies in opposite order
					s.publish(ev(fmt.Sprintf("k%d", k), v+1))
				}
				for k := range keys {
					s.publish(ev(fmt.Sprintf("k%d", keys-1-k), v+1))
				}
			}

			s.acked(2*keys*versions, a, b)
			s.applied(keys * versions)
			testkit.Eventually(t, patience, "nothing is parked any more", func() bool {
				return testkit.Value[int64](s.DB, `SELECT count(*) FROM message_parked`) == 0
			})
			if got := s.countEffects(); got != keys*versions {
				t.Errorf("effects = %d, want %d", got, keys*versions)
			}
			s.once()
			s.tidy()
			if len(a.receiver.Acked()) == 0 || len(b.receiver.Acked()) == 0 {
				t.Error("one of the two did nothing")
			}
			for _, w := range []*worker{a, b} {
				if got := w.metric("postrider_inbox_transaction_retries_total", "again"); got > 0 {
					t.Errorf("%v transactions lost a race: ids or keys are not taken in one order", got)
				}
			}
			if dead := s.failures(); len(dead) > 0 {
				t.Errorf("dead letters: %v", dead)
			}
		})
	}
}

func TestAKeyHeldElsewhereWaitsAndTheOthersFlow(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) { o.config.Lanes = 1 })
	s.publish(ev("held", 1), ev("free", 1))
	s.acked(2, w)
	conn := s.Connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatalf("beginning: %v", err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM message_inbox_key WHERE key_hash =
		(SELECT key_hash FROM message_inbox_key ORDER BY key_hash LIMIT 1) FOR UPDATE`); err != nil {
		t.Fatalf("taking a key: %v", err)
	}

	for v := range int64(60) {
		s.publish(ev("held", v+2), ev("free", v+2))
	}
	testkit.Eventually(t, patience, "the free key is applied to its end", func() bool {
		got := s.effects()
		return len(got) >= 62
	})
	s.blocked(1) // after a second the lane asks for the key and waits for it
	testkit.Eventually(t, patience, "it gives up for the others' sake", func() bool {
		return testkit.Value[int64](s.DB, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1
			AND wait_event_type = 'Lock'`, s.Schema) == 0
	})
	if got := s.countEffects(); got != 62 {
		t.Errorf("effects while the key is held = %d, want 62", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatalf("giving the key back: %v", err)
	}

	s.acked(122, w)
	s.once()
	s.tidy()
}

func TestANewKeyThatAnotherProcessIsAddingStallsNoOther(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) { o.config.Lanes = 1 })
	conn := s.Connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatalf("beginning: %v", err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO message_inbox_key (key_hash, consumer_name) VALUES ($1, $2)`,
		keyHash("new"), consumerName); err != nil {
		t.Fatalf("adding a key: %v", err)
	}

	s.publish(ev("new", 1))
	for k := range 50 {
		s.publish(ev(fmt.Sprintf("other-%d", k), 1))
	}
	s.acked(50, w)
	if got := s.countEffects(); got != 50 {
		t.Errorf("effects while the key is being added = %d, want 50", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatalf("rolling back: %v", err)
	}
	s.acked(51, w)
	s.once()
}

func TestStoppingFinishesWhatRunsAndGivesTheRestBack(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) { o.config.Lanes, o.config.MaxBatch = 1, 1 })
	s.publish(ev("k", 1))
	s.acked(1, w)
	release := s.lockEffects()
	s.publish(ev("k", 2), ev("k", 3), ev("k", 4))
	s.blocked(1)

	w.stop()
	var done atomic.Bool
	go func() { <-w.ended; done.Store(true) }()
	if done.Load() {
		t.Fatal("the worker ended while its transaction ran")
	}
	release()
	<-w.ended

	if diff := cmp.Diff([]uint64{1, 2}, w.receiver.Acked()); diff != "" {
		t.Errorf("acknowledged differs (-want +got):\n%s", diff)
	}
	begin := time.Now()
	s.acked(2, s.start())
	if took := time.Since(begin); took > 1500*time.Millisecond {
		t.Errorf("the rest came after %v, want at once: it was not given back", took)
	}
	if diff := cmp.Diff([]string{"k@1", "k@2", "k@3", "k@4"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
}

func TestDeadLettersThatCannotBeWrittenStopTheirLane(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Exec(`REVOKE INSERT ON message_failure FROM PUBLIC, "` + s.own.User + `"`)
	w := s.start(func(o *options) { o.config.Lanes = 1 })
	s.publish(event{id: "bad", key: "k", version: 1, data: `{"a":"\u0000"}`}, ev("l", 1))

	c := w.says("DeadLetterUnavailable", "True", "PermissionDenied")
	if c.Message == "" {
		t.Error("the condition says nothing to a person")
	}
	if got := w.receiver.Acked(); len(got) > 0 {
		t.Errorf("acknowledged although nothing is durable: %v", got)
	}

	s.Exec(`GRANT INSERT ON message_failure TO "` + s.own.User + `"`)
	s.acked(2, w)
	if diff := cmp.Diff([]string{"bad UnstorableText"}, s.failures()); diff != "" {
		t.Errorf("dead letters differ (-want +got):\n%s", diff)
	}
	testkit.Eventually(t, patience, "the condition is gone", func() bool {
		return w.condition("DeadLetterUnavailable").Status == ""
	})
}

func TestAMissingDeadLetterTableStopsTheLaneToo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) { o.config.Lanes = 1 })
	s.publish(ev("l", 1))
	s.acked(1, w)
	s.Exec(`ALTER TABLE message_failure RENAME TO message_failure_away`)
	s.publish(ev("l", 2), event{id: "bad", key: "k", version: 1, data: `-`})
	w.says("DeadLetterUnavailable", "True", "SchemaMissing")
	s.Exec(`ALTER TABLE message_failure_away RENAME TO message_failure`)
	s.acked(3, w)
}

func TestAHandlersTableThatGoesAwayParksAndIsMended(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Exec(`CREATE TABLE other (id text)`)
	w := s.start(func(o *options) {
		o.routes = append(o.routes, sql.Route{
			EventTypes: []string{"other"}, Statement: `INSERT INTO other VALUES (@event_id)`,
		})
	})
	s.publish(event{id: "o1", key: "o", version: 1, kind: "other"})
	s.acked(1, w)
	s.Exec(`ALTER TABLE other RENAME TO away`)

	s.publish(event{id: "o2", key: "o", version: 2, kind: "other"}, ev("k", 1), ev("k", 2))
	s.acked(4, w)
	if diff := cmp.Diff([]string{"k@1", "k@2"}, s.effects()); diff != "" {
		t.Errorf("effects of the other route differ (-want +got):\n%s", diff)
	}
	if got := testkit.Values[string](
		s.DB,
		`SELECT error_code || ' ' || attempts FROM message_parked`,
	); !slices.Equal(
		got,
		[]string{"42P01 0"},
	) {
		t.Errorf("parked = %v, want one for 42P01 that counts no attempt", got)
	}
	s.Exec(`ALTER TABLE away RENAME TO other`)
	testkit.Eventually(t, patience, "the parked message is applied", func() bool {
		return testkit.Value[int64](s.DB, `SELECT count(*) FROM other`) == 2
	})
}
