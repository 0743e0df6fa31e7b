package relay_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/test/testkit"
)

// parts is a broker of several parts: the first letter of a message's key says to which one it goes.
type parts struct {
	broker.Publisher
	units []string // nil where they cannot be listed
}

// Unit implements broker.Router.
func (parts) Unit(m *message.Message) string { return m.OrderingKey[:1] }

// Units implements broker.Router.
func (p parts) Units() []string { return p.units }

// ab are the parts of most of these tests.
var ab = []string{"a", "b"}

// down answers so for all messages of a part, and confirms the others.
func (l *ledger) down(part string, why broker.Confirmation) {
	l.poison(func(m message.Message) bool { return strings.HasPrefix(m.OrderingKey, part) }, why)
}

// impatient is a budget that is spent in a moment.
func impatient(c *relay.Config) {
	c.Budget = retry.Budget{MaxAttempts: 2, MaxElapsed: 200 * time.Millisecond}
	c.Backoff = retry.Backoff{Initial: 5 * time.Millisecond, Max: 30 * time.Millisecond}
}

// outage lets one part of the broker answer so for longer than the budget, and the other part flow meanwhile.
func (w *world) outage(why broker.Confirmation, over func(took time.Duration, retries int) bool) {
	w.t.Helper()
	w.broker.down("b", why)
	for _, key := range []string{"a1", "b1", "b2", "b3"} {
		w.put(key, 3)
	}
	began, calls := time.Now(), w.broker.publishes()
	testkit.Eventually(w.t, patience, "the outage is over, and one part flowed all the time", func() bool {
		sent := w.put("a1", 1)[0].AggregateVersion
		w.put("b1", 1)
		testkit.Eventually(w.t, patience, "the other part flows", func() bool {
			return int64(len(w.broker.versions("a1"))) >= sent
		})
		return over(time.Since(began), w.broker.publishes()-calls)
	})
}

// G7: one part of the broker that is down for longer than the whole budget, while others flow, uses up nothing of it.
func TestG7OnePartThatIsDownForLongerThanTheBudgetMakesNoDeadLetter(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]broker.Confirmation{
		"no answer":           unknown,
		"no leader":           {Outcome: broker.Unavailable, Reason: broker.ReasonBrokerError},
		"not enough replicas": {Outcome: broker.Unavailable, Reason: broker.ReasonNotReplicated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			p := w.start(options{config: impatient, publisher: parts{w.broker, ab}})
			w.outage(why, func(took time.Duration, retries int) bool { return took > time.Second && retries > 20 })
			if got := p.condition("BrokerReachable"); !strings.HasPrefix(got, "True") {
				t.Errorf("BrokerReachable = %q while a part of it takes messages", got)
			}
			w.broker.script(nil)
			w.awaitEmpty()
			if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`); n != 0 {
				t.Errorf("%d dead letters of healthy messages", n)
			}
			for _, key := range []string{"a1", "b1", "b2", "b3"} {
				w.inOrder(key, len(w.broker.versions(key)))
			}
		})
	}
}

// What the test above shows is the work of units: were the broker one, the flow of one part would bear witness against
// the messages of the other.
func TestMutationOfAllPartsAsOneUnitBuriesHealthyMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.start(options{config: impatient})
	w.outage(unknown, func(time.Duration, int) bool {
		return testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`) > 0
	})
}

// One message that its part refuses is judged by the witnesses of its own part, whatever others do.
func TestAWitnessIsOfTheMessagesOwnPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var tries atomic.Int64
	w.broker.poison(func(m message.Message) bool {
		if m.OrderingKey != "b1" {
			return false
		}
		tries.Add(1)
		return true
	}, broker.Confirmation{Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied})
	w.put("b1", 1)
	w.start(options{config: impatient, publisher: parts{w.broker, ab}})
	w.awaitSQL("the message waits", `count(*) = 1 AND bool_and(held) FROM message_outbox`)
	testkit.Eventually(t, patience, "it is tried many times while the other part flows", func() bool {
		w.put("a1", 1)
		return tries.Load() > 10
	})
	if n := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`); n != 0 {
		t.Fatal("a message of another part bore witness against it")
	}
	testkit.Eventually(t, patience, "it is a dead letter once another of its part gets through", func() bool {
		w.put("b2", 1)
		return testkit.Value[int64](w.DB, `SELECT count(*) FROM message_failure`) == 1
	})
}

// While nothing at all gets through, the backlog is not moved behind gates: that would be a write for each row, and a
// way back for each key.
func TestWhileNoPartTakesMessagesTheBacklogStaysWhereItIs(t *testing.T) {
	t.Parallel()
	const rows = 100
	w := newWorld(t, 1)
	down := broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonNotReplicated, Detail: "one replica"}
	w.broker.down("", down)
	for i := range rows {
		w.put(fmt.Sprintf("%c%d", 'a'+i%2, i), 1)
	}
	p := w.start(options{publisher: parts{w.broker, ab}, config: func(c *relay.Config) {
		impatient(c)
		c.Batch.MaxMessages = 10
	}})
	testkit.Eventually(t, patience, "each part is tried again and again", func() bool {
		return w.broker.publishes() > 12
	})
	if n := testkit.Value[int](w.DB, `SELECT count(*)::int FROM message_outbox WHERE held`); n != 0 {
		t.Errorf("%d rows were moved behind gates", n)
	}
	if got := p.condition("BrokerReachable"); got != "False NotEnoughReplicas one replica" {
		t.Errorf("BrokerReachable = %q while no part takes messages", got)
	}
	w.broker.script(nil)
	w.awaitEmpty()
	if got := w.broker.count(); got != rows {
		t.Errorf("%d messages arrived, want %d", got, rows)
	}
}

// G8: what goes to a part that is down, however much it is, does not stand in the way of the others.
func TestTheBacklogOfAPartThatIsDownHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, units := range map[string][]string{"parts that are known": ab, "parts that cannot be listed": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.broker.down("b", broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonBrokerError})
			for i := range 50 {
				w.put(fmt.Sprintf("b%d", i), 2)
			}
			w.put("a1", 5)
			w.start(options{publisher: parts{w.broker, units}, config: func(c *relay.Config) {
				c.Batch.MaxMessages = 10
				c.Backoff = retry.Backoff{Initial: time.Hour, Max: time.Hour} // nothing is tried twice
			}})
			testkit.Eventually(t, patience, "the other part has its messages", func() bool {
				return cmp.Equal(upTo(5), w.broker.versions("a1"))
			})
		})
	}
}

// A node that is away is not the broker: what goes to other parts is not tried out one by one.
func TestAProbeOfTheBrokerThatReachesOnlyAFailingPartEndsTheBrokersPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.broker.down("", unavailable) // all of it
	w.put("b1", 1)
	w.start(options{config: impatient, publisher: parts{w.broker, ab}})
	testkit.Eventually(t, patience, "the broker is given up for now", func() bool { return w.broker.publishes() > 2 })
	w.broker.down("b", broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonBrokerError})
	w.put("a1", 5)
	testkit.Eventually(t, patience, "the part that is there takes its messages", func() bool {
		return cmp.Equal(upTo(5), w.broker.versions("a1"))
	})
}
