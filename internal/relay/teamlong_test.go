package relay_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// rowsInVain are the rows of one shard of a team's table that may not be sent yet: far more than a claim passes over, and
// more than one could within the bound of a query that these tests set.
const rowsInVain = 200_000

// shortQueries makes a statement fail that walks all of the rows in vain.
func shortQueries(c *relay.Config) { c.QueryTimeout = time.Second }

// notDue writes rows of as many keys that may be sent in an hour.
func (w *world) notDue(rows int) {
	w.t.Helper()
	w.Exec(`INSERT INTO outbox_event (event_id, aggregate_id, aggregate_version, topic, payload, available_at)
		SELECT gen_random_uuid(), 'later-' || i, 1, 'orders', '{}', now() + '1 h' FROM generate_series(1, $1) i`, rows)
	w.Exec(`ANALYZE outbox_event`)
}

// Rows that are due get through beside any number that are not, those that were there first and those that come later.
func TestRowsThatAreDueGetThroughBesideManyThatAreNot(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	w.notDue(rowsInVain)
	w.put("before", 1)
	w.start(options{config: shortQueries})
	await := func(key string) {
		t.Helper()
		testkit.Eventually(t, patience, "the message of key "+key+" arrives", func() bool {
			return len(w.broker.versions(key)) > 0
		})
	}
	await("before")
	for _, key := range []string{"a", "b", "c"} {
		w.put(key, 1)
	}
	for _, key := range []string{"a", "b", "c"} {
		await(key)
	}
	if n := w.broker.count(); n != 4 {
		t.Errorf("%d messages arrived, want the 4 that are due", n)
	}
}

// Where nothing is ordered each message waits by itself. However many wait, since their topic takes none, others get
// through.
func TestMessagesGetThroughBesideManyThatWaitUnordered(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.DebeziumTable(), 1)
	w.Exec(`INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)
		SELECT gen_random_uuid(), 'order', 'down', 'OrderPaid', '{}' FROM generate_series(1, $1) i`, rowsInVain/2)
	w.Exec(`INSERT INTO outboxevent_gate (shard, ordering_key, state, due)
		SELECT 0, id::text, 'Retry', now() + '1 h' FROM outboxevent`)
	w.Exec(`ANALYZE outboxevent`)
	w.Exec(`ANALYZE outboxevent_gate`)
	w.put("before", 20)
	w.start(options{config: shortQueries})
	arrived := func(n int) {
		t.Helper()
		testkit.Eventually(t, patience, "the messages that do not wait arrive", func() bool {
			return w.broker.count() == n
		})
	}
	arrived(20)
	w.put("later", 20)
	arrived(40)
}

// timed is a store that remembers when claims began and ended.
type timed struct {
	relay.Store

	mu     sync.Mutex
	claims []span
}

type span struct {
	began, ended time.Time
	look         shard.Look
}

func (s *timed) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	began := time.Now()
	c, err := s.Store.Claim(ctx, l, w)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims = append(s.claims, span{began, time.Now(), c.Look})
	return c, err
}

func (s *timed) after(n int) []span {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.claims) < n {
		return nil
	}
	return s.claims[len(s.claims)-n:]
}

// A lane that found nothing on its whole round rests between its claims: a backlog that is due tomorrow must not keep the
// database busy until then. It does not rest a poll interval each, or a round would take hours.
func TestALaneThatFoundNothingOnItsRoundRestsBetweenItsClaims(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	w.notDue(10_000)
	store := &timed{}
	w.start(options{
		wrap:   func(s relay.Store) relay.Store { store.Store = s; return store },
		config: func(c *relay.Config) { c.Batch.MaxMessages, c.Batch.PollInterval = 1, time.Minute },
	})
	var last []span
	const claims = 10
	// Up to the top, once round, and as many more.
	testkit.Eventually(t, patience, "the lane is on its third round", func() bool {
		last = store.after(3*claims + 1)
		return last != nil
	})
	last = last[len(last)-5:]
	for i := 1; i < len(last); i++ {
		took, rest := last[i-1].ended.Sub(last[i-1].began), last[i].began.Sub(last[i-1].ended)
		if rest < 3*took || last[i].look.Stopped == 0 {
			t.Errorf("a claim that took %v was followed by one after %v: %+v", took, rest, last[i].look)
		}
	}
}

// What wakes the common look for a shard that is too much for it is no reason for a lane to hurry.
func TestALaneWhoseClaimIsLongLooksByItself(t *testing.T) {
	t.Parallel()
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	w.notDue(1_300)
	h := &hooks{}
	w.start(options{wrap: h.wrap})
	testkit.Eventually(t, patience, "the lane looks again and again", func() bool { return h.claims.Load() > 5 })
	if n := h.looks.Load(); n > 0 {
		t.Errorf("%d looks for idle lanes, want none: the lane is never idle", n)
	}
	sent := w.put("due", 1)
	testkit.Eventually(t, patience, "what is due arrives", func() bool { return w.broker.count() == len(sent) })
	if got := w.broker.all("due"); len(got) != 1 || got[0].ID != sent[0].ID {
		t.Errorf("got %v", got)
	}
}
