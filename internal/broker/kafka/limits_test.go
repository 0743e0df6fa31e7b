package kafka

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// sized is a message of the key with a payload of that many bytes.
func sized(key string, version int64, bytes int) message.Message {
	m := brokertest.Message(key, version)
	m.Payload = make([]byte, bytes)
	m.Size = len(m.Payload)
	return m
}

func setMaxBytes(t *testing.T, server *testkit.KafkaBroker, topic, limit string) {
	t.Helper()
	change := []kadm.AlterConfig{{Name: settingMaxBytes, Value: &limit}}
	if _, err := server.Admin().AlterTopicConfigs(t.Context(), change, topic); err != nil {
		t.Fatal(err)
	}
}

// A message that a topic did not take is no dead letter for ever: when the topic takes larger ones, it goes.
func TestATopicThatTakesLargerRecordsThanBeforeGetsThem(t *testing.T) {
	t.Parallel()
	for how, fencing := range map[string]string{"plain": "", "fencing": "postrider/shop/limits"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := testkit.Kafka(t)
			name := server.Topic(1, map[string]string{settingMaxBytes: "1500"})
			p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: name, FencingID: fencing})
			o := owner{p, broker.Fence{Shard: 1, Term: 1}}
			want(t, "a small one", sendAs(t, o, brokertest.Message("first", 1))[0], broker.Confirmed, "")
			large := sized("large", 1, 4000)
			want(t, "a large one", sendAs(t, o, large)[0], broker.Rejected, broker.ReasonTooLarge)
			setMaxBytes(t, server, name, "1048588")
			testkit.Eventually(t, answerTime, "the topic's new setting is used", func() bool {
				got := sendAs(t, o, large, brokertest.Message("beside", 1))
				switch got[0].Reason {
				case "", broker.ReasonTooLarge, broker.ReasonNotSent:
				default:
					t.Errorf("the large one: %+v", got[0])
				}
				want(t, "one beside it", got[1], broker.Confirmed, "")
				return got[0].Outcome == broker.Confirmed
			})
		})
	}
}

// allow gives the user of the tests one right on a topic, and so takes the others away.
func allow(t *testing.T, server *testkit.KafkaBroker, right kadm.ACLOperation, topic string) {
	t.Helper()
	user, _ := server.User()
	rule(t, server, kadm.NewACLs().Topics(topic).Allow("User:"+user).AllowHosts("*").Operations(right))
}

// Who may not see a topic's settings does not know what it takes: the broker is asked with the record itself, and what
// goes with it is no more than the usual batch.
func TestTheBrokerJudgesWhatATopicTakesWhoseSettingsMayNotBeSeen(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	user, password := server.User()
	own := server.Topic(1, map[string]string{settingMaxBytes: "4000000"})
	seen := server.Topic(1, map[string]string{settingMaxBytes: "1500"})
	p := newPublisher(t, Config{
		BootstrapServers: []string{server.SASLAddr()}, Mechanism: ScramSHA256,
		CredentialsDir: testkit.SecretDir(t, user, password),
		TLS:            endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: server.PKI().CA},
	}, PublisherConfig{Topic: own, Allowed: []string{seen}})
	allow(t, server, kadm.OpWrite, own)
	with, err := p.take()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, answerTime, "the user has no other right", func() bool {
		found, err := with.look(t.Context(), own, seen)
		if err != nil {
			t.Fatal(err)
		}
		if got := found[seen].maxBytes; got != 1500 {
			t.Errorf("the bound of the other topic is %d, want what it is", got)
		}
		return found[own].maxBytes == 0 && !found[own].unread
	})
	p.give(with)
	batch := []message.Message{
		brokertest.Message("a", 1), sized("a", 2, 2<<20), brokertest.Message("a", 3),
		sized("b", 1, 900<<10), sized("b", 2, 900<<10), sized("c", 1, 5_000_000), brokertest.Message("d", 1),
	}
	for i, got := range publish(t, p, batch...) {
		if i == 5 {
			want(t, "one that is too large", got, broker.Rejected, broker.ReasonTooLarge)
			continue
		}
		want(t, batch[i].OrderingKey, got, broker.Confirmed, "")
	}
	batch = slices.Delete(batch, 5, 6)
	brokertest.WantInOrder(t, stored(t, server, own), batch, false)
}

func TestATopicIsKnownWhenItsSettingsAre(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err   *kerr.Error
		known bool
	}{
		"they are read":                {nil, true},
		"the user may not see them":    {kerr.TopicAuthorizationFailed, true},
		"the broker is overloaded":     {kerr.RequestTimedOut, false},
		"the broker fails":             {kerr.UnknownServerError, false},
		"the topic is not there by it": {kerr.UnknownTopicOrPartition, false},
	} {
		settings := &kmsg.DescribeConfigsResponseResource{}
		bound := "4711"
		if tc.err != nil {
			settings.ErrorCode = tc.err.Code
		} else {
			settings.Configs = []kmsg.DescribeConfigsResponseResourceConfig{{Name: settingMaxBytes, Value: &bound}}
		}
		one := topic{partitions: 2, unread: true}.with(settings)
		var all topics
		all.keep(map[string]topic{"orders": one})
		known, ok := all.get("orders")
		if ok != tc.known {
			t.Errorf("%s: known = %v, want %v", name, ok, tc.known)
		}
		if bounded := known.maxBytes == 4711; bounded != (tc.err == nil) {
			t.Errorf("%s: the bound is %d", name, known.maxBytes)
		}
		if got := all.partitions("orders"); len(got) != 2 {
			t.Errorf("%s: the units are %q, want those of 2 partitions", name, got)
		}
	}
}

// A failure of another lane has topics forgotten between this one's look and its client's.
func TestAClientGoesByWhatItsCallHasSeen(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, Config{BootstrapServers: []string{"127.0.0.1:1"}, TLS: endpoint.TLS{Mode: endpoint.Insecure}},
		PublisherConfig{Topic: "orders"})
	with, err := p.take()
	if err != nil {
		t.Fatal(err)
	}
	c := newCall(p, []message.Message{brokertest.Message("a", 1)})
	found := map[string]topic{"orders": {maxBytes: 5000}, "wide": {}}
	p.topics.keep(found)
	if narrow := c.fit(with, found); len(narrow) != 0 || c.broken.Load() {
		t.Errorf("a new client is too narrow for %v", narrow)
	}
	p.topics.forget()
	if got := with.limits.tell("orders"); got != 5000 {
		t.Errorf("the client takes %d bytes, want 5000", got)
	}
	if narrow := c.fit(with, found); len(narrow) != 0 || c.broken.Load() {
		t.Errorf("the same again: too narrow for %v", narrow)
	}
	other, err := p.take()
	if err != nil {
		t.Fatal(err)
	}
	other.limits.allow("orders", 5000)
	other.limits.tell("orders")
	p.give(other)
	found["orders"] = topic{maxBytes: 9000}
	if narrow := c.fit(with, found); narrow["orders"] != 5000 || !c.broken.Load() || len(p.idle) != 0 {
		t.Errorf("after a change: narrow %v, dropped %v, %d other clients", narrow, c.broken.Load(), len(p.idle))
	}

	c = newCall(p, []message.Message{sized("a", 1, 8000), brokertest.Message("a", 2), brokertest.Message("b", 1)})
	c.build()
	found["orders"] = topic{} // this time nobody could say
	c.check(found, c.fit(with, found))
	want(t, "what may fit", c.results[0], broker.Unavailable, broker.ReasonNotSent)
	want(t, "behind it", c.results[1], broker.Unavailable, broker.ReasonNotSent)
	if c.states[2] != waiting || !c.broken.Load() {
		t.Errorf("one beside it is in state %d, the client dropped %v", c.states[2], c.broken.Load())
	}
}

func TestARefusalGoesByARecentLook(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var all topics
	all.keep(map[string]topic{"new": {at: now, maxBytes: 1500}, "old": {at: now.Add(-believed), maxBytes: 1500}})
	for name, kept := range map[string]bool{"new": true, "old": false} {
		all.doubt(name, now)
		if _, ok := all.get(name); ok != kept {
			t.Errorf("the %s look is kept: %v", name, ok)
		}
	}
}
