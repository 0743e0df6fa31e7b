package consumer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/consumer/handler/sql"
	"github.com/postrider/postrider/internal/verdict"
	"github.com/postrider/postrider/test/testkit"
)

// refuse makes statements fail for event ids in the table refused, with the SQLSTATE that the table says.
func (s *shop) refuse(ids ...string) {
	s.t.Helper()
	s.Exec(`CREATE TABLE IF NOT EXISTS refused (event_id text PRIMARY KEY, state text NOT NULL DEFAULT 'P0001')`)
	s.Exec(`CREATE OR REPLACE FUNCTION check_effect() RETURNS trigger LANGUAGE plpgsql AS $f$
		DECLARE s text; BEGIN
			SELECT state INTO s FROM refused WHERE event_id = NEW.event_id;
			IF FOUND AND s = 'sleep' THEN PERFORM pg_sleep(60); END IF;
			IF FOUND THEN RAISE EXCEPTION 'refused' USING ERRCODE = s; END IF;
			RETURN NEW;
		END $f$`)
	s.Exec(`DROP TRIGGER IF EXISTS refuse ON effect`)
	s.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON effect FOR EACH ROW EXECUTE FUNCTION check_effect()`)
	for _, id := range ids {
		s.Exec(`INSERT INTO refused (event_id) VALUES ($1)`, id)
	}
}

// accept lets refused statements succeed.
func (s *shop) accept() {
	s.t.Helper()
	s.Exec(`DELETE FROM refused`)
}

func TestAFailingMessageHoldsOnlyItsKey(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.refuse("poison-1")
	w := s.start()

	events := []event{ev("poison", 1), ev("poison", 2)}
	for k := range 998 {
		events = append(events, ev(fmt.Sprintf("k%d", k), 1))
	}
	s.publish(events...)
	s.acked(1000, w) // parked copies are durable, so the broker need not keep them

	if got := s.countEffects(); got != 998 {
		t.Errorf("effects = %d, want 998", got)
	}
	if got := s.keyState("poison"); got != "R" {
		t.Errorf("state of the failing key = %q, want R", got)
	}
	testkit.Eventually(t, patience, "the message is tried again and again", func() bool {
		return testkit.Value[int32](s.DB, `SELECT attempts FROM message_parked WHERE event_id = 'poison-1'`) >= 3
	})
	if code := testkit.Value[string](
		s.DB,
		`SELECT error_code FROM message_parked WHERE event_id = 'poison-1'`,
	); code != "P0001" {
		t.Errorf("error code = %q, want P0001", code)
	}
	s.tidy()

	s.accept()
	s.applied(1000)
	s.once()
	testkit.Eventually(t, patience, "the key is open again", func() bool { return s.keyState("poison") == "O" })
	s.tidy()
	if dead := s.failures(); len(dead) > 0 {
		t.Errorf("dead letters: %v", dead)
	}
}

func TestAFailureWithoutAWitnessCountsNoAttempt(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.refuse("slow-1", "denied-1")
	s.Exec(`UPDATE refused SET state = 'sleep' WHERE event_id = 'slow-1'`)
	s.Exec(`UPDATE refused SET state = '42501' WHERE event_id = 'denied-1'`)
	w := s.start(func(o *options) { o.config.HandlerTimeout = 200 * time.Millisecond })
	s.publish(ev("slow", 1), ev("denied", 1), ev("k", 1), ev("k", 2))
	s.acked(4, w)

	testkit.Eventually(t, patience, "both were tried again", func() bool {
		return testkit.Value[int64](
			s.DB,
			`SELECT count(*) FROM message_parked WHERE last_failed_at > first_failed_at`,
		) == 2
	})
	want := []string{"denied-1 42501 0", "slow-1 57014 0"}
	got := testkit.Values[string](
		s.DB,
		`SELECT event_id || ' ' || error_code || ' ' || attempts FROM message_parked ORDER BY 1`,
	)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parked messages differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"k@1", "k@2"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
}

// An error that says nothing of the message is tried again with everything else first. One that always comes with the
// same message must not stop the others for ever, however many of its key are in front of them.
func TestABlamelessErrorOfOneMessageDoesNotStopItsLane(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]string{
		"a serialization failure that a function raises": "40001",
		"an internal error of the server":                "XX000",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.refuse("poison-1")
			s.Exec(`UPDATE refused SET state = $1`, state)
			w := s.start(func(o *options) { o.config.Lanes, o.config.MaxBatch = 1, 50 })
			var events []event
			for v := range 60 {
				events = append(events, ev("poison", int64(v+1)))
			}
			for k := range 20 {
				events = append(events, ev(fmt.Sprintf("k%d", k), 1))
			}
			s.publish(events...)
			s.acked(80, w)

			if got := s.countEffects(); got != 20 {
				t.Errorf("effects = %d, want 20", got)
			}
			testkit.Eventually(t, patience, "the message was tried again", func() bool {
				return testkit.Value[int64](
					s.DB,
					`SELECT count(*) FROM message_parked WHERE event_id = 'poison-1' AND last_failed_at > first_failed_at`,
				) == 1
			})
			s.publish(ev("later", 1))
			s.applied(21)
			s.accept()
			s.applied(81)
			s.once()
			s.tidy()
			if dead := s.failures(); len(dead) > 0 {
				t.Errorf("dead letters: %v", dead)
			}
		})
	}
}

func TestAConstraintThatFailsAtCommitParksItsMessage(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Exec(`CREATE TABLE parent (key text PRIMARY KEY)`)
	s.Exec(`INSERT INTO parent VALUES ('a'), ('c')`)
	s.Exec(`ALTER TABLE effect ADD FOREIGN KEY (key) REFERENCES parent DEFERRABLE INITIALLY DEFERRED`)
	w := s.start()
	s.publish(ev("a", 1), ev("b", 1), ev("c", 1))
	s.acked(3, w)

	if diff := cmp.Diff([]string{"a@1", "c@1"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	if code := testkit.Value[string](
		s.DB,
		`SELECT error_code FROM message_parked WHERE event_id = 'b-1'`,
	); code != "23503" {
		t.Errorf("error code = %q, want 23503", code)
	}
	s.Exec(`INSERT INTO parent VALUES ('b')`)
	s.applied(3)
	s.tidy()
}

func TestAGapParksWhatFollowsAndHeals(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	s.publish(ev("k", 1), ev("k", 3), ev("k", 5), ev("k", 4), ev("other", 1))
	s.acked(5, w)
	if diff := cmp.Diff([]string{"k@1", "other@1"}, sorted(s.effects())); diff != "" {
		t.Errorf("effects over a gap differ (-want +got):\n%s", diff)
	}
	if got := s.keyState("k"); got != "G" {
		t.Errorf("state = %q, want G", got)
	}
	report, _ := w.Report(t.Context())
	if *report.Gaps != 1 || *report.Parked != 3 {
		t.Errorf("report tells %d gaps and %d parked, want 1 and 3", *report.Gaps, *report.Parked)
	}
	s.tidy()

	s.publish(ev("k", 2))
	s.applied(6)
	testkit.Eventually(t, patience, "the key is open again", func() bool { return s.keyState("k") == "O" })
	s.publish(ev("k", 6))
	s.applied(7)
	if diff := cmp.Diff([]string{"k@1", "k@2", "k@3", "k@4", "k@5", "k@6"}, only("k@", s.effects())); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	s.tidy()
}

func TestAGapIsGivenUpAfterItsTimeAndALateVersionIsKept(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) {
		o.config.Rules = verdict.Rules{ApplyAfterGap: true, GapTimeout: 300 * time.Millisecond}
	})
	s.publish(ev("k", 1), ev("k", 4), ev("k", 5))
	s.applied(3)
	s.publish(ev("k", 3), event{id: "forged", key: "k", version: 1}, ev("k", 6), event{id: "none", key: "k"})
	s.acked(7, w)

	if diff := cmp.Diff([]string{"k@1", "k@4", "k@5", "k@6"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	want := []string{"forged VersionConflict", "k-3 LateVersion", "none VersionMissing"}
	if diff := cmp.Diff(want, sorted(s.failures())); diff != "" {
		t.Errorf("dead letters differ (-want +got):\n%s", diff)
	}
	if got := testkit.Value[string](
		s.DB,
		`SELECT first_version || '-' || last_version || ' ' || reason FROM message_skipped`,
	); got !=
		"2-3 GapTimeout" {
		t.Errorf("given up = %q, want 2-3", got)
	}
	if got := s.keyState("k"); got != "O" {
		t.Errorf("state = %q: none of these dead letters may hold the key", got)
	}
	if got := w.metric("postrider_inbox_gaps_given_up_total"); got != 1 {
		t.Errorf("gaps given up = %v, want 1", got)
	}
	s.tidy()
}

func TestAGapThatWasHeldIsGivenUpOnceTheResourceSaysSo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	s.publish(ev("k", 2))
	s.acked(1, w)

	cfg := s.options().config
	cfg.Rules = verdict.Rules{ApplyAfterGap: true, GapTimeout: time.Millisecond}
	if live, err := w.Reconfigure(cfg); !live || err != nil {
		t.Fatalf("Reconfigure() = %v, %v", live, err)
	}
	s.applied(1)
}

func TestMarkersAndUnroutedMessagesTakeTheirPlace(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	s.publish(
		ev("k", 1),
		event{id: "marker", key: "k", version: 2, kind: "postrider.skipped", data: " "},
		event{id: "other", key: "k", version: 3, kind: "user.created"},
		ev("k", 4))
	s.acked(4, w)

	if diff := cmp.Diff([]string{"k@1", "k@4"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	skipped := testkit.Values[string](s.DB, `SELECT event_id FROM message_inbox WHERE outcome = 'S' ORDER BY 1`)
	if diff := cmp.Diff([]string{"marker", "other"}, skipped); diff != "" {
		t.Errorf("skipped ids differ (-want +got):\n%s", diff)
	}
}

func TestOtherWaysToOrder(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change func(*options)
		events []event
		want   []string
	}{
		"IgnoreOlder applies what is newer and skips the rest": {
			func(o *options) { o.config.Rules.Versions = verdict.IgnoreOlder },
			[]event{ev("k", 3), ev("k", 1), ev("k", 7), ev("k", 5)},
			[]string{"k@3", "k@7"},
		},
		"Off applies in the order of arrival": {
			func(o *options) { o.config.Rules.Versions = verdict.Off },
			[]event{ev("k", 3), ev("k", 1), ev("k", 2)},
			[]string{"k@3", "k@1", "k@2"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			w := s.start(tc.change)
			s.publish(tc.events...)
			s.acked(len(tc.events), w)
			if diff := cmp.Diff(tc.want, s.effects()); diff != "" {
				t.Errorf("effects differ (-want +got):\n%s", diff)
			}
			s.tidy()
		})
	}
}

func TestWithoutOrderAFailureHoldsNothingElse(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.refuse("k-1")
	w := s.start(func(o *options) { o.config.PerKey = false })
	s.publish(ev("k", 1), ev("k", 3), ev("k", 2))
	s.acked(3, w)

	if got := sorted(s.effects()); !slices.Equal(got, []string{"k@2", "k@3"}) {
		t.Errorf("effects = %v, want the two that do not fail", got)
	}
	testkit.Eventually(t, patience, "the failing message is tried again", func() bool {
		return testkit.Value[int32](s.DB, `SELECT attempts FROM message_parked`) >= 3
	})
	if n := testkit.Value[int64](s.DB, `SELECT count(*) FROM message_inbox_key`); n != 0 {
		t.Errorf("%d key rows without an order, want none", n)
	}
	s.accept()
	s.applied(3)
	testkit.Eventually(t, patience, "nothing is parked", func() bool {
		return testkit.Value[int64](s.DB, `SELECT count(*) FROM message_parked`) == 0
	})
	s.unrepeated()
}

// unrepeated fails the test where an effect happened twice, in whatever order.
func (s *shop) unrepeated() {
	s.t.Helper()
	if twice := testkit.Values[string](
		s.DB,
		`SELECT event_id FROM effect GROUP BY 1 HAVING count(*) > 1`,
	); len(
		twice,
	) > 0 {
		s.t.Errorf("effects happened more than once: %v", twice)
	}
}

// TestRandomOrderAndFailuresEndInOrder shuffles, repeats and refuses at random before two processes that are killed and
// started, and expects every key complete and in order. Parked messages that no one drains, or that two drain, show here.
func TestRandomOrderAndFailuresEndInOrder(t *testing.T) {
	t.Parallel()
	for name, database := range map[string][]testkit.PostgresOption{
		"with the usual isolation":                nil,
		"with a database default of SERIALIZABLE": {testkit.Serializable()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, database...)
			s.refuse()
			s.Exec(`CREATE OR REPLACE FUNCTION check_effect() RETURNS trigger LANGUAGE plpgsql AS $f$
				BEGIN IF random() < 0.05 THEN RAISE EXCEPTION 'refused'; END IF; RETURN NEW; END $f$`)
			const keys, versions = 12, 40
			var events []event
			for k := range keys {
				for v := range int64(versions) {
					events = append(events, ev(fmt.Sprintf("k%d", k), v+1))
				}
			}
			shuffleNearby(events, 30)
			change := func(o *options) { o.config.MaxBatch, o.prefetch, o.config.Lanes = 16, 64, 2 }
			a, b := s.start(change), s.start(change)
			for i, e := range events {
				s.publish(e)
				if i%7 == 0 {
					s.publish(e)
				}
				if i == len(events)/2 {
					s.applied(10)
					a.crash()
					a = s.start(change)
				}
			}

			s.applied(keys * versions)
			testkit.Eventually(t, patience, "nothing is parked any more", func() bool {
				return testkit.Value[int64](s.DB, `SELECT count(*) FROM message_parked`) == 0
			})
			s.once()
			s.tidy()
			if dead := s.failures(); len(dead) > 0 || s.countEffects() != keys*versions {
				t.Errorf("effects = %d, dead letters = %v", s.countEffects(), dead)
			}
			b.end()
		})
	}
}

// shuffleNearby moves each event by at most n places.
func shuffleNearby(events []event, n int) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range events {
		j := min(len(events)-1, i+r.IntN(n))
		events[i], events[j] = events[j], events[i]
	}
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

func only(prefix string, in []string) []string {
	return slices.DeleteFunc(slices.Clone(in), func(x string) bool { return !strings.HasPrefix(x, prefix) })
}

func TestRoutesChooseTheirStatements(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) {
		o.routes = []sql.Route{
			{EventTypes: []string{"order.paid"}, Statement: applyStatement},
			{EventTypes: []string{"order.*"}, Statement: `INSERT INTO effect (event_id, key, version, data)
				SELECT @event_id, @source || '/' || @event_type, @schema_version, jsonb_build_object('h', @headers,
				'p', encode(@payload, 'hex'), 'at', @occurred_at IS NULL)`},
		}
	})
	s.publish(ev("k", 1), event{id: "b", key: "k", version: 2, kind: "order.shipped", data: "\xff\x00"})
	s.acked(2, w)
	if diff := cmp.Diff([]string{"k@1", "shop/order.shipped@1"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	if got := testkit.Value[string](s.DB, `SELECT data::text FROM effect WHERE event_id = 'b'`); got !=
		`{"h": {}, "p": "ff00", "at": true}` {
		t.Errorf("data = %s", got)
	}
}

func TestPausingAndDrainingAreTakenOverWhileItRuns(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	s.publish(ev("k", 1))
	s.acked(1, w)
	set := func(change func(*consumer.Config)) {
		t.Helper()
		cfg := s.options().config
		change(&cfg)
		if live, err := w.Reconfigure(cfg); !live || err != nil {
			t.Fatalf("Reconfigure() = %v, %v", live, err)
		}
	}

	set(func(c *consumer.Config) { c.RunPolicy = consumer.Drain })
	testkit.Eventually(t, patience, "it stops consuming", func() bool { return w.log.Contains("No longer consuming") })
	s.publish(ev("k", 2))
	set(func(c *consumer.Config) { c.Lanes, c.HandlerTimeout = 2, time.Second })
	s.acked(2, w)
	set(func(c *consumer.Config) { c.Lanes = 3 })
	s.publish(ev("k", 3), ev("l", 1))
	s.acked(4, w)
	set(func(c *consumer.Config) { c.RunPolicy = consumer.Pause })
	set(func(*consumer.Config) {})
	s.publish(ev("k", 4))
	s.acked(5, w)
	s.once()

	other := s.options().config
	other.Rules.Versions = verdict.Off
	if live, err := w.Reconfigure(other); live || err != nil {
		t.Errorf("Reconfigure() with other versions = %v, %v, want a new consumer", live, err)
	}
	other.Lanes = 0
	if _, err := w.Reconfigure(other); err == nil {
		t.Error("Reconfigure() takes a config without lanes")
	}
}
