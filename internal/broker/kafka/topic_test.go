package kafka

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// No right to write: on the relay's own topic that is a state, on a row's nobody knows whose fault it is, and others
// are not touched. When the right is given back, all goes on.
func TestTopicsThatMayNotBeWrittenAreToldApart(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	user, password := server.User()
	cfg := Config{
		BootstrapServers: []string{server.SASLAddr()}, Mechanism: ScramSHA256,
		CredentialsDir: testkit.SecretDir(t, user, password),
		TLS:            endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: server.PKI().CA},
	}
	own, other := server.Topic(1, nil), server.Topic(1, nil)
	p := newPublisher(t, cfg, PublisherConfig{Topic: own, Allowed: []string{other}})
	batch := []message.Message{
		brokertest.Message("a", 1), brokertest.Message("b", 1), brokertest.Message("b", 2), brokertest.Message("c", 1),
	}
	batch[1].Destination, batch[2].Destination = other, other
	// The broker takes new rights a moment after it has answered.
	awaitAnswer := func(i int, outcome broker.Outcome) []broker.Confirmation {
		t.Helper()
		var got []broker.Confirmation
		testkit.Eventually(t, answerTime, fmt.Sprintf("message %d is %s", i, outcome), func() bool {
			got = publish(t, p, batch...)
			return got[i].Outcome == outcome
		})
		return got
	}
	awaitAnswer(1, broker.Confirmed)

	deny(t, server, kadm.NewACLs().Topics(other), kadm.OpWrite)
	got := awaitAnswer(1, broker.Ambiguous)
	want(t, "to the relay's topic", got[0], broker.Confirmed, "")
	want(t, "to the row's topic", got[1], broker.Ambiguous, broker.ReasonPermissionDenied)
	if got[2].Outcome == broker.Confirmed {
		t.Error("a message behind it is confirmed")
	}
	want(t, "beside it", got[3], broker.Confirmed, "")

	p.topics.forget() // as a failure elsewhere does
	got = publish(t, p, batch...)
	want(t, "to the relay's topic at a new look", got[0], broker.Confirmed, "")
	want(t, "to the row's topic at a new look", got[1], broker.Ambiguous, broker.ReasonPermissionDenied)
	want(t, "beside it at a new look", got[3], broker.Confirmed, "")

	deny(t, server, kadm.NewACLs().Topics(own), kadm.OpWrite)
	got = awaitAnswer(0, broker.Unavailable)
	for i, at := range []int{0, 3} {
		want(t, "to the relay's topic "+strconv.Itoa(i), got[at], broker.Unavailable, broker.ReasonPermissionDenied)
	}
	filter := kadm.NewACLs().Topics(own, other).Deny("User:" + user).DenyHosts("*").Operations(kadm.OpWrite).
		ResourcePatternType(kadm.ACLPatternLiteral)
	if _, err := server.Admin().DeleteACLs(t.Context(), filter); err != nil {
		t.Fatal(err)
	}
	brokertest.PublishAll(t, p, brokertest.Message("d", 1))
}

// A topic is deleted and made again, with all that was in it and all that the brokers knew of its producers: nothing is
// confirmed that the new one does not hold, and it takes what comes next though clients remember the old one.
func TestATopicThatIsMadeAgainTakesWhatComesNext(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(2, nil)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: topic})
	brokertest.PublishAll(t, p, brokertest.Interleaved(4, 5)...)
	if _, err := server.Admin().DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	batch := brokertest.Interleaved(4, 5)
	testkit.Eventually(t, answerTime, "the missing topic is told of", func() bool {
		got := publish(t, p, brokertest.Message("probe", 1))[0]
		// The broker takes the deletion a moment after it has answered, and confirms what it keeps until then.
		if got.Outcome != broker.Unavailable && got.Outcome != broker.Unknown && got.Outcome != broker.Confirmed {
			t.Errorf("to a deleted topic: %+v", got)
		}
		return got.Reason == broker.ReasonStreamMissing
	})
	server.CreateTopic(topic, 2, nil)
	left := batch
	testkit.Eventually(t, 4*answerTime, "the new topic takes them", func() bool {
		var again []message.Message
		for i, got := range publish(t, p, left...) {
			if got.Outcome != broker.Confirmed {
				again = append(again, left[i])
			}
		}
		left = again
		return len(left) == 0
	})
	brokertest.WantInOrder(t, stored(t, server, topic), batch, true)
}

// Partitions are added: keys move to others, nothing is lost, and each message belongs to the unit that it is kept in.
func TestPartitionsThatAreAddedBecomeUnits(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: topic})
	const keys = 12
	version := int64(0)
	var all []message.Message
	round := func() (moved bool) {
		t.Helper()
		version++
		batch := make([]message.Message, keys)
		for i := range batch {
			batch[i] = brokertest.Message("key-"+strconv.Itoa(i), version)
		}
		all = append(all, batch...)
		for i, got := range publish(t, p, batch...) {
			want(t, batch[i].OrderingKey, got, broker.Confirmed, "")
			moved = moved || !strings.HasPrefix(got.Position, topic+"/0@")
		}
		return moved
	}
	round()
	server.SetPartitions(topic, 6)
	testkit.Eventually(t, answerTime, "keys go to the new partitions", func() bool {
		p.idle[0].ForceMetadataRefresh() // as it does by itself every few minutes
		return round()
	})
	round()
	if got := len(p.Units()); got != 6 {
		t.Errorf("%d units, want the 6 partitions", got)
	}
	m := brokertest.Message("key-1", version+1)
	if at := publish(t, p, m)[0].Position; !strings.HasPrefix(at, p.Unit(&m)+"@") {
		t.Errorf("a message of unit %s is kept at %s", p.Unit(&m), at)
	}
	count := make(map[string]bool)
	for _, s := range stored(t, server, topic) {
		count[s.EventID()] = true
	}
	for i := range all {
		if !count[all[i].ID.String()] {
			t.Errorf("version %d of %s is confirmed, and not in the topic", all[i].AggregateVersion, all[i].OrderingKey)
		}
	}
}

// A12: neither goroutines nor sockets.
func TestReconnectsLeaveNothingBehind(t *testing.T) { //nolint:paralleltest // counts what the process holds
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	proxy := testkit.Proxy(t, server.Addr())
	cfg := testConfig(server, proxy)
	p := newPublisher(t, cfg, PublisherConfig{Topic: topic})
	r := newReceiver(t, cfg, ReceiverConfig{Topics: []string{topic}, Group: topic})
	through := func() {
		t.Helper()
		brokertest.PublishAll(t, p, brokertest.Message("a", 1))
		ackAll(t, take(t, r, 1)...)
	}
	through()
	shrinks := testkit.Footprint(t)
	for range 40 {
		proxy.Reset()
		through()
	}
	shrinks(20) // the library's connections are made as they are needed, each with goroutines of the proxy
}
