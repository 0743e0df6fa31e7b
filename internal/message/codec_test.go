package message

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

func sample() Message {
	return Message{
		Position: 7,
		ID: ID{
			0x01,
			0x8f,
			0xff,
			0x00,
			0x12,
			0x34,
			0x70,
			0x00,
			0x80,
			0x00,
			0xaa,
			0xbb,
			0xcc,
			0xdd,
			0xee,
			0xff,
		},
		Type:             "order.paid",
		SchemaVersion:    3,
		Source:           "shop/orders",
		OrderingKey:      "order-7",
		AggregateVersion: 42,
		Destination:      "orders.eu",
		ContentType:      "application/json",
		Payload:          []byte(`{"state":"paid"}`),
		Size:             16,
		Headers:          map[string]string{"tenant": "north", "trace-note": "a b"},
		Traceparent:      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		OccurredAt:       time.Date(2026, 3, 4, 5, 6, 7, 891234000, time.UTC),
	}
}

func TestEncodeWritesTheHeadersOfTheContract(t *testing.T) {
	t.Parallel()
	m := sample()
	rec, err := Encode(&m)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, h := range rec.Headers {
		fmt.Fprintf(&got, "%s: %s\n", h.Name, h.Value)
	}
	want := `event-id: 018fff00-1234-7000-8000-aabbccddeeff
event-type: order.paid
schema-version: 3
ordering-key: order-7
aggregate-version: 42
occurred-at: 2026-03-04T05:06:07.891234Z
source: shop/orders
content-type: application/json
stream: orders.eu
traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
tenant: north
trace-note: a b
`
	if got.String() != want {
		t.Errorf("headers:\n%swant:\n%s", got.String(), want)
	}
	if string(rec.Key) != "order-7" || string(rec.Body) != `{"state":"paid"}` {
		t.Errorf("key %q, body %q", rec.Key, rec.Body)
	}
}

func TestDecodeReadsWhatEncodeWrites(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*Message){
		"a message with everything":                    func(*Message) {},
		"an unordered message":                         func(m *Message) { m.AggregateVersion, m.OrderingKey = 0, m.ID.String() },
		"no payload, no headers, default destination":  func(m *Message) { m.Payload, m.Size, m.Headers, m.Destination = []byte{}, 0, nil, "" },
		"no traceparent and no content type":           func(m *Message) { m.Traceparent, m.ContentType = "", "" },
		"a key that is not ASCII":                      func(m *Message) { m.OrderingKey = "Bestellung №7 – größer" },
		"a key with spaces at its ends":                func(m *Message) { m.OrderingKey = "  7 8 " },
		"a key of one space":                           func(m *Message) { m.OrderingKey = " " },
		"a key with line breaks, tabs and colons":      func(m *Message) { m.OrderingKey = "a:\r\n\tb" },
		"a key that looks escaped already":             func(m *Message) { m.OrderingKey = "100%25 %zz %" },
		"a header that is empty":                       func(m *Message) { m.Headers = map[string]string{"empty": ""} },
		"a header with tab, escape and delete":         func(m *Message) { m.Headers = map[string]string{"odd": "\t\x1b[31m\x7f"} },
		"a time before 1970 with another zone":         func(m *Message) { m.OccurredAt = time.Date(1931, 1, 2, 3, 4, 5, 0, time.FixedZone("", 5400)) },
		"a payload that is not text":                   func(m *Message) { m.Payload, m.Size = []byte{0, 255, 13, 10}, 4 },
		"texts at their bounds":                        func(m *Message) { m.OrderingKey, m.Type = strings.Repeat("é", 512), strings.Repeat("t", 512) },
		"the highest version and a negative schema":    func(m *Message) { m.AggregateVersion, m.SchemaVersion = 1<<63-1, -1 },
		"a row header named like a header of a broker": func(m *Message) { m.Headers = map[string]string{"subject": "s", "content-encoding": "gzip"} },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := sample()
			change(&m)
			rec, err := Encode(&m)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range rec.Headers {
				if strings.TrimSpace(h.Value) != h.Value ||
					strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' || r > '~' }) {
					t.Errorf("header %s travels as %q, which brokers may change", h.Name, h.Value)
				}
			}
			e, err := Decode(&rec)
			if err != nil {
				t.Fatal(err)
			}
			sameMessage(t, &m, &e)
		})
	}
}

func sameMessage(t *testing.T, m *Message, e *Envelope) {
	t.Helper()
	type texts struct{ id, typ, source, key, stream, contentType, traceparent string }
	want := texts{m.ID.String(), m.Type, m.Source, m.OrderingKey, m.Destination, m.ContentType, m.Traceparent}
	got := texts{e.EventID, e.Type, e.Source, e.OrderingKey, e.Stream, e.ContentType, e.Traceparent}
	if got != want {
		t.Errorf("texts:\n got %q\nwant %q", got, want)
	}
	if e.SchemaVersion != m.SchemaVersion || e.AggregateVersion != m.AggregateVersion ||
		!e.OccurredAt.Equal(m.OccurredAt) {
		t.Errorf("schema %d version %d occurred %v, want %d %d %v",
			e.SchemaVersion, e.AggregateVersion, e.OccurredAt, m.SchemaVersion, m.AggregateVersion, m.OccurredAt)
	}
	if !maps.Equal(e.Headers, m.Headers) {
		t.Errorf("headers %q, want %q", e.Headers, m.Headers)
	}
	if !bytes.Equal(e.Data, m.Payload) {
		t.Errorf("data %q, want %q", e.Data, m.Payload)
	}
}

func TestEncodeRefusesWhatNobodyCouldReadBack(t *testing.T) {
	t.Parallel()
	header := func(name, value string) func(*Message) {
		return func(m *Message) { m.Headers = map[string]string{name: value} }
	}
	cases := map[string]struct {
		change func(*Message)
		reason Reason
		field  string
	}{
		"a payload that was not loaded":    {func(m *Message) { m.Payload = nil }, TooLarge, "payload"},
		"a header name with capitals":      {header("Tenant", "x"), InvalidHeader, "headers"},
		"a header name that is empty":      {header("", "x"), InvalidHeader, "headers"},
		"a header name with a colon":       {header("a:b", "x"), InvalidHeader, "headers"},
		"a header name with a digit first": {header("1a", "x"), InvalidHeader, "headers"},
		"a header name of 64 characters":   {header(strings.Repeat("a", 64), "x"), InvalidHeader, "headers"},
		"a header of the envelope":         {header("event-id", "x"), InvalidHeader, "event-id"},
		"a rollup that purges the stream":  {header("nats-rollup", "all"), InvalidHeader, "nats-rollup"},
		"a rollup in NATS's own case":      {header("Nats-Rollup", "all"), InvalidHeader, "headers"},
		"a CloudEvents header":             {header("ce-id", "x"), InvalidHeader, "ce-id"},
		"a CloudEvents header for Kafka":   {header("ce_id", "x"), InvalidHeader, "headers"},
		"a delay":                          {header("x-delay", "1"), InvalidHeader, "x-delay"},
		"a blind copy":                     {header("bcc", "q"), InvalidHeader, "bcc"},
		"an AMQP name":                     {header("amq-x", "q"), InvalidHeader, "amq-x"},
		"a line feed in a header":          {header("note", "a\nb"), InvalidHeader, "note"},
		"a carriage return in a header":    {header("note", "a\rb"), InvalidHeader, "note"},
		"NUL in a header":                  {header("note", "a\x00b"), InvalidHeader, "note"},
		"a header that is not UTF-8":       {header("note", "\xff"), UnstorableText, "note"},
		"a header of 64 KiB":               {header("note", strings.Repeat("n", 64<<10)), TooLarge, "note"},
		"headers beyond the sum once sent": {header("note", strings.Repeat("é", 20<<10)), TooLarge, "headers"},
		"65 headers":                       {func(m *Message) { m.Headers = manyHeaders(65) }, TooLarge, "headers"},
		"NUL in the key": {
			func(m *Message) { m.OrderingKey = "a\x00" },
			UnstorableText,
			HeaderOrderingKey,
		},
		"a type that is not UTF-8": {func(m *Message) { m.Type = "\xc3" }, UnstorableText, HeaderEventType},
		"an empty type":            {func(m *Message) { m.Type = "" }, InvalidEnvelope, HeaderEventType},
		"an empty source":          {func(m *Message) { m.Source = "" }, InvalidEnvelope, HeaderSource},
		"an empty key": {
			func(m *Message) { m.OrderingKey = "" },
			InvalidEnvelope,
			HeaderOrderingKey,
		},
		"a key beyond its bound": {
			func(m *Message) { m.OrderingKey = strings.Repeat("k", 1025) },
			TooLarge,
			HeaderOrderingKey,
		},
		"a destination beyond its bound": {
			func(m *Message) { m.Destination = strings.Repeat("k", 513) },
			TooLarge,
			HeaderStream,
		},
		"a time that RFC 3339 cannot write": {
			func(m *Message) { m.OccurredAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
			InvalidEnvelope,
			HeaderOccurredAt,
		},
		"a negative version": {
			func(m *Message) { m.AggregateVersion = -1 },
			InvalidEnvelope,
			HeaderAggregateVersion,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := sample()
			tc.change(&m)
			_, err := Encode(&m)
			wantError(t, err, tc.reason, tc.field)
		})
	}
}

func manyHeaders(n int) map[string]string {
	h := make(map[string]string, n)
	for i := range n {
		h[fmt.Sprintf("h%d", i)] = "v"
	}
	return h
}

func wantError(t *testing.T, err error, reason Reason, field string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Reason != reason {
		t.Fatalf("error %v, want reason %s", err, reason)
	}
	if e.Field != field {
		t.Errorf("field %q, want %q (%v)", e.Field, field, err)
	}
	if len(e.Error()) > 256 {
		t.Errorf("error text of %d bytes: %v", len(e.Error()), e)
	}
}

// record returns a decodable record with the headers given put in place of, or after, the usual ones.
func record(headers ...Header) Record {
	r := Record{Headers: []Header{
		{HeaderEventID, "e-1"}, {HeaderEventType, "t"}, {HeaderSource, "s"}, {HeaderOrderingKey, "k"},
	}, Body: []byte("x")}
next:
	for _, h := range headers {
		for i := range r.Headers {
			if r.Headers[i].Name == h.Name {
				r.Headers[i] = h
				continue next
			}
		}
		r.Headers = append(r.Headers, h)
	}
	return r
}

func TestDecodeRefusesWhatIsNoEnvelope(t *testing.T) {
	t.Parallel()
	doubled := record()
	doubled.Headers = append(doubled.Headers, Header{HeaderEventID, "e-2"})
	unkeyed := record(Header{HeaderOrderingKey, ""}, Header{HeaderAggregateVersion, "1"})
	binaryKey := record(Header{HeaderOrderingKey, ""})
	binaryKey.Key = []byte{0xff, 0x00}
	longKey := record(Header{HeaderOrderingKey, ""})
	longKey.Key = make([]byte, 4096)
	crowded := record()
	for range 256 {
		crowded.Headers = append(crowded.Headers, Header{"a", "b"})
	}
	cases := map[string]struct {
		rec    Record
		reason Reason
		field  string
	}{
		"nothing at all":       {Record{}, InvalidEnvelope, HeaderEventID},
		"no event id":          {record(Header{HeaderEventID, ""}), InvalidEnvelope, HeaderEventID},
		"no type":              {record(Header{HeaderEventType, ""}), InvalidEnvelope, HeaderEventType},
		"no source":            {record(Header{HeaderSource, ""}), InvalidEnvelope, HeaderSource},
		"two event ids":        {doubled, InvalidEnvelope, HeaderEventID},
		"a version but no key": {unkeyed, InvalidEnvelope, HeaderOrderingKey},
		"version zero": {
			record(Header{HeaderAggregateVersion, "0"}),
			InvalidEnvelope,
			HeaderAggregateVersion,
		},
		"a version beyond 64 bits": {
			record(Header{HeaderAggregateVersion, "9223372036854775808"}),
			InvalidEnvelope,
			HeaderAggregateVersion,
		},
		"a version in words": {
			record(Header{HeaderAggregateVersion, "one"}),
			InvalidEnvelope,
			HeaderAggregateVersion,
		},
		"a schema version beyond 32 bits": {
			record(Header{HeaderSchemaVersion, "2147483648"}),
			InvalidEnvelope,
			HeaderSchemaVersion,
		},
		"a time in words": {
			record(Header{HeaderOccurredAt, "today"}),
			InvalidEnvelope,
			HeaderOccurredAt,
		},
		"half an escape in the id": {record(Header{HeaderEventID, "a%2"}), InvalidEnvelope, HeaderEventID},
		"an escaped NUL in the id": {record(Header{HeaderEventID, "a%00"}), UnstorableText, HeaderEventID},
		"a raw NUL in the type": {
			record(Header{HeaderEventType, "a\x00"}),
			UnstorableText,
			HeaderEventType,
		},
		"a key that is not UTF-8": {
			record(Header{HeaderOrderingKey, "%FF"}),
			UnstorableText,
			HeaderOrderingKey,
		},
		"a record key that is not UTF-8": {binaryKey, UnstorableText, HeaderOrderingKey},
		"a record key beyond its bound":  {longKey, TooLarge, HeaderOrderingKey},
		"a stream with NUL":              {record(Header{HeaderStream, "%00"}), UnstorableText, HeaderStream},
		"a traceparent with NUL": {
			record(Header{HeaderTraceparent, "%00"}),
			UnstorableText,
			HeaderTraceparent,
		},
		"another header with NUL":          {record(Header{"note", "%00"}), UnstorableText, "headers"},
		"another header that is not UTF-8": {record(Header{"note", "\xff"}), UnstorableText, "headers"},
		"a header name that is not UTF-8":  {record(Header{"no\xff", "x"}), UnstorableText, "headers"},
		"an id beyond its bound": {
			record(Header{HeaderEventID, strings.Repeat("i", 513)}),
			TooLarge,
			HeaderEventID,
		},
		"an id far beyond its bound": {
			record(Header{HeaderEventID, strings.Repeat("i", 9999)}),
			TooLarge,
			HeaderEventID,
		},
		"more headers than anybody needs":   {crowded, TooLarge, "headers"},
		"headers larger than anybody needs": {record(Header{"note", strings.Repeat("n", 1<<20)}), TooLarge, "headers"},
		"a key whose escapes hide its bytes": {
			record(Header{HeaderOrderingKey, strings.Repeat("%41", 1025)}),
			TooLarge,
			HeaderOrderingKey,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode(&tc.rec)
			wantError(t, err, tc.reason, tc.field)
		})
	}
}

func TestDecodeReadsOtherProducersRecords(t *testing.T) {
	t.Parallel()
	rec := Record{Key: []byte("k-1"), Headers: []Header{
		{HeaderEventID, "not-a-uuid"},
		{HeaderEventType, "t"},
		{HeaderSource, "s"},
		{"Nats-Msg-Id", "x"},
		{"nats-expected-stream", "x"},
		{"X-Tenant", "100%"},
		{"X-Tenant", "second"},
	}}
	e, err := Decode(&rec)
	if err != nil {
		t.Fatal(err)
	}
	if e.EventID != "not-a-uuid" || e.OrderingKey != "k-1" || e.SchemaVersion != 1 || e.AggregateVersion != 0 {
		t.Errorf("envelope %+v", e)
	}
	if want := map[string]string{"X-Tenant": "100%"}; !maps.Equal(e.Headers, want) {
		t.Errorf("headers %q, want %q: hop headers left out, the first of two kept", e.Headers, want)
	}

	rec.Key = nil
	if e, err = Decode(&rec); err != nil || e.OrderingKey != "not-a-uuid" {
		t.Errorf("without a key: %q, %v; want the event id", e.OrderingKey, err)
	}
}

func TestDigestCoversTypeKeyAndData(t *testing.T) {
	t.Parallel()
	got := Digest("t", "kk", []byte("ddd"))
	// Computed apart from the code: three big-endian lengths of eight bytes, each before its bytes.
	const golden = "dcfa4667be91e20e00930e3224074e5c23b44461ae672e6609e2383f96de1ad6"
	if h := hex.EncodeToString(got[:]); h != golden {
		t.Errorf("Digest = %s, want %s: stored digests would no longer match", h, golden)
	}
	seen := map[string]string{hex.EncodeToString(got[:]): "t kk ddd"}
	long := strings.Repeat("k", 1024)
	for name, d := range map[string][sha256.Size]byte{
		"a byte moved from key to data": Digest("t", "k", []byte("kddd")),
		"a byte moved from type to key": Digest("", "tkk", []byte("ddd")),
		"no data":                       Digest("t", "kk", nil),
		"another key":                   Digest("t", "kl", []byte("ddd")),
		"a long key":                    Digest("t", long, []byte("ddd")),
		"a long key with another end":   Digest("t", long[1:]+"l", []byte("ddd")),
	} {
		h := hex.EncodeToString(d[:])
		if other, twice := seen[h]; twice {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[h] = name
	}
}

func FuzzEscapeValueIsLossless(f *testing.F) {
	for _, s := range []string{"", " ", "a b", " a ", "%", "%41", "é", "\x00\r\n\t\x7f\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sent := EscapeValue(s)
		for i := range len(sent) {
			if sent[i] < ' ' || sent[i] > '~' {
				t.Fatalf("EscapeValue(%q) = %q holds byte %#x", s, sent, sent[i])
			}
		}
		if sent != strings.Trim(sent, " ") {
			t.Fatalf("EscapeValue(%q) = %q begins or ends with a space", s, sent)
		}
		if back, ok := UnescapeValue(sent); !ok || back != s {
			t.Fatalf("UnescapeValue(%q) = %q, %v; want %q", sent, back, ok, s)
		}
	})
}

func FuzzDecodeNeverPanicsAndGivesStorableText(f *testing.F) {
	f.Add("e", "t", "s", "k", "1", "2026-01-02T03:04:05Z", "note", "v", []byte("key"))
	f.Add("%00", "", "%", "\xff", "-1", "x", "Nats-Msg-Id", "%zz", []byte{0xff})
	f.Fuzz(func(t *testing.T, id, typ, source, key, version, occurred, name, value string, recordKey []byte) {
		rec := Record{Key: recordKey, Headers: []Header{
			{HeaderEventID, id},
			{HeaderEventType, typ},
			{HeaderSource, source},
			{HeaderOrderingKey, key},
			{HeaderAggregateVersion, version},
			{HeaderOccurredAt, occurred},
			{name, value},
		}}
		e, err := Decode(&rec)
		if err != nil {
			if _, ok := ReasonOf(err); !ok {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		for _, s := range []string{e.EventID, e.Type, e.Source, e.OrderingKey, e.Stream, e.ContentType, e.Traceparent} {
			if !storable(s) || len(s) > MaxKeyBytes {
				t.Fatalf("text %q is not storable", s)
			}
		}
		for k, v := range e.Headers {
			if !storable(k) || !storable(v) {
				t.Fatalf("header %q: %q is not storable", k, v)
			}
		}
	})
}

func FuzzEncodeThenDecode(f *testing.F) {
	f.Add("t", "s", "k", "d", "note", "v", int64(1), int64(0), []byte("x"))
	f.Add("é", "%", " ", "", "a-9", " \t", int64(-1), int64(1<<40), []byte{})
	f.Fuzz(func(t *testing.T, typ, source, key, dest, name, value string, version, seconds int64, data []byte) {
		if data == nil {
			data = []byte{}
		}
		m := sample()
		m.Type, m.Source, m.OrderingKey, m.Destination, m.AggregateVersion = typ, source, key, dest, version
		m.OccurredAt = time.Unix(seconds, 0).UTC()
		m.Headers, m.Payload, m.Size = map[string]string{name: value}, data, len(data)
		rec, err := Encode(&m)
		if err != nil {
			if _, ok := ReasonOf(err); !ok {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		e, err := Decode(&rec)
		if err != nil {
			t.Fatalf("Encode accepts what Decode refuses: %v", err)
		}
		sameMessage(t, &m, &e)
	})
}

func TestCodecAllocatesLittle(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts the whole process
	m := sample()
	rec, err := Encode(&m)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		most float64
		run  func()
	}{
		"Encode": {5, func() { _, _ = Encode(&m) }},
		"Decode": {2, func() { _, _ = Decode(&rec) }},
		"Digest": {0, func() { Digest(m.Type, m.OrderingKey, m.Payload) }},
	} {
		if got := testing.AllocsPerRun(100, tc.run); got > tc.most {
			t.Errorf("%s allocates %v times a message, at most %v is agreed", name, got, tc.most)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	m := sample()
	m.Headers = nil
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Encode(&m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	m := sample()
	m.Headers = nil
	rec, err := Encode(&m)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(&rec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	m := sample()
	m.Payload = make([]byte, 300)
	b.ReportAllocs()
	for b.Loop() {
		Digest(m.Type, m.OrderingKey, m.Payload)
	}
}
