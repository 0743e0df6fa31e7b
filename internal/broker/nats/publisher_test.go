package nats

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// keyed returns one message a key, of growing versions where a key repeats.
func keyed(keys ...string) []message.Message {
	versions := make(map[string]int64)
	batch := make([]message.Message, len(keys))
	for i, key := range keys {
		versions[key]++
		batch[i] = brokertest.Message(key, versions[key])
	}
	return batch
}

func numbered(n int) []message.Message {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	return keyed(keys...)
}

func publish(t *testing.T, p *Publisher, batch ...message.Message) []broker.Confirmation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return p.Publish(ctx, batch)
}

func want(t *testing.T, got broker.Confirmation, outcome broker.Outcome, reason broker.Reason) {
	t.Helper()
	if got.Outcome != outcome || got.Reason != reason {
		t.Errorf("%s %s (%s), want %s %s", got.Outcome, got.Reason, got.Detail, outcome, reason)
	}
}

// eventually publishes one message until the outcome is reached.
func eventually(t *testing.T, p *Publisher, m message.Message, outcome broker.Outcome, reason broker.Reason) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, outcome.String()+" "+string(reason), func() bool {
		got := publish(t, p, m)[0]
		return got.Outcome == outcome && got.Reason == reason
	})
}

func TestMissingStream(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	js := server.JetStream()
	stream := server.Stream(jetstream.StreamConfig{})
	cfg := jetstream.StreamConfig{Name: stream.Name, Subjects: []string{stream.Prefix + ".>"}}
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{Subject: stream.Subject("a")})
	want(t, publish(t, p, keyed("k")...)[0], broker.Confirmed, "")
	if err := js.DeleteStream(t.Context(), stream.Name); err != nil {
		t.Fatal(err)
	}
	batch := numbered(3)
	for range 2 { // first the stream was there a moment ago, then it is known to be gone
		for _, c := range publish(t, p, batch...) {
			want(t, c, broker.Unavailable, broker.ReasonStreamMissing)
			if !strings.Contains(c.Detail, "nats stream add "+stream.Name+` --subjects "`+stream.Subject("a")+`"`) {
				t.Errorf("the detail does not say how to make the stream: %q", c.Detail)
			}
		}
	}
	if _, err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "nats stream add") {
		t.Errorf("Check() = %v", err)
	}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for _, c := range publish(t, p, batch...) {
		want(t, c, broker.Confirmed, "")
	}
}

func TestFullStreamPausesAndLosesNothing(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{
		MaxMsgs: 5, Discard: jetstream.DiscardNew, Retention: jetstream.WorkQueuePolicy,
	})
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{Subject: stream.Subject("a")})
	confirmed := 0
	var refused []message.Message
	batch := numbered(12)
	for i, c := range publish(t, p, batch...) {
		if c.Outcome == broker.Confirmed {
			confirmed++
			continue
		}
		want(t, c, broker.Unavailable, broker.ReasonStreamFull)
		refused = append(refused, batch[i])
	}
	if all := stored(t, server.JetStream(), stream.Name); confirmed != 5 || len(all) != 5 {
		t.Errorf("%d confirmed, %d stored, want 5", confirmed, len(all))
	}
	full, err := server.JetStream().Stream(t.Context(), stream.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Purge(t.Context()); err != nil { // somebody consumes again
		t.Fatal(err)
	}
	for _, c := range publish(t, p, refused[:5]...) {
		want(t, c, broker.Confirmed, "")
	}
	brokertest.WantInOrder(t, stored(t, server.JetStream(), stream.Name), refused[:5], false)
}

// N4, D09: when the duplicate window has ended the stream takes a message again. Both times it is confirmed, and one event
// id says that it is one message.
func TestAfterTheDuplicateWindowAMessageIsStoredAgain(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{Duplicates: 100 * time.Millisecond})
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{Subject: stream.Subject("a")})
	m := numbered(1)
	testkit.Eventually(t, time.Minute, "the stream has it twice", func() bool {
		want(t, publish(t, p, m...)[0], broker.Confirmed, "")
		return len(stored(t, server.JetStream(), stream.Name)) >= 2
	})
	brokertest.WantInOrder(t, stored(t, server.JetStream(), stream.Name), m, true)
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	conn := dial(t, testConfig(server.Addr(), stream.Name))
	p := newPublisher(t, conn, PublisherConfig{Subject: stream.Subject("a")})
	want(t, publish(t, p, keyed("k")...)[0], broker.Confirmed, "")
	m := keyed("k")[0]
	rec, err := message.Encode(&m)
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ := conn.look()
	rec.Body = nil
	room := int(s.maxPayload - wireSize(wireMessage(&rec, p.transportID(&m), stream.Name)))
	m.Payload, m.Size = make([]byte, room), room
	want(t, publish(t, p, m)[0], broker.Confirmed, "")
	m = keyed("k")[0]
	m.Payload, m.Size = make([]byte, room+1), room+1
	got := publish(t, p, m)
	want(t, got[0], broker.Rejected, broker.ReasonTooLarge)
	if !strings.Contains(got[0].Detail, "max_payload is 1048576") {
		t.Errorf("the detail does not name the limit: %q", got[0].Detail)
	}

	small := server.Stream(jetstream.StreamConfig{MaxMsgSize: 1000})
	q := newPublisher(t, dial(t, testConfig(server.Addr(), small.Name)), PublisherConfig{Subject: small.Subject("a")})
	m = keyed("k")[0]
	m.Payload, m.Size = make([]byte, 1001), 1001
	got = publish(t, q, m, keyed("other")[0])
	want(t, got[0], broker.Rejected, broker.ReasonTooLarge)
	want(t, got[1], broker.Confirmed, "")
}

func TestSubjectsOfTheServerStayOutOfReach(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{
		Subject: stream.Subject("a"), Allowed: []string{">"},
	})
	for _, destination := range []string{
		"$JS.API.STREAM.DELETE." + stream.Name, "$SYS.REQ.SERVER.PING", "_INBOX.x", stream.Prefix + ".*", ">", "a b", "a\r\nPUB x 0\r\n",
	} {
		m := keyed("k")[0]
		m.Destination = destination
		want(t, publish(t, p, m)[0], broker.Rejected, broker.ReasonInvalidDestination)
	}
	if all := stored(t, server.JetStream(), stream.Name); len(all) != 0 {
		t.Errorf("%d messages stored", len(all))
	}
	for _, subject := range []string{"", "$JS.x", "a.>", "a b"} {
		if _, err := NewPublisher(nil, PublisherConfig{Subject: subject}); err == nil {
			t.Errorf("the default subject %q is accepted", subject)
		}
	}
}

func TestSubjectOfAnotherStream(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream, other := server.Stream(jetstream.StreamConfig{}), server.Stream(jetstream.StreamConfig{})
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{
		Subject: stream.Subject("a"), Allowed: []string{other.Prefix + ".*"},
	})
	batch := keyed("k", "l")
	batch[0].Destination = other.Subject("a")
	got := publish(t, p, batch...)
	want(t, got[0], broker.Rejected, broker.ReasonUnroutable)
	want(t, got[1], broker.Confirmed, "")
	if all := stored(t, server.JetStream(), other.Name); len(all) != 0 {
		t.Errorf("%d messages in the other stream", len(all))
	}
	q := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{Subject: other.Subject("a")})
	want(t, publish(t, q, keyed("k")...)[0], broker.Unavailable, broker.ReasonStreamMismatch)
}

func TestAnswersOfOthersConfirmNothing(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{Subject: stream.Subject("a")})
	want(t, publish(t, p, keyed("k")...)[0], broker.Confirmed, "")
	js := server.JetStream()
	if err := js.DeleteStream(t.Context(), stream.Name); err != nil {
		t.Fatal(err)
	}
	impostor := server.Connect()
	_, err := impostor.Subscribe(stream.Subject("a"), func(msg *natsgo.Msg) {
		for _, answer := range []string{"ok", `{"stream":"OTHER","seq":1}`, `{"seq":1}`} {
			_ = msg.Respond([]byte(answer))
		}
	})
	if err == nil {
		err = impostor.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	m := keyed("k")[0]
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	want(t, p.Publish(ctx, []message.Message{m})[0], broker.Unknown, broker.ReasonStreamMissing)
	want(t, publish(t, p, m)[0], broker.Unavailable, broker.ReasonStreamMissing)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: stream.Name, Subjects: []string{stream.Prefix + ".>"},
	}); err != nil {
		t.Fatal(err)
	}
	want(t, publish(t, p, m)[0], broker.Confirmed, "") // the stream's answer counts, whoever else speaks
}

func TestDuplicateOfALostMessageIsNotBelieved(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{Subject: stream.Subject("a")})
	batch := keyed("k", "k")
	first := publish(t, p, batch[0])
	want(t, first[0], broker.Confirmed, "")
	if again := publish(t, p, batch[0])[0]; again != first[0] {
		t.Errorf("a duplicate of a message that is there: %+v, want %+v", again, first[0])
	}
	js := server.JetStream()
	s, err := js.Stream(t.Context(), stream.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMsg(t.Context(), 1); err != nil { // the id is still remembered
		t.Fatal(err)
	}
	got := publish(t, p, batch...)
	want(t, got[0], broker.Unknown, broker.ReasonDuplicateLost)
	want(t, got[1], broker.Unavailable, broker.ReasonNotSent)
	got = publish(t, p, batch...)
	want(t, got[0], broker.Confirmed, "")
	want(t, got[1], broker.Confirmed, "")
	all := stored(t, js, stream.Name)
	if len(all) != 2 || all[0].EventID() != batch[0].ID.String() {
		t.Errorf("%d stored, the first is %s", len(all), all[0].EventID())
	}
	if stats := p.Stats(); stats.Duplicates != 2 {
		t.Errorf("stats %+v", stats)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	api := []string{"$JS.API.>", "$JS.ACK.>"}
	server := testkit.NATSServer(t, local.NATSConfig{Users: []local.NATSUser{
		{Name: "admin", Password: "a"},
		{Name: "narrow", Password: "n", Publish: append([]string{"s.good"}, api...)},
		{Name: "shut", Password: "s", Publish: append([]string{"s.other"}, api...)},
		{Name: "deaf", Password: "d", Publish: []string{">"}, Subscribe: []string{"nothing"}},
		{Name: "blind", Password: "b", Publish: []string{"s.>", "$JS.API.STREAM.INFO.>"}},
		{Name: "mute", Password: "m", Publish: []string{"s.>"}},
	}})
	login := natsgo.UserInfo("admin", "a")
	stream := server.Stream(jetstream.StreamConfig{Subjects: []string{"s.>"}}, login)
	publisher := func(t *testing.T, user, password string) *Publisher {
		t.Helper()
		cfg := testConfig(server.Addr(), stream.Name)
		cfg.CredentialsDir = writeCredentials(t, user, password)
		return newPublisher(t, dial(t, cfg), PublisherConfig{Subject: "s.good", Allowed: []string{"s.*"}})
	}
	t.Run("no permission on one subject is ambiguous for its messages alone", func(t *testing.T) {
		t.Parallel()
		batch := keyed("a", "b", "b", "c")
		batch[1].Destination = "s.bad"
		got := publish(t, publisher(t, "narrow", "n"), batch...)
		want(t, got[0], broker.Confirmed, "")
		want(t, got[1], broker.Ambiguous, broker.ReasonPermissionDenied)
		want(t, got[2], broker.Unavailable, broker.ReasonNotSent)
		want(t, got[3], broker.Confirmed, "")
	})
	t.Run("no permission on the relay's own subject is the environment's", func(t *testing.T) {
		t.Parallel()
		batch := keyed("a", "b", "b", "c")
		batch[1].Destination = "s.other"
		got := publish(t, publisher(t, "shut", "s"), batch...)
		want(t, got[0], broker.Unavailable, broker.ReasonPermissionDenied)
		want(t, got[1], broker.Confirmed, "")
		want(t, got[2], broker.Unavailable, broker.ReasonPermissionDenied)
		want(t, got[3], broker.Unavailable, broker.ReasonPermissionDenied)
	})
	t.Run("no permission to hear answers is the environment's", func(t *testing.T) {
		t.Parallel()
		want(
			t,
			publish(t, publisher(t, "deaf", "d"), keyed("a")...)[0],
			broker.Unavailable,
			broker.ReasonPermissionDenied,
		)
	})
	t.Run("no permission to look at the stream is the environment's", func(t *testing.T) {
		t.Parallel()
		want(
			t,
			publish(t, publisher(t, "mute", "m"), keyed("a")...)[0],
			broker.Unavailable,
			broker.ReasonPermissionDenied,
		)
	})
	t.Run("without permission to read, a duplicate goes again under a new transport id", func(t *testing.T) {
		t.Parallel()
		p := publisher(t, "blind", "b")
		m := keyed("a")[0]
		want(t, publish(t, p, m)[0], broker.Confirmed, "")
		want(t, publish(t, p, m)[0], broker.Unknown, broker.ReasonPermissionDenied)
		want(t, publish(t, p, m)[0], broker.Confirmed, "")
	})
}

func TestFloodedSocketDoesNotHoldPublish(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	proxy := testkit.Proxy(t, server.Addr())
	conn := dial(t, testConfig(proxy.Addr(), stream.Name))
	p := newPublisher(t, conn, PublisherConfig{Subject: stream.Subject("a")})
	want(t, publish(t, p, keyed("warm-up")...)[0], broker.Confirmed, "")
	s, _, _ := conn.look()
	proxy.HalfOpen()
	batch := numbered(64)
	for i := range batch {
		batch[i].Payload = make([]byte, 900<<10) // 57 MB: more than all buffers on the way
		batch[i].Size = len(batch[i].Payload)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	answered := make(chan []broker.Confirmation, 1)
	go func() { answered <- p.Publish(ctx, batch) }()
	var got []broker.Confirmation
	testkit.Eventually(t, 3*time.Second, "Publish is back after its deadline", func() bool {
		select {
		case got = <-answered:
			return true
		default:
			return false
		}
	})
	unsent := 0
	for _, c := range got {
		switch c.Outcome {
		case broker.Unknown:
		case broker.Unavailable:
			unsent++
		default:
			t.Errorf("%+v from a silent broker", c)
		}
	}
	if unsent == 0 {
		t.Error("all messages went into buffers: the socket was not full, the test shows nothing")
	}
	testkit.Eventually(t, 3*time.Second, "the silent connection is cut", s.ended)
	if p.Stats().Cuts == 0 {
		t.Error("the cut is not counted")
	}
	proxy.Resume()
	eventually(t, p, keyed("after")[0], broker.Confirmed, "")
}

func TestDeclare(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	js := server.JetStream()
	stream := server.Stream(jetstream.StreamConfig{Storage: jetstream.MemoryStorage, MaxMsgs: 7})
	cfg := testConfig(server.Addr(), stream.Name)
	cfg.Topology = Declare
	p := newPublisher(t, dial(t, cfg), PublisherConfig{Subject: stream.Subject("a")})
	want(t, publish(t, p, keyed("k")...)[0], broker.Confirmed, "")
	s, err := js.Stream(t.Context(), stream.Name)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CachedInfo().Config; got.Storage != jetstream.MemoryStorage || got.MaxMsgs != 7 {
		t.Errorf("an existing stream was changed: %+v", got)
	}
	if err := js.DeleteStream(t.Context(), stream.Name); err != nil {
		t.Fatal(err)
	}
	eventually(t, p, keyed("k")[0], broker.Confirmed, "")
	if s, err = js.Stream(t.Context(), stream.Name); err != nil {
		t.Fatal(err)
	}
	got := s.CachedInfo().Config
	if got.Storage != jetstream.FileStorage || got.Retention != jetstream.LimitsPolicy ||
		got.Discard != jetstream.DiscardNew ||
		got.MaxMsgs > 0 ||
		got.MaxAge > 0 ||
		strings.Join(got.Subjects, " ") != stream.Subject("a") {
		t.Errorf("a declared stream is not durable: %+v", got)
	}
	if err := js.DeleteStream(t.Context(), stream.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Check(t.Context()); err != nil {
		t.Errorf("a look before the first message: %v", err)
	}
	if _, err := js.Stream(t.Context(), stream.Name); err != nil {
		t.Errorf("after a look: %v", err)
	}
}

func TestCheckWarnsOfWhatMayBeLost(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		cfg  jetstream.StreamConfig
		want string
	}{
		"one replica": {
			jetstream.StreamConfig{Replicas: 1, MaxMsgs: 9, Discard: jetstream.DiscardNew},
			"FewReplicas",
		},
		"three replicas": {jetstream.StreamConfig{Replicas: 3}, ""},
		"memory": {
			jetstream.StreamConfig{Replicas: 3, Storage: jetstream.MemoryStorage},
			"TargetMayDiscard",
		},
		"discard old by count": {jetstream.StreamConfig{Replicas: 3, MaxMsgs: 9}, "TargetMayDiscard"},
		"discard old by bytes": {jetstream.StreamConfig{Replicas: 3, MaxBytes: 9}, "TargetMayDiscard"},
		"discard by age": {
			jetstream.StreamConfig{Replicas: 3, MaxAge: time.Hour, Discard: jetstream.DiscardNew},
			"TargetMayDiscard",
		},
		"discard by subject": {
			jetstream.StreamConfig{Replicas: 3, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew},
			"TargetMayDiscard",
		},
		"only while of interest": {
			jetstream.StreamConfig{Replicas: 3, Retention: jetstream.InterestPolicy},
			"TargetMayDiscard",
		},
		"refuse new by subject": {
			jetstream.StreamConfig{
				Replicas:             3,
				MaxMsgsPerSubject:    1,
				Discard:              jetstream.DiscardNew,
				DiscardNewPerSubject: true,
			},
			"",
		},
	}
	for name, tc := range cases {
		var reasons []string
		for _, w := range streamWarnings(&tc.cfg) {
			reasons = append(reasons, string(w.Reason))
		}
		if got := strings.Join(reasons, " "); got != tc.want {
			t.Errorf("%s: warnings %q, want %q", name, got, tc.want)
		}
	}
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{NoAck: true})
	p := newPublisher(t, dial(t, testConfig(server.Addr(), stream.Name)), PublisherConfig{Subject: stream.Subject("a")})
	if _, err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "TopologyMismatch") {
		t.Errorf("a stream that never confirms: %v", err)
	}
}
