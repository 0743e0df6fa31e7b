package consumer_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// without removes a header of a record.
func without(r message.Record, name string) message.Record {
	var kept []message.Header
	for _, h := range r.Headers {
		if h.Name != name {
			kept = append(kept, h)
		}
	}
	r.Headers = kept
	return r
}

// with sets a header of a record.
func with(r message.Record, name, value string) message.Record {
	r = without(r, name)
	r.Headers = append(r.Headers, message.Header{Name: name, Value: value})
	return r
}

func TestWhatCanNeverBeAppliedIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()

	good := event{id: "bad", key: "k", version: 1}.record()
	body := func(b string) message.Record {
		r := good
		r.Body = []byte(b)
		return r
	}
	cases := map[string]struct {
		record message.Record
		reason deadletter.Reason
		// keyed says that the key is known, so that it waits for a person.
		keyed bool
	}{
		"no event id": {without(good, message.HeaderEventID), deadletter.InvalidEnvelope, false},
		"no headers at all": {
			message.Record{Body: []byte("raw \x00 bytes")},
			deadletter.InvalidEnvelope,
			false,
		},
		"nothing at all": {message.Record{}, deadletter.InvalidEnvelope, false},
		"a version that is no number": {
			with(good, message.HeaderAggregateVersion, "one"),
			deadletter.InvalidEnvelope,
			false,
		},
		"NUL in the event id": {
			with(good, message.HeaderEventID, "a\x00b"),
			deadletter.UnstorableText,
			false,
		},
		"an escaped NUL in the key": {
			with(good, message.HeaderOrderingKey, "a%00b"),
			deadletter.UnstorableText,
			false,
		},
		"invalid UTF-8 in the type": {
			with(good, message.HeaderEventType, "order.%FF"),
			deadletter.UnstorableText,
			false,
		},
		"NUL in another header": {with(good, "tenant", "\x00"), deadletter.UnstorableText, false},
		"an id that no index takes": {
			with(good, message.HeaderEventID, strings.Repeat("x", 3000)),
			deadletter.PayloadTooLarge,
			false,
		},
		"NUL escaped in the data":      {body(`{"a":"\u0000"}`), deadletter.UnstorableText, true},
		"a lone surrogate in the data": {body(`{"a":"\ud800"}`), deadletter.UnstorableText, true},
		"invalid UTF-8 in the data":    {body("{\"a\":\"\xff\"}"), deadletter.UnstorableText, true},
		"data that is no JSON":         {body(`{"a":`), deadletter.InvalidPayload, true},
		"data nested too deep": {
			body(strings.Repeat("[", 65) + strings.Repeat("]", 65)),
			deadletter.PayloadTooDeep,
			true,
		},
		"data nested deep enough to overrun": {body(strings.Repeat("[", 1<<20)), deadletter.PayloadTooDeep, true},
		"a body that is too large": {
			body(`"` + strings.Repeat("x", 1<<20) + `"`),
			deadletter.PayloadTooLarge,
			true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			w := s.start()
			s.broker.Append("orders", tc.record)
			s.publish(ev("k", 2), ev("other", 1))
			s.acked(3, w)

			var raw struct{ reason, key, body, headers []byte }
			s.QueryRow(`SELECT reason::bytea, raw_key, raw_body, raw_headers FROM message_failure`, nil,
				&raw.reason, &raw.key, &raw.body, &raw.headers)
			if string(raw.reason) != string(tc.reason) {
				t.Errorf("reason = %s, want %s", raw.reason, tc.reason)
			}
			headers, err := deadletter.DecodeHeaders(raw.headers)
			if err != nil {
				t.Fatalf("reading the raw headers back: %v", err)
			}
			if diff := cmp.Diff(tc.record.Headers, headers); diff != "" {
				t.Errorf("raw headers differ (-want +got):\n%s", diff)
			}
			if !bytes.Equal(raw.body, tc.record.Body) || !bytes.Equal(raw.key, tc.record.Key) {
				t.Error("raw key or body is not what came")
			}
			want := map[bool]string{true: "B", false: "G"}[tc.keyed] // v2 waits for v1 either way
			if got := s.keyState("k"); got != want {
				t.Errorf("state of the key = %q, want %q", got, want)
			}
			if diff := cmp.Diff([]string{"other@1"}, s.effects()); diff != "" {
				t.Errorf("effects differ (-want +got):\n%s", diff)
			}
			s.tidy()
			if strings.Contains(w.log.String(), "raw \x00") {
				t.Error("the log holds the payload")
			}
		})
	}
}

func TestARedeliveredDeadLetterIsOne(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	bad := event{id: "bad", key: "k", version: 1, data: "no JSON"}
	s.publish(bad, bad)
	s.acked(2, w)
	s.publish(bad)
	s.acked(3, w)
	if diff := cmp.Diff([]string{"bad InvalidPayload"}, s.failures()); diff != "" {
		t.Errorf("dead letters differ (-want +got):\n%s", diff)
	}
	unreadable := message.Record{Body: []byte("the same")}
	s.broker.Append("orders", unreadable)
	s.broker.Append("orders", unreadable) // another record with the same bytes is another dead letter
	s.acked(5, w)
	if n := testkit.Value[int64](
		s.DB,
		`SELECT count(*) FROM message_failure WHERE reason = 'InvalidEnvelope'`,
	); n != 2 {
		t.Errorf("%d dead letters of two unreadable records, want 2", n)
	}
}

func TestAForgedDuplicateIsKept(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()
	s.publish(ev("k", 1))
	s.acked(1, w)

	s.publish(
		event{id: "k-1", key: "k", version: 2, data: `{"n":"forged"}`},
		event{id: "k-1", key: "other", version: 1},
		ev("k", 2),
	)
	s.acked(4, w)

	if diff := cmp.Diff([]string{"k@1", "k@2"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	want := []string{"k-1 DuplicateIdDifferentPayload", "k-1 DuplicateIdDifferentPayload"}
	if diff := cmp.Diff(want, s.failures()); diff != "" {
		t.Errorf("dead letters differ (-want +got):\n%s", diff)
	}
	if got := testkit.Value[string](
		s.DB,
		`SELECT outcome::text FROM message_inbox WHERE event_id = 'k-1'`,
	); got != "A" {
		t.Errorf("outcome of the real one = %q, want A", got)
	}
}

func TestALargePayloadWithinTheBoundIsApplied(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start(func(o *options) { o.config.MaxBytes = 16 << 20 })
	data := `"` + strings.Repeat("x", 8<<20) + `"`
	s.publish(
		event{id: "a", key: "k", version: 2, data: data}, event{id: "b", key: "k", version: 1, data: data},
		event{id: "c", key: "k", version: 3, data: data}) // the first is parked and read back
	s.acked(3, w)
	s.applied(3)
	if n := testkit.Value[int64](s.DB, `SELECT min(length(data #>> '{}')) FROM effect`); n != 8<<20 {
		t.Errorf("shortest data = %d characters, want %d", n, 8<<20)
	}
}
