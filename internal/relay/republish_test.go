package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/test/testkit"
)

// republish sends what is chosen of the archive again.
func (w *world) republish(s outboxdb.Selection) outboxdb.Republished {
	w.t.Helper()
	s.Limit = 10_000
	chosen, more, err := w.desk().Archived(w.t.Context(), s)
	if err != nil || more {
		w.t.Fatalf("Archived() = %v, more %v", err, more)
	}
	done, err := w.desk().Republish(w.t.Context(), chosen, somebody)
	if err != nil {
		w.t.Fatal(err)
	}
	return done
}

func of(keys ...string) outboxdb.Selection { return outboxdb.Selection{Keys: keys} }

// What of a key is sent again comes in its order before what of it waits, whoever runs at the time.
func TestArchivedMessagesGoAgainInOrderBeforeWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first := w.start(options{})
	w.put("k", 40) // more than are freed at once
	w.put("other", 3)
	w.awaitEmpty()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	w.put("k", 3)

	if got := w.republish(of("k")); got != (outboxdb.Republished{Moved: 40}) {
		t.Fatalf("Republish() = %+v", got)
	}
	w.start(options{})
	w.awaitEmpty()

	want := append(upTo(40), upTo(43)...)
	if diff := cmp.Diff(want, w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
	w.inOrder("other", 3)
	w.awaitSQL("no gate stays", `count(*) = 0 FROM message_outbox_gate`)
	w.awaitSQL("each is archived once", `count(*) = 46 AND count(DISTINCT event_id) = 46 FROM message_outbox_published`)
	if got := testkit.Value[string](w.DB, `SELECT string_agg(DISTINCT concat_ws(' ', actor, action, why, origin_name,
		digest_before = digest_after), ', ') || ' ' || count(DISTINCT event_id) FROM message_audit`); got !=
		"somebody Republish a test shop/orders t 40" {
		t.Errorf("audit = %q", got)
	}
}

// A key that is written to and sent again all the time: what is on its way again at the time is not in the archive, so
// each sending again is of what there was. First deliveries keep their order all the same, and afterwards all of it goes
// again as one.
func TestAKeyThatIsWrittenToIsSentAgainInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.start(options{config: func(c *relay.Config) { c.Batch.MaxMessages = 7 }})
	written := 0
	for range 8 {
		for range 5 {
			w.put("k", 2)
			written += 2
		}
		w.republish(of("k"))
	}
	w.awaitEmpty()
	if diff := cmp.Diff(upTo(written), once(w.broker.versions("k"))); diff != "" {
		t.Errorf("first deliveries (-want +got):\n%s", diff)
	}
	before := len(w.broker.versions("k"))
	if before == written {
		t.Error("nothing was sent again")
	}
	w.republish(of("k"))
	w.awaitEmpty()
	if diff := cmp.Diff(upTo(written), w.broker.versions("k")[before:]); diff != "" {
		t.Errorf("all of it again (-want +got):\n%s", diff)
	}
}

func TestMessagesOfABlockedKeyStayInTheArchive(t *testing.T) {
	t.Parallel()
	w := blocked(t, second)
	w.put("other", 1)
	w.awaitSQL("the other key is published", `count(*) = 2 FROM message_outbox_published`)
	if got := w.republish(outboxdb.Selection{}); got != (outboxdb.Republished{Moved: 1, Blocked: 1}) {
		t.Fatalf("Republish() = %+v", got)
	}
	w.broker.script(nil)
	if err := w.desk().Discard(t.Context(), w.dead(), somebody); err != nil {
		t.Fatal(err)
	}
	w.awaitEmpty()
	if got := w.republish(of("k")); got.Moved != 40 || got.Blocked != 0 {
		t.Errorf("Republish() after the decision = %+v", got)
	}
	w.awaitEmpty()
	if diff := cmp.Diff(append(upTo(40), upTo(40)...), w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
}

// Unordered messages are as good as new: nothing waits for them. One that nobody wants any more, and one that was never
// sent, are left alone.
func TestUnorderedMessagesGoAgainAndExpiredOnesDoNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	const unordered = `
		INSERT INTO message_outbox (event_id, event_type, source, ordering_key, payload, occurred_at, expires_at)
		SELECT id, 'order.paid', 'shop', id::text, '', now(), %s
		FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 3)) x`
	w.Exec(fmt.Sprintf(unordered, "NULL"))
	w.Exec(fmt.Sprintf(unordered, "now() + interval '1 h'"))
	w.Exec(fmt.Sprintf(unordered, "now() - interval '1 h'"))
	w.start(options{})
	w.awaitEmpty()
	w.Exec(`UPDATE message_outbox_published SET expires_at = now() - interval '1 s'
		WHERE event_id = (SELECT event_id FROM message_outbox_published WHERE expires_at > now() LIMIT 1)`)

	if got := w.republish(outboxdb.Selection{}); got != (outboxdb.Republished{Moved: 5}) {
		t.Errorf("Republish() = %+v, want the three and two of those that were sent", got)
	}
	w.awaitEmpty()
	if n := w.broker.count(); n != 6+5 {
		t.Errorf("%d messages in the broker, want 11", n)
	}
}

// The same choice twice sends once: what is on its way is not chosen again, and what was published after the time that
// bounds the choice is not either.
func TestAnInterruptedChoiceGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.start(options{})
	w.put("a", 3)
	w.put("b", 3)
	w.awaitEmpty()
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	upTo := outboxdb.Selection{To: testkit.Value[time.Time](w.DB, `SELECT clock_timestamp()`), Limit: 100}
	chosen, _, err := w.desk().Archived(t.Context(), upTo)
	if err != nil || len(chosen) != 6 {
		t.Fatalf("Archived() = %d messages, %v", len(chosen), err)
	}
	if _, err := w.desk().Republish(t.Context(), chosen[:3], somebody); err != nil { // and then it was interrupted
		t.Fatal(err)
	}
	if got, err := w.desk().Republish(t.Context(), chosen, somebody); err != nil ||
		got != (outboxdb.Republished{Moved: 3, Gone: 3}) {
		t.Errorf("Republish() = %+v, %v", got, err)
	}
	w.start(options{})
	w.awaitEmpty()
	if got := w.republish(upTo); got != (outboxdb.Republished{}) {
		t.Errorf("Republish() of what was published again = %+v", got)
	}
	if n := w.broker.count(); n != 12 {
		t.Errorf("%d messages in the broker, want each twice", n)
	}
}

// A broker that refuses what is sent again is no other than one that refuses what is new.
func TestAMessageThatIsRefusedTheSecondTimeIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.start(options{config: threeAttempts})
	w.put("k", 3)
	w.awaitEmpty()
	w.broker.poison(second, rejected)
	w.republish(of("k"))
	w.awaitDead(1)
	w.broker.script(nil)
	if err := w.desk().Replay(t.Context(), w.dead(), somebody, false); err != nil {
		t.Fatal(err)
	}
	w.awaitEmpty()
	if diff := cmp.Diff([]int64{1, 2, 3, 1, 2, 3}, w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
}

// The archive turns under load as often as it must, also where somebody reads in it: nothing is lost or sent twice, and
// rows live as long as they are kept and not much longer.
func TestTheArchiveTurnsUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	const retention = 2 * time.Second
	w.start(options{config: func(c *relay.Config) { c.Retention = retention }})
	w.start(options{config: func(c *relay.Config) { c.Retention = retention }})
	reader, err := w.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), `SELECT count(*) FROM message_outbox_published_3`); err != nil {
		t.Fatal(err)
	}
	written, turns, slot := 0, 0, int16(0)
	step := func(what string, until func() bool) {
		testkit.Eventually(t, 4*patience, what, func() bool {
			w.put("a", 5)
			w.put("b", 5)
			written += 5
			if now := testkit.Value[int16](w.DB, `SELECT slot FROM message_outbox_ring WHERE current`); now != slot {
				turns, slot = turns+int(now-slot+8)%8, now // several, where writing took long
			}
			return until()
		})
	}
	step("a turn waits for the reader", func() bool {
		return testkit.Value[bool](w.DB, `SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = $1
			AND wait_event_type = 'Lock' AND query LIKE 'TRUNCATE%'`, w.Schema)
	})
	if err := reader.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	step("the archive has turned for more than a round", func() bool { return turns > 9 })
	w.awaitEmpty()
	w.inOrder("a", written)
	w.inOrder("b", written)
	if n := w.broker.count(); n != 2*written {
		t.Errorf("%d messages in the broker, want each of %d once", n, 2*written)
	}
	if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_outbox_published p
		JOIN message_outbox_ring r USING (slot) WHERE p.published_at < r.since`); n != 0 {
		t.Errorf("%d rows outlived the turn that was to remove them", n)
	}
}
