package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The words that the text fields of a config may hold.
const (
	// RunPolicyRun moves messages.
	RunPolicyRun = "Run"
	// RunPolicyPause keeps leases and connections and moves nothing.
	RunPolicyPause = "Pause"
	// RunPolicyDrain finishes what is claimed, releases and stops.
	RunPolicyDrain = "Drain"

	// TLSVerifyFull checks the server's certificate and name; TLSVerifyCA only the certificate.
	TLSVerifyFull = "VerifyFull"
	// TLSVerifyCA checks the server's certificate but not its name.
	TLSVerifyCA = "VerifyCA"
	// TLSInsecure is plain text.
	TLSInsecure = "Insecure"

	// TopologyVerify checks the stream and never changes it.
	TopologyVerify = "Verify"
	// TopologyDeclare makes a missing stream or durable.
	TopologyDeclare = "Declare"

	// WakeUpNotify has the database tell a relay of commits.
	WakeUpNotify = "Notify"

	// OrderingPerKey keeps the order of each key; OrderingNone keeps none.
	OrderingPerKey = "PerKey"
	// OrderingNone keeps no order.
	OrderingNone = "None"

	// BlockKey holds a key behind a dead letter until a person decides.
	BlockKey = "BlockKey"
	// SkipMessage goes on behind a marker at the dead letter's place.
	SkipMessage = "SkipMessage"

	// VersionsEnforce applies the versions of a key one after the other.
	VersionsEnforce = "Enforce"
	// VersionsIgnoreOlder applies what is newer than the last applied.
	VersionsIgnoreOlder = "IgnoreOlder"
	// VersionsUnchecked applies in the order of arrival.
	VersionsUnchecked = "Unchecked"

	// DeliveryShared lets several processes share the durable.
	DeliveryShared = "Shared"
	// DeliverySingleActive lets one message be unacknowledged at a time.
	DeliverySingleActive = "SingleActive"

	// OffsetResetFail stops at a partition whose next message is gone.
	OffsetResetFail = "Fail"
	// OffsetResetEarliest goes on with the oldest message that is left.
	OffsetResetEarliest = "Earliest"

	// GapHold waits for a missing version for as long as it takes.
	GapHold = "Hold"
	// GapApply goes on without a missing version after the gap timeout.
	GapApply = "Apply"

	// UnmatchedIgnore counts a message that no route wants and goes on.
	UnmatchedIgnore = "Ignore"
	// UnmatchedDeadLetter keeps a message that no route wants as a dead letter.
	UnmatchedDeadLetter = "DeadLetter"
)

// LeaseMargin is how much longer than a publish a lease must last, so that a relay stops sending well
// before another may start.
const LeaseMargin = 5 * time.Second

// MaxShards is the largest number of shards of an outbox.
const MaxShards = 64

// MaxOutboxTableBytes leaves room for the longest suffix behind a name of PostgreSQL's 63 bytes.
const MaxOutboxTableBytes = 40

const (
	maxPause     = 24 * time.Hour
	maxRetention = 10 * 365 * 24 * time.Hour
)

var (
	dnsName        = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$`)
	label          = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	subdomain      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
	uid            = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
	identifier     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	printableASCII = regexp.MustCompile(`^[ -~]+$`)
	natsName       = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	natsSubject    = regexp.MustCompile(`^[^\s.*>$\x00-\x20][^\s.*>\x00-\x20]*(\.[^\s.*>\x00-\x20]+)*$`)
	natsFilter     = regexp.MustCompile(
		`^(>|(\*|[^\s.*>$\x00-\x20][^\s.*>\x00-\x20]*)(\.(\*|[^\s.*>\x00-\x20]+))*(\.>)?)$`)
	kafkaGroup = regexp.MustCompile(`^[A-Za-z0-9._/:-]+$`)
	kafkaTopic = regexp.MustCompile(`^([A-Za-z0-9.-]|_[A-Za-z0-9.-]|_$)[A-Za-z0-9._-]*$`)
	visible    = regexp.MustCompile(`^[!-~]+$`)
	exchange   = regexp.MustCompile(`^[A-Za-z0-9._:-]+$`)
	routingKey = regexp.MustCompile("^[!\"$-)+-.0-~]+$") // no #, * and /
	consumer   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	eventType  = regexp.MustCompile(`^(\*|[^\s*\x00-\x20]+(\.\*)?)$`)
)

// isHost says whether a text is a host name or an address, and nothing else that a URL may hold.
func isHost(s string) bool {
	if len(s) > 253 {
		return false
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return dnsName.MatchString(s)
}

// isServer says whether a text is [nats://|tls://]host[:port].
func isServer(s string) bool {
	if rest, ok := strings.CutPrefix(s, "nats://"); ok {
		s = rest
	} else {
		s = strings.TrimPrefix(s, "tls://")
	}
	if bare, ok := strings.CutPrefix(s, "["); ok {
		if bare, ok = strings.CutSuffix(bare, "]"); ok {
			return isHost(bare)
		}
	}
	if isHost(s) {
		return true
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || !isHost(host) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// checker collects problems under a path, so that one run names all of them.
type checker struct{ problems []Problem }

func (c *checker) refuse(path, format string, args ...any) {
	c.problems = append(c.problems, Problem{Field: path, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) require(path string, ok bool, format string, args ...any) {
	if !ok {
		c.refuse(path, format, args...)
	}
}

func (c *checker) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	return &InvalidError{Problems: c.problems[:min(len(c.problems), maxProblems)]}
}

// text checks a name against its form. It never repeats the value: it may hold what was pasted by mistake.
func (c *checker) text(path, value string, most int, form *regexp.Regexp, want string) {
	switch {
	case value == "":
		c.refuse(path, "must be set")
	case len(value) > most:
		c.refuse(path, "is longer than %d bytes", most)
	case !form.MatchString(value):
		c.refuse(path, "must be %s", want)
	}
}

func (c *checker) word(path, value string, words ...string) {
	c.require(path, slices.Contains(words, value), "must be %s", strings.Join(words, " or "))
}

func (c *checker) number(path string, value, least, most int64) {
	c.require(path, value >= least && value <= most, "must be %d to %d, not %d", least, most, value)
}

func (c *checker) pause(path string, value Duration, least, most time.Duration) {
	c.require(path, value.D() >= least && value.D() <= most, "must be %s to %s, not %s", least, most, value.D())
}

func (c *checker) count(path string, n, least, most int) {
	c.require(path, n >= least && n <= most, "must have %d to %d entries, not %d", least, most, n)
}

func (c *checker) path(field, value string) {
	c.require(field, filepath.IsAbs(value) && filepath.Clean(value) == value, "must be an absolute path without ..")
}

// Validate checks every value and every contradiction between values, and names them all.
func (r Relay) Validate() error {
	c := &checker{}
	c.version(r.Version)
	c.resource(r.Resource)
	c.word("runPolicy", r.RunPolicy, RunPolicyRun, RunPolicyPause, RunPolicyDrain)
	c.postgres("source", r.Source)
	c.outbox(r.Outbox)
	c.destination(r)
	c.count("allowed", len(r.Allowed), 0, 64)
	for i, pattern := range r.Allowed {
		c.text(fmt.Sprintf("allowed[%d]", i), pattern, 255, natsFilter, "a subject; its parts may be *, its last >")
	}
	if r.MessageFormat != "" {
		c.word("messageFormat", r.MessageFormat, "Native", "CloudEventsBinary", "CloudEventsStructured")
	}
	c.word("ordering", r.Ordering, OrderingPerKey, OrderingNone)
	c.columns(r.Outbox.Columns, r.Ordering)
	c.word("onDeadLetter", r.OnDeadLetter, BlockKey, SkipMessage)
	c.batch(r.Batch)
	c.pause("leaseDuration", r.Lease, LeaseMargin, time.Hour)
	if needed := r.Batch.PublishTimeout.D() + LeaseMargin; r.Lease.D() <= needed {
		c.refuse("leaseDuration", "must be above batch.publishTimeout plus %s, that is above %s", LeaseMargin, needed)
	}
	c.backoff(r.Backoff)
	c.budget(r.Budget)
	c.pause("statusInterval", r.StatusTick, time.Second, time.Hour)
	return c.err()
}

// destination checks the one broker of a relay.
func (c *checker) destination(r Relay) {
	if !exactlyOne(r.Kafka != nil, r.NATS != nil, r.RabbitMQ != nil) {
		c.refuse("nats", "exactly one of kafka, nats and rabbitMQ must be set")
		return
	}
	switch {
	case r.Kafka != nil:
		c.kafka(r.Kafka)
		c.text("kafka.topic", r.Kafka.Topic, 249, kafkaTopic, "a topic's name of letters, digits, dots, _ and -")
		c.word("kafka.compression", r.Kafka.Compression, "None", "Gzip", "Snappy", "Lz4", "Zstd")
		c.require("kafka.topics", len(r.Kafka.Topics) == 0, "is a consumer's")
		c.require("kafka.group", r.Kafka.Group == "", "is a consumer's")
		c.require("kafka.offsetReset", r.Kafka.OffsetReset == "", "is a consumer's")
	case r.RabbitMQ != nil:
		c.rabbitMQ(r.RabbitMQ)
		c.text("rabbitMQ.exchange", r.RabbitMQ.Exchange, 255, exchange, exchangeForm)
		c.text(
			"rabbitMQ.routingKey",
			r.RabbitMQ.RoutingKey,
			255,
			routingKey,
			"printable ASCII without spaces, *, # and /",
		)
		c.require("rabbitMQ.queue", r.RabbitMQ.Queue == "", "is a consumer's")
		c.require("rabbitMQ.bindings", len(r.RabbitMQ.Bindings) == 0, "are a consumer's")
	case c.nats(r.NATS):
		c.text("nats.subject", r.NATS.Subject, 255, natsSubject, "one subject without wildcards that starts with no $")
		c.require("nats.filterSubjects", len(r.NATS.FilterSubjects) == 0, "is a consumer's")
		c.require("nats.durable", r.NATS.Durable == "", "is a consumer's")
	}
}

// source checks the one broker of a consumer.
func (c *checker) source(r Consumer) {
	if !exactlyOne(r.Kafka != nil, r.NATS != nil, r.RabbitMQ != nil) {
		c.refuse("nats", "exactly one of kafka, nats and rabbitMQ must be set")
		return
	}
	switch {
	case r.Kafka != nil:
		c.kafka(r.Kafka)
		c.count("kafka.topics", len(r.Kafka.Topics), 1, 16)
		for i, topic := range r.Kafka.Topics {
			field := fmt.Sprintf("kafka.topics[%d]", i)
			c.text(field, topic, 249, kafkaTopic, "a topic's name of letters, digits, dots, _ and -")
		}
		c.text("kafka.group", r.Kafka.Group, 255, kafkaGroup, "a group's name of letters, digits, dots, /, :, _ and -")
		c.word("kafka.offsetReset", r.Kafka.OffsetReset, OffsetResetFail, OffsetResetEarliest)
		c.require("kafka.topic", r.Kafka.Topic == "", "is a relay's")
		c.require("kafka.compression", r.Kafka.Compression == "", "is a relay's")
		c.require("kafka.transactionalFencing", !r.Kafka.TransactionalFencing, "is a relay's")
		c.require("ordering.delivery", r.Ordering.Delivery != DeliverySingleActive,
			"with Kafka, must be Shared: a partition keeps its order and is with one process anyway")
	case r.RabbitMQ != nil:
		c.queue(r.RabbitMQ)
		c.require("concurrency.prefetch", r.Concurrency.Prefetch <= 65535, "must be at most 65535 with RabbitMQ")
		c.redelivering("RabbitMQ", r.Ordering)
	case c.nats(r.NATS):
		c.text("nats.durable", r.NATS.Durable, 128, natsName, "letters, digits, _ and -")
		c.count("nats.filterSubjects", len(r.NATS.FilterSubjects), 0, 64)
		for i, filter := range r.NATS.FilterSubjects {
			field := fmt.Sprintf("nats.filterSubjects[%d]", i)
			c.text(field, filter, 255, natsFilter, "a subject; its parts may be *, its last >")
		}
		c.require("nats.subject", r.NATS.Subject == "", "is a relay's")
		c.redelivering("NATS", r.Ordering)
	}
}

// redelivering checks the ordering at a broker that delivers again behind what it has delivered since.
func (c *checker) redelivering(broker string, o Ordering) {
	c.require(
		"ordering",
		o.Mode != OrderingPerKey || o.Versions == VersionsEnforce ||
			o.Delivery == DeliverySingleActive,
		"with %s, mode PerKey needs versions Enforce or delivery SingleActive: its redeliveries come out of order",
		broker,
	)
}

func exactlyOne(all ...bool) bool {
	set := 0
	for _, is := range all {
		if is {
			set++
		}
	}
	return set == 1
}

// servers checks a list of host:port.
func (c *checker) servers(path string, servers []string) {
	c.count(path, len(servers), 1, 16)
	for i, server := range servers {
		c.require(fmt.Sprintf("%s[%d]", path, i), isServer(server) && !strings.Contains(server, "//"),
			"must be host:port without scheme and credentials")
	}
}

func (c *checker) kafka(k *Kafka) {
	c.servers("kafka.bootstrapServers", k.BootstrapServers)
	if k.Mechanism != "" {
		c.word("kafka.saslMechanism", k.Mechanism, "Plain", "ScramSHA256", "ScramSHA512")
		c.path("kafka.credentialsDir", k.CredentialsDir)
	} else {
		c.require("kafka.credentialsDir", k.CredentialsDir == "", "needs saslMechanism")
	}
	c.tls("kafka.tls", k.TLS)
}

func (c *checker) rabbitMQ(r *RabbitMQ) {
	c.servers("rabbitMQ.hosts", r.Hosts)
	c.text("rabbitMQ.virtualHost", r.VirtualHost, 127, visible, "printable ASCII without spaces")
	c.word("rabbitMQ.topology", r.Topology, TopologyVerify, TopologyDeclare)
	c.path("rabbitMQ.credentialsDir", r.CredentialsDir)
	c.tls("rabbitMQ.tls", r.TLS)
}

// queue checks what a consumer reads of a RabbitMQ.
func (c *checker) queue(r *RabbitMQ) {
	c.rabbitMQ(r)
	c.text("rabbitMQ.queue", r.Queue, 255, visible, "printable ASCII without spaces")
	c.require(
		"rabbitMQ.queue",
		!strings.HasPrefix(r.Queue, "amq."),
		"must not be one of RabbitMQ's own, which start with amq.",
	)
	c.count("rabbitMQ.bindings", len(r.Bindings), 0, 64)
	c.require("rabbitMQ.bindings", len(r.Bindings) == 0 || r.Topology == TopologyDeclare, "need topology Declare")
	for i, b := range r.Bindings {
		field := fmt.Sprintf("rabbitMQ.bindings[%d]", i)
		c.text(field+".exchange", b.Exchange, 255, exchange, exchangeForm)
		c.text(field+".routingKey", b.RoutingKey, 255, visible, "printable ASCII without spaces")
	}
	c.require("rabbitMQ.exchange", r.Exchange == "", "is a relay's")
	c.require("rabbitMQ.routingKey", r.RoutingKey == "", "is a relay's")
}

const exchangeForm = "an exchange's name of letters, digits, dots, :, _ and -"

// Validate checks every value and every contradiction between values, and names them all.
func (r Consumer) Validate() error {
	c := &checker{}
	c.version(r.Version)
	c.resource(r.Resource)
	c.word("runPolicy", r.RunPolicy, RunPolicyRun, RunPolicyPause, RunPolicyDrain)
	c.text("consumerName", r.ConsumerName, 253, consumer, "letters, digits, ., _, / and -")
	c.source(r)
	c.postgres("inbox.postgres", r.Inbox.Postgres)
	c.pause("inbox.retention", r.Inbox.Retention, time.Minute, maxRetention)
	c.pause("inbox.replayHorizon", r.Inbox.ReplayHorizon, 0, maxRetention)
	c.require("inbox.replayHorizon", r.Inbox.ReplayHorizon <= r.Inbox.Retention,
		"must not be above inbox.retention: a replayed message would be applied again")
	c.handler(r.SQL)
	c.ordering(r.Ordering)
	c.number("validation.maxBytes", r.Validation.MaxBytes, 1, 64<<20)
	c.number("validation.maxDepth", int64(r.Validation.MaxDepth), 1, 1000)
	c.concurrency(r.Concurrency)
	c.backoff(r.Backoff)
	c.pause("statusInterval", r.StatusTick, time.Second, time.Hour)
	return c.err()
}

func (c *checker) version(v int) {
	c.require(
		"version",
		v > 0 && v >= Version-1 && v <= Version+1,
		"this program reads version %d and its neighbours, the file has %d: upgrade by one release at a time",
		Version,
		v,
	)
}

func (c *checker) resource(r Resource) {
	c.text("resource.namespace", r.Namespace, 63, label, "a namespace name")
	c.text("resource.name", r.Name, 253, subdomain, "a resource name")
	c.text("resource.uid", r.UID, 64, uid, "a UID")
	c.require("resource.generation", r.Generation >= 0, "must not be negative")
}

func (c *checker) postgres(path string, p Postgres) {
	c.count(path+".hosts", len(p.Hosts), 1, 5)
	for i, host := range p.Hosts {
		c.require(fmt.Sprintf("%s.hosts[%d]", path, i), isHost(host),
			"must be a host name or address without scheme and port")
	}
	c.number(path+".port", int64(p.Port), 1, 65535)
	c.require(path+".database", p.Database != "", "must be set")
	c.require(path+".database", len(p.Database) <= 63 && !strings.ContainsRune(p.Database, 0),
		"must be at most 63 bytes without NUL")
	c.text(path+".schema", p.Schema, 63, identifier, "one identifier of letters, digits and _")
	c.path(path+".credentialsDir", p.CredentialsDir)
	c.number(path+".maxConnections", int64(p.MaxConnections), 2, 200)
	c.tls(path+".tls", p.TLS)
}

func (c *checker) tls(path string, t TLS) {
	c.word(path+".mode", t.Mode, TLSVerifyFull, TLSVerifyCA, TLSInsecure)
	if t.Mode == TLSInsecure {
		c.require(path, t.CAFile == "" && t.ClientCertificateDir == "",
			"mode Insecure uses no certificate: leave the files out")
		return
	}
	if t.CAFile != "" {
		c.path(path+".caFile", t.CAFile)
	}
	if t.ClientCertificateDir != "" {
		c.path(path+".clientCertificateDir", t.ClientCertificateDir)
	}
}

func (c *checker) outbox(o Outbox) {
	c.text("outbox.table", o.Table, MaxOutboxTableBytes, identifier, "one identifier of letters, digits and _")
	c.number("outbox.shards", int64(o.Shards), 1, MaxShards)
	c.pause("outbox.publishedRetention", o.PublishedRetention, time.Minute, maxRetention)
}

func (c *checker) nats(n *NATS) bool {
	if n == nil {
		c.refuse("nats", "must be set")
		return false
	}
	c.count("nats.servers", len(n.Servers), 1, 16)
	for i, server := range n.Servers {
		c.require(fmt.Sprintf("nats.servers[%d]", i), isServer(server),
			"must be nats://host:port or tls://host:port without credentials")
	}
	c.text("nats.stream", n.Stream, 255, natsName, "letters, digits, _ and -")
	c.word("nats.topology", n.Topology, TopologyVerify, TopologyDeclare)
	if n.CredentialsDir != "" {
		c.path("nats.credentialsDir", n.CredentialsDir)
	}
	c.tls("nats.tls", n.TLS)
	return true
}

func (c *checker) batch(b Batch) {
	c.number("batch.maxMessages", int64(b.MaxMessages), 1, 10_000)
	c.number("batch.maxBytes", b.MaxBytes, 1, 64<<20)
	c.pause("batch.pollInterval", b.PollInterval, 10*time.Millisecond, time.Minute)
	c.require("batch.wakeUp", b.WakeUp == "" || b.WakeUp == WakeUpNotify, "must be Notify or absent")
	c.pause("batch.publishTimeout", b.PublishTimeout, 100*time.Millisecond, 10*time.Minute)
}

func (c *checker) backoff(b Backoff) {
	c.pause("backoff.initial", b.Initial, time.Millisecond, maxPause)
	c.pause("backoff.max", b.Max, time.Millisecond, maxPause)
	c.require("backoff.max", b.Max >= b.Initial, "must not be below backoff.initial")
}

func (c *checker) budget(b Budget) {
	c.number("retryBudget.maxAttempts", int64(b.MaxAttempts), 1, 1000)
	c.pause("retryBudget.maxElapsed", b.MaxElapsed, time.Second, maxRetention)
	c.number("retryBudget.retryPercent", int64(b.RetryPercent), 0, 100)
	c.number("retryBudget.minRetriesPerSecond", int64(b.MinRetriesPerSecond), 1, 10_000)
}

func (c *checker) handler(h *SQLHandler) {
	if h == nil {
		c.refuse("sql", "must be set")
		return
	}
	c.word("sql.onUnmatched", h.OnUnmatched, UnmatchedIgnore, UnmatchedDeadLetter)
	c.count("sql.routes", len(h.Routes), 1, 256)
	claimed := make(map[string]string)
	for i, route := range h.Routes {
		path := fmt.Sprintf("sql.routes[%d]", i)
		c.require(path+".statement", strings.TrimSpace(route.Statement) != "", "must be set")
		c.require(path+".statement", len(route.Statement) <= 64<<10, "is longer than 64 KiB")
		c.require(path+".statement", !strings.ContainsRune(route.Statement, 0), "must not hold NUL")
		c.count(path+".eventTypes", len(route.EventTypes), 1, 64)
		for j, name := range route.EventTypes {
			field := fmt.Sprintf("%s.eventTypes[%d]", path, j)
			c.text(field, name, 255, eventType, "an event type, or prefix.*")
			if earlier, taken := claimed[name]; taken {
				c.refuse(field, "is already routed by %s", earlier)
			}
			claimed[name] = path
		}
	}
}

func (c *checker) ordering(o Ordering) {
	c.word("ordering.mode", o.Mode, OrderingPerKey, OrderingNone)
	c.word("ordering.versions", o.Versions, VersionsEnforce, VersionsIgnoreOlder, VersionsUnchecked)
	c.word("ordering.delivery", o.Delivery, DeliveryShared, DeliverySingleActive)
	c.word("ordering.onGapTimeout", o.OnGapTimeout, GapHold, GapApply)
	c.pause("ordering.gapTimeout", o.GapTimeout, time.Second, maxRetention)
}

func (c *checker) concurrency(n Concurrency) {
	c.number("concurrency.lanes", int64(n.Lanes), 1, 256)
	c.number("concurrency.prefetch", int64(n.Prefetch), 1, 100_000)
	c.number("concurrency.maxBatchMessages", int64(n.MaxBatchMessages), 1, 10_000)
	c.pause("concurrency.handlerTimeout", n.HandlerTimeout, 10*time.Millisecond, time.Hour)
}
