package pipeline_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/test/testkit"
)

// slow is for a broker's first connection on a busy machine.
const slow = config.Duration(5 * time.Second)

// secret writes the files of a credentials Secret.
func secret(t *testing.T, user, password string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"username": user, "password": password} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// elsewhere runs a relay to another broker than NATS: each committed row is published at a position of that broker.
func (o *orders) elsewhere(prefix string, change func(*config.Relay)) {
	o.t.Helper()
	cfg := o.cfg
	cfg.NATS = nil
	cfg.Lease, cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	change(&cfg)
	_, life := o.start(cfg)
	o.write(90)
	o.published(90)
	for _, position := range testkit.Values[string](o.db, "SELECT broker_position FROM message_outbox_published") {
		if !strings.HasPrefix(position, prefix) {
			o.t.Fatalf("a row is published at %q, want %s…", position, prefix)
		}
	}
	if err := life.drain(); err != nil {
		o.t.Errorf("Run() = %v", err)
	}
}

func TestARelayPublishesToKafka(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	server := testkit.Kafka(t)
	topic := server.Topic(3, nil)
	user, password := server.User()
	o.elsewhere(topic+"/", func(cfg *config.Relay) {
		cfg.Kafka = &config.Kafka{
			BootstrapServers: []string{server.SASLAddr()},
			Mechanism:        "ScramSHA512",
			CredentialsDir: secret(
				t,
				user,
				password,
			),
			TLS:         config.TLS{Mode: config.TLSVerifyFull, CAFile: server.PKI().CA},
			Topic:       topic,
			Compression: "Zstd",
		}
	})
	ends, err := server.Admin().ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	records := int64(0)
	for _, end := range ends[topic] {
		records += end.Offset
	}
	if records != 90 {
		t.Errorf("the topic holds %d records, want 90", records)
	}
}

func TestARelayPublishesToRabbitMQ(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	server := testkit.RabbitMQ(t)
	channel := server.Channel()
	if err := channel.ExchangeDeclare("shop", amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare("orders", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind("orders", "orders.#", "shop", false, nil); err != nil {
		t.Fatal(err)
	}
	user, password := server.User()
	o.elsewhere("shop/orders.events#", func(cfg *config.Relay) {
		cfg.RabbitMQ = &config.RabbitMQ{
			Hosts:       []string{server.TLSAddr()},
			VirtualHost: server.VirtualHost,
			Topology:    config.TopologyVerify,
			CredentialsDir: secret(
				t,
				user,
				password,
			),
			TLS:        config.TLS{Mode: config.TLSVerifyFull, CAFile: server.PKI().CA},
			Exchange:   "shop",
			RoutingKey: "orders.events",
		}
	})
	queue, err := channel.QueueDeclarePassive("orders", true, false, false, false, nil)
	if err != nil || queue.Messages != 90 {
		t.Errorf("the queue holds %d messages (%v), want 90", queue.Messages, err)
	}
}
