package verify_test

import (
	"context"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/verify"
)

// market is a shop whose messages went through a RabbitMQ queue.
type market struct {
	*world

	waiting  int64
	bindings []verify.Binding
	outboxes []verify.Outbox
}

func newMarket(t *testing.T) *market {
	t.Helper()
	w := newWorld(t)
	return &market{
		world: w, bindings: []verify.Binding{{Exchange: "shop", RoutingKey: "orders.#"}},
		outboxes: []verify.Outbox{{Pool: w.outbox.Pool(), Tables: w.names}},
	}
}

// published writes the row of a message that RabbitMQ confirmed.
func (m *market) published(key, version int, at string) {
	m.t.Helper()
	m.archive(event(key, version), uint64(10*key+version))
	m.outbox.Exec(`UPDATE message_outbox_published SET broker_position = $1 WHERE event_id = $2`,
		at, event(key, version).ID.String())
}

const place = "shop/orders.events#t1-1.7"

// through takes a message all the way.
func (m *market) through(key, version int) {
	m.t.Helper()
	m.published(key, version, place)
	m.remember(event(key, version), "A")
	m.effect(event(key, version))
}

func (m *market) checks() map[string]verify.Check {
	m.t.Helper()
	in := m.input()
	in.Relays[0].Stream = verify.Stream{Unreadable: "a queue cannot be read"}
	c := &in.Consumers[0]
	c.Stream, c.Durable = verify.Stream{}, ""
	c.Queue = &verify.Queue{
		Name: "billing", Bindings: m.bindings, Outboxes: m.outboxes,
		Waiting: func(context.Context) (int64, error) { return m.waiting, nil },
	}
	report, err := verify.Run(m.t.Context(), in)
	if err != nil {
		m.t.Fatal(err)
	}
	found := make(map[string]verify.Check)
	for _, check := range report.Sections[1].Checks {
		found[check.Title] = check
	}
	return found
}

// What a queue holds cannot be read: the archive of the relay stands for it, and nothing is claimed beyond that.
func TestAQueueIsHeldToWhatWasPublishedToIt(t *testing.T) {
	t.Parallel()
	const (
		left    = "nothing is left in the queue"
		handled = "everything that was published to the queue has an outcome after 0s"
		digest  = "every outcome is that of the message that was published"
		acked   = "everything acknowledged has an outcome or a dead letter"
		effects = "every applied message has its effect in ledger"
	)
	cases := map[string]struct {
		change func(*market)
		title  string
		want   verify.Result
	}{
		"what is applied is owed no more":       {func(*market) {}, handled, verify.Kept},
		"an outcome is that of its message":     {func(*market) {}, digest, verify.Kept},
		"an empty queue holds nothing":          {func(*market) {}, left, verify.Kept},
		"an effect belongs to what was applied": {func(*market) {}, effects, verify.Kept},
		"acknowledgements leave no trace":       {func(*market) {}, acked, verify.NotChecked},
		"what was published and never applied": {
			func(m *market) { m.published(2, 1, place) }, handled, verify.Broken,
		},
		"what no binding takes is not owed": {
			func(m *market) { m.published(2, 1, "shop/invoices#t1-1.8") }, handled, verify.Kept,
		},
		"what another exchange got is not owed": {
			func(m *market) { m.published(2, 1, "other/orders.events#t1-1.8") }, handled, verify.Kept,
		},
		"other bytes than were published": {
			func(m *market) { m.outbox.Exec(`UPDATE message_outbox_published SET payload = 'x'`) },
			digest,
			verify.Broken,
		},
		"an effect that is gone": {
			func(m *market) { m.inbox.Exec(`DELETE FROM ledger`) }, effects, verify.Broken,
		},
		"messages that wait at the end": {
			func(m *market) { m.waiting = 2 }, left, verify.Broken,
		},
		"messages that wait while there is a grace": {
			func(m *market) { m.waiting, m.grace = 2, time.Minute }, left, verify.NotChecked,
		},
		"a queue of which the resource tells no bindings": {
			func(m *market) { m.bindings = nil }, handled, verify.NotChecked,
		},
		"outcomes of a queue without known bindings": {
			func(m *market) { m.bindings = nil }, digest, verify.Kept,
		},
		"a queue that no known relay feeds": {
			func(m *market) { m.outboxes = nil }, digest, verify.NotChecked,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMarket(t)
			m.through(1, 1)
			m.through(1, 2)
			tc.change(m)
			got, made := m.checks()[tc.title]
			if !made || got.Result != tc.want {
				t.Errorf("%s: %v (%s%s), want %v", tc.title, got.Result, got.Note, got.First, tc.want)
			}
			if got.Result != verify.Kept && got.Note == "" && got.First == "" {
				t.Errorf("%s: nobody is told why", tc.title)
			}
		})
	}
}
