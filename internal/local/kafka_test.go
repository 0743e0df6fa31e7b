package local_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/postrider/postrider/internal/local"
)

func kafkaClient(t *testing.T, k *local.Kafka, password string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	auth := scram.Auth{User: "orders", Pass: password}
	options = append(options, kgo.SeedBrokers(net.JoinHostPort(k.Host(), strconv.Itoa(k.Port()))),
		kgo.SASL(auth.AsSha512Mechanism()), kgo.UnknownTopicRetries(1), kgo.RecordRetries(1))
	client, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func startKafka(t *testing.T, cfg local.KafkaConfig) *local.Kafka {
	t.Helper()
	k, err := local.StartKafka(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What a run keeps is there for the next one, the Secret's new password counts, and no password stays in the folder.
func TestTheStandInForKafkaKeepsItsTopics(t *testing.T) {
	t.Parallel()
	cfg := local.KafkaConfig{
		Dir: filepath.Join(t.TempDir(), "kafka"), Topics: []string{"orders"},
		Users: []local.KafkaUser{{Name: "orders", Password: "canary-1"}},
	}
	first := startKafka(t, cfg)
	record := &kgo.Record{Topic: "orders", Value: []byte("paid")}
	if err := kafkaClient(t, first, "canary-1").ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	noPassword(t, cfg.Dir)

	cfg.Users[0].Password = "canary-2"
	cfg.Topics = append(cfg.Topics, "refunds")
	second := startKafka(t, cfg)
	fetched := kafkaClient(t, second, "canary-2", kgo.ConsumeTopics("orders")).PollFetches(t.Context())
	if records := fetched.Records(); fetched.Err() != nil || len(records) != 1 || string(records[0].Value) != "paid" {
		t.Errorf("after the restart: %d records, %v", fetched.NumRecords(), fetched.Err())
	}
	late := &kgo.Record{Topic: "refunds", Value: []byte("x")}
	if err := kafkaClient(t, second, "canary-2").ProduceSync(t.Context(), late).FirstErr(); err != nil {
		t.Errorf("a topic that was added: %v", err)
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	noPassword(t, cfg.Dir)
}

func noPassword(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "canary") {
			t.Errorf("%s holds a password", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheStandInForKafkaRefusesATakenPort(t *testing.T) {
	t.Parallel()
	k := startKafka(t, local.KafkaConfig{})
	t.Cleanup(func() { _ = k.Stop() })
	_, err := local.StartKafka(local.KafkaConfig{Port: k.Port()})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(k.Port())) {
		t.Errorf("StartKafka() error = %v, want one that names the port", err)
	}
}
