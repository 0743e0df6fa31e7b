package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/outbox"
)

const canary = "canary-4711"

// agreementCase changes a good message. field is empty where it stays good.
type agreementCase struct {
	change      func(*outbox.Message)
	field       string
	kind        error  // of the library
	state       string // of the function
	onlyLibrary bool   // where the function cannot be given such a value
}

func bad(field string, change func(*outbox.Message)) agreementCase {
	return agreementCase{change: change, field: field, kind: outbox.ErrInvalid, state: "22023"}
}

func good(change func(*outbox.Message)) agreementCase { return agreementCase{change: change} }

func header(name, value string) func(*outbox.Message) {
	return func(m *outbox.Message) { m.Headers = map[string]string{name: value} }
}

func headers(n, valueBytes int, fill string) func(*outbox.Message) {
	return func(m *outbox.Message) {
		m.Headers = make(map[string]string, n)
		for i := range n {
			m.Headers[fmt.Sprintf("h%d", i)] = strings.Repeat(fill, valueBytes)
		}
	}
}

func agreementCases() map[string]agreementCase {
	large := func(c agreementCase) agreementCase { c.kind, c.state = outbox.ErrTooLarge, "54000"; return c }
	nul := func(c agreementCase, state string) agreementCase { c.kind, c.state = outbox.ErrNUL, state; return c }
	libraryOnly := func(c agreementCase) agreementCase { c.onlyLibrary = true; return c }
	cases := map[string]agreementCase{
		"a plain message is written":  good(func(*outbox.Message) {}),
		"an empty payload is written": good(func(m *outbox.Message) { m.Payload = []byte{} }),
		"the longest key is written": good(
			func(m *outbox.Message) { m.OrderingKey = strings.Repeat("é", 512) },
		),
		"the longest type is written": good(func(m *outbox.Message) { m.Type = strings.Repeat("t", 200) }),
		"a destination is written": good(
			func(m *outbox.Message) { m.Destination = strings.Repeat("d", 512) },
		),
		"an unordered message is written": good(
			func(m *outbox.Message) { m.Unordered, m.OrderingKey = true, "" },
		),
		"an unordered one may expire": good(
			func(m *outbox.Message) { m.Unordered, m.OrderingKey, m.ExpiresAt = true, "", time.Now() },
		),
		"a payload of 1 MiB is written": good(func(m *outbox.Message) { m.Payload = make([]byte, 1<<20) }),
		"64 headers are written":        good(headers(64, 100, "a")),
		"headers of 32 KiB are written": good(headers(1, 32<<10-2, "a")),
		"an empty key is refused":       bad("ordering_key", func(m *outbox.Message) { m.OrderingKey = "" }),
		"a key that is too long is refused": bad(
			"ordering_key",
			func(m *outbox.Message) { m.OrderingKey = strings.Repeat(canary, 200) },
		),
		"a key that is not UTF-8 is refused": libraryOnly(
			bad("ordering_key", func(m *outbox.Message) { m.OrderingKey = canary + "\xff" }),
		),
		"a NUL in a key is refused": nul(
			bad("ordering_key", func(m *outbox.Message) { m.OrderingKey = canary + "\x00" }),
			"22021",
		),
		"a NUL in a destination is refused": nul(
			bad("destination", func(m *outbox.Message) { m.Destination = "\x00" }),
			"22021",
		),
		"a key and unordered is refused": libraryOnly(
			bad("ordering_key", func(m *outbox.Message) { m.Unordered = true }),
		),
		"a missing type is refused":      bad("event_type", func(m *outbox.Message) { m.Type = "" }),
		"a type with a space is refused": bad("event_type", func(m *outbox.Message) { m.Type = canary + " x" }),
		"a type with a line end is refused": bad(
			"event_type",
			func(m *outbox.Message) { m.Type = "order.paid\n" },
		),
		"a type that is too long is refused": bad(
			"event_type",
			func(m *outbox.Message) { m.Type = strings.Repeat("t", 201) },
		),
		"a type of ours is refused": bad(
			"event_type",
			func(m *outbox.Message) { m.Type = "postrider.skipped" },
		),
		"a missing payload is refused": bad("payload", func(m *outbox.Message) { m.Payload = nil }),
		"a payload above 1 MiB is refused": large(
			bad("payload", func(m *outbox.Message) { m.Payload = make([]byte, 1<<20+1) }),
		),
		"schema version below 1 is refused": bad(
			"schema_version",
			func(m *outbox.Message) { m.SchemaVersion = -1 },
		),
		"a destination too long is refused": bad(
			"destination",
			func(m *outbox.Message) { m.Destination = strings.Repeat("d", 513) },
		),
		"a content type beyond ASCII is refused": bad(
			"content_type",
			func(m *outbox.Message) { m.ContentType = "text/é" },
		),
		"a content type too long is refused": bad(
			"content_type",
			func(m *outbox.Message) { m.ContentType = strings.Repeat("c", 256) },
		),
		"a content type in spaces is refused": bad(
			"content_type",
			func(m *outbox.Message) { m.ContentType = " a " },
		),
		"a malformed traceparent is refused": bad(
			"traceparent",
			func(m *outbox.Message) { m.Traceparent = canary },
		),
		"a year beyond 9999 is refused": bad(
			"occurred_at",
			func(m *outbox.Message) { m.OccurredAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		),
		"a year before 1 is refused": bad(
			"occurred_at",
			func(m *outbox.Message) { m.OccurredAt = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC) },
		),
		"an ordered message cannot expire": bad(
			"expires_at",
			func(m *outbox.Message) { m.ExpiresAt = time.Now() },
		),
		"a negative version is refused": bad("aggregate_version", func(m *outbox.Message) { m.Version = -1 }),
		"a version without a key is refused": bad(
			"aggregate_version",
			func(m *outbox.Message) { m.Unordered, m.OrderingKey, m.Version = true, "", 2 },
		),
		"65 headers are refused":                large(bad("headers", headers(65, 1, "a"))),
		"headers above 32 KiB are refused":      large(bad("headers", headers(1, 32<<10-1, "a"))),
		"headers that grow on the way too":      large(bad("headers", headers(1, 6000, "é"))),
		"a header with a line break is refused": bad("headers", header("tenant", canary+"\r\nnats-rollup: all")),
		"a NUL in a header is refused":          nul(bad("headers", header("tenant", "a\x00b")), "22P05"),
		"a header that is not UTF-8 is refused": libraryOnly(bad("headers", header("tenant", canary+"\xff"))),
		"an upper-case header is refused":       bad("headers", header("Tenant", canary)),
		"a header with a space is refused":      bad("headers", header("a b", canary)),
		"a header ending a line is refused":     bad("headers", header("tenant\n", canary)),
		"an empty header name is refused":       bad("headers", header("", canary)),
		"a header name too long is refused":     bad("headers", header(strings.Repeat("a", 64), canary)),
	}
	for _, name := range []string{
		"event-id", "event-type", "schema-version", "ordering-key", "aggregate-version", "occurred-at", "source", "content-type",
		"stream", "traceparent", "cc", "bcc", "expiration", "user-id", "reply-to", "delivery-mode", "priority", "cluster-id",
		"nats-rollup", "ce-id", "x-delay", "amqp", "kafka-key", "postrider-replay",
	} {
		cases["the reserved header "+name+" is refused"] = bad("headers", header(name, canary))
	}
	return cases
}

func TestMessagesOfOneCall(t *testing.T) {
	t.Parallel()
	versions := func(given ...int64) []outbox.Message {
		msgs := make([]outbox.Message, 0, len(given))
		for _, v := range given {
			m := order("k", "")
			m.Version = v
			msgs = append(msgs, m)
		}
		return msgs
	}
	twice := []outbox.Message{order("a", ""), order("b", "")}
	twice[0].ID, twice[1].ID = outbox.EventID{1}, outbox.EventID{1}

	cases := map[string]struct {
		msgs  []outbox.Message
		field string
		kind  error
	}{
		"one id for two messages is refused":        {twice, "event_id", outbox.ErrIDInUse},
		"own versions that fall are refused":        {versions(3, 2), "aggregate_version", outbox.ErrVersion},
		"an own version twice is refused":           {versions(3, 3), "aggregate_version", outbox.ErrVersion},
		"own and given versions of a key are mixed": {versions(3, 0), "aggregate_version", outbox.ErrInvalid},
		"given and own versions of a key are mixed": {versions(0, 3), "aggregate_version", outbox.ErrInvalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t)
			_, err := w.Write(t.Context(), nil, tc.msgs...)
			checkRefusal(t, "Write()", err, tc.field, tc.kind)
			c := w.Collect()
			if _, err := c.Add(tc.msgs[0]); err != nil {
				t.Fatal(err)
			}
			_, err = c.Add(tc.msgs[1])
			checkRefusal(t, "Add()", err, tc.field, tc.kind)
			if c.Len() != 1 {
				t.Errorf("the collector keeps %d messages, want 1", c.Len())
			}
		})
	}
}

func TestTooManyMessages(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	if _, err := w.Write(
		t.Context(),
		nil,
		make([]outbox.Message, outbox.MaxMessages+1)...); !errors.Is(
		err,
		outbox.ErrTooLarge,
	) {
		t.Errorf("Write() error = %v, want ErrTooLarge", err)
	}
	own := make([]outbox.Message, outbox.MaxOwnVersions+1)
	for i := range own {
		own[i] = order("k", "")
		own[i].Version = int64(i + 1)
	}
	if _, err := w.Write(t.Context(), nil, own...); !errors.Is(err, outbox.ErrTooLarge) {
		t.Errorf("Write() with own versions = %v, want ErrTooLarge", err)
	}
	if written, err := w.Write(t.Context(), nil); err != nil || written != nil {
		t.Errorf("Write() of nothing = %v, %v, want nothing", written, err)
	}
}

func newWriter(t testing.TB) *outbox.Writer {
	t.Helper()
	w, err := outbox.New(outbox.Config{Source: "shop", MaxPayloadBytes: 64})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestConfig(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		cfg outbox.Config
		ok  bool
	}{
		"a source is enough":              {outbox.Config{Source: "shop"}, true},
		"a source is needed":              {outbox.Config{}, false},
		"an injected table is refused":    {outbox.Config{Source: "shop", Table: `outbox"; drop table x`}, false},
		"a qualified table is refused":    {outbox.Config{Source: "shop", Table: "public.outbox"}, false},
		"an injected schema is refused":   {outbox.Config{Source: "shop", Schema: `a"b`}, false},
		"a source with NUL is refused":    {outbox.Config{Source: "a\x00"}, false},
		"a source too long is refused":    {outbox.Config{Source: strings.Repeat("s", 513)}, false},
		"a negative limit is refused":     {outbox.Config{Source: "shop", MaxPayloadBytes: -1}, false},
		"a limit beyond the protocol too": {outbox.Config{Source: "shop", MaxPayloadBytes: 1 << 30}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := outbox.New(tc.cfg); (err == nil) != tc.ok {
				t.Errorf("New() = %v, want ok %t", err, tc.ok)
			}
		})
	}
}

func TestEventID(t *testing.T) {
	t.Parallel()
	const text = "01920000-1234-7abc-8def-0123456789ab"
	id, err := outbox.ParseEventID(text)
	if err != nil || id.String() != text {
		t.Errorf("ParseEventID(%s) = %s, %v", text, id, err)
	}
	for _, wrong := range []string{"", "01920000", strings.ReplaceAll(text, "-", ""), text[:35] + "g", strings.Replace(text, "-", "0", 1)} {
		if _, err := outbox.ParseEventID(wrong); err == nil {
			t.Errorf("ParseEventID(%q) accepts it", wrong)
		}
	}
}

// FuzzAccepted holds validation to what PostgreSQL can store and a relay can encode: a message that a collector
// accepts must never be refused by either.
func FuzzAccepted(f *testing.F) {
	f.Add(
		"order.paid",
		"key",
		"orders",
		"application/json",
		"tenant",
		"a",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		[]byte("{}"),
	)
	f.Add("t\n", "\x00", "\xff", "é", "Nats-Rollup", "all\r\n", "x", []byte(nil))
	w := newWriter(f)
	f.Fuzz(func(t *testing.T, eventType, key, destination, contentType, name, value, trace string, payload []byte) {
		m := outbox.Message{
			Type: eventType, OrderingKey: key, Destination: destination, ContentType: contentType, Traceparent: trace,
			Payload: payload, Headers: map[string]string{name: value},
		}
		_, err := w.Collect().Add(m)
		if err != nil {
			var field *outbox.FieldError
			if !errors.As(err, &field) || field.Field == "" {
				t.Fatalf("Add() error = %v names no field", err)
			}
			return
		}
		for _, s := range []string{eventType, key, destination, contentType, name, value, trace} {
			if strings.ContainsRune(s, 0) || strings.ToValidUTF8(s, "") != s {
				t.Fatalf("Add() accepts a text PostgreSQL does not store: %q", s)
			}
		}
		if _, err := message.Encode(&message.Message{
			Type:          eventType,
			SchemaVersion: 1,
			Source:        "shop",
			OrderingKey:   key,
			Destination:   destination,
			ContentType:   contentType,
			Payload:       payload,
			Size:          len(payload),
			Headers:       m.Headers,
			Traceparent:   trace,
			OccurredAt:    time.Unix(0, 0),
		}); err != nil {
			t.Fatalf("Add() accepts what a relay refuses: %v", err)
		}
	})
}
