package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OutboxRelay moves the messages of one outbox table to a broker: each at least once, in order per key, and settled
// only after the broker's durable confirmation.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=obr,categories=postrider
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the relay of this generation runs and reaches its database and its broker"
// +kubebuilder:printcolumn:name="Backlog",type=integer,JSONPath=`.status.backlog.messages`,description="Messages not yet published; empty while unknown"
// +kubebuilder:printcolumn:name="Oldest",type=date,JSONPath=`.status.backlog.oldestMessageTime`,description="How long the oldest of them has waited"
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.deadLetters.open`,description="Open dead letters"
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Destination",type=string,JSONPath=`.status.destination`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Rate",type=integer,priority=1,JSONPath=`.status.rates.publishedPerSecond`,description="Messages published a second"
// +kubebuilder:printcolumn:name="Retrying",type=integer,priority=1,JSONPath=`.status.backlog.retrying`
// +kubebuilder:printcolumn:name="Blocked",type=integer,priority=1,JSONPath=`.status.backlog.blockedMessages`,description="Messages that wait behind an open dead letter of their key"
// +kubebuilder:printcolumn:name="Drain",type=string,priority=1,JSONPath=`.status.backlog.estimatedDrainTime`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 54",message="metadata.name must be at most 54 characters, so that the names made from it fit"
type OutboxRelay struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard metadata of the object. Its name is at most 54 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the relay should do.
	// +required
	Spec OutboxRelaySpec `json:"spec,omitzero"`

	// status is what the relay was seen to do.
	// +optional
	Status OutboxRelayStatus `json:"status,omitzero"`
}

// OutboxRelayList is a list of relays.
// +kubebuilder:object:root=true
type OutboxRelayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the relays.
	Items []OutboxRelay `json:"items"`
}

// OutboxRelaySpec is what a relay should do.
// +kubebuilder:validation:XValidation:rule="duration(self.batch.publishTimeout) + duration('5s') < duration(self.lease.duration)",fieldPath=".lease.duration",message="lease.duration must be longer than batch.publishTimeout plus 5s: else another relay may take over while a publish is still under way"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || self.replicas <= self.outbox.shards",fieldPath=".replicas",message="replicas must not exceed outbox.shards: each shard has one owner, further replicas would idle"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || self.replicas * self.source.postgres.maxConnections <= 1000",fieldPath=".replicas",message="replicas times source.postgres.maxConnections must not exceed 1000 connections: lower one of them"
// +kubebuilder:validation:XValidation:rule="self.ordering.mode != 'PerKey' || self.outbox.layout != 'StatusColumns' || ((has(self.outbox.columns) && has(self.outbox.columns.version) ? size(self.outbox.columns.version) > 0 : has(self.outbox.preset) && self.outbox.preset == 'Postrider') && (has(self.outbox.columns) && has(self.outbox.columns.orderingKey) ? size(self.outbox.columns.orderingKey) > 0 : has(self.outbox.preset)))",fieldPath=".ordering.mode",message="ordering.mode PerKey needs outbox.columns.orderingKey and outbox.columns.version: without a version nothing tells which message of a key comes first; name them or choose None"
type OutboxRelaySpec struct {
	// runPolicy says whether the relay publishes. Pause keeps the leases and publishes nothing; Drain publishes
	// what is claimed, gives the leases back and stops. A change is taken over live. Defaults to Run.
	// +optional
	// +kubebuilder:default=Run
	RunPolicy RunPolicy `json:"runPolicy,omitempty"`

	// source is the database that holds the outbox.
	// +required
	Source RelaySource `json:"source,omitzero"`

	// outbox is the table that messages are read from.
	// +optional
	// +kubebuilder:default={}
	Outbox Outbox `json:"outbox,omitzero"`

	// destination is the broker that messages go to.
	// +required
	Destination Destination `json:"destination,omitzero"`

	// ordering says what order the relay keeps.
	// +optional
	// +kubebuilder:default={}
	Ordering RelayOrdering `json:"ordering,omitzero"`

	// lease says how long a relay owns a shard.
	// +optional
	// +kubebuilder:default={}
	Lease Lease `json:"lease,omitzero"`

	// batch bounds what is read and published at once.
	// +optional
	// +kubebuilder:default={}
	Batch Batch `json:"batch,omitzero"`

	// retryBudget bounds how often a message is tried that fails by its own fault, and the pauses between. Failures of
	// the surroundings, such as a broker that is down, are retried without end and use up nothing.
	// +optional
	// +kubebuilder:default={}
	RetryBudget RelayRetryBudget `json:"retryBudget,omitzero"`

	// replicas is the number of Pods, 0 to 64 and at most outbox.shards. Unset, 2 are made and the number is then
	// left to whoever scales the Deployment; `kubectl scale` of this resource needs it set. Pods come or go live
	// and share the shards anew.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	Replicas *int32 `json:"replicas,omitempty"`

	// workload says where and how the Pods run. A change rolls them.
	// +optional
	Workload Workload `json:"workload,omitzero"`

	// statusInterval is how often status is looked at, and so at most rewritten, 5s to 1h. Conditions become
	// Unknown after three intervals without a report. A change is taken over live. Defaults to 15s.
	// +optional
	// +kubebuilder:default="15s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('1h')",message="must be 5s to 1h"
	StatusInterval Duration `json:"statusInterval,omitempty"`
}

// RelaySource is where a relay reads.
type RelaySource struct {
	// postgres is the database that the writing service uses: messages are written in its transactions.
	// +required
	Postgres Postgres `json:"postgres,omitzero"`
}

// Outbox locates the outbox table and says who looks after it.
// +kubebuilder:validation:XValidation:rule="!has(self.schemaPolicy) || self.schemaPolicy != 'Managed' || has(self.migrationCredentialsSecretRef)",fieldPath=".migrationCredentialsSecretRef",message="schemaPolicy Managed needs migrationCredentialsSecretRef, the owner of the tables; or choose Verify and run postrider schema apply yourself"
// +kubebuilder:validation:XValidation:rule="(has(self.layout) && self.layout == 'StatusColumns') || (!has(self.preset) && !has(self.columns))",fieldPath=".layout",message="preset and columns are for layout StatusColumns, a table that the team already has"
// +kubebuilder:validation:XValidation:rule="!has(self.layout) || self.layout != 'StatusColumns' || has(self.preset) || (has(self.columns) && has(self.columns.id) && has(self.columns.payload))",fieldPath=".layout",message="layout StatusColumns needs a preset, or columns with id and payload"
// +kubebuilder:validation:XValidation:rule="!has(self.columns) || !has(self.columns.status) || size(self.columns.status) == 0 || has(self.columns.values) || (has(self.preset) && self.preset != 'DebeziumOutbox')",fieldPath=".columns.status",message="columns.status needs columns.values with pending and published"
// +kubebuilder:validation:XValidation:rule="!has(self.columns) || !has(self.columns.values) || (has(self.columns.status) ? size(self.columns.status) > 0 : has(self.preset) && self.preset != 'DebeziumOutbox')",fieldPath=".columns.values",message="columns.values are those of columns.status, which is not set"
type Outbox struct {
	// layout says whose table the outbox is. Queue is Postrider's own, made by its migrations; StatusColumns is one that
	// the team already has, named by preset and columns, whose rows are settled in place and which is never altered. It
	// cannot change. Defaults to Queue.
	// +optional
	// +kubebuilder:default=Queue
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="layout cannot change: the tables beside the outbox are others; make a new relay"
	Layout OutboxLayout `json:"layout,omitempty"`

	// preset names the columns of a well-known table, for layout StatusColumns: Postrider is the classic table with a
	// status column and a version of each aggregate, DebeziumOutbox that of Debezium's outbox event router, OpenOutbox
	// that of the Open Outbox relay. A change is taken over live.
	// +optional
	Preset ColumnPreset `json:"preset,omitempty"`

	// columns name the table's columns, for layout StatusColumns, as far as they are not as the preset says.
	// +optional
	Columns *OutboxColumns `json:"columns,omitempty"`

	// table is the outbox table's name, one identifier of at most 40 bytes; the tables beside it add a suffix. A
	// change is taken over live, and what waits in the old table stays there; with schemaPolicy Managed it rolls the
	// Pods as well, so that the new one is made. Defaults to message_outbox.
	// +optional
	// +kubebuilder:default=message_outbox
	Table TableName `json:"table,omitempty"`

	// shards is the number of slices the table is shared out in, 1 to 64: one lane works on each, and no more
	// replicas are of use. It cannot change, since keys would move between shards. Defaults to 8.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="shards cannot change: keys would move between shards and lose their order; make a new table and a new relay"
	Shards int32 `json:"shards,omitempty"`

	// schemaPolicy says who makes the tables. Managed applies the migrations before the relay starts, with the
	// rights of migrationCredentialsSecretRef; Verify only checks, and reports in SchemaReady what is missing. A
	// change rolls the Pods. Defaults to Managed.
	// +optional
	// +kubebuilder:default=Managed
	SchemaPolicy SchemaPolicy `json:"schemaPolicy,omitempty"`

	// migrationCredentialsSecretRef names the Secret whose keys username and password log in as the owner of the
	// tables. Only the step that applies migrations sees it. A change rolls the Pods. Used with schemaPolicy
	// Managed.
	// +optional
	MigrationCredentialsSecretRef *SecretReference `json:"migrationCredentialsSecretRef,omitempty"`

	// publishedRetention is how long published messages are at least kept in the archive for audit and re-sending,
	// 1m to 87600h; they stay up to a seventh longer. A change is taken over live. Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('87600h')",message="must be 1m to 87600h"
	PublishedRetention Duration `json:"publishedRetention,omitempty"`
}

// Destination is the broker that messages go to. Exactly one broker is set.
// +kubebuilder:validation:ExactlyOneOf=kafka;nats;rabbitMQ
type Destination struct {
	// kafka is a topic of a Kafka cluster.
	// +optional
	Kafka *KafkaDestination `json:"kafka,omitempty"`

	// rabbitMQ is an exchange of a RabbitMQ.
	// +optional
	RabbitMQ *RabbitMQDestination `json:"rabbitMQ,omitempty"`

	// nats is a JetStream stream.
	// +optional
	NATS *NATSDestination `json:"nats,omitempty"`

	// allowed lists what a row's destination may name besides the default, at most 64 patterns: subjects of nats,
	// topics of kafka, routing keys of rabbitMQ or an exchange and a routing key with / between; in a pattern * stands
	// for one part between dots, and > at the end for all further ones. A row that names anything else is refused. Empty,
	// only the default destination is allowed. A change is taken over live.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	Allowed []SubjectPattern `json:"allowed,omitempty"`

	// messageFormat says how messages are laid out. Native has what is known of a message in headers of Postrider's own
	// and the payload as the body; CloudEventsBinary the same in the headers of the broker's CloudEvents binding, and
	// CloudEventsStructured all in a JSON object. InboxConsumers read all three, so that a change, which is taken over
	// live, needs no other. CloudEvents refuses rows whose source is no URI reference. Defaults to Native.
	// +optional
	// +kubebuilder:default=Native
	MessageFormat MessageFormat `json:"messageFormat,omitempty"`
}

// MessageFormat says how messages are laid out.
// +kubebuilder:validation:Enum=Native;CloudEventsBinary;CloudEventsStructured
type MessageFormat string

// The message formats.
const (
	// MessageFormatNative has the envelope in headers of our own names.
	MessageFormatNative MessageFormat = "Native"
	// MessageFormatCloudEventsBinary has it in the headers of the broker's CloudEvents binding.
	MessageFormatCloudEventsBinary MessageFormat = "CloudEventsBinary"
	// MessageFormatCloudEventsStructured has it, with the payload, in a JSON object.
	MessageFormatCloudEventsStructured MessageFormat = "CloudEventsStructured"
)

// KafkaDestination is a Kafka cluster and the topic that messages go to.
type KafkaDestination struct {
	KafkaConnection `json:",inline"`

	// topic is where messages go whose row names no destination, at most 249 bytes. It is never made by the relay:
	// while it is missing, condition BrokerReachable says how to make it. A change is taken over live.
	// +required
	Topic TopicName `json:"topic,omitempty"`

	// compression is how batches travel and are kept. Consumers undo it by themselves. A change is taken over live.
	// Defaults to None.
	// +optional
	// +kubebuilder:default=None
	Compression Compression `json:"compression,omitempty"`

	// transactionalFencing Enabled has Kafka itself refuse what a relay still sends that has lost its shard and does not
	// know: a batch is one transaction under the transactional id postrider/NAMESPACE/NAME/SHARD, which the user needs
	// the rights Write and Describe to. Only consumers that read committed records (isolation.level=read_committed; an
	// InboxConsumer does) are kept from what was refused. It costs throughput, and is no promise of "exactly once": the
	// consumer's inbox is. A change is taken over live. Defaults to Disabled.
	// +optional
	// +kubebuilder:default=Disabled
	TransactionalFencing FencingPolicy `json:"transactionalFencing,omitempty"`
}

// RabbitMQDestination is a virtual host of a RabbitMQ and the exchange that messages go to.
type RabbitMQDestination struct {
	RabbitMQConnection `json:",inline"`

	// exchange is where messages go, at most 255 bytes; AMQP's default exchange is none. A change is taken over live.
	// +required
	Exchange ExchangeName `json:"exchange,omitempty"`

	// routingKey is that of messages whose row names no destination, at most 255 bytes. A queue must be bound for it:
	// what no queue takes is refused. A change is taken over live.
	// +required
	RoutingKey RoutingKey `json:"routingKey,omitempty"`
}

// NATSDestination is a JetStream stream and the subject that messages go to.
type NATSDestination struct {
	NATSConnection `json:",inline"`

	// subject is where messages go whose row names no destination, at most 255 bytes. The stream must take it.
	// A change is taken over live.
	// +required
	Subject Subject `json:"subject,omitempty"`
}

// RelayOrdering says what order a relay keeps.
type RelayOrdering struct {
	// mode says whether messages of one ordering key keep their order. PerKey holds the later messages of a key
	// while an earlier one waits for its retry; None publishes them past it. A change is taken over live. Defaults
	// to PerKey.
	// +optional
	// +kubebuilder:default=PerKey
	Mode OrderingMode `json:"mode,omitempty"`

	// onDeadLetter says what becomes of the later messages of a key behind a dead letter. BlockKey holds them until a
	// person replays or discards it; SkipMessage publishes a marker at its place, so that consumers which compare
	// versions go on, and then the others. With mode None it has no effect. A change is taken over live and decides
	// about dead letters from then on. Defaults to BlockKey.
	// +optional
	// +kubebuilder:default=BlockKey
	OnDeadLetter DeadLetterAction `json:"onDeadLetter,omitempty"`
}

// DeadLetterAction says what becomes of a key behind a dead letter.
// +kubebuilder:validation:Enum=BlockKey;SkipMessage
type DeadLetterAction string

// The actions.
const (
	// BlockKey holds the key until a person decides.
	BlockKey DeadLetterAction = "BlockKey"
	// SkipMessage goes on behind a marker.
	SkipMessage DeadLetterAction = "SkipMessage"
)

// RelayRetryBudget bounds how often and for how long a message may fail until it becomes a dead letter. Only failures
// count that are the message's own: a refusal, or a failure that tells nothing, repeated while messages of other keys get
// through to the same place.
type RelayRetryBudget struct {
	RetryBudget `json:",inline"`

	// maxAttempts is the number of such failures with which a message becomes a dead letter, 1 to 1000. A change is taken
	// over live and counts from a message's next failure. Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// maxElapsed is the time for which a message may fail, whatever the number of its attempts, 1s to 8760h. Times in
	// which its part of the broker was down are left out. A change is taken over live. Defaults to 24h.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="must be 1s to 8760h"
	MaxElapsed Duration `json:"maxElapsed,omitempty"`

	// retryPercent bounds the messages that are sent again, as a percentage of those sent for the first time, to each
	// part of the broker, 0 to 100; so the end of an outage is not followed by everything at once. A change is taken
	// over live. Defaults to 20.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	RetryPercent *int32 `json:"retryPercent,omitempty"`

	// minRetriesPerSecond is the number of messages that each worker may send again every second in any case, 1 to 10000.
	// A change is taken over live. Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MinRetriesPerSecond int32 `json:"minRetriesPerSecond,omitempty"`
}

// Lease says how long a relay owns a shard.
type Lease struct {
	// duration is how long a relay owns a shard without renewing, 6s to 1h, and above batch.publishTimeout plus 5s.
	// After a crash its shards stand still for at most that long. A change is taken over live. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('6s') && duration(self) <= duration('1h')",message="must be 6s to 1h"
	Duration Duration `json:"duration,omitempty"`
}

// WakeUp says how an idle relay learns of new messages.
// +kubebuilder:validation:Enum=Poll;Notify
type WakeUp string

// The ways to wake up.
const (
	WakeUpPoll   WakeUp = "Poll"
	WakeUpNotify WakeUp = "Notify"
)

// Batch bounds what a lane reads and publishes at once.
type Batch struct {
	// maxMessages is the largest number of messages in a batch, 1 to 10000. A change is taken over live. Defaults
	// to 500.
	// +optional
	// +kubebuilder:default=500
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxMessages int32 `json:"maxMessages,omitempty"`

	// maxBytes is the largest sum of payloads and headers in a batch, 1Ki to 64Mi. A single payload above it is refused
	// without being loaded. A change is taken over live. Defaults to 4Mi.
	// +optional
	// +kubebuilder:default="4Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Ki')) >= 0 && quantity(string(self)).compareTo(quantity('64Mi')) <= 0",message="must be 1Ki to 64Mi"
	MaxBytes resource.Quantity `json:"maxBytes,omitzero"`

	// pollInterval is the shortest wait before an empty table is read again, 10ms to 1m; an idle relay waits up to
	// five times as long. A change is taken over live. Defaults to 200ms.
	// +optional
	// +kubebuilder:default="200ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('1m')",message="must be 10ms to 1m"
	PollInterval Duration `json:"pollInterval,omitempty"`

	// wakeUp says how an idle relay learns of new messages. Poll: it looks once a pollInterval. Notify: the database tells
	// it of each commit as well, which takes a trigger on the outbox table (schemaPolicy Managed makes it, else
	// `postrider schema apply outbox --notify`; for layout StatusColumns `schema print` prints it), one more connection a
	// process, and a database-wide lock for a moment of each transaction that writes messages. Where notifications do not
	// come, as behind a pooler in transaction mode, the condition NotifyUnavailable says so, and the relay polls. A change
	// rolls the Pods where schemaPolicy is Managed, else it is taken over live. Defaults to Poll.
	// +optional
	// +kubebuilder:default=Poll
	WakeUp WakeUp `json:"wakeUp,omitempty"`

	// publishTimeout is the longest wait for the broker's confirmation of a batch, 100ms to 10m. What is not
	// confirmed by then is sent again with the same id. A change is taken over live. Defaults to 10s.
	// +optional
	// +kubebuilder:default="10s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('10m')",message="must be 100ms to 10m"
	PublishTimeout Duration `json:"publishTimeout,omitempty"`
}

// OutboxRelayStatus is what a relay was seen to do. A count that nobody knows is absent, never 0.
type OutboxRelayStatus struct {
	WorkerStatus `json:",inline"`

	// backlog counts the messages that are not published yet. Absent while unknown.
	// +optional
	Backlog *Backlog `json:"backlog,omitempty"`

	// rates are the messages a second, averaged over the last status interval and rounded. Absent while unknown.
	// +optional
	Rates *RelayRates `json:"rates,omitempty"`

	// deadLetters counts the open dead letters of this relay. Absent while unknown.
	// +optional
	DeadLetters *DeadLetterCount `json:"deadLetters,omitempty"`

	// lease counts the shards and those that a relay holds. Absent while unknown.
	// +optional
	Lease *LeaseStatus `json:"lease,omitempty"`

	// destination names the broker and the default destination, such as nats/orders.events.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=300
	Destination string `json:"destination,omitempty"`

	// lastPublishedTime is when a message was last published, as far as known; it moves only with another change of
	// status.
	// +optional
	LastPublishedTime *metav1.Time `json:"lastPublishedTime,omitempty"`
}

// Precision says how a count is meant.
// +kubebuilder:validation:Enum=Exact;AtLeast
type Precision string

// The precisions.
const (
	// PrecisionExact is a full count.
	PrecisionExact Precision = "Exact"
	// PrecisionAtLeast is a count that stopped at its bound.
	PrecisionAtLeast Precision = "AtLeast"
)

// Backlog counts messages that are not settled. It holds times, not ages: nothing is rewritten while nothing moves.
type Backlog struct {
	// messages is the number of messages not yet published.
	// +required
	// +kubebuilder:validation:Minimum=0
	Messages *int64 `json:"messages,omitempty"`

	// precision is Exact, or AtLeast where counting stopped at its bound.
	// +required
	Precision Precision `json:"precision,omitempty"`

	// oldestMessageTime is when the oldest of them was written. Absent without any.
	// +optional
	OldestMessageTime *metav1.Time `json:"oldestMessageTime,omitempty"`

	// oldestBlockedTime is when the oldest message behind an open dead letter was written. Absent without any.
	// +optional
	OldestBlockedTime *metav1.Time `json:"oldestBlockedTime,omitempty"`

	// inFlight is the number of messages sent to the broker and not yet confirmed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	InFlight *int64 `json:"inFlight,omitempty"`

	// retrying is the number of messages that wait for their next try, with those held behind them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Retrying *int64 `json:"retrying,omitempty"`

	// blockedMessages is the number of messages that wait behind an open dead letter of their key.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BlockedMessages *int64 `json:"blockedMessages,omitempty"`

	// blockedKeys is the number of keys with such messages.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BlockedKeys *int64 `json:"blockedKeys,omitempty"`

	// estimatedDrainTime is how long publishing the backlog would take at the current rate. Absent while unknown.
	// +optional
	EstimatedDrainTime Duration `json:"estimatedDrainTime,omitempty"`
}

// RelayRates are messages a second.
type RelayRates struct {
	// publishedPerSecond is the number of messages published a second.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PublishedPerSecond *int64 `json:"publishedPerSecond,omitempty"`

	// arrivedPerSecond is the number of messages written to the outbox a second.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ArrivedPerSecond *int64 `json:"arrivedPerSecond,omitempty"`
}

// LeaseStatus counts shards.
type LeaseStatus struct {
	// shards is the number of shards of the table.
	// +required
	// +kubebuilder:validation:Minimum=1
	Shards int32 `json:"shards,omitempty"`

	// held is the number of shards that a relay holds.
	// +required
	// +kubebuilder:validation:Minimum=0
	Held *int32 `json:"held,omitempty"`
}
