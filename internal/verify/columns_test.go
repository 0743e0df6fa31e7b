package verify_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/testkit"
)

// newTeamWorld makes a world whose outbox is a table that the team already has, with rows in every state that is
// allowed.
func newTeamWorld(t *testing.T) (w *world, table *mapped.Table) {
	t.Helper()
	team := testkit.ClassicTable()
	w = &world{t: t, outbox: testkit.Postgres(t), grace: time.Hour}
	w.names = postgres.Names{Schema: w.outbox.Schema, Outbox: team.Name}
	w.outbox.Exec(team.DDL)
	wanted := schema.Options{Components: []schema.Component{schema.Outbox}, Shards: 1, Columns: team.Columns()}
	if err := schema.Apply(t.Context(), w.outbox.Pool(), w.names, wanted); err != nil {
		t.Fatal(err)
	}
	w.outbox.Exec(`UPDATE outbox_event_owner SET source = $1, relay = 'shop/orders'`, source)
	look := mapped.Table{Names: w.names, Map: *team.Columns(), Shards: 1, Relay: "shop/orders"}
	table, err := mapped.Read(t.Context(), w.outbox.Pool(), look)
	if err != nil {
		t.Fatal(err)
	}
	broker := testkit.NATS(t)
	w.js, w.stream = broker.JetStream(), broker.Stream(jetstream.StreamConfig{})

	for version := 1; version <= 3; version++ {
		for key := 1; key <= 2; key++ {
			w.publish(row(key, version))
			w.teamRow(row(key, version), "published", 0)
		}
	}
	w.publish(row(1, 1)) // a duplicate
	// A key behind a dead letter, one that is tried again, and a row on its way.
	w.teamRow(row(3, 1), "failed", 3*time.Hour)
	w.teamRow(row(3, 2), "pending", 2*time.Hour)
	w.outbox.Exec(`INSERT INTO outbox_event_gate VALUES (0, 'order-3', 'Blocked', NULL)`)
	w.outbox.Exec(`INSERT INTO message_failure (origin, origin_name, source, event_id, event_type, ordering_key,
		destination, source_position, payload_digest, reason, attempts, first_failed_at, last_failed_at, blocks_key)
		VALUES ('Relay', 'shop/orders', $1, $2, 'orders', 'order-3', 'orders', '', '', 'x', 1, now(), now(), true)`,
		source, row(3, 1).ID.String())
	w.teamRow(row(4, 1), "pending", time.Minute)
	w.outbox.Exec(`INSERT INTO outbox_event_gate VALUES (0, 'order-4', 'Retry', now())`)
	w.teamRow(row(5, 1), "pending", 0)
	return w, table
}

// row is an event as a row of the classic table becomes one.
func row(key, version int) message.Message {
	m := event(key, version)
	m.Type, m.Destination = "orders", "orders"
	m.Payload = fmt.Appendf(nil, `{"version": %d}`, version)
	return m
}

func (w *world) teamRow(m message.Message, status string, age time.Duration) {
	w.t.Helper()
	w.outbox.Exec(
		`INSERT INTO outbox_event (event_id, aggregate_id, aggregate_version, topic, payload, status, created_at,
		available_at, published_at)
		SELECT $1::uuid, $2, $3, 'orders', $4::jsonb, $5::text, at, at, CASE WHEN $5 = 'published' THEN now() END
		FROM (SELECT now() - make_interval(secs => $6) AS at) x`,
		m.ID.String(),
		m.OrderingKey,
		m.AggregateVersion,
		string(m.Payload),
		status,
		age.Seconds(),
	)
}

func (w *world) verifyTeam(table *mapped.Table) verify.Section {
	w.t.Helper()
	report, err := verify.Run(w.t.Context(), verify.Input{Grace: w.grace, Relays: []verify.Relay{{
		Name: "relay shop/orders", Pool: w.outbox.Pool(), Tables: w.names, Columns: table,
		Stream: verify.Stream{JS: w.js, Name: w.stream.Name},
	}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return report.Sections[0]
}

func TestWhatIsAllowedInATeamsTableIsAccepted(t *testing.T) {
	t.Parallel()
	w, table := newTeamWorld(t)
	section := w.verifyTeam(table)
	unproven := 0
	for _, c := range section.Checks {
		switch {
		case c.Result == verify.NotChecked:
			unproven++
		case c.Result != verify.Kept || c.Looked == 0:
			t.Errorf("%s: %v after looking at %d, first %q", c.Title, c.Result, c.Looked, c.First)
		}
	}
	if unproven != 1 {
		t.Errorf("%d checks were not made, want the one that deleted rows would fail", unproven)
	}
	want := map[string]int64{
		verify.FactPublished: 6, verify.FactPending: 3, verify.FactHeld: 2, verify.FactRelayDeadLetters: 1,
		verify.FactDuplicates: 1,
	}
	for _, f := range section.Facts {
		if f.Count != want[f.Name] {
			t.Errorf("%s = %d, want %d", f.Name, f.Count, want[f.Name])
		}
	}
}

func TestEachMistakeInATeamsTableIsFound(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		breakIt func(w *world)
		want    string // of the title of what is broken
	}{
		"a published row that never arrived": {
			func(w *world) { w.teamRow(row(6, 1), "published", 0) }, "every published row is in the stream",
		},
		"a row whose bytes are others": {
			func(w *world) {
				w.outbox.Exec(
					`UPDATE outbox_event SET payload = '{"version": 9}' WHERE event_id = $1`,
					row(1, 2).ID.String(),
				)
			}, "bytes arrived as they were written",
		},
		"messages in another order than their versions": {
			func(w *world) {
				w.publish(row(6, 2))
				w.publish(row(6, 1))
			}, "in order of their versions",
		},
		"a row that waits for no reason": {
			func(w *world) { w.teamRow(row(6, 1), "pending", 2*time.Hour) }, "no row waits longer",
		},
		"a gate with nothing behind it": {
			func(w *world) {
				w.outbox.Exec(`INSERT INTO outbox_event_gate VALUES (0, 'order-6', 'Retry', now() - interval '1 min')`)
			}, "no gate is without",
		},
		"a blocked gate that is due": {
			func(w *world) { w.outbox.Exec(`UPDATE outbox_event_gate SET due = now() WHERE state = 'Blocked'`) },
			"a gate is due exactly",
		},
		"a dead letter whose row says otherwise": {
			func(w *world) { w.outbox.Exec(`UPDATE outbox_event SET status = 'publishing' WHERE status = 'failed'`) },
			"every open dead letter is marked",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, table := newTeamWorld(t)
			tc.breakIt(w)
			found := false
			for _, c := range w.verifyTeam(table).Checks {
				if c.Result != verify.Broken {
					continue
				}
				found = found || strings.Contains(c.Title, tc.want)
				if !strings.Contains(c.Title, tc.want) || c.First == "" {
					t.Errorf("broken: %s, first %q; want %s alone", c.Title, c.First, tc.want)
				}
			}
			if !found {
				t.Errorf("nothing is found broken, want %s", tc.want)
			}
		})
	}
}
