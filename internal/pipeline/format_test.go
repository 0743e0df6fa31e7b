package pipeline_test

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// A format is taken over while the relay runs, and a consumer reads what is there of all of them.
func TestARelayTakesANewMessageFormatOver(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	relay, _ := o.start(o.cfg)
	o.write(10)
	o.published(10)
	js := o.broker.JetStream()
	for i, format := range []message.Format{message.CloudEventsBinary, message.CloudEventsStructured} {
		next := o.cfg
		next.MessageFormat, next.Resource.Generation = string(format), int64(i+2)
		if err := relay.Reconfigure(next); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, "the relay runs with "+string(format), func() bool {
			o.write(1)
			return slices.Contains(o.formats(js), string(format))
		})
	}
	testkit.Eventually(t, patience, "all is published", func() bool {
		return testkit.Value[int](o.db, "SELECT count(*) FROM message_outbox") == 0
	})
	seen := o.formats(js)
	if !slices.Contains(seen, string(message.Native)) {
		t.Error("the messages before the change are not there")
	}
	if want := testkit.Value[int](o.db, "SELECT count(*) FROM message_outbox_published"); len(seen) != want {
		t.Errorf("%d messages at the broker, want %d", len(seen), want)
	}
}

// formats reads the stream, decodes all that it holds, and says which format each message has.
func (o *orders) formats(js jetstream.JetStream) []string {
	o.t.Helper()
	stream, err := js.Stream(o.t.Context(), o.cfg.NATS.Stream)
	if err != nil {
		o.t.Fatal(err)
	}
	var seen []string
	state := stream.CachedInfo().State
	for sequence := state.FirstSeq; state.Msgs > 0 && sequence <= state.LastSeq; sequence++ {
		raw, err := stream.GetMsg(o.t.Context(), sequence)
		if err != nil {
			o.t.Fatal(err)
		}
		rec := message.Record{Body: raw.Data}
		for name := range raw.Header {
			rec.Headers = append(rec.Headers, message.Header{Name: name, Value: raw.Header.Get(name)})
		}
		if _, err := message.Decode(&rec); err != nil {
			o.t.Fatal(err)
		}
		seen = append(seen, formatOf(raw))
	}
	return seen
}

func formatOf(raw *jetstream.RawStreamMsg) string {
	switch {
	case raw.Header.Get("ce-id") != "":
		return string(message.CloudEventsBinary)
	case raw.Header.Get("event-id") != "":
		return string(message.Native)
	default:
		return string(message.CloudEventsStructured)
	}
}
