package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/consumer/handler/sql"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

func TestAStatementThatTheDatabaseRefusesIsAConditionAndNotADeadLetter(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		statement string
		code      string
		at        string // the part of the statement that the position names
	}{
		"a column that does not exist": {
			"INSERT INTO effect (event_id, @key) VALUES (@event_id, 1)",
			"42703",
			"colour",
		},
		"a table that does not exist": {"INSERT INTO nowhere SELECT @event_id, @data", "42P01", "nowhere"},
		"a syntax error":              {"INSERT INTO effect VALUES (@event_id,", "42601", ""},
		"a type that does not fit":    {"INSERT INTO effect (version) VALUES (@data)", "42804", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			statement := strings.Replace(tc.statement, "@key", "colour", 1)
			w := s.start(func(o *options) {
				o.routes = append(o.routes, sql.Route{EventTypes: []string{"x"}, Statement: statement})
			})
			s.publish(ev("k", 1))

			c := w.says("SchemaReady", "False", "StatementInvalid")
			if !strings.Contains(c.Message, "route 1") || !strings.Contains(c.Message, tc.code) {
				t.Errorf("message = %q, want the route and SQLSTATE %s", c.Message, tc.code)
			}
			missing := map[string]string{"42703": `column "colour"`, "42P01": `relation "nowhere" does not exist`}
			if !strings.Contains(c.Message, missing[tc.code]) {
				t.Errorf("message = %q, want it to name %s", c.Message, missing[tc.code])
			}
			if at := strings.Index(
				statement,
				tc.at,
			) + 1; tc.at != "" &&
				!strings.Contains(c.Message, fmt.Sprintf("character %d ", at)) {
				t.Errorf("message = %q, want character %d", c.Message, at)
			}
			if w.condition("DatabaseReachable").Status != "True" {
				t.Error("the database answered and is not called reachable")
			}
			if got := s.countEffects(); got != 0 || len(s.failures()) > 0 {
				t.Error("something was applied or buried")
			}

			s.Exec(`CREATE TABLE nowhere (id text, data jsonb)`)
			s.Exec(`ALTER TABLE effect ADD colour text`)
			if tc.code == "42703" || tc.code == "42P01" { // mended where it can be: no restart is needed
				s.acked(1, w)
				w.says("SchemaReady", "True", "SchemaCurrent")
			}
		})
	}
}

func TestARoleWithTooManyRightsIsRefused(t *testing.T) {
	t.Parallel()

	cases := map[string]string{
		"a superuser":                            `ALTER ROLE %s SUPERUSER`,
		"a role that may create roles":           `ALTER ROLE %s CREATEROLE`,
		"a role that may run programs":           `GRANT pg_execute_server_program TO %s`,
		"a role that may read the server's disk": `GRANT pg_read_server_files TO %s`,
	}
	for name, grant := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.Exec(strings.Replace(grant, "%s", s.own.User, 1))
			w := s.start()
			s.publish(ev("k", 1))
			w.says("DatabaseReachable", "False", "OverPrivilegedRole")
			if got := s.countEffects(); got != 0 {
				t.Error("a statement ran with too many rights")
			}
			s.Exec(`ALTER ROLE ` + s.own.User + ` NOSUPERUSER NOCREATEROLE`)
			s.Exec(`REVOKE pg_execute_server_program, pg_read_server_files FROM ` + s.own.User)
			s.acked(1, w)
		})
	}
}

func TestMissingTablesAreAConditionUntilTheyAreThere(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Exec(`ALTER TABLE message_parked RENAME TO message_parked_away`)
	w := s.start()
	s.publish(ev("k", 1))
	w.says("SchemaReady", "False", "SchemaMissing")
	s.Exec(`ALTER TABLE message_parked_away RENAME TO message_parked`)
	s.acked(1, w)
}

func TestASecondResourceUnderOneNameAppliesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	first := s.start()
	s.publish(ev("k", 1))
	s.acked(1, first)

	other := s.start(func(o *options) { o.config.Resource, o.config.UID = "shop/copy", "2" })
	c := other.says("ConsumerNameInUse", "True", "InUse")
	if !strings.Contains(c.Message, "shop/billing") {
		t.Errorf("message = %q, want the other resource's name", c.Message)
	}
	first.end()
	s.publish(ev("k", 2))
	if got := other.receiver.Acked(); len(got) > 0 {
		t.Errorf("the second applied %v while the name was taken", got)
	}
	s.Exec(
		`UPDATE message_inbox_owner SET seen_until = clock_timestamp()`,
	) // as after half a minute without a heartbeat
	s.acked(1, other)
}

func TestABrokerThatFailsIsAConditionAndRecovers(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	w.receiver.Fail(&broker.Error{Reason: broker.ReasonStreamMissing, Detail: "create it"})
	c := w.says("SourceReachable", "False", "StreamMissing")
	if c.Message != "create it" {
		t.Errorf("message = %q", c.Message)
	}
	w.receiver.Fail(nil)
	s.publish(ev("k", 1))
	s.acked(1, w)
	w.says("SourceReachable", "True", "Reachable")
}

func TestWithoutADatabaseNoCountIsTold(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := testkit.Proxy(t, s.Addr())
	p.Cut()
	w := s.start(s.through(p))
	w.says("DatabaseReachable", "False", "Unreachable")
	report, conditions := w.Report(t.Context())
	if report.Parked != nil || report.Gaps != nil || report.BlockedKeys != nil || report.DeadLetters != nil {
		t.Errorf("counts without a database: %+v", report)
	}
	for _, c := range conditions {
		if c.Type == "SchemaReady" && c.Status != "Unknown" {
			t.Errorf("SchemaReady = %s without a database, want Unknown", c.Status)
		}
	}
	p.Resume()
	s.publish(ev("k", 1))
	s.acked(1, w)
}

// slow is a store that takes too long for more than a few messages at once.
type slow struct{ consumer.Store }

func (s slow) Apply(ctx context.Context, j verdict.Job, items []*verdict.Item) ([]verdict.Decision, error) {
	if len(items) > 7 {
		return make([]verdict.Decision, len(items)), &verdict.Trouble{Kind: verdict.Slow, Text: "too slow"}
	}
	return s.Store.Apply(ctx, j, items)
}

func TestABatchThatTakesTooLongIsCutSmaller(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) {
		o.config.Lanes = 1
		o.store = func(inner consumer.Store) consumer.Store { return slow{inner} }
	})
	var events []event
	for v := range int64(100) {
		events = append(events, ev("k", v+1))
	}
	s.publish(events...)
	s.acked(100, w)
	if got := w.metric("postrider_inbox_transaction_retries_total", "slow"); got < 1 {
		t.Errorf("slow transactions = %v, want at least 1", got)
	}
	s.once()
}

func TestThePurgeKeepsWhatIsParkedOrDead(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.refuse("parked-1")
	w := s.start(func(o *options) { o.config.Backoff.Initial, o.config.Backoff.Max = time.Hour, time.Hour })
	s.publish(ev("k", 1), ev("parked", 1), event{id: "dead", key: "d", version: 1, data: "-"},
		event{id: "skipped", key: "s", version: 1, kind: "user.created"}, ev("young", 1))
	s.acked(5, w)
	w.end()
	s.Exec(`UPDATE message_inbox SET processed_at = processed_at - interval '1 hour' WHERE event_id <> 'young-1'`)

	store := s.storeOf(t)
	for {
		more, err := store.Purge(t.Context(), 30*time.Minute)
		if err != nil {
			t.Fatalf("Purge() error = %v", err)
		}
		if !more {
			break
		}
	}
	left := testkit.Values[string](s.DB, `SELECT event_id FROM message_inbox ORDER BY 1`)
	if diff := cmp.Diff([]string{"dead", "parked-1", "young-1"}, left); diff != "" {
		t.Errorf("what the inbox remembers differs (-want +got):\n%s", diff)
	}
}

// storeOf returns a store as a worker has it.
func (s *shop) storeOf(t *testing.T) *inboxdb.Store {
	t.Helper()
	pool, err := postgres.Open(t.Context(), s.own.Config(), postgres.Options{AllowLoopback: true})
	if err != nil {
		t.Fatalf("opening a pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return inboxdb.New(pool.Pool, postgres.Names{Schema: s.Schema}, consumerName)
}

// purges records what it was asked to forget.
type purges struct {
	consumer.Store
	asked chan time.Duration
}

func (p purges) Purge(_ context.Context, retention time.Duration) (bool, error) {
	select {
	case p.asked <- retention:
	default:
	}
	return false, nil
}

func TestThePurgeNeverForgetsWhatMayBeReplayed(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	asked := make(chan time.Duration, 1)
	w := s.start(func(o *options) {
		o.config.Retention, o.config.ReplayHorizon = 2*time.Hour, time.Hour
		o.random = func() float64 { return 0 } // the first purge is due at once
		o.store = func(inner consumer.Store) consumer.Store { return purges{inner, asked} }
	})
	defer w.end()
	if got := <-asked; got != 2*time.Hour {
		t.Errorf("purged what is older than %v, want 2h", got)
	}
	bad := s.options().config
	bad.Retention, bad.ReplayHorizon = time.Hour, 2*time.Hour
	if bad.Validate() == nil {
		t.Error("a retention below the replay horizon is accepted")
	}
}

func TestTheReportCountsDeadLettersAndTheKeysTheyHold(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	s.publish(event{id: "dead", key: "d", version: 1, data: "-"}, ev("d", 2))
	s.acked(2, w)
	report, _ := w.Report(t.Context())
	if report.DeadLetters.Open != 1 || report.DeadLetters.OldestTime == nil || *report.BlockedKeys != 1 {
		t.Errorf("report = %+v, want one dead letter that blocks one key", report)
	}
}
