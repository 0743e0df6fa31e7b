package kafka

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

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

// moving publishes rounds of messages of the same keys, and notes where they are kept.
type moving struct {
	t      *testing.T
	p      *Publisher
	topic  string
	rounds int64
	places map[string][]string // the partitions of each key, as they follow each other
}

const movingKeys = 12

// round says whether a key is kept in another partition than the first. What is not sent for the sake of a new connection
// goes with that.
func (m *moving) round() (moved bool) {
	m.t.Helper()
	m.rounds++
	batch := make([]message.Message, movingKeys)
	for i := range batch {
		batch[i] = brokertest.Message("key-"+strconv.Itoa(i), m.rounds)
	}
	got := publish(m.t, m.p, batch...)
	for got[0].Reason == broker.ReasonNotSent {
		got = publish(m.t, m.p, batch...)
	}
	for i := range batch {
		key := batch[i].OrderingKey
		want(m.t, key, got[i], broker.Confirmed, "")
		at, _, _ := strings.Cut(got[i].Position, "@")
		m.places[key] = append(m.places[key], at)
		moved = moved || at != m.topic+"/0"
	}
	return moved
}

func (m *moving) warned() (reasons []broker.WarningReason) {
	m.t.Helper()
	found, err := m.p.Check(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, w := range found {
		reasons = append(reasons, w.Reason)
	}
	return reasons
}

// Partitions are added: keys move to others, each once though each client learns of it by itself, nothing is lost, each
// message belongs to the unit that it is kept in, and a look tells of it for an hour.
func TestPartitionsThatAreAddedBecomeUnits(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: topic})
	m := &moving{t: t, p: p, topic: topic, places: make(map[string][]string)}
	one, err := p.take() // as another lane does that is at work
	if err != nil {
		t.Fatal(err)
	}
	m.round()
	p.give(one)
	m.round()
	if got := m.warned(); !slices.Equal(got, []broker.WarningReason{broker.WarnFewReplicas}) {
		t.Errorf("before: %v", got)
	}

	const added = 6
	server.SetPartitions(topic, added)
	testkit.Eventually(t, answerTime, "keys go to the new partitions", func() bool {
		p.idle[len(p.idle)-1].ForceMetadataRefresh() // as it does by itself every minute
		return m.round()
	})
	for range 4 {
		slices.Reverse(p.idle)
		m.round()
	}
	for key, at := range m.places {
		if at = slices.Compact(at); len(at) > 2 {
			t.Errorf("%s was in %v: want one move", key, at)
		}
		if unit := p.Unit(new(brokertest.Message(key, 1))); at[len(at)-1] != unit {
			t.Errorf("a message of unit %s is kept in %s", unit, at[len(at)-1])
		}
	}
	if got := len(p.Units()); got != added {
		t.Errorf("%d units, want the %d partitions", got, added)
	}
	if got := len(stored(t, server, topic)); int64(got) != m.rounds*movingKeys {
		t.Errorf("%d records of %d rounds", got, m.rounds)
	}
	if got := m.warned(); !slices.Equal(got, []broker.WarningReason{broker.WarnFewReplicas, broker.WarnPartitions}) {
		t.Errorf("afterwards: %v", got)
	}
	if got := p.topics.warnings(topic, time.Now().Add(recountedFor+time.Minute)); got != nil {
		t.Errorf("after an hour: %v", got)
	}
}

// A call goes by one number of partitions for each topic: a key's messages that are on their way together are in one.
func TestACallGoesByTheFirstNumberOfPartitions(t *testing.T) {
	t.Parallel()
	keys := newSteady()
	one, other := keys.ForTopic("one"), keys.ForTopic("other")
	record := &kgo.Record{Key: []byte("key-2")}
	at := func(topic kgo.TopicPartitioner, partitions int) int { return topic.Partition(record, partitions) }
	plain := hashKeys().ForTopic("one").Partition(record, 6)
	if plain == 0 {
		t.Fatal("the key does not move: this test shows nothing")
	}
	for i, got := range []int{at(one, 1), at(one, 6), at(one, 6)} {
		if got != 0 {
			t.Errorf("record %d goes to partition %d within one call, want 0", i, got)
		}
	}
	if got := at(other, 6); got != plain {
		t.Errorf("another topic's goes to %d, want %d", got, plain)
	}
	keys.anew()
	if got := at(one, 6); got != plain {
		t.Errorf("in the next call it goes to %d, want %d", got, plain)
	}
	if got := at(one, 1); got != 0 {
		t.Errorf("of a topic that was made again with one partition: %d", got)
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
