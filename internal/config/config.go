// Package config is the one bridge between the planes: the file the manager (or `postrider up`) writes
// and a worker loads. It holds values and paths, never a credential.
//
// Load refuses unknown fields and contradictions with the file and field named. It dials nothing.
package config

//go:generate go test . -run ^TestDocsDescribeTheFile$ -update

// Version is the version of the file this code writes. It reads those before and after it too, so that manager and
// workers may be one release apart while they are upgraded: a field that is added raises the version, must do without
// a value, and must be one that an older worker can leave out.
const Version = 1

// Relay is the configuration of a relay process.
type Relay struct {
	// Version is that of the file's form.
	Version int `json:"version"`
	// Resource is whom the relay runs for.
	Resource Resource `json:"resource"`
	// RunPolicy is Run, Pause or Drain.
	RunPolicy string `json:"runPolicy"`
	// Source is the database of the outbox.
	Source Postgres `json:"source"`
	// Outbox locates the tables in it.
	Outbox Outbox `json:"outbox"`
	// Kafka, NATS or RabbitMQ is the destination: exactly one of them.
	Kafka *Kafka `json:"kafka,omitempty"`
	// NATS is a JetStream stream.
	NATS *NATS `json:"nats,omitempty"`
	// RabbitMQ is an exchange.
	RabbitMQ *RabbitMQ `json:"rabbitMQ,omitempty"`
	// Allowed lists the subjects, topics or routing keys that a row may name as its destination; none means only the default.
	Allowed []string `json:"allowed,omitempty"`
	// MessageFormat is Native, CloudEventsBinary or CloudEventsStructured; empty means Native.
	MessageFormat string `json:"messageFormat,omitempty"`
	// Ordering is PerKey or None.
	Ordering string `json:"ordering"`
	// OnDeadLetter is BlockKey or SkipMessage.
	OnDeadLetter string `json:"onDeadLetter"`
	// Lease is how long a shard stays with a relay that says nothing more.
	Lease Duration `json:"leaseDuration"`
	// Batch bounds what a lane reads and sends at once.
	Batch Batch `json:"batch"`
	// Backoff bounds the pause of a refused message.
	Backoff Backoff `json:"backoff"`
	// Budget is what a message may use up until it becomes a dead letter.
	Budget Budget `json:"retryBudget"`
	// StatusTick is how often counts are taken.
	StatusTick Duration `json:"statusInterval"`
}

// Resource names the custom resource a worker runs for.
type Resource struct {
	// Namespace is the resource's namespace.
	Namespace string `json:"namespace"`
	// Name is its name.
	Name string `json:"name"`
	// UID tells a recreated resource from the one before.
	UID string `json:"uid"`
	// Generation is that of the spec the file was made from.
	Generation int64 `json:"generation"`
}

// String returns namespace/name, the name leases and owners carry.
func (r Resource) String() string { return r.Namespace + "/" + r.Name }

// Postgres says how to reach one database.
type Postgres struct {
	// Hosts are 1 to 5 names or addresses; the one that accepts writes is found.
	Hosts []string `json:"hosts"`
	// Port is the same on all of them.
	Port int32 `json:"port"`
	// Database is the database's name.
	Database string `json:"database"`
	// Schema holds the tables.
	Schema string `json:"schema"`
	// CredentialsDir holds the files username and password.
	CredentialsDir string `json:"credentialsDir"`
	// TLS says how the connection is protected.
	TLS TLS `json:"tls"`
	// MaxConnections bounds the pool.
	MaxConnections int32 `json:"maxConnections"`
}

// TLS says how a connection is protected.
type TLS struct {
	// Mode is VerifyFull, VerifyCA or Insecure (plain text).
	Mode string `json:"mode"`
	// CAFile is a PEM bundle; empty means the system's roots.
	CAFile string `json:"caFile,omitempty"`
	// ClientCertificateDir holds tls.crt and tls.key.
	ClientCertificateDir string `json:"clientCertificateDir,omitempty"`
}

// Outbox locates the outbox tables.
type Outbox struct {
	// Table is the outbox; the other tables are named after it.
	Table string `json:"table"`
	// Shards is the number of independently ordered slices. It never changes.
	Shards int32 `json:"shards"`
	// PublishedRetention is how long published rows are kept.
	PublishedRetention Duration `json:"publishedRetention"`
	// Columns map a table that the team already has (layout StatusColumns); none means our own (layout Queue).
	Columns *Columns `json:"columns,omitempty"`
}

// Columns map a table that a team already has (layout StatusColumns) to what a relay needs of it. A name that is empty
// is a column that the table does not have.
type Columns struct {
	// ID is the event's id, a UUID that is unique in the table.
	ID string `json:"id"`
	// OrderingKey names what keeps its order; without it nothing is ordered.
	OrderingKey string `json:"orderingKey,omitempty"`
	// Version numbers the messages of a key upwards. Without it nothing is ordered.
	Version string `json:"version,omitempty"`
	// EventType is the event's type; without it the row's destination stands for it, else the table's name.
	EventType string `json:"eventType,omitempty"`
	// Destination is where the row goes; without it everything goes to the default destination.
	Destination string `json:"destination,omitempty"`
	// Payload is the message's data.
	Payload string `json:"payload"`
	// Headers is a JSON object of further headers.
	Headers string `json:"headers,omitempty"`
	// ContentType is the payload's media type; without it the column's type says it.
	ContentType string `json:"contentType,omitempty"`
	// Traceparent is a W3C Trace Context.
	Traceparent string `json:"traceparent,omitempty"`
	// OccurredAt is when the event happened, mostly the row's creation.
	OccurredAt string `json:"occurredAt,omitempty"`
	// Status says what became of the row. Without it a row waits for as long as it is there, and settling deletes it.
	Status string `json:"status,omitempty"`
	// AvailableAt is the time before which a row is not sent.
	AvailableAt string `json:"availableAt,omitempty"`
	// Attempts, PublishedAt and LastError are written for people to see; the relay keeps its own count.
	Attempts    string `json:"attempts,omitempty"`
	PublishedAt string `json:"publishedAt,omitempty"`
	LastError   string `json:"lastError,omitempty"`
	// Values are those of the status column.
	Values StatusValues `json:"values,omitzero"`
}

// StatusValues are the words of a status column. Pending and Published are needed where there is a status column.
type StatusValues struct {
	// Pending is what writers insert.
	Pending string `json:"pending,omitempty"`
	// Published is a row that the broker holds.
	Published string `json:"published,omitempty"`
	// Waiting is a row that was refused and is tried again; empty leaves such a row Pending.
	Waiting string `json:"waiting,omitempty"`
	// Failed is a dead letter; empty has rows that spent their retry budget tried on.
	Failed string `json:"failed,omitempty"`
}

// NATS says how to reach a stream, for a relay or a consumer.
type NATS struct {
	// Servers are nats://host:port, tls://host:port or host:port.
	Servers []string `json:"servers"`
	// Stream is the JetStream stream.
	Stream string `json:"stream"`
	// Topology is Verify or Declare.
	Topology string `json:"topology"`
	// CredentialsDir holds one of: the files username and password; nats-token; nkey; user.creds. Empty means that
	// no credentials are sent.
	CredentialsDir string `json:"credentialsDir,omitempty"`
	// TLS says how the connection is protected.
	TLS TLS `json:"tls"`
	// Subject is the relay's default destination.
	Subject string `json:"subject,omitempty"`
	// FilterSubjects are the part of the stream a consumer reads; none means all of it.
	FilterSubjects []string `json:"filterSubjects,omitempty"`
	// Durable is the consumer's durable.
	Durable string `json:"durable,omitempty"`
}

// Kafka says how to reach a Kafka cluster, for a relay or a consumer.
type Kafka struct {
	// BootstrapServers are host:port.
	BootstrapServers []string `json:"bootstrapServers"`
	// Mechanism is the SASL mechanism, Plain, ScramSHA256 or ScramSHA512; empty means none.
	Mechanism string `json:"saslMechanism,omitempty"`
	// CredentialsDir holds the files username and password for SASL.
	CredentialsDir string `json:"credentialsDir,omitempty"`
	// TLS says how the connection is protected.
	TLS TLS `json:"tls"`
	// Topic is the relay's default destination.
	Topic string `json:"topic,omitempty"`
	// Compression is None, Gzip, Snappy, Lz4 or Zstd, for a relay.
	Compression string `json:"compression,omitempty"`
	// TransactionalFencing has a relay's batches be transactions of the shard, which its latest holder alone can commit.
	TransactionalFencing bool `json:"transactionalFencing,omitempty"`
	// Topics are what a consumer reads.
	Topics []string `json:"topics,omitempty"`
	// Group is the consumer's group.
	Group string `json:"group,omitempty"`
	// OffsetReset is Fail or Earliest, for a consumer: what to do when the next message is gone.
	OffsetReset string `json:"offsetReset,omitempty"`
}

// RabbitMQ says how to reach an exchange, for a relay, or a queue, for a consumer.
type RabbitMQ struct {
	// Hosts are host:port.
	Hosts []string `json:"hosts"`
	// VirtualHost is the name space within RabbitMQ.
	VirtualHost string `json:"virtualHost"`
	// Topology is Verify or Declare.
	Topology string `json:"topology"`
	// CredentialsDir holds the files username and password.
	CredentialsDir string `json:"credentialsDir"`
	// TLS says how the connection is protected.
	TLS TLS `json:"tls"`
	// Exchange is where a relay's messages go, and RoutingKey its default destination on it.
	Exchange string `json:"exchange,omitempty"`
	// RoutingKey is that of messages whose row names no destination.
	RoutingKey string `json:"routingKey,omitempty"`
	// Queue is what a consumer reads.
	Queue string `json:"queue,omitempty"`
	// Bindings are added to the queue where Topology is Declare.
	Bindings []Binding `json:"bindings,omitempty"`
}

// Binding says which messages of an exchange a queue gets.
type Binding struct {
	// Exchange is where the messages come from.
	Exchange string `json:"exchange"`
	// RoutingKey is theirs, or a pattern.
	RoutingKey string `json:"routingKey"`
}

// Batch bounds what a lane reads and sends at once.
type Batch struct {
	// MaxMessages bounds a batch by number.
	MaxMessages int32 `json:"maxMessages"`
	// MaxBytes bounds a batch by payloads and headers, and the payload of a single message.
	MaxBytes int64 `json:"maxBytes"`
	// PollInterval is how often an idle lane looks.
	PollInterval Duration `json:"pollInterval"`
	// WakeUp is WakeUpNotify where idle lanes look at each commit too; empty where they do not.
	WakeUp string `json:"wakeUp,omitempty"`
	// PublishTimeout is how long the broker may take to confirm.
	PublishTimeout Duration `json:"publishTimeout"`
}

// Backoff bounds the growing, jittered pause between tries.
type Backoff struct {
	// Initial is the longest pause after the first failure; each further one doubles it.
	Initial Duration `json:"initial"`
	// Max is the longest pause of all.
	Max Duration `json:"max"`
}

// Budget bounds how often and for how long a message may fail, and the retries by what else is sent.
type Budget struct {
	// MaxAttempts is the number of failures with which a message becomes a dead letter.
	MaxAttempts int32 `json:"maxAttempts"`
	// MaxElapsed is the failing time with which it does.
	MaxElapsed Duration `json:"maxElapsed"`
	// RetryPercent bounds retries as a percentage of the messages sent for the first time.
	RetryPercent int32 `json:"retryPercent"`
	// MinRetriesPerSecond are allowed in any case.
	MinRetriesPerSecond int32 `json:"minRetriesPerSecond"`
}

// Consumer is the configuration of a consumer process.
type Consumer struct {
	// Version is that of the file's form.
	Version int `json:"version"`
	// Resource is whom the consumer runs for.
	Resource Resource `json:"resource"`
	// RunPolicy is Run, Pause or Drain.
	RunPolicy string `json:"runPolicy"`
	// ConsumerName is the scope of the inbox. It never changes.
	ConsumerName string `json:"consumerName"`
	// Kafka, NATS or RabbitMQ is the source: exactly one of them.
	Kafka *Kafka `json:"kafka,omitempty"`
	// NATS is a durable of a JetStream stream.
	NATS *NATS `json:"nats,omitempty"`
	// RabbitMQ is a queue.
	RabbitMQ *RabbitMQ `json:"rabbitMQ,omitempty"`
	// Inbox locates the tables in the database of the effects.
	Inbox Inbox `json:"inbox"`
	// SQL is the handler.
	SQL *SQLHandler `json:"sql"`
	// Ordering says what order is kept.
	Ordering Ordering `json:"ordering"`
	// Validation bounds a message before it is decoded.
	Validation Validation `json:"validation"`
	// Concurrency bounds the work in flight.
	Concurrency Concurrency `json:"concurrency"`
	// Backoff bounds the pause of a message whose handler failed.
	Backoff Backoff `json:"backoff"`
	// StatusTick is how often counts are taken.
	StatusTick Duration `json:"statusInterval"`
}

// Inbox locates the inbox tables and says how long they remember.
type Inbox struct {
	// Postgres is the database of the inbox and of the effects.
	Postgres Postgres `json:"postgres"`
	// Retention is how long an event id is remembered.
	Retention Duration `json:"retention"`
	// ReplayHorizon is how long ago a message may have been sent that is replayed.
	ReplayHorizon Duration `json:"replayHorizon"`
}

// SQLHandler applies one statement a message, chosen by event type.
type SQLHandler struct {
	// Routes are looked up by event type; each type has one.
	Routes []SQLRoute `json:"routes"`
	// OnUnmatched is Ignore or DeadLetter.
	OnUnmatched string `json:"onUnmatched"`
}

// SQLRoute maps event types, exact or "prefix.*", to a statement with named parameters.
type SQLRoute struct {
	// EventTypes are exact, "prefix.*" or "*".
	EventTypes []string `json:"eventTypes"`
	// Statement is one SQL statement with named parameters such as @ordering_key.
	Statement string `json:"statement"`
}

// Ordering says what order the consumer keeps.
type Ordering struct {
	// Mode is PerKey or None.
	Mode string `json:"mode"`
	// Versions is Enforce, IgnoreOlder or Unchecked.
	Versions string `json:"versions"`
	// Delivery is Shared or SingleActive.
	Delivery string `json:"delivery"`
	// GapTimeout is how long a gap may last before OnGapTimeout.
	GapTimeout Duration `json:"gapTimeout"`
	// OnGapTimeout is Hold or Apply.
	OnGapTimeout string `json:"onGapTimeout"`
}

// Validation bounds a message before it is decoded.
type Validation struct {
	// MaxBytes bounds a message's data.
	MaxBytes int64 `json:"maxBytes"`
	// MaxDepth bounds the nesting of JSON.
	MaxDepth int32 `json:"maxDepth"`
}

// Concurrency bounds the consumer.
type Concurrency struct {
	// Lanes is the number of transactions at once.
	Lanes int32 `json:"lanes"`
	// Prefetch bounds what the broker hands out unacknowledged.
	Prefetch int32 `json:"prefetch"`
	// MaxBatchMessages bounds one transaction.
	MaxBatchMessages int32 `json:"maxBatchMessages"`
	// HandlerTimeout bounds one transaction's time.
	HandlerTimeout Duration `json:"handlerTimeout"`
}
