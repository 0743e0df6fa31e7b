package pipeline_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/test/testkit"
)

// What is sent again of the archive reaches the broker within its window for repetitions too, with the same event ids:
// a consumer that had it ignores it, and one that had nothing gets all of it in order.
func TestArchivedMessagesReachNewConsumersAndOldOnesIgnoreThem(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	old := newBilling(t)
	stream := o.cfg.NATS.Stream
	old.cfg.NATS.Stream, old.broker = stream, o.broker
	old.tables()
	const n = 45
	o.start(o.cfg)
	o.write(n)
	o.published(n)
	_, first := old.start()
	old.applied(n)

	o.loseStream()
	desk := outboxdb.NewDesk(o.db.Pool(), postgres.Names{Schema: o.db.Schema, Outbox: "message_outbox"}, patience)
	all, more, err := desk.Archived(t.Context(), outboxdb.Selection{Limit: n})
	if err != nil || more || len(all) != n {
		t.Fatalf("Archived() = %d messages, more %v, %v", len(all), more, err)
	}
	done, err := desk.Republish(t.Context(), all, outboxdb.Decision{Actor: "ada", Why: "the stream lost its disk"})
	if err != nil || done != (outboxdb.Republished{Moved: n}) {
		t.Fatalf("Republish() = %+v, %v", done, err)
	}
	o.published(n)

	testkit.Eventually(t, patience, "the old consumer has met them all again", func() bool {
		r := first.report(t.Context())
		return r.Consumer != nil && r.Consumer.DuplicatesTotal == n
	})
	old.applied(n)
	fresh := newBilling(t)
	fresh.cfg.NATS.Stream, fresh.broker = stream, o.broker
	fresh.cfg.NATS.Durable, fresh.cfg.ConsumerName = "audit", "shop/audit"
	fresh.tables()
	fresh.start()
	fresh.applied(n)

	const effects = `SELECT string_agg(event_id || ' ' || version, ',' ORDER BY event_id) FROM effect`
	if diff := cmp.Diff(testkit.Value[string](old.db, effects), testkit.Value[string](fresh.db, effects)); diff != "" {
		t.Errorf("the consumers have other effects (-old +fresh):\n%s", diff)
	}
	newPlaces(t, desk, all)
}

// loseStream empties the stream, as after a disk was lost.
func (o *orders) loseStream() {
	o.t.Helper()
	held, err := o.broker.JetStream().Stream(o.t.Context(), o.cfg.NATS.Stream)
	if err != nil {
		o.t.Fatal(err)
	}
	if err := held.Purge(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

// newPlaces checks that the broker gave what was sent again other positions, and that the archive knows them.
func newPlaces(t *testing.T, desk *outboxdb.Desk, all []outboxdb.Archived) {
	t.Helper()
	n := len(all)
	places := make(map[string]bool)
	again, _, err := desk.Archived(
		t.Context(),
		outboxdb.Selection{Events: []message.ID{all[0].ID, all[n-1].ID}, Limit: n},
	)
	if err != nil || len(again) != 2 {
		t.Fatalf("Archived() of two events = %d, %v", len(again), err)
	}
	for _, a := range append(all, again...) {
		places[a.BrokerPosition] = true
	}
	if len(places) != n+2 {
		t.Errorf("%d broker positions, want a new one for what was sent again", len(places))
	}
	if later, _, err := desk.Archived(t.Context(), outboxdb.Selection{
		From: again[0].PublishedAt.Add(time.Hour), Limit: n,
	}); err != nil || len(later) != 0 {
		t.Errorf("Archived() of the future = %d messages, %v", len(later), err)
	}
}
