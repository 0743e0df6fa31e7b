package desired

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
)

// The ports of servers that name none.
const (
	natsPort          = ":4222"
	kafkaPort         = ":9092"
	rabbitMQPort      = ":5671"
	rabbitMQPlainPort = ":5672"
)

var hasPort = regexp.MustCompile(`:[0-9]+$`)

// DefaultReplicas is the number of workers of a resource that names none.
const DefaultReplicas = 2

// Inputs are the facts beside a resource that its configuration depends on.
type Inputs struct {
	// Root is the directory below which the worker finds its files; Root in a Pod.
	Root string
}

// Relay returns the configuration of a relay's workers. It fails, naming every wrong field of the configuration,
// only for a resource that its schema would refuse today.
func Relay(relay *v1alpha1.OutboxRelay, in Inputs) (config.Relay, error) {
	spec := &relay.Spec
	t := &texts{}
	cfg := config.Relay{
		Version:   config.Version,
		Resource:  resourceOf(relay),
		RunPolicy: string(spec.RunPolicy),
		Source:    postgres(&spec.Source.Postgres, in),
		Outbox: config.Outbox{
			Table:              string(spec.Outbox.Table),
			Shards:             spec.Outbox.Shards,
			PublishedRetention: t.duration("spec.outbox.publishedRetention", spec.Outbox.PublishedRetention),
			Columns:            columns(&spec.Outbox),
		},
		Allowed:       words(spec.Destination.Allowed),
		MessageFormat: string(spec.Destination.MessageFormat),
		Ordering:      string(spec.Ordering.Mode),
		OnDeadLetter:  string(spec.Ordering.OnDeadLetter),
		Lease:         t.duration("spec.lease.duration", spec.Lease.Duration),
		Batch: config.Batch{
			MaxMessages:    spec.Batch.MaxMessages,
			MaxBytes:       spec.Batch.MaxBytes.Value(),
			PollInterval:   t.duration("spec.batch.pollInterval", spec.Batch.PollInterval),
			PublishTimeout: t.duration("spec.batch.publishTimeout", spec.Batch.PublishTimeout),
			WakeUp:         wakeUp(spec.Batch.WakeUp),
		},
		Backoff:    t.backoff(spec.RetryBudget.RetryBudget),
		Budget:     t.budget(spec.RetryBudget),
		StatusTick: t.duration("spec.statusInterval", spec.StatusInterval),
	}
	if kafka := spec.Destination.Kafka; kafka != nil {
		cfg.Kafka = cluster(&kafka.KafkaConnection, in)
		cfg.Kafka.Topic, cfg.Kafka.Compression = string(kafka.Topic), string(kafka.Compression)
		cfg.Kafka.TransactionalFencing = kafka.TransactionalFencing == v1alpha1.FencingEnabled
	}
	if rabbit := spec.Destination.RabbitMQ; rabbit != nil {
		cfg.RabbitMQ = virtualHost(&rabbit.RabbitMQConnection, in)
		cfg.RabbitMQ.Exchange, cfg.RabbitMQ.RoutingKey = string(rabbit.Exchange), string(rabbit.RoutingKey)
	}
	if nats := spec.Destination.NATS; nats != nil {
		cfg.NATS = broker(&nats.NATSConnection, in)
		cfg.NATS.Subject = string(nats.Subject)
	}
	return cfg, t.invalid(cfg.Validate())
}

// wakeUp is absent where a relay polls, so that workers of the version before can read it.
func wakeUp(w v1alpha1.WakeUp) string {
	if w == v1alpha1.WakeUpNotify {
		return config.WakeUpNotify
	}
	return ""
}

// RelayMigration returns how to reach the database as the owner of the outbox's tables, and whether the resource
// wants them to be managed at all.
func RelayMigration(relay *v1alpha1.OutboxRelay, in Inputs) (config.Postgres, bool) {
	outbox := &relay.Spec.Outbox
	return migration(&relay.Spec.Source.Postgres, in), outbox.SchemaPolicy == v1alpha1.SchemaPolicyManaged
}

// Consumer returns the configuration of a consumer's workers. It fails, naming every wrong field of the
// configuration, only for a resource that its schema would refuse today.
func Consumer(consumer *v1alpha1.InboxConsumer, in Inputs) (config.Consumer, error) {
	spec := &consumer.Spec
	t := &texts{}
	cfg := config.Consumer{
		Version:      config.Version,
		Resource:     resourceOf(consumer),
		RunPolicy:    string(spec.RunPolicy),
		ConsumerName: spec.ConsumerName,
		Inbox: config.Inbox{
			Postgres:      postgres(&spec.Inbox.Postgres, in),
			Retention:     t.duration("spec.inbox.retention", spec.Inbox.Retention),
			ReplayHorizon: t.duration("spec.inbox.replayHorizon", spec.Inbox.ReplayHorizon),
		},
		SQL:      sqlHandler(spec.Handler.SQL),
		Ordering: t.ordering(spec.Ordering),
		Validation: config.Validation{
			MaxBytes: spec.Validation.MaxBytes.Value(),
			MaxDepth: spec.Validation.MaxDepth,
		},
		Concurrency: config.Concurrency{
			Lanes:            spec.Concurrency.Lanes,
			Prefetch:         spec.Concurrency.Prefetch,
			MaxBatchMessages: spec.Concurrency.MaxBatchMessages,
			HandlerTimeout:   t.duration("spec.concurrency.handlerTimeout", spec.Concurrency.HandlerTimeout),
		},
		Backoff:    t.backoff(spec.RetryBudget),
		StatusTick: t.duration("spec.statusInterval", spec.StatusInterval),
	}
	if kafka := spec.Source.Kafka; kafka != nil {
		cfg.Kafka = cluster(&kafka.KafkaConnection, in)
		cfg.Kafka.Topics, cfg.Kafka.OffsetReset = words(kafka.Topics), string(kafka.OffsetReset)
		cfg.Kafka.Group = shared(spec.ConsumerName, kafka.Group)
	}
	if nats := spec.Source.NATS; nats != nil {
		cfg.NATS = broker(&nats.NATSConnection, in)
		cfg.NATS.FilterSubjects = words(nats.FilterSubjects)
		cfg.NATS.Durable = shared(spec.ConsumerName, nats.Durable)
	}
	if rabbit := spec.Source.RabbitMQ; rabbit != nil {
		cfg.RabbitMQ = virtualHost(&rabbit.RabbitMQConnection, in)
		cfg.RabbitMQ.Queue = string(rabbit.Queue)
		for _, b := range rabbit.Bindings {
			cfg.RabbitMQ.Bindings = append(cfg.RabbitMQ.Bindings,
				config.Binding{Exchange: string(b.Exchange), RoutingKey: string(b.RoutingKey)})
		}
	}
	return cfg, t.invalid(cfg.Validate())
}

// ConsumerMigration returns how to reach the database as the owner of the inbox's tables, and whether the resource
// wants them to be managed at all.
func ConsumerMigration(consumer *v1alpha1.InboxConsumer, in Inputs) (config.Postgres, bool) {
	inbox := &consumer.Spec.Inbox
	return migration(&inbox.Postgres, in), inbox.SchemaPolicy == v1alpha1.SchemaPolicyManaged
}

func resourceOf(obj metav1.Object) config.Resource {
	return config.Resource{
		Namespace:  obj.GetNamespace(),
		Name:       obj.GetName(),
		UID:        string(obj.GetUID()),
		Generation: obj.GetGeneration(),
	}
}

func postgres(p *v1alpha1.Postgres, in Inputs) config.Postgres {
	return config.Postgres{
		Hosts:          words(p.Hosts),
		Port:           p.Port,
		Database:       p.Database,
		Schema:         string(p.Schema),
		CredentialsDir: path.Join(in.Root, DatabaseCredentialsMount),
		TLS:            transport(p.TLS, in, DatabaseCAMount, DatabaseClientMount),
		MaxConnections: p.MaxConnections,
	}
}

func migration(p *v1alpha1.Postgres, in Inputs) config.Postgres {
	owner := postgres(p, in)
	owner.CredentialsDir = path.Join(in.Root, MigrationCredentialsMount)
	return owner
}

func broker(n *v1alpha1.NATSConnection, in Inputs) *config.NATS {
	cfg := &config.NATS{
		Servers:  servers(n.Servers, natsPort),
		Stream:   string(n.Stream),
		Topology: string(n.Topology),
		TLS:      transport(n.TLS, in, BrokerCAMount, BrokerClientMount),
	}
	if n.CredentialsSecretRef != nil {
		cfg.CredentialsDir = path.Join(in.Root, BrokerCredentialsMount)
	}
	return cfg
}

func cluster(k *v1alpha1.KafkaConnection, in Inputs) *config.Kafka {
	cfg := &config.Kafka{
		BootstrapServers: servers(k.BootstrapServers, kafkaPort),
		TLS:              transport(k.TLS, in, BrokerCAMount, BrokerClientMount),
	}
	if k.SASL != nil {
		cfg.Mechanism = string(k.SASL.Mechanism)
		cfg.CredentialsDir = path.Join(in.Root, BrokerCredentialsMount)
	}
	return cfg
}

func virtualHost(r *v1alpha1.RabbitMQConnection, in Inputs) *config.RabbitMQ {
	port := rabbitMQPort
	if r.TLS.Mode == v1alpha1.TLSModeInsecure {
		port = rabbitMQPlainPort
	}
	return &config.RabbitMQ{
		Hosts:          servers(r.Hosts, port),
		VirtualHost:    string(r.VirtualHost),
		Topology:       string(r.Topology),
		CredentialsDir: path.Join(in.Root, BrokerCredentialsMount),
		TLS:            transport(r.TLS, in, BrokerCAMount, BrokerClientMount),
	}
}

// servers gives each address its port.
func servers(in []v1alpha1.ServerAddress, port string) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = string(in[i])
		if !hasPort.MatchString(out[i]) {
			out[i] += port
		}
	}
	return out
}

func transport(t v1alpha1.TLS, in Inputs, ca, client string) config.TLS {
	cfg := config.TLS{Mode: string(t.Mode)}
	if t.CASecretRef != nil || t.CAConfigMapRef != nil {
		cfg.CAFile = path.Join(in.Root, ca, v1alpha1.KeyCA)
	}
	if t.ClientCertificateSecretRef != nil {
		cfg.ClientCertificateDir = path.Join(in.Root, client)
	}
	return cfg
}

func sqlHandler(h *v1alpha1.SQLHandler) *config.SQLHandler {
	if h == nil {
		return nil
	}
	cfg := &config.SQLHandler{
		Routes:      make([]config.SQLRoute, 0, len(h.Routes)),
		OnUnmatched: string(h.OnUnmatched),
	}
	for _, route := range h.Routes {
		cfg.Routes = append(cfg.Routes, config.SQLRoute{
			EventTypes: words(route.EventTypes),
			Statement:  route.Statement,
		})
	}
	return cfg
}

// shared derives the name of a durable or group, under which workers share messages. A consumerName has no _, so two of
// them never share a derived one, which would split the messages of one stream between two consumers.
func shared[T ~string](consumerName string, given T) string {
	if given != "" {
		return string(given)
	}
	return strings.ReplaceAll(consumerName, "/", "_")
}

// words turns named text types into text.
func words[T ~string](in []T) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, len(in))
	for i := range in {
		out[i] = string(in[i])
	}
	return out
}

// texts reads the fields that are text in a resource and something else in a configuration, and keeps what is wrong.
type texts struct{ errs []error }

func (t *texts) duration(field string, d v1alpha1.Duration) config.Duration {
	v, err := d.Parse()
	if err != nil {
		t.errs = append(t.errs, fmt.Errorf("%s: %w", field, err))
	}
	return config.Duration(v)
}

func (t *texts) backoff(b v1alpha1.RetryBudget) config.Backoff {
	return config.Backoff{
		Initial: t.duration("spec.retryBudget.initialBackoff", b.InitialBackoff),
		Max:     t.duration("spec.retryBudget.maxBackoff", b.MaxBackoff),
	}
}

func (t *texts) budget(b v1alpha1.RelayRetryBudget) config.Budget {
	out := config.Budget{
		MaxAttempts:         b.MaxAttempts,
		MaxElapsed:          t.duration("spec.retryBudget.maxElapsed", b.MaxElapsed),
		MinRetriesPerSecond: b.MinRetriesPerSecond,
	}
	if b.RetryPercent != nil {
		out.RetryPercent = *b.RetryPercent
	}
	return out
}

func (t *texts) ordering(o v1alpha1.ConsumerOrdering) config.Ordering {
	cfg := config.Ordering{
		Mode:         string(o.Mode),
		Versions:     string(o.Versions),
		Delivery:     string(o.Delivery),
		GapTimeout:   t.duration("spec.ordering.gapTimeout", o.GapTimeout),
		OnGapTimeout: string(o.OnGapTimeout),
	}
	if o.Mode == v1alpha1.OrderingNone {
		cfg.Versions = string(v1alpha1.VersionsUnchecked)
	}
	return cfg
}

// invalid adds what the configuration itself refuses; without a readable duration that would only repeat it.
func (t *texts) invalid(refused error) error {
	if len(t.errs) > 0 {
		return errors.Join(t.errs...)
	}
	return refused
}
