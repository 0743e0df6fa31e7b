package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/test/testkit"
)

// receiveTime is for what takes a group's rebalance, on a busy machine.
const receiveTime = 2 * time.Minute

// produce writes values to one partition.
func produce(t *testing.T, server *testkit.KafkaBroker, topic string, partition int32, values ...string) {
	t.Helper()
	client := server.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for _, value := range values {
		record := &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k"), Value: []byte(value)}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// take returns the next n deliveries.
func take(t *testing.T, r *Receiver, n int) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), receiveTime)
	defer cancel()
	var got []broker.Delivery
	for len(got) < n {
		more, err := r.Receive(ctx)
		got = append(got, more...)
		if err != nil && ctx.Err() != nil {
			t.Fatalf("%d of %d deliveries: %v", len(got), n, err)
		}
	}
	return got
}

func ackAll(t *testing.T, deliveries ...broker.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Ack(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func positions(deliveries []broker.Delivery) []string {
	var out []string
	for i := range deliveries {
		out = append(out, deliveries[i].Position)
	}
	return out
}

// committed returns what the group keeps of a partition; -1 where it keeps nothing.
func committed(t *testing.T, server *testkit.KafkaBroker, group, topic string, partition int32) int64 {
	t.Helper()
	offsets, err := server.Admin().FetchOffsets(t.Context(), group)
	if err != nil {
		return -1 // its coordinator is not there yet
	}
	if at, ok := offsets.Lookup(topic, partition); ok {
		return at.At
	}
	return -1
}

func TestTheGroupKeepsWhatIsFinishedWithoutAHole(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	produce(t, server, topic, 0, "0", "1", "2", "3")
	r := newReceiver(t, testConfig(server, nil), ReceiverConfig{Topics: []string{topic}, Group: topic})
	got := take(t, r, 4)
	ackAll(t, got[0], got[2], got[3])
	testkit.Eventually(t, receiveTime, "the first is committed", func() bool {
		return committed(t, server, topic, topic, 0) == 1
	})
	ackAll(t, got[1])
	testkit.Eventually(t, receiveTime, "all are committed", func() bool {
		return committed(t, server, topic, topic, 0) == 4
	})
	lag, err := r.Lag(t.Context())
	if err != nil || lag.Messages != 0 {
		t.Errorf("Lag() = %+v, %v; want none", lag, err)
	}
	produce(t, server, topic, 0, "4", "5")
	ackAll(t, take(t, r, 1)[0])
	testkit.Eventually(t, receiveTime, "one is left", func() bool {
		lag, err := r.Lag(t.Context())
		return err == nil && lag.Messages == 1 && lag.OldestTime != nil
	})
}

// The markers that transactions leave in a topic are nobody's to acknowledge, and what was aborted is nobody's to see.
func TestTransactionsAreReadWhenTheyAreCommitted(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	client := server.Client(kgo.TransactionalID(topic))
	for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		record := &kgo.Record{Topic: topic, Value: []byte{byte('0' + i)}}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	r := newReceiver(t, testConfig(server, nil), ReceiverConfig{Topics: []string{topic}, Group: topic})
	got := take(t, r, 2)
	if string(got[0].Body) != "0" || string(got[1].Body) != "2" {
		t.Errorf("received %v", positions(got))
	}
	ackAll(t, got...)
	testkit.Eventually(t, receiveTime, "nothing is left, markers included", func() bool {
		lag, err := r.Lag(t.Context())
		return err == nil && lag.Messages == 0
	})
}

// A partition that goes to another process waits for what is out of it: nothing comes twice, and nothing is lost.
func TestARebalanceWaitsForWhatIsOut(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(2, nil)
	produce(t, server, topic, 0, "a0", "a1", "a2")
	produce(t, server, topic, 1, "b0", "b1", "b2")
	cfg := testConfig(server, nil)
	first := newReceiver(t, cfg, ReceiverConfig{Topics: []string{topic}, Group: topic, Prefetch: 2})
	out := take(t, first, 2)
	second := newReceiver(t, cfg, ReceiverConfig{Topics: []string{topic}, Group: topic})
	testkit.Eventually(t, receiveTime, "a partition is to be given away", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		for _, p := range first.parts {
			if p.leaving || len(first.parts) < 2 {
				return true
			}
		}
		return false
	})
	ackAll(t, out...)
	seen := make(map[string]int)
	for _, d := range out {
		seen[d.Position]++
	}
	for len(seen) < 6 {
		for _, r := range []*Receiver{first, second} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			got, err := r.Receive(ctx)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			for _, d := range got {
				seen[d.Position]++
			}
			ackAll(t, got...)
		}
	}
	for at, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", at, n)
		}
	}
}

// awaitState waits for the error that Receive or Check tells.
func awaitState(t *testing.T, r *Receiver, reason broker.Reason, words ...string) {
	t.Helper()
	var last error
	testkit.Eventually(t, receiveTime, string(reason)+" is told", func() bool {
		_, last = r.Check(t.Context())
		var state *broker.Error
		return errors.As(last, &state) && state.Reason == reason
	})
	for _, word := range words {
		if !strings.Contains(last.Error(), word) {
			t.Errorf("%q does not say %q", last, word)
		}
	}
	if strings.Contains(last.Error(), "canary") {
		t.Errorf("the error holds the password: %q", last)
	}
}

func TestAMissingTopicIsToldAndReadOnceItIsMade(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	there := server.Topic(1, nil)
	later := there + "-later"
	produce(t, server, there, 0, "x")
	r := newReceiver(t, testConfig(server, nil), ReceiverConfig{Topics: []string{later, there}, Group: there})
	awaitState(t, r, broker.ReasonStreamMissing, "kafka-topics.sh --create --topic "+later)
	ackAll(t, take(t, r, 1)...) // the other topic is read meanwhile
	server.CreateTopic(later, 1, nil)
	produce(t, server, later, 0, "y")
	if got := take(t, r, 1); got[0].Position != later+"/0@0" {
		t.Errorf("received %v", positions(got))
	}
}

func TestStatesOfTheSource(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	user, password := server.User()
	good, bad := testkit.SecretDir(t, user, password), testkit.SecretDir(t, user, "canary-4711")
	trust := endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: server.PKI().CA}
	cut := testkit.Proxy(t, server.Addr())
	cut.Cut()
	secure := Config{BootstrapServers: []string{server.SASLAddr()}, Mechanism: ScramSHA512, TLS: trust}
	with := func(dir string) Config {
		cfg := secure
		cfg.CredentialsDir = dir
		return cfg
	}
	cases := map[string]struct {
		cfg    Config
		reason broker.Reason
		words  string
	}{
		"nobody listens":             {testConfig(server, cut), broker.ReasonUnreachable, "check host, port"},
		"a wrong password":           {with(bad), broker.ReasonAuthFailed, "check the Secret"},
		"a Secret that is not there": {with("/none"), broker.ReasonNoCredentials, "create the Secret"},
		"an unknown authority": {
			Config{
				BootstrapServers: []string{server.SASLAddr()}, Mechanism: Plain, CredentialsDir: good,
				TLS: endpoint.TLS{Mode: endpoint.VerifyFull},
			}, broker.ReasonTLSFailed, "check the CA",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, tc.cfg, ReceiverConfig{Topics: []string{topic}, Group: topic})
			awaitState(t, r, tc.reason, tc.words)
			var state *broker.Error
			testkit.Eventually(t, receiveTime, "Receive tells it too", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := r.Receive(ctx)
				return errors.As(err, &state) && state.Reason == tc.reason
			})
		})
	}
}

// deny takes a right from the user of the SASL listener.
func deny(t *testing.T, server *testkit.KafkaBroker, acl *kadm.ACLBuilder, right kadm.ACLOperation) {
	t.Helper()
	user, _ := server.User()
	rule(t, server, acl.Deny("User:"+user).DenyHosts("*").Operations(right))
}

// rule adds a rule about rights on what has exactly the name.
func rule(t *testing.T, server *testkit.KafkaBroker, acl *kadm.ACLBuilder) {
	t.Helper()
	results, err := server.Admin().CreateACLs(t.Context(), acl.ResourcePatternType(kadm.ACLPatternLiteral))
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range results {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
	}
}

func TestMissingRightsAreToldWithTheCommandThatGivesThem(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	user, password := server.User()
	cfg := Config{
		BootstrapServers: []string{server.SASLAddr()},
		Mechanism:        ScramSHA256,
		CredentialsDir:   testkit.SecretDir(t, user, password),
		TLS:              endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: server.PKI().CA},
	}
	t.Run("on the group", func(t *testing.T) {
		t.Parallel()
		topic := server.Topic(1, nil)
		deny(t, server, kadm.NewACLs().Groups(topic), kadm.OpRead)
		r := newReceiver(t, cfg, ReceiverConfig{Topics: []string{topic}, Group: topic})
		awaitState(t, r, broker.ReasonPermissionDenied, "kafka-acls.sh --add --operation Read --group "+topic)
	})
	t.Run("on the topic", func(t *testing.T) {
		t.Parallel()
		topic := server.Topic(1, nil)
		produce(t, server, topic, 0, "x")
		deny(t, server, kadm.NewACLs().Topics(topic), kadm.OpRead)
		r := newReceiver(t, cfg, ReceiverConfig{Topics: []string{topic}, Group: topic})
		awaitState(t, r, broker.ReasonPermissionDenied, topic)
	})
}

// What retention took before it was read is never passed over in silence.
func TestADeletedOffset(t *testing.T) {
	t.Parallel()
	server := testkit.Kafka(t)
	topic := server.Topic(1, nil)
	produce(t, server, topic, 0, "0", "1", "2", "3")
	cfg := testConfig(server, nil)
	read := ReceiverConfig{Topics: []string{topic}, Group: topic}
	first := newReceiver(t, cfg, read)
	got := take(t, first, 4)
	ackAll(t, got[0])
	closeWithin(t, first.Close)
	if at := committed(t, server, topic, topic, 0); at != 1 {
		t.Fatalf("committed %d, want 1", at)
	}
	var gone kadm.Offsets
	gone.Add(kadm.Offset{Topic: topic, Partition: 0, At: 3})
	if _, err := server.Admin().DeleteRecords(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	failing := newReceiver(t, cfg, read)
	awaitState(t, failing, broker.ReasonOffsetGone, topic+"/0", "offsetReset")
	closeWithin(t, failing.Close)
	read.OffsetReset = ResetEarliest
	r := newReceiver(t, cfg, read)
	if got := take(t, r, 1); got[0].Position != topic+"/0@3" {
		t.Errorf("goes on with %v, want the oldest that is left", positions(got))
	}
	warnings, err := r.Check(t.Context())
	told := false
	for _, w := range warnings {
		told = told || w.Reason == broker.WarnMayDiscard && strings.Contains(w.Detail, "deleted 2 offsets")
	}
	if err != nil || !told {
		t.Errorf("Check() = %v, %v; want word of the two that are lost", warnings, err)
	}
}

func TestNewReceiverRefuses(t *testing.T) {
	t.Parallel()
	cfg := Config{BootstrapServers: []string{"h"}, TLS: endpoint.TLS{Mode: endpoint.Insecure}}
	for name, tc := range map[string]struct {
		receive ReceiverConfig
		want    string
	}{
		"no topic":                {ReceiverConfig{Group: "g"}, "kafka.topics"},
		"a topic of Kafka's own":  {ReceiverConfig{Group: "g", Topics: []string{"__consumer_offsets"}}, "kafka.topics[0]"},
		"no group":                {ReceiverConfig{Topics: []string{"t"}}, "kafka.group"},
		"a group with line break": {ReceiverConfig{Topics: []string{"t"}, Group: "g\n"}, "kafka.group"},
		"an unknown reset":        {ReceiverConfig{Topics: []string{"t"}, Group: "g", OffsetReset: "End"}, "kafka.offsetReset"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := NewReceiver(
				t.Context(),
				cfg,
				tc.receive,
			); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("NewReceiver() error = %v, want one about %q", err, tc.want)
			}
		})
	}
}
