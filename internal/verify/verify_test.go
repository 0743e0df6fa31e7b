package verify_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verify"
)

// healthy fills a world with messages that went through and with everything that is allowed to be there.
func healthy(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.grace = time.Hour
	// Handled before the durable was lost and made again behind it.
	w.through(event(0, 1))
	w.subscribe(fromSequence(2))
	for version := 1; version <= 3; version++ {
		w.through(event(1, version))
		w.through(event(2, version))
	}
	// A duplicate: the same id, key and bytes again, after later ones of the key.
	w.publish(event(1, 1))
	w.acknowledge(7)

	// A key that is tried again, one behind an open dead letter for longer than the grace, and a row on its way.
	w.pending(event(3, 1), true, 0)
	w.gate(event(3, 1), "Retry", time.Now())
	w.pending(event(4, 2), true, 2*time.Hour)
	w.gate(event(4, 2), "Blocked", nil)
	w.failure(w.outbox, "Relay", event(4, 1), "")
	w.pending(event(5, 1), false, time.Minute)

	// Parked behind a gap, parked without a key, dead-lettered, and unreadable.
	for key, outcome := range map[int]string{6: "P", 7: "P", 8: "D"} {
		m := event(key, 2)
		w.archive(m, w.publish(m))
		w.remember(m, outcome)
	}
	w.park(event(6, 2), "G", nil)
	w.parkedRow(event(7, 2), nil, time.Now())
	w.failure(w.inbox, "Consumer", event(8, 2), "")
	unreadable := w.store(&nats.Msg{Subject: w.stream.Subject("orders"), Data: []byte("x")})
	w.failure(w.inbox, "Consumer", message.Message{}, w.position(unreadable))
	// A subject that this consumer does not read.
	w.store(&nats.Msg{Subject: w.stream.Subject("other"), Data: []byte("x")})
	// A message on its way to the consumer.
	w.archive(event(9, 1), w.publish(event(9, 1)))
	return w
}

func TestEverythingThatIsAllowedIsAccepted(t *testing.T) {
	t.Parallel()
	w := healthy(t)

	report := w.verify()

	if !report.OK() {
		t.Error("the report is not OK")
	}
	for _, s := range report.Sections {
		for _, c := range s.Checks {
			if c.Result != verify.Kept || c.Looked == 0 {
				t.Errorf("%s: %s: %v after looking at %d, first %q", s.Name, c.Title, c.Result, c.Looked, c.First)
			}
		}
	}
	got := make(map[string]int64)
	for _, name := range []string{
		verify.FactPublished, verify.FactPending, verify.FactHeld, verify.FactDuplicates, verify.FactApplied,
		verify.FactParked, verify.FactDeadLettered, verify.FactRelayDeadLetters, verify.FactConsumerDeadLetters,
	} {
		got[name] = report.Fact(name)
	}
	want := map[string]int64{
		verify.FactPublished: 11, verify.FactPending: 3, verify.FactHeld: 2, verify.FactDuplicates: 1,
		verify.FactApplied: 7, verify.FactParked: 2, verify.FactDeadLettered: 1,
		verify.FactRelayDeadLetters: 1, verify.FactConsumerDeadLetters: 2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// Each case plants one violation in the healthy world and names the checks that must find it, and nothing else.
func TestEachViolationIsFound(t *testing.T) {
	t.Parallel()

	const extra = 10 // a key of no other message
	cases := map[string]struct {
		plant func(w *world)
		want  map[string]string // title to a part of the first offender
	}{
		"a row that waits longer than the grace": {
			plant: func(w *world) { w.pending(event(extra, 1), false, 2*time.Hour) },
			want: map[string]string{
				"no row waits longer than 1h0m0s without a visible reason": event(extra, 1).ID.String(),
			},
		},
		"a held row without a gate": {
			plant: func(w *world) { w.pending(event(extra, 1), true, 0) },
			want: map[string]string{
				"no held row is without a gate that will release it": event(extra, 1).ID.String(),
			},
		},
		"a gate without a held row": {
			plant: func(w *world) {
				w.pending(event(extra, 1), false, 0)
				w.gate(event(extra, 1), "Retry", time.Now().Add(time.Hour))
			},
			want: map[string]string{"no gate is without a held row or an open dead letter": "state Retry"},
		},
		"a blocked gate whose dead letter is gone": {
			plant: func(w *world) {
				w.outbox.Exec(`DELETE FROM message_outbox WHERE ordering_key = 'order-4'`)
				w.discard()
			},
			want: map[string]string{"no gate is without a held row or an open dead letter": "state Blocked"},
		},
		"a blocked key that waits although its dead letter is closed": {
			plant: (*world).discard,
			want: map[string]string{
				"no row waits longer than 1h0m0s without a visible reason": event(4, 2).ID.String(),
			},
		},
		"a gate that waits for a retry which never comes": {
			plant: func(w *world) { w.outbox.Exec(`UPDATE message_outbox_gate SET due = NULL WHERE state = 'Retry'`) },
			want:  map[string]string{"a gate is due exactly where it is not blocked": "state Retry"},
		},
		"an event settled twice": {
			plant: func(w *world) { w.archive(event(1, 1), 2) },
			want:  map[string]string{"no row was settled twice": event(1, 1).ID.String()},
		},
		"an event that is published and still pending": {
			plant: func(w *world) { w.pending(event(1, 1), false, 0) },
			want:  map[string]string{"no row was settled twice": event(1, 1).ID.String()},
		},
		"a published row beyond the end of the stream": {
			plant: func(w *world) { w.archive(event(extra, 1), 1000) },
			want: map[string]string{
				"no published row lies beyond the end of the stream": event(extra, 1).ID.String(),
			},
		},
		"a published row that is not in the stream": {
			plant: func(w *world) { w.archive(event(extra, 1), 4) },
			want: map[string]string{
				"every published row is in the stream":                  event(extra, 1).ID.String(),
				"every published row is where its broker position says": event(extra, 1).ID.String(),
			},
		},
		"a broker position that names another message": {
			plant: func(w *world) {
				w.outbox.Exec(`UPDATE message_outbox_published SET broker_position = $1 WHERE event_id = $2`,
					w.position(3), event(1, 1).ID.String())
			},
			want: map[string]string{"every published row is where its broker position says": event(1, 1).ID.String()},
		},
		"bytes that changed on their way": {
			plant: func(w *world) {
				w.outbox.Exec(
					`UPDATE message_outbox_published SET payload = '{}' WHERE event_id = $1`,
					event(2, 2).ID.String(),
				)
			},
			want: map[string]string{
				"key, type, version and bytes arrived as they were written": event(2, 2).ID.String(),
			},
		},
		"a duplicate with other bytes": {
			plant: func(w *world) {
				m := event(1, 2)
				m.Payload = []byte(`{}`)
				w.publish(m)
			},
			want: map[string]string{"duplicates carry the same key and bytes": event(1, 2).ID.String()},
		},
		"a later version that arrived first": {
			plant: func(w *world) {
				for _, version := range []int{2, 1} {
					w.archive(event(extra, version), w.publish(event(extra, version)))
				}
			},
			want: map[string]string{
				"the first deliveries of a key are in order of their versions": "has version 1, after version 2",
			},
		},
		"a message in the stream that no transaction committed": {
			plant: func(w *world) { w.publish(event(extra, 1)) },
			want:  map[string]string{"nothing is in the stream without a committed row": event(extra, 1).ID.String()},
		},
		"an outcome Parked without its message": {
			plant: func(w *world) { w.remember(event(extra, 1), "P") },
			want:  map[string]string{"no outcome Parked is without its parked message": event(extra, 1).ID.String()},
		},
		"a parked message whose outcome says Applied": {
			plant: func(w *world) {
				w.inbox.Exec(`UPDATE message_inbox SET outcome = 'S' WHERE event_id = $1`, event(7, 2).ID.String())
			},
			want: map[string]string{"no parked message is without the outcome Parked": event(7, 2).ID.String()},
		},
		"an outcome DeadLettered without its dead letter": {
			plant: func(w *world) { w.remember(event(extra, 1), "D") },
			want:  map[string]string{"no outcome DeadLettered is without its dead letter": event(extra, 1).ID.String()},
		},
		"a parked message whose key is open": {
			plant: func(w *world) { w.inbox.Exec(`UPDATE message_inbox_key SET state = 'O'`) },
			want: map[string]string{
				"every parked message will be tried again or waits for its key": event(6, 2).ID.String(),
			},
		},
		"a parked message without key or due time": {
			plant: func(w *world) { w.inbox.Exec(`UPDATE message_parked SET due_at = NULL WHERE key_hash IS NULL`) },
			want: map[string]string{
				"every parked message will be tried again or waits for its key": event(7, 2).ID.String(),
			},
		},
		"a key that waits for nothing": {
			plant: func(w *world) {
				w.inbox.Exec(`INSERT INTO message_inbox_key (key_hash, consumer_name, state, due_at)
					VALUES ($1, $2, 'R', now())`, keyHash(event(extra, 1)), consumerName)
			},
			want: map[string]string{"no key waits without a parked message": "state R"},
		},
		"a message acknowledged without an outcome": {
			plant: func(w *world) {
				w.inbox.Exec(`DELETE FROM ledger WHERE order_id = 'order-2' AND version = 3`)
				w.inbox.Exec(`DELETE FROM message_inbox WHERE event_id = $1`, event(2, 3).ID.String())
			},
			want: map[string]string{
				"everything acknowledged has an outcome or a dead letter": event(2, 3).ID.String(),
			},
		},
		"a message that waits for its outcome longer than the grace": {
			plant: func(w *world) {
				w.grace = 0 // the message on its way to the consumer is now late, and so are rows that are pending
				w.outbox.Exec(`DELETE FROM message_outbox_gate`)
				w.outbox.Exec(`DELETE FROM message_outbox`)
			},
			want: map[string]string{"everything in the stream has an outcome after 0s": event(9, 1).ID.String()},
		},
		"an unreadable record without a dead letter": {
			plant: func(w *world) {
				w.store(&nats.Msg{Subject: w.stream.Subject("orders"), Data: []byte("y")})
				w.acknowledge(6)
				w.remember(event(9, 1), "S")
			},
			want: map[string]string{
				"everything acknowledged has an outcome or a dead letter": "without a readable id",
			},
		},
		"a message below where the durable begins that nobody handled": {
			plant: func(w *world) {
				w.inbox.Exec(`DELETE FROM ledger WHERE order_id = 'order-0'`)
				w.inbox.Exec(`DELETE FROM message_inbox WHERE event_id = $1`, event(0, 1).ID.String())
			},
			want: map[string]string{
				"nothing without an outcome lies before where the durable begins": event(
					0,
					1,
				).ID.String() + " at sequence 1",
			},
		},
		"an outcome that belongs to other bytes": {
			plant: func(w *world) {
				w.inbox.Exec(
					`UPDATE message_inbox SET payload_digest = '\x00' WHERE event_id = $1`,
					event(1, 3).ID.String(),
				)
			},
			want: map[string]string{"every outcome is that of the message in the stream": event(1, 3).ID.String()},
		},
		"effects of a key out of order": {
			plant: func(w *world) {
				w.inbox.Exec(`UPDATE ledger SET entry = -entry WHERE order_id = 'order-1' AND version = 3`)
			},
			want: map[string]string{
				"the effects of a key in ledger are in order of their versions": "version 1 after version 3",
			},
		},
		"an effect applied twice": {
			plant: func(w *world) { w.effect(event(1, 3)) },
			want:  map[string]string{"no effect in ledger is there twice": "version 3: 2 times"},
		},
		"an effect of a message that was not applied": {
			plant: func(w *world) {
				w.inbox.Exec(`UPDATE message_inbox SET outcome = 'S' WHERE event_id = $1`, event(1, 3).ID.String())
			},
			want: map[string]string{"no effect in ledger is without its applied message": "version 3"},
		},
		"an applied message without its effect": {
			plant: func(w *world) { w.inbox.Exec(`DELETE FROM ledger WHERE order_id = 'order-1' AND version = 2`) },
			want:  map[string]string{"every applied message has its effect in ledger": event(1, 2).ID.String()},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			tc.plant(w)

			report := w.verify()

			if report.OK() {
				t.Error("the report is OK")
			}
			found := make(map[string]string)
			for _, s := range report.Sections {
				for _, c := range s.Checks {
					if c.Result == verify.Broken {
						found[c.Title] = c.First
					}
				}
			}
			for title, part := range tc.want {
				if !strings.Contains(found[title], part) {
					t.Errorf("%s: first offender is %q, want one with %q", title, found[title], part)
				}
				delete(found, title)
			}
			if len(found) > 0 {
				t.Errorf("also reported as broken: %v", found)
			}
		})
	}
}

func fromSequence(sequence uint64) func(*jetstream.ConsumerConfig) {
	return func(c *jetstream.ConsumerConfig) {
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, sequence
	}
}

// Whatever a durable leaves out of the stream is told: as a broken promise, or as not covered where the user says that
// it was meant, or where the inbox was to forget.
func TestNothingOfTheStreamIsLeftOutSilently(t *testing.T) {
	t.Parallel()

	const (
		before    = "nothing without an outcome lies before where the durable begins"
		forgotten = "nothing without an outcome is older than the inbox remembers"
	)
	policy := func(p jetstream.DeliverPolicy) func(*jetstream.ConsumerConfig) {
		return func(c *jetstream.ConsumerConfig) { c.DeliverPolicy = p }
	}
	cases := map[string]struct {
		begin     func(*jetstream.ConsumerConfig)
		plant     func(*world)
		accept    bool
		retention time.Duration
		title     string
		want      verify.Result
		part      string // of the note, or of the first offender
	}{
		"a start sequence": {begin: fromSequence(3), title: before, want: verify.Broken, part: "at sequence 1,"},
		"a start time": {
			begin: func(c *jetstream.ConsumerConfig) {
				soon := time.Now().Add(time.Hour)
				c.DeliverPolicy, c.OptStartTime = jetstream.DeliverByStartTimePolicy, &soon
			},
			title: before, want: verify.Broken, part: "at sequence 1,",
		},
		"only what is new": {
			begin: policy(jetstream.DeliverNewPolicy), title: before, want: verify.Broken, part: "at sequence 1,",
		},
		"only the last": {
			begin: policy(jetstream.DeliverLastPolicy), title: before, want: verify.Broken, part: "at sequence 1,",
		},
		"a start sequence that was meant": {
			begin: fromSequence(3), accept: true, title: before, want: verify.NotChecked,
			part: "2 messages lie below where the durable begins: they are not covered",
		},
		"a start sequence above what is handled or dead-lettered": {
			begin: fromSequence(3), title: before, want: verify.Kept,
			plant: func(w *world) {
				w.remember(event(1, 1), "S")
				w.failure(w.inbox, "Consumer", event(1, 2), "")
			},
		},
		"a message below whose copy above will be delivered": {
			begin: fromSequence(3), title: before, want: verify.Broken, part: "event " + event(1, 2).ID.String(),
			plant: func(w *world) { w.publish(event(1, 1)) },
		},
		"what is older than the inbox remembers": {
			begin: policy(jetstream.DeliverAllPolicy), retention: time.Microsecond, title: forgotten,
			want: verify.NotChecked, part: "2 messages are older than 1µs: they are not covered",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.effects, w.grace, w.accept, w.retention = nil, time.Hour, tc.accept, tc.retention
			w.publish(event(1, 1))
			w.publish(event(1, 2))
			w.subscribe(tc.begin)
			if tc.plant != nil {
				tc.plant(w)
			}
			in := w.input()
			in.Relays = nil

			report, err := verify.Run(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}

			var got verify.Check
			for _, c := range report.Sections[0].Checks {
				if c.Title == tc.title {
					got = c
				}
			}
			if got.Result != tc.want || !strings.Contains(got.First+got.Note, tc.part) {
				t.Errorf("%v, first %q, note %q; want %v with %q", got.Result, got.First, got.Note, tc.want, tc.part)
			}
			if report.OK() != (tc.want != verify.Broken) {
				t.Errorf("OK() = %v", report.OK())
			}
		})
	}
}

// A stream that was deleted, or put back from an older copy, lacks what was published to it before: while it is shorter
// than it was, and when it has grown over the old positions.
func TestAStreamThatWasMadeAgainIsFound(t *testing.T) {
	t.Parallel()

	const short, long = 2, 6
	cases := map[string]struct {
		after int
		want  string
	}{
		"and is shorter than it was": {after: short, want: "no published row lies beyond the end of the stream"},
		"and is longer than it was":  {after: long, want: "every published row is in the stream"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for version := 1; version <= 4; version++ {
				w.archive(event(1, version), w.publish(event(1, version)))
			}
			cfg := w.atBroker().CachedInfo().Config
			if err := w.js.DeleteStream(t.Context(), w.stream.Name); err != nil {
				t.Fatal(err)
			}
			if _, err := w.js.CreateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			for version := 1; version <= tc.after; version++ {
				w.archive(event(2, version), w.publish(event(2, version)))
			}
			in := w.input()
			in.Consumers = nil

			report, err := verify.Run(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}

			for _, c := range report.Sections[0].Checks {
				if c.Title == tc.want && c.Result != verify.Broken {
					t.Errorf("%s: %v after looking at %d", c.Title, c.Result, c.Looked)
				}
			}
			if report.OK() {
				t.Error("the report is OK")
			}
		})
	}
}

// Rows whose messages the stream has dropped are counted and not called checked.
func TestRowsBelowWhatTheStreamHoldsAreToldAsNotCovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for version := 1; version <= 4; version++ {
		w.archive(event(1, version), w.publish(event(1, version)))
	}
	if err := w.atBroker().Purge(t.Context(), jetstream.WithPurgeSequence(4)); err != nil {
		t.Fatal(err)
	}
	in := w.input()
	in.Consumers = nil

	report, err := verify.Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}

	if !report.OK() {
		t.Error("the report is not OK")
	}
	const want = "3 rows lie below what the stream still holds: they are not covered"
	if i := slices.IndexFunc(report.Sections[0].Checks, func(c verify.Check) bool {
		return c.Result == verify.NotChecked && c.Note == want
	}); i < 0 {
		t.Errorf("no check says %q: %+v", want, report.Sections[0].Checks)
	}
}

// discard closes the relay's dead letter and leaves its gate as it was.
func (w *world) discard() {
	w.outbox.Exec(`UPDATE message_failure SET state = 'Discarded'`)
}

// A stream is copied in chunks: a violation in the last one must be seen, and each message be counted once.
func TestALongStreamIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const messages = 12_001 // three chunks
	for i := range messages {
		m := event(i%100, i/100+1)
		m.ID = message.ID{13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
		if i == messages-1 {
			m.AggregateVersion = 1
		}
		record, err := message.Encode(&m)
		if err != nil {
			t.Fatal(err)
		}
		msg := &nats.Msg{Subject: w.stream.Subject("orders"), Data: record.Body, Header: nats.Header{}}
		for _, h := range record.Headers {
			msg.Header.Add(h.Name, h.Value)
		}
		if _, err := w.js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-w.js.PublishAsyncComplete():
	case <-t.Context().Done():
		t.Fatal("the messages were not stored in time")
	}
	in := w.input()
	in.Consumers = nil

	report, err := verify.Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range report.Sections[0].Checks {
		if c.Title != "the first deliveries of a key are in order of their versions" {
			continue
		}
		if c.Looked != messages || c.Broken != 1 || !strings.Contains(c.First, "sequence 12001") {
			t.Errorf("looked at %d, %d broken, first %q", c.Looked, c.Broken, c.First)
		}
		return
	}
	t.Error("the order was not checked")
}
