package relay_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/test/testkit"
)

// threeAttempts is a budget that a test can wait for.
func threeAttempts(c *relay.Config) {
	c.Budget = retry.Budget{MaxAttempts: 3, MaxElapsed: time.Hour}
	c.Backoff = retry.Backoff{Initial: 10 * time.Millisecond, Max: 30 * time.Millisecond}
}

// poison rejects the messages of which a test says so and keeps the others.
func (l *ledger) poison(bad func(m message.Message) bool, why broker.Confirmation) {
	l.script(func(m message.Message) (broker.Confirmation, bool) {
		if bad(m) {
			return why, false
		}
		return confirmed, true
	})
}

func (w *world) awaitDead(n int) {
	w.t.Helper()
	w.awaitSQL(fmt.Sprintf("%d dead letters", n),
		`count(*) = $1 FROM message_failure WHERE state = 'Open' AND origin = 'Relay'`, n)
}

func TestAMessageThatIsRefusedTooOftenBecomesADeadLetterAndBlocksItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.broker.poison(func(m message.Message) bool {
		return m.OrderingKey == "bad" && m.AggregateVersion == 2
	}, rejected)
	w.put("bad", 4)
	w.put("good", 10)

	p := w.start(options{config: threeAttempts})

	w.awaitDead(1)
	w.awaitSQL("the rest waits", `count(*) = 2 AND bool_and(held) FROM message_outbox`)
	if got := testkit.Value[string](
		w.DB,
		`SELECT concat_ws(' ', attempts, reason, aggregate_version) FROM message_failure`,
	); got != "3 TooLarge 2" {
		t.Errorf("dead letter = %q", got)
	}
	if diff := cmp.Diff(upTo(10), w.broker.versions("good")); diff != "" {
		t.Errorf("the other key (-want +got):\n%s", diff)
	}
	if got := p.counted("outbox_publish_failures_total", "test", "rejected", "TooLarge"); got != 3 {
		t.Errorf("%v failures counted, want 3", got)
	}
	if got := p.counted("outbox_publish_failures_total"); got != 3 {
		t.Errorf("%v failures counted for whatever reason, want 3", got)
	}
	testkit.Eventually(t, patience, "the dead letter is counted", func() bool {
		return p.counted("outbox_dead_lettered_messages_total", "TooLarge") == 1
	})
	testkit.Eventually(t, patience, "the report counts it", func() bool {
		r, _ := p.Report(t.Context())
		return r.DeadLetters != nil && r.DeadLetters.Open == 1 && r.Backlog != nil && r.Backlog.BlockedKeys == 1 &&
			r.Backlog.BlockedMessages == 2
	})
}

func TestASkippedMessageLeavesAMarkerAndItsKeyGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.broker.poison(func(m message.Message) bool {
		return m.AggregateVersion == 2 && m.Type != message.SkippedType
	}, rejected)
	w.put("k", 40) // more than are freed at once

	w.start(options{config: threeAttempts, skip: true})

	w.awaitEmpty()
	w.awaitDead(1)
	if diff := cmp.Diff(upTo(40), w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
	w.broker.mu.Lock()
	defer w.broker.mu.Unlock()
	for _, m := range w.broker.kept {
		if marker := m.Type == message.SkippedType; marker != (m.AggregateVersion == 2) || (marker && m.Size > 0) {
			t.Errorf("version %d has type %s and %d bytes", m.AggregateVersion, m.Type, m.Size)
		}
	}
}

func TestAMarkerThatNobodyTakesIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.broker.poison(func(m message.Message) bool { return m.AggregateVersion == 1 }, rejected)
	w.put("k", 3)
	w.start(options{config: threeAttempts, skip: true})
	w.awaitEmpty()
	if diff := cmp.Diff([]int64{2, 3}, w.broker.versions("k")); diff != "" {
		t.Errorf("versions in the broker (-want +got):\n%s", diff)
	}
	if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`); n != 1 {
		t.Errorf("%d dead letters, want that of the message alone", n)
	}
}

func TestWhereNothingIsOrderedADeadLetterHoldsUpNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.broker.poison(func(m message.Message) bool { return m.AggregateVersion == 1 }, rejected)
	w.put("k", 3)
	w.start(options{config: func(c *relay.Config) { threeAttempts(c); c.Unordered = true }})
	w.awaitEmpty()
	w.awaitDead(1)
	w.awaitSQL("no gate stays", `count(*) = 0 FROM message_outbox_gate`)
}

// The witness rule (contract R5): what fails in a way that tells nothing counts only while others get through.
func TestAFailureThatTellsNothingCountsOnlyWhileOthersGetThrough(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]broker.Confirmation{
		"no permission": {Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied},
		"no answer":     unknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.broker.poison(func(m message.Message) bool { return m.OrderingKey == "odd" }, why)
			w.put("odd", 1)
			w.put("first", 1) // shows once that the unit works, and is no witness of what comes after
			w.start(options{config: threeAttempts})

			calls := 0
			w.awaitSQL("the message waits", `count(*) = 1 AND bool_and(held) FROM message_outbox`)
			calls = w.broker.publishes()
			testkit.Eventually(t, patience, "it was tried many times", func() bool {
				return w.broker.publishes() > calls+10
			})
			if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`); n != 0 {
				t.Fatal("it became a dead letter without a witness")
			}
			if !testkit.Value[bool](w.DB, `SELECT attempts = 0 AND ambiguous_since IS NOT NULL FROM message_outbox`) {
				t.Error("attempts were counted, or it does not show that nobody knows")
			}

			testkit.Eventually(t, patience, "it is a dead letter once others get through", func() bool {
				w.put("other", 1)
				return testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`) == 1
			})
		})
	}
}

// G7: an outage that is longer than the whole budget uses up nothing of it.
func TestG7AnOutageLongerThanTheBudgetMakesNoDeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	fails := make(map[string]bool)
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) { // each key once, and then there is no broker
		if !fails[m.OrderingKey] {
			fails[m.OrderingKey] = true
			return rejected, false
		}
		return unavailable, false
	})
	w.put("k", 2)
	w.put("l", 2)
	w.start(options{config: func(c *relay.Config) {
		threeAttempts(c)
		c.Budget = retry.Budget{MaxAttempts: 2, MaxElapsed: 300 * time.Millisecond}
	}})
	w.awaitSQL("the messages have begun to fail", `count(*) = 2 FROM message_outbox WHERE attempts > 0`)
	down := time.Now()
	calls := w.broker.publishes()
	testkit.Eventually(t, patience, "the outage lasts longer than the budget", func() bool {
		return time.Since(down) > time.Second && w.broker.publishes() > calls+2
	})
	w.broker.script(nil)
	w.awaitEmpty()
	if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`); n != 0 {
		t.Errorf("%d dead letters of an outage", n)
	}
}

// S07, S08: when many messages failed, retries are a bounded share of what is sent: here so many a second, since nothing else
// is. Nothing is lost or reordered by it.
func TestRetriesAreABoundedShare(t *testing.T) {
	t.Parallel()
	const keys, aSecond = 40, 20
	w := newWorld(t, 1)
	var mu sync.Mutex
	tries := make(map[message.ID]int)
	retries := 0
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		mu.Lock()
		defer mu.Unlock()
		if tries[m.ID]++; tries[m.ID] > 1 {
			retries++
		}
		if tries[m.ID] <= 2 {
			return rejected, false
		}
		return confirmed, true
	})
	for i := range keys {
		w.put(fmt.Sprintf("key-%d", i), 2)
	}
	began := time.Now()
	w.start(options{config: func(c *relay.Config) {
		c.Share = retry.Share{Percent: 1, MinPerSecond: aSecond}
		c.Backoff = retry.Backoff{Initial: time.Millisecond, Max: 2 * time.Millisecond}
	}})
	w.awaitEmpty()
	took := time.Since(began)
	mu.Lock()
	defer mu.Unlock()
	// Each second's share, the purse that was full at first, and one percent of all that was sent.
	if most := aSecond*(took.Seconds()+1) + 0.01*float64(retries+2*keys) + 1; float64(retries) > most {
		t.Errorf("%d retries in %v, want at most %.0f", retries, took, most)
	}
	for i := range keys {
		w.inOrder(fmt.Sprintf("key-%d", i), 2)
	}
}

// hourly lets nothing that failed be tried again by itself.
func hourly(c *relay.Config) { c.Backoff = retry.Backoff{Initial: time.Hour, Max: time.Hour} }

// R5: one publish that gets no answer, while others get through, says nothing yet. The message is sent again with the next
// batch, and does not wait by itself.
func TestTheFirstPublishWithoutAnAnswerIsOnlyRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	cut := true
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.OrderingKey == "k" && cut {
			cut = false
			return unknown, false
		}
		return confirmed, true
	})
	w.put("k", 3)
	w.put("other", 1)
	h := &hooks{}
	h.set(func(h *hooks) {
		h.refuse = func(call func() error) error {
			t.Error("the message waits by itself")
			return call()
		}
	})
	w.start(options{config: hourly, wrap: h.wrap})
	w.awaitEmpty()
	w.inOrder("k", 3)
}

// G8: a key of which nothing ever gets an answer, and which is longer than a batch, keeps no other from being read. Nobody
// bears witness against it until then.
func TestAKeyWithoutAnswersThatIsLongerThanABatchHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.broker.poison(func(m message.Message) bool { return m.OrderingKey == "odd" }, unknown)
	w.put("odd", 50)
	w.put("good", 5)
	w.start(options{config: func(c *relay.Config) { c.Batch.MaxMessages = 10 }})
	testkit.Eventually(t, patience, "the other key has its messages", func() bool {
		return cmp.Equal(upTo(5), w.broker.versions("good"))
	})
	w.broker.script(nil)
	w.awaitEmpty()
	w.inOrder("odd", 50)
	if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// The same of a message that was refused before: whatever others did since, no attempt is counted where nobody answers.
func TestAnOutageThatBeginsWithARetryCountsNothing(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]broker.Confirmation{
		"no answer":     unknown,
		"it is blocked": {Outcome: broker.Unknown, Reason: broker.ReasonBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.broker.poison(func(m message.Message) bool { return m.OrderingKey == "odd" }, rejected)
			w.put("odd", 1)
			p := w.start(options{config: hourly})
			w.awaitSQL("it was refused", `count(*) = 1 FROM message_outbox WHERE attempts = 1`)
			w.put("other", 1)
			w.awaitSQL("another got through since", `count(*) = 1 FROM message_outbox`)
			calls := w.broker.publishes()
			w.broker.poison(func(message.Message) bool { return true }, why)
			w.Exec(`UPDATE message_outbox_gate SET due = clock_timestamp()`)
			testkit.Eventually(t, patience, "it was tried again", func() bool { return w.broker.publishes() > calls })
			w.awaitSQL("it waits", `count(*) = 1 FROM message_outbox_gate WHERE due > clock_timestamp()`)
			if !testkit.Value[bool](w.DB, `SELECT attempts = 1 AND unknowns = 0 FROM message_outbox`) {
				t.Error("an attempt is counted, or the message is suspected")
			}
			if got := p.condition("BrokerReachable"); got[:5] != "False" {
				t.Errorf("BrokerReachable = %q while nobody answers", got)
			}
		})
	}
}

// What tries whether the broker is back is sent, however little the share of retries leaves: nobody else may try meanwhile.
func TestTheShareOfRetriesKeepsNobodyFromTryingWhetherTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	odd := func(m message.Message) bool { return m.OrderingKey != "good" }
	w.broker.poison(odd, rejected)
	for i := range 30 {
		w.put(fmt.Sprintf("odd-%d", i), 1)
	}
	w.start(options{config: func(c *relay.Config) {
		c.Share = retry.Share{Percent: 0, MinPerSecond: 1}
		c.QueryTimeout = patience // for as long a try that nobody made would be waited for
	}})
	w.awaitSQL("all were refused", `count(*) = 30 FROM message_outbox WHERE attempts > 0`)
	for outage := range 5 {
		calls := w.broker.publishes()
		w.broker.script(func(message.Message) (broker.Confirmation, bool) { return unavailable, false })
		w.put("good", 1)
		testkit.Eventually(t, patience, "the outage is noticed", func() bool { return w.broker.publishes() > calls+1 })
		w.broker.poison(odd, rejected)
		back := time.Now()
		testkit.Eventually(t, patience, "what is new goes again", func() bool {
			return len(w.broker.versions("good")) == outage+1
		})
		if took := time.Since(back); took > patience/3 {
			t.Fatalf("it took %v", took)
		}
	}
}

// S04, S07: keys that wait for their turn to be tried again are left alone meanwhile, and do not move rows of the database
// again and again.
func TestRetriesThatWaitForTheirTurnCostTheDatabaseLittle(t *testing.T) {
	t.Parallel()
	const keys, aSecond = 300, 10
	w := newWorld(t, 1)
	w.broker.poison(func(message.Message) bool { return true }, rejected)
	for i := range keys {
		w.put(fmt.Sprintf("key-%d", i), 1)
	}
	h := &hooks{}
	w.start(options{wrap: h.wrap, config: func(c *relay.Config) {
		c.Share = retry.Share{Percent: 0, MinPerSecond: aSecond}
		c.Backoff = retry.Backoff{Initial: 10 * time.Millisecond, Max: time.Minute}
	}})
	w.awaitSQL("thirty were tried again", `coalesce(sum(attempts), 0) >= 330 FROM message_outbox`)
	// Each key is told its turn once, and a few come too early for a coin.
	if n := h.postponed.Load(); n > 3*keys {
		t.Errorf("keys were postponed %d times, want about once each (%d)", n, keys)
	}
}
