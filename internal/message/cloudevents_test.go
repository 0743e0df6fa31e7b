package message_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/message"
)

func bindings() []message.Binding {
	return []message.Binding{message.KafkaBinding, message.NATSBinding, message.AMQPBinding}
}

// paid is an ordered message of JSON.
func paid() message.Message {
	payload := []byte(`{"amount": 1999, "note": "<&>"}`)
	return message.Message{
		ID: message.ID{
			0x01,
			0x02,
			15: 0xff,
		},
		Type:             "order.paid",
		SchemaVersion:    3,
		Source:           "shop",
		OrderingKey:      "order-42",
		AggregateVersion: 7,
		ContentType:      "application/json",
		Payload:          payload,
		Size:             len(payload),
		OccurredAt:       time.Date(2026, 1, 2, 3, 4, 5, 678900, time.UTC),
	}
}

// with is paid, changed.
func with(change func(*message.Message)) message.Message {
	m := paid()
	change(&m)
	m.Size = len(m.Payload)
	return m
}

// envelopeOf is what a consumer is to read of a message, in whatever format.
func envelopeOf(m *message.Message) message.Envelope {
	return message.Envelope{
		EventID:          m.ID.String(),
		Type:             m.Type,
		SchemaVersion:    m.SchemaVersion,
		Source:           m.Source,
		OrderingKey:      m.OrderingKey,
		AggregateVersion: m.AggregateVersion,
		Stream:           m.Destination,
		ContentType:      m.ContentType,
		Traceparent:      m.Traceparent,
		OccurredAt:       m.OccurredAt,
		Headers:          m.Headers,
		Data:             m.Payload,
	}
}

func TestEachFormatGivesBackWhatWentIn(t *testing.T) {
	t.Parallel()
	payload := func(text string) message.Message {
		return with(func(m *message.Message) { m.Payload = []byte(text) })
	}
	cases := map[string]message.Message{
		"JSON":                         paid(),
		"JSON with white space around": payload(" {\"a\":1}\n"),
		"JSON's null":                  payload("null"),
		"a JSON text":                  payload(`"paid"`),
		"JSON that is none":            payload(`{"a":`),
		"JSON that is not UTF-8":       payload("\"\xff\""),
		"nothing": with(func(m *message.Message) {
			m.Type, m.Payload, m.ContentType = message.SkippedType, nil, ""
		}),
		"bytes": with(func(m *message.Message) {
			m.ContentType, m.Payload = "application/octet-stream", []byte{0, 255, '\r', '\n', '"'}
		}),
		"text": with(func(m *message.Message) { m.ContentType, m.Payload = "text/plain", []byte(`"`) }),
		"a vendor's JSON": with(func(m *message.Message) {
			m.ContentType, m.Payload = "application/vnd.shop+json; charset=utf-8", []byte("[1]")
		}),
		"no content type":          with(func(m *message.Message) { m.ContentType = "" }),
		"no content type and text": with(func(m *message.Message) { m.ContentType, m.Payload = "", []byte("plain") }),
		"letters, quotes and percent signs": with(func(m *message.Message) {
			m.Type, m.OrderingKey, m.Destination = "bestellung.bezahlt-ü", ` "näh" 100% %41 `, "orders.eu"
		}),
		"a URI for a source":  with(func(m *message.Message) { m.Source = "https://shop.example/a?b=c#d" }),
		"the largest version": with(func(m *message.Message) { m.AggregateVersion = math.MaxInt64 }),
		"a trace": with(func(m *message.Message) {
			m.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		}),
		"an unordered one": with(func(m *message.Message) {
			m.AggregateVersion, m.OrderingKey = 0, m.ID.String()
		}),
		"headers that look like ours": with(func(m *message.Message) {
			m.Headers = map[string]string{"subject": "x", "id": "y", "data": ""}
		}),
		"headers that brokers trim": with(func(m *message.Message) {
			m.Headers = map[string]string{"odd": " a\t%41é ", "empty": ""}
		}),
		"somebody's event for payload": with(
			func(m *message.Message) { m.ContentType = "application/cloudevents+json" },
		),
	}
	for name, m := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, format := range []message.Format{
				"", message.Native, message.CloudEventsBinary, message.CloudEventsStructured,
			} {
				for _, binding := range bindings() {
					if format == message.CloudEventsBinary &&
						strings.HasPrefix(m.ContentType, "application/cloudevents") &&
						binding != message.NATSBinding {
						continue // see TestAnEventInAnEvent
					}
					rec, err := message.EncodeAs(&m, format, binding)
					if err != nil {
						t.Fatalf("%s: %v", format, err)
					}
					if string(rec.Key) != m.OrderingKey {
						t.Errorf("%s: key %q", format, rec.Key)
					}
					if binding != message.KafkaBinding {
						rec.Key = nil // no other broker carries it
					}
					got, err := message.Decode(&rec)
					if err != nil {
						t.Fatalf("%s %s: %v", format, binding, err)
					}
					want := envelopeOf(&m)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s %s (-want +got):\n%s", format, binding, diff)
					}
				}
			}
		})
	}
}

// The bindings are the CloudEvents project's: their names and values are what other clients look for.
func TestHowEventsTravel(t *testing.T) {
	t.Parallel()
	m := with(func(m *message.Message) {
		m.OrderingKey, m.Destination, m.Headers = `ö "1"`, "orders.eu", map[string]string{"tenant": "ä"}
	})
	const id, occurred = "01020000-0000-0000-0000-0000000000ff", "2026-01-02T03:04:05.0006789Z"
	binary := func(prefix, contentType, subject string) []message.Header {
		return []message.Header{
			{Name: prefix + "specversion", Value: "1.0"},
			{Name: prefix + "id", Value: id},
			{Name: prefix + "source", Value: "shop"},
			{Name: prefix + "type", Value: "order.paid"},
			{Name: prefix + "time", Value: occurred},
			{Name: prefix + "schemaversion", Value: "3"},
			{Name: prefix + "subject", Value: subject},
			{Name: prefix + "aggregateversion", Value: "7"},
			{Name: prefix + "stream", Value: "orders.eu"},
			{Name: contentType, Value: "application/json"},
			{Name: "tenant", Value: "%C3%A4"},
		}
	}
	for binding, want := range map[message.Binding][]message.Header{
		message.KafkaBinding: binary("ce_", "content-type", `ö "1"`),
		message.NATSBinding:  binary("ce-", "ce-datacontenttype", `%C3%B6%20%221%22`),
		message.AMQPBinding:  binary("cloudEvents:", "content-type", `ö "1"`),
	} {
		rec, err := message.EncodeAs(&m, message.CloudEventsBinary, binding)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, rec.Headers); diff != "" {
			t.Errorf("%s headers (-want +got):\n%s", binding, diff)
		}
		if string(rec.Body) != string(m.Payload) {
			t.Errorf("body %q", rec.Body)
		}
	}
	for _, binding := range bindings() {
		rec, err := message.EncodeAs(&m, message.CloudEventsStructured, binding)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"specversion":"1.0","id":"` + id + `","source":"shop","type":"order.paid","time":"` + occurred +
			`","schemaversion":3,"subject":"ö \"1\"","aggregateversion":"7","stream":"orders.eu",` +
			`"datacontenttype":"application/json","data":{"amount": 1999, "note": "<&>"}}`
		if diff := cmp.Diff(want, string(rec.Body)); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
		if !json.Valid(rec.Body) {
			t.Error("the body is not JSON")
		}
		headers := []message.Header{
			{
				Name:  "content-type",
				Value: "application/cloudevents+json; charset=UTF-8",
			},
			{Name: "tenant", Value: "%C3%A4"},
		}
		if diff := cmp.Diff(headers, rec.Headers); diff != "" {
			t.Errorf("%s headers (-want +got):\n%s", binding, diff)
		}
	}
	bytes := with(func(m *message.Message) { m.ContentType, m.Payload = "application/octet-stream", []byte{0xff, 0} })
	rec, err := message.EncodeAs(&bytes, message.CloudEventsStructured, message.KafkaBinding)
	if err != nil || !strings.HasSuffix(string(rec.Body), `,"data_base64":"/wA="}`) {
		t.Errorf("bytes travel as %s, %v", rec.Body, err)
	}
}

func TestWhatNoEventCanSay(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*message.Message)
		reason message.Reason
		field  string
	}{
		"a source with a space": {
			func(m *message.Message) { m.Source = "my shop" },
			message.InvalidEnvelope,
			"source",
		},
		"a source of other letters": {
			func(m *message.Message) { m.Source = "geschäft" },
			message.InvalidEnvelope,
			"source",
		},
		"a source that is no URI": {
			func(m *message.Message) { m.Source = "a%zz" },
			message.InvalidEnvelope,
			"source",
		},
		"a key with a line break": {
			func(m *message.Message) { m.OrderingKey = "a\nb" }, message.InvalidEnvelope, "subject",
		},
		"a type with a tab": {func(m *message.Message) { m.Type = "a\tb" }, message.InvalidEnvelope, "type"},
		"a content type with a line break": {
			func(m *message.Message) { m.ContentType = "a\r\nb" }, message.InvalidEnvelope, "datacontenttype",
		},
		"a header of the binding": {
			func(m *message.Message) { m.Headers = map[string]string{"ce-id": "x"} }, message.InvalidHeader, "ce-id",
		},
		"a header of the envelope": {
			func(m *message.Message) { m.Headers = map[string]string{"event-id": "x"} },
			message.InvalidHeader,
			"event-id",
		},
		"no type": {func(m *message.Message) { m.Type = "" }, message.InvalidEnvelope, "event-type"},
		"large headers": {
			func(m *message.Message) {
				m.Headers = map[string]string{"a": strings.Repeat("x", 30<<10), "b": strings.Repeat("x", 30<<10)}
			}, message.TooLarge, "headers",
		},
		"a payload that was not loaded": {
			func(m *message.Message) { m.Payload, m.Size = nil, 1 }, message.TooLarge, "payload",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, format := range []message.Format{message.CloudEventsBinary, message.CloudEventsStructured} {
				m := paid()
				tc.change(&m)
				_, err := message.EncodeAs(&m, format, message.NATSBinding)
				wantError(t, err, tc.reason, tc.field)
			}
		})
	}
}

// wantError checks an error of the package.
func wantError(t *testing.T, err error, reason message.Reason, field string) {
	t.Helper()
	got, ok := message.ReasonOf(err)
	if !ok || got != reason || !strings.Contains(err.Error(), " "+field+" ") {
		t.Errorf("error = %v, want %s of %s", err, reason, field)
	}
}

func record(key, body string, headers ...string) message.Record {
	r := message.Record{Key: []byte(key), Body: []byte(body)}
	for pair := range slices.Chunk(headers, 2) {
		r.Headers = append(r.Headers, message.Header{Name: pair[0], Value: pair[1]})
	}
	return r
}

func TestEventsOfOtherProducers(t *testing.T) {
	t.Parallel()
	const structured = "application/cloudevents+json"
	minimal := message.Envelope{
		EventID: "1", Type: "t", Source: "/s", SchemaVersion: 1, OrderingKey: "1", Data: []byte("x"),
	}
	change := func(f func(*message.Envelope)) message.Envelope {
		e := minimal
		f(&e)
		return e
	}
	cases := map[string]struct {
		rec  message.Record
		want message.Envelope
	}{
		"the least there is, on Kafka": {
			record("", "x", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "/s", "ce_type", "t"), minimal,
		},
		"the least there is, on NATS, in the letters of HTTP": {
			record("", "x", "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "%2Fs", "Ce-Type", "%74"), minimal,
		},
		"the least there is, on AMQP without colons": {
			record("", "x", "cloudEvents_specversion", "1.0", "cloudEvents_id", "1", "cloudEvents_source", "/s",
				"cloudEvents_type", "t"), minimal,
		},
		"a percent sign on Kafka is itself": {
			record("", "x", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "/s", "ce_type", "%74"),
			change(func(e *message.Envelope) { e.Type = "%74" }),
		},
		"a content type in the letters of HTTP": {
			record(
				"",
				"x",
				"ce-specversion",
				"1.0",
				"ce-id",
				"1",
				"ce-source",
				"/s",
				"ce-type",
				"t",
				"Content-Type",
				"text/x",
			),
			change(func(e *message.Envelope) { e.ContentType = "text/x" }),
		},
		"a record's key orders, and the subject is told": {
			record(
				"k",
				"x",
				"ce_specversion",
				"1.0",
				"ce_id",
				"1",
				"ce_source",
				"/s",
				"ce_type",
				"t",
				"ce_subject",
				"a",
			),
			change(func(e *message.Envelope) { e.OrderingKey, e.Headers = "k", map[string]string{"subject": "a"} }),
		},
		"a partition key orders before all": {
			record(
				"k",
				"x",
				"ce_specversion",
				"1.0",
				"ce_id",
				"1",
				"ce_source",
				"/s",
				"ce_type",
				"t",
				"ce_partitionkey",
				"p",
			),
			change(func(e *message.Envelope) { e.OrderingKey = "p" }),
		},
		"the subject orders where nothing else does": {
			record(
				"",
				"x",
				"ce-specversion",
				"1.0",
				"ce-id",
				"1",
				"ce-source",
				"/s",
				"ce-type",
				"t",
				"ce-subject",
				"a",
			),
			change(func(e *message.Envelope) { e.OrderingKey = "a" }),
		},
		"extensions and other headers are told": {
			record(
				"",
				"x",
				"ce_specversion",
				"1.0",
				"ce_id",
				"1",
				"ce_source",
				"/s",
				"ce_type",
				"t",
				"ce_dataschema",
				"/d",
				"tenant",
				"a",
			),
			change(func(e *message.Envelope) { e.Headers = map[string]string{"dataschema": "/d", "tenant": "a"} }),
		},
		"structured, with what JSON has": {
			record("", ` { "data": [1, 2] , "specversion":"1.0","id":"1","source":"/s","type":"t","schemaversion":2,`+
				`"urgent":true,"weight":"3","none":null,"time":"2026-01-02T03:04:05+01:00"}`, "Content-Type", structured),
			change(func(e *message.Envelope) {
				e.Data, e.SchemaVersion = []byte("[1, 2]"), 2
				e.OccurredAt = time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC)
				e.Headers = map[string]string{"urgent": "true", "weight": "3"}
			}),
		},
		"structured, with a text that is not JSON": {
			record("", `{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/xml",`+
				`"data":"<a b=\"c\"/>"}`,
				"content-type", "Application/CloudEvents"),
			change(func(e *message.Envelope) { e.ContentType, e.Data = "text/xml", []byte(`<a b="c"/>`) }),
		},
		"structured, with base64 and attributes beside, which do not count": {
			record("", `{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"eA=="}`,
				"content-type", structured, "ce_id", "2"), minimal,
		},
		"structured, without data": {
			record("", `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`, "content-type", structured),
			change(func(e *message.Envelope) { e.Data = nil }),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := message.Decode(&tc.rec)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEventsThatAreNone(t *testing.T) {
	t.Parallel()
	binary := []string{"ce_specversion", "1.0", "ce_id", "1", "ce_source", "/s", "ce_type", "t"}
	structured := func(body string) message.Record {
		return record("", body, "content-type", "application/cloudevents+json")
	}
	const start = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	cases := map[string]struct {
		rec    message.Record
		reason message.Reason
		field  string
	}{
		"no version": {record("", "", binary[2:]...), message.InvalidEnvelope, "specversion"},
		"an older version": {
			record("", "", append([]string{"ce_specversion", "0.3"}, binary[2:]...)...),
			message.InvalidEnvelope, "specversion",
		},
		"an attribute twice": {
			record("", "", append(slices.Clone(binary), "ce_type", "t")...), message.InvalidEnvelope, "attributes",
		},
		"an attribute in two bindings": {
			record("", "", append(slices.Clone(binary), "ce-type", "t")...), message.InvalidEnvelope, "attributes",
		},
		"no id but a version": {
			record("", "", "ce_specversion", "1.0", "ce_id", ""),
			message.InvalidEnvelope,
			"event-id",
		},
		"a version of letters": {
			record("", "", append(slices.Clone(binary), "ce_aggregateversion", "x")...),
			message.InvalidEnvelope, "aggregateversion",
		},
		"a time that is none": {
			record("", "", append(slices.Clone(binary), "ce_time", "today")...),
			message.InvalidEnvelope, "time",
		},
		"a schema version beyond 32 bits": {
			record("", "", append(slices.Clone(binary), "ce_schemaversion", "4294967296")...),
			message.InvalidEnvelope, "schemaversion",
		},
		"a text with NUL": {
			record("", "", append(slices.Clone(binary), "ce_other", "a\x00")...), message.UnstorableText, "attributes",
		},
		"a long subject": {
			record("", "", append(slices.Clone(binary), "ce_subject", strings.Repeat("x", 1025))...),
			message.TooLarge, "subject",
		},
		"a body that is no object":    {structured(`[]`), message.InvalidEnvelope, "body"},
		"a body that is cut off":      {structured(start), message.InvalidEnvelope, "body"},
		"an attribute that is a list": {structured(start + `,"x":[1]}`), message.InvalidEnvelope, "body"},
		"data in two ways": {
			structured(start + `,"data":1,"data_base64":"eA=="}`),
			message.InvalidEnvelope, "body",
		},
		"base64 that is none": {structured(start + `,"data_base64":"?"}`), message.InvalidEnvelope, "data_base64"},
		"no source": {
			structured(`{"specversion":"1.0","id":"1","type":"t"}`),
			message.InvalidEnvelope, "source",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := message.Decode(&tc.rec)
			wantError(t, err, tc.reason, tc.field)
		})
	}
}

// Where the content type of the data is a header, data that are themselves a structured event cannot travel in binary
// mode: the bindings tell the modes apart by that header alone.
func TestAnEventInAnEvent(t *testing.T) {
	t.Parallel()
	m := with(func(m *message.Message) { m.ContentType = "application/cloudevents+json" })
	for _, binding := range []message.Binding{message.KafkaBinding, message.AMQPBinding} {
		_, err := message.EncodeAs(&m, message.CloudEventsBinary, binding)
		wantError(t, err, message.InvalidEnvelope, "content-type")
	}
}

func TestFormatsThatThereAre(t *testing.T) {
	t.Parallel()
	for format, ok := range map[message.Format]bool{
		"": true, message.Native: true, message.CloudEventsBinary: true, message.CloudEventsStructured: true,
		"CloudEvents": false, "native": false,
	} {
		if err := format.Validate(); (err == nil) != ok {
			t.Errorf("Validate(%q) = %v", format, err)
		}
	}
}

// Whatever a stranger sends, reading it ends, with an envelope that a database can keep or with a reason.
func FuzzDecodeEvents(f *testing.F) {
	f.Add(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}`, "ce_id", "1")
	f.Add(`{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"a/b","data":"\ud800"}`, "x", "%")
	f.Fuzz(func(t *testing.T, body, name, value string) {
		for _, r := range []message.Record{
			record("", body, "content-type", "application/cloudevents+json", name, value),
			record("", body, "ce_specversion", "1.0", "ce_id", "1", "ce_source", "/s", "ce_type", "t", name, value),
		} {
			e, err := message.Decode(&r)
			if _, known := message.ReasonOf(err); err != nil && !known {
				t.Fatalf("error %v", err)
			}
			if err == nil && (e.EventID == "" || e.OrderingKey == "" || strings.ContainsRune(e.EventID, 0)) {
				t.Fatalf("envelope %+v", e)
			}
		}
	})
}
