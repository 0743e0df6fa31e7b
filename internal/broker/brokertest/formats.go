package brokertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// eachFormat publishes messages in all formats side by side: a consumer needs not be told which one it reads.
func eachFormat(t *testing.T, s *Subject) {
	t.Helper()
	if s.Formatted == nil {
		return
	}
	ordered := Message("bestellung näh 100%", 1)
	ordered.Destination = s.Allowed
	ordered.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	bytes := Message("", 0)
	bytes.Payload, bytes.ContentType = []byte{0, 255, '\r', '\n', '"'}, "application/octet-stream"
	bytes.Size = len(bytes.Payload)
	spaced := Message("order-8", 1)
	spaced.Payload = append([]byte(" "), spaced.Payload...)
	spaced.Size = len(spaced.Payload)
	marker := Message("order-9", 1)
	marker.Type, marker.Payload, marker.Size, marker.Headers = message.SkippedType, nil, 0, nil

	want := make(map[string]message.Message)
	publishers := map[message.Format]broker.Publisher{
		message.Native:                s.Publisher(t),
		message.CloudEventsBinary:     s.Formatted(t, message.CloudEventsBinary),
		message.CloudEventsStructured: s.Formatted(t, message.CloudEventsStructured),
	}
	for format, p := range publishers {
		var batch []message.Message
		for _, m := range []message.Message{ordered, bytes, spaced, marker} {
			unordered := m.OrderingKey == m.ID.String()
			m.ID = Message("", 0).ID
			if unordered {
				m.OrderingKey = m.ID.String()
			}
			want[m.ID.String()] = m
			batch = append(batch, m)
		}
		for i, c := range publish(t, p, batch...) {
			wantOutcome(t, string(format)+" "+batch[i].OrderingKey, c, broker.Confirmed, "")
		}
	}
	stored := s.Stored(t)
	if len(stored) != len(want) {
		t.Fatalf("%d messages stored, want %d", len(stored), len(want))
	}
	for i := range stored {
		wantEnvelope(t, want, &stored[i].Record)
	}
	if s.Receiver == nil {
		return
	}
	for _, d := range receive(t, s.Receiver(t, "d", len(want)), len(want)) {
		wantEnvelope(t, want, &d.Record)
	}
}

// wantEnvelope checks that a record says what its message does.
func wantEnvelope(t *testing.T, all map[string]message.Message, rec *message.Record) {
	t.Helper()
	got, err := message.Decode(rec)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := all[got.EventID]
	if !ok {
		t.Fatalf("nobody sent %q", got.EventID)
	}
	want := message.Envelope{
		EventID:          got.EventID,
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
	if len(got.Data) == 0 {
		got.Data = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%+v (-want +got):\n%s", rec.Headers, diff)
	}
}

func refusedEvents(t *testing.T, s *Subject) {
	t.Helper()
	if s.Formatted == nil {
		return
	}
	for _, format := range []message.Format{message.CloudEventsBinary, message.CloudEventsStructured} {
		batch := []message.Message{Message("a", 1), Message("b", 1), Message("c", 1)}
		batch[0].Source = "no URI"
		batch[2].Headers = map[string]string{"ce-id": "another"}
		got := publish(t, s.Formatted(t, format), batch...)
		wantOutcome(t, "a source that is no URI reference", got[0], broker.Rejected, broker.ReasonInvalidHeader)
		wantOutcome(t, "a good one", got[1], broker.Confirmed, "")
		wantOutcome(t, "a header of the binding's own", got[2], broker.Rejected, broker.ReasonInvalidHeader)
	}
}
