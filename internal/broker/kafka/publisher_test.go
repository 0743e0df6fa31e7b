package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// answerTime is for an answer on a busy machine.
const answerTime = 30 * time.Second

func publish(t *testing.T, p *Publisher, batch ...message.Message) []broker.Confirmation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	got := p.Publish(ctx, batch)
	if len(got) != len(batch) {
		t.Fatalf("%d answers to %d messages", len(got), len(batch))
	}
	return got
}

func want(t *testing.T, what string, got broker.Confirmation, outcome broker.Outcome, reason broker.Reason) {
	t.Helper()
	if got.Outcome != outcome || got.Reason != reason {
		t.Errorf("%s: %s %s (%s), want %s %s", what, got.Outcome, got.Reason, got.Detail, outcome, reason)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err     error
		row     bool // the row names the topic
		outcome broker.Outcome
		reason  broker.Reason
		shared  bool
	}{
		"too large, perhaps a neighbour": {
			err: kerr.MessageTooLarge, outcome: broker.Rejected, reason: broker.ReasonTooLarge, shared: true,
		},
		"too large with the library's words": {
			err:     fmt.Errorf("%w (uncompressed_bytes=1)", kerr.RecordListTooLarge),
			outcome: broker.Rejected, reason: broker.ReasonTooLarge, shared: true,
		},
		"invalid, perhaps a neighbour": {
			err: kerr.InvalidRecord, outcome: broker.Rejected, reason: broker.ReasonRefused, shared: true,
		},
		"against a policy": {
			err: kerr.PolicyViolation, outcome: broker.Ambiguous, reason: broker.ReasonRefused, shared: true,
		},
		"not enough replicas before it was written": {
			err: kerr.NotEnoughReplicas, outcome: broker.Unavailable, reason: broker.ReasonNotReplicated,
		},
		"not enough replicas after it was written": {
			err: kerr.NotEnoughReplicasAfterAppend, outcome: broker.Unknown, reason: broker.ReasonNotReplicated,
		},
		"the broker's own time-out": {
			err: kerr.RequestTimedOut, outcome: broker.Unknown, reason: broker.ReasonNoAnswer,
		},
		"the relay's topic is missing": {
			err: kerr.UnknownTopicOrPartition, outcome: broker.Unavailable, reason: broker.ReasonStreamMissing,
		},
		"the row's topic is missing": {
			err: kerr.UnknownTopicOrPartition, row: true, outcome: broker.Rejected, reason: broker.ReasonUnroutable,
		},
		"no right on the relay's topic": {
			err: kerr.TopicAuthorizationFailed, outcome: broker.Unavailable, reason: broker.ReasonPermissionDenied,
		},
		"no right on the row's topic": {
			err: kerr.TopicAuthorizationFailed, row: true,
			outcome: broker.Ambiguous, reason: broker.ReasonPermissionDenied,
		},
		"no right on the cluster": {
			err: kerr.ClusterAuthorizationFailed, row: true,
			outcome: broker.Unavailable, reason: broker.ReasonPermissionDenied,
		},
		"a refused login": {
			err: kerr.SaslAuthenticationFailed, outcome: broker.Unavailable, reason: broker.ReasonAuthFailed,
		},
		"no leader": {
			err: kerr.NotLeaderForPartition, outcome: broker.Unavailable, reason: broker.ReasonBrokerError,
		},
		"a broken disk": {
			err: kerr.KafkaStorageError, outcome: broker.Unavailable, reason: broker.ReasonBrokerError,
		},
		"throttled": {
			err: kerr.ThrottlingQuotaExceeded, outcome: broker.Unavailable, reason: broker.ReasonBrokerError,
		},
		"a forgotten producer": {
			err: kerr.OutOfOrderSequenceNumber, outcome: broker.Unknown, reason: broker.ReasonBrokerError,
		},
		"a producer that nobody knows": {
			err: kerr.UnknownProducerID, outcome: broker.Unknown, reason: broker.ReasonBrokerError,
		},
		"a producer of an epoch that is over": {
			err: kerr.InvalidProducerEpoch, outcome: broker.Unknown, reason: broker.ReasonBrokerError,
		},
		"a fenced producer": {
			err: kerr.ProducerFenced, outcome: broker.Unknown, reason: broker.ReasonBrokerError,
		},
		"the deadline": {
			err: context.DeadlineExceeded, outcome: broker.Unknown, reason: broker.ReasonNoAnswer,
		},
		"a closed client": {
			err: kgo.ErrClientClosed, outcome: broker.Unknown, reason: broker.ReasonNoAnswer,
		},
		"anything else": {
			err: errors.New("EOF"), outcome: broker.Unknown, reason: broker.ReasonNoAnswer,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answerTo(tc.err, "orders", !tc.row)
			want(t, name, got.confirmation, tc.outcome, tc.reason)
			if got.shared != tc.shared {
				t.Errorf("sent again alone: %v, want %v", got.shared, tc.shared)
			}
			if tc.row && strings.Contains(got.confirmation.Detail, "orders") {
				t.Errorf("the detail repeats what the row says: %q", got.confirmation.Detail)
			}
		})
	}
}

// The hashes are those of Kafka's own tests of its Java client.
func TestKeysGoToThePartitionThatJavaClientsChoose(t *testing.T) {
	t.Parallel()
	const partitions = 12
	server := testkit.Kafka(t)
	topic := server.Topic(partitions, nil)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: topic})
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		m := brokertest.Message(key, 1)
		got := publish(t, p, m)[0]
		unit := fmt.Sprintf("%s/%d", topic, (hash&0x7fffffff)%partitions)
		if named := p.Unit(&m); named != unit {
			t.Errorf("the unit of key %s is %s, want %s", key, named, unit)
		}
		prefix := unit + "@"
		if !strings.HasPrefix(got.Position, prefix) {
			t.Errorf("key %s is at %q (%s), want %s", key, got.Position, got.Detail, prefix)
		}
	}
}

var vectorRow = regexp.MustCompile("(?m)^\\| `(.+)` \\| (-?\\d+) \\| (\\d+) \\| (\\d+) \\| (\\d+) \\|$")

// R08: others compare their producers with the table of the docs, so the table is what we do.
func TestTheKeysOfTheDocsGoWhereTheDocsSay(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../../docs/kafka.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := vectorRow.FindAllStringSubmatch(string(docs), -1)
	if all := strings.Count(string(docs), "\n| `"); len(rows) < 10 || len(rows) != all {
		t.Errorf("%d of %d rows of the table are understood, want all, and at least 10", len(rows), all)
	}
	p := newPartitioner("orders")
	for _, row := range rows {
		key := row[1]
		hash, err := strconv.Atoi(row[2])
		if err != nil {
			t.Fatal(err)
		}
		for i, partitions := range []int{6, 12, 50} {
			got := p.partition(key, partitions)
			if said := row[3+i]; strconv.Itoa(got) != said || got != (hash&0x7fffffff)%partitions {
				t.Errorf(
					"key %s is in partition %d of %d; the docs say %s, and the hash %d",
					key,
					got,
					partitions,
					said,
					hash,
				)
			}
		}
	}
}

func TestATopicThatNobodyHasLookedAtIsOneUnit(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, Config{BootstrapServers: []string{"127.0.0.1:1"}, TLS: endpoint.TLS{Mode: endpoint.Insecure}},
		PublisherConfig{Topic: "orders", Allowed: []string{"orders.*"}})
	m := brokertest.Message("a", 1)
	for destination, unit := range map[string]string{"": "orders", "orders.eu": "orders.eu", "not allowed": "orders"} {
		m.Destination = destination
		if got := p.Unit(&m); got != unit {
			t.Errorf("the unit of destination %q is %q, want %q", destination, got, unit)
		}
	}
	p.topics.keep(map[string]topic{"orders": {partitions: 2}})
	p.topics.forget() // as after each failure
	m.Destination = ""
	if got := p.Unit(&m); !strings.HasPrefix(got, "orders/") {
		t.Errorf("after a failure the unit is %q: it is another one than before", got)
	}
}

func TestTheUnitsAreListedWhereRowsNameNoTopics(t *testing.T) {
	t.Parallel()
	cfg := Config{BootstrapServers: []string{"127.0.0.1:1"}, TLS: endpoint.TLS{Mode: endpoint.Insecure}}
	one := newPublisher(t, cfg, PublisherConfig{Topic: "orders"})
	if got := one.Units(); !slices.Equal(got, []string{"orders"}) {
		t.Errorf("before the first look the units are %q", got)
	}
	one.topics.keep(map[string]topic{"orders": {partitions: 2}})
	if got := one.Units(); !slices.Equal(got, []string{"orders/0", "orders/1"}) {
		t.Errorf("the units are %q", got)
	}
	if got := newPublisher(
		t,
		cfg,
		PublisherConfig{Topic: "orders", Allowed: []string{"orders.*"}},
	).Units(); got != nil {
		t.Errorf("the units are %q although rows may name topics", got)
	}
}

// A smaller limit than the one that was looked up fails whole batches: only the record that is too large is refused.
func TestARecordThatIsTooLargeIsFoundAmongItsNeighbours(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	name := server.Topic(1, nil)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: name})
	want(t, "before", publish(t, p, brokertest.Message("first", 1))[0], broker.Confirmed, "")
	setMaxBytes(t, server, name, "1500")
	// The broker takes a new setting a moment after it has answered.
	testkit.Eventually(t, answerTime, "the smaller limit holds", func() bool {
		return publish(t, p, sized("probe", 1, 4000))[0].Reason == broker.ReasonTooLarge
	})
	p.topics.keep(map[string]topic{name: {maxBytes: assumedMaxBytes, partitions: 1}}) // as it was before
	var batch []message.Message
	for version := range int64(8) {
		batch = append(batch, brokertest.Message("a", version+1), brokertest.Message("b", version+1))
	}
	batch[5] = sized("b", 3, 4000)
	for i, got := range publish(t, p, batch...) {
		switch {
		case i == 5:
			want(t, "the large one", got, broker.Rejected, broker.ReasonTooLarge)
		case i > 5 && batch[i].OrderingKey == "b":
			want(t, "one behind it", got, broker.Unavailable, broker.ReasonNotSent)
		default:
			want(t, "a neighbour", got, broker.Confirmed, "")
		}
	}
	again := publish(t, p, batch[5])[0]
	want(t, "the large one again", again, broker.Rejected, broker.ReasonTooLarge)
	if !strings.Contains(again.Detail, "is 1500") {
		t.Errorf("the topic was not looked at again: %q", again.Detail)
	}
}

func TestTheMissingTopicIsAConditionWithItsCommand(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	p := newPublisher(t, testConfig(server, nil), PublisherConfig{Topic: "orders.events-" + strings.ToLower(t.Name())})
	got := publish(t, p, brokertest.Message("a", 1))[0]
	want(t, "a message", got, broker.Unavailable, broker.ReasonStreamMissing)
	if !strings.Contains(got.Detail, "kafka-topics.sh --create --topic orders.events") {
		t.Errorf("detail %q", got.Detail)
	}
	_, err := p.Check(t.Context())
	var state *broker.Error
	if !errors.As(err, &state) || state.Reason != broker.ReasonStreamMissing {
		t.Errorf("Check() error = %v", err)
	}
	server.CreateTopic(p.publish.Topic, 1, nil)
	// What the cluster said is believed for MetadataMinAge.
	testkit.Eventually(t, answerTime, "it is used soon after it was made", func() bool {
		return publish(t, p, brokertest.Message("a", 1))[0].Outcome == broker.Confirmed
	})
	warnings, err := p.Check(t.Context())
	if err != nil || len(warnings) != 1 || warnings[0].Reason != broker.WarnFewReplicas {
		t.Errorf("Check() = %v, %v; want a warning of one replica", warnings, err)
	}
}

func TestAnUnreachableClusterIsToldAtOnce(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	proxy := testkit.Proxy(t, server.Addr())
	proxy.Cut()
	p := newPublisher(t, testConfig(server, proxy), PublisherConfig{Topic: "t"})
	late := time.After(answerTime / 2)
	want(t, "a message", publish(t, p, brokertest.Message("a", 1))[0], broker.Unavailable, broker.ReasonUnreachable)
	select {
	case <-late:
		t.Error("Publish waits for its deadline though nobody listens")
	default:
	}
}

func TestLogins(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	user, password := server.User()
	good, bad := testkit.SecretDir(t, user, password), testkit.SecretDir(t, user, "canary-4711")
	trust := endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: server.PKI().CA}
	withCertificate := trust
	withCertificate.ClientCertificateDir = server.PKI().ClientDir
	cases := map[string]struct {
		address   string
		mechanism Mechanism
		dir       string
		tls       endpoint.TLS
		outcome   broker.Outcome
		reason    broker.Reason
	}{
		"PLAIN":         {server.SASLAddr(), Plain, good, trust, broker.Confirmed, ""},
		"SCRAM-SHA-256": {server.SASLAddr(), ScramSHA256, good, trust, broker.Confirmed, ""},
		"SCRAM-SHA-512": {server.SASLAddr(), ScramSHA512, good, trust, broker.Confirmed, ""},
		"PLAIN with a wrong password": {
			server.SASLAddr(), Plain, bad, trust, broker.Unavailable, broker.ReasonAuthFailed,
		},
		"SCRAM with a wrong password": {
			server.SASLAddr(), ScramSHA512, bad, trust, broker.Unavailable, broker.ReasonAuthFailed,
		},
		"a Secret that is not there": {
			server.SASLAddr(), Plain, "/none", trust, broker.Unavailable, broker.ReasonNoCredentials,
		},
		"a client certificate": {server.MTLSAddr(), "", "", withCertificate, broker.Confirmed, ""},
		"no client certificate where one is wanted": {
			server.MTLSAddr(), "", "", trust, broker.Unavailable, broker.ReasonTLSFailed,
		},
		"an unknown authority": {
			server.SASLAddr(), Plain, good,
			endpoint.TLS{Mode: endpoint.VerifyFull},
			broker.Unavailable, broker.ReasonTLSFailed,
		},
		"a CA file that is not there": {
			server.SASLAddr(), Plain, good,
			endpoint.TLS{Mode: endpoint.VerifyCA, CAFile: "/none"},
			broker.Unavailable, broker.ReasonTLSFailed,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t, Config{
				BootstrapServers: []string{tc.address}, Mechanism: tc.mechanism, CredentialsDir: tc.dir, TLS: tc.tls,
			}, PublisherConfig{Topic: topic})
			late := time.After(answerTime / 2)
			got := publish(t, p, brokertest.Message("a", 1))[0]
			want(t, name, got, tc.outcome, tc.reason)
			if strings.Contains(got.Detail, "canary") {
				t.Errorf("the detail holds the password: %q", got.Detail)
			}
			select {
			case <-late:
				t.Error("the state is told only at the deadline")
			default:
			}
		})
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	t.Parallel()
	plain := endpoint.TLS{Mode: endpoint.Insecure}
	cases := map[string]struct {
		cfg     Config
		publish PublisherConfig
		want    string
	}{
		"no servers": {Config{TLS: plain}, PublisherConfig{Topic: "t"}, "bootstrapServers is empty"},
		"credentials in a server": {
			Config{
				BootstrapServers: []string{"u:canary@h:1"},
				TLS:              plain,
			},
			PublisherConfig{Topic: "t"},
			"holds credentials",
		},
		"no TLS mode": {Config{BootstrapServers: []string{"h"}}, PublisherConfig{Topic: "t"}, "kafka.tls"},
		"SASL without credentials": {
			Config{
				BootstrapServers: []string{"h"},
				TLS:              plain,
				Mechanism:        Plain,
			},
			PublisherConfig{Topic: "t"},
			"credentials",
		},
		"an unknown mechanism": {
			Config{
				BootstrapServers: []string{"h"},
				TLS:              plain,
				Mechanism:        "X",
			},
			PublisherConfig{Topic: "t"},
			"mechanism",
		},
		"a topic of Kafka's own": {
			Config{
				BootstrapServers: []string{"h"},
				TLS:              plain,
			},
			PublisherConfig{Topic: "__consumer_offsets"},
			"kafka.topic",
		},
		"an unknown compression": {
			Config{
				BootstrapServers: []string{"h"},
				TLS:              plain,
			},
			PublisherConfig{Topic: "t", Compression: "X"},
			"compression",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := NewPublisher(tc.cfg, tc.publish)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "canary") {
				t.Errorf("NewPublisher() error = %v, want one about %q", err, tc.want)
			}
		})
	}
}
