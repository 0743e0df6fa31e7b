package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InboxConsumer applies a broker's messages to a database: each effect at most once within the inbox's retention,
// in one transaction with its inbox row, and acknowledged only after the commit.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=ibc,categories=postrider
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the consumer of this generation runs and reaches its broker and its database"
// +kubebuilder:printcolumn:name="Lag",type=integer,JSONPath=`.status.lag.messages`,description="Messages not yet applied; empty while unknown"
// +kubebuilder:printcolumn:name="Oldest",type=date,JSONPath=`.status.lag.oldestMessageTime`,description="How long the oldest of them has waited"
// +kubebuilder:printcolumn:name="Parked",type=integer,JSONPath=`.status.inbox.parked`,description="Messages that wait in the database for their turn or their retry"
// +kubebuilder:printcolumn:name="Gaps",type=integer,JSONPath=`.status.inbox.gaps`,description="Keys that wait for a missing version"
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.deadLetters.open`,description="Open dead letters"
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.status.source`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Rate",type=integer,priority=1,JSONPath=`.status.rates.appliedPerSecond`,description="Messages applied a second"
// +kubebuilder:printcolumn:name="Blocked",type=integer,priority=1,JSONPath=`.status.inbox.blockedKeys`,description="Keys that wait behind an open dead letter"
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 54",message="metadata.name must be at most 54 characters, so that the names made from it fit"
type InboxConsumer struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard metadata of the object. Its name is at most 54 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the consumer should do.
	// +required
	Spec InboxConsumerSpec `json:"spec,omitzero"`

	// status is what the consumer was seen to do.
	// +optional
	Status InboxConsumerStatus `json:"status,omitzero"`
}

// InboxConsumerList is a list of consumers.
// +kubebuilder:object:root=true
type InboxConsumerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the consumers.
	Items []InboxConsumer `json:"items"`
}

// InboxConsumerSpec is what a consumer should do.
// +kubebuilder:validation:XValidation:rule="!has(self.source.nats) || self.ordering.mode != 'PerKey' || self.ordering.versions == 'Enforce' || self.ordering.delivery == 'SingleActive'",fieldPath=".ordering",message="with nats, ordering.mode PerKey needs ordering.versions Enforce or ordering.delivery SingleActive: redeliveries come out of order; or choose mode None"
// +kubebuilder:validation:XValidation:rule="!has(self.source.kafka) || self.ordering.delivery == 'Shared'",fieldPath=".ordering.delivery",message="with kafka, ordering.delivery must be Shared: a partition keeps its order and is with one replica anyway"
// +kubebuilder:validation:XValidation:rule="!has(self.source.rabbitMQ) || self.ordering.mode != 'PerKey' || self.ordering.versions == 'Enforce' || self.ordering.delivery == 'SingleActive'",fieldPath=".ordering",message="with rabbitMQ, ordering.mode PerKey needs ordering.versions Enforce or ordering.delivery SingleActive: redeliveries come out of order; or choose mode None"
// +kubebuilder:validation:XValidation:rule="!has(self.source.rabbitMQ) || self.concurrency.prefetch <= 65535",fieldPath=".concurrency.prefetch",message="with rabbitMQ, concurrency.prefetch must not exceed 65535"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || self.replicas * self.inbox.postgres.maxConnections <= 1000",fieldPath=".replicas",message="replicas times inbox.postgres.maxConnections must not exceed 1000 connections: lower one of them"
type InboxConsumerSpec struct {
	// runPolicy says whether the consumer applies messages. Pause keeps the connections and takes nothing; Drain
	// finishes what was received and stops. A change is taken over live. Defaults to Run.
	// +optional
	// +kubebuilder:default=Run
	RunPolicy RunPolicy `json:"runPolicy,omitempty"`

	// consumerName names the inbox: what one consumerName has applied is never applied again under it, whatever
	// this resource is called. 1 to 128 bytes: letters, digits and -, in parts joined by /, such as shop/billing.
	// It cannot change.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(/[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="must be letters, digits and -, in parts joined by /, such as shop/billing"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="consumerName cannot change: everything in the stream would be applied again; make a new consumer"
	ConsumerName string `json:"consumerName,omitempty"`

	// source is the broker that messages come from.
	// +required
	Source ConsumerSource `json:"source,omitzero"`

	// inbox is the database of the effects, which also remembers what was applied.
	// +required
	Inbox Inbox `json:"inbox,omitzero"`

	// handler says what a message does.
	// +required
	Handler Handler `json:"handler,omitzero"`

	// ordering says what order the consumer keeps.
	// +optional
	// +kubebuilder:default={}
	Ordering ConsumerOrdering `json:"ordering,omitzero"`

	// validation bounds a message before it is decoded.
	// +optional
	// +kubebuilder:default={}
	Validation Validation `json:"validation,omitzero"`

	// concurrency bounds what is worked on at once.
	// +optional
	// +kubebuilder:default={}
	Concurrency Concurrency `json:"concurrency,omitzero"`

	// retryBudget bounds the pauses between the tries of a message. Failures of the surroundings, such as a
	// database that is down, are retried without end and use up nothing.
	// +optional
	// +kubebuilder:default={}
	RetryBudget RetryBudget `json:"retryBudget,omitzero"`

	// replicas is the number of Pods, 0 to 100. Unset, 2 are made and the number is then left to whoever scales the
	// Deployment; `kubectl scale` of this resource needs it set. Pods come or go live.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
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

// ConsumerSource is the broker that messages come from. Exactly one broker is set.
// +kubebuilder:validation:ExactlyOneOf=kafka;nats;rabbitMQ
type ConsumerSource struct {
	// kafka is a consumer group that reads topics of a Kafka cluster.
	// +optional
	Kafka *KafkaSource `json:"kafka,omitempty"`

	// nats is a durable consumer of a JetStream stream.
	// +optional
	NATS *NATSSource `json:"nats,omitempty"`

	// rabbitMQ is a queue of a RabbitMQ.
	// +optional
	RabbitMQ *RabbitMQSource `json:"rabbitMQ,omitempty"`
}

// KafkaSource is a consumer group that reads topics of a Kafka cluster. A group that is new begins at the oldest
// message that the topics hold.
type KafkaSource struct {
	KafkaConnection `json:",inline"`

	// topics are 1 to 16 topics to consume. They are never made by the consumer: while one is missing, condition
	// SourceReachable says how to make it, and the others are read. Under ordering.versions Enforce a consumer needs
	// all messages of a producer's destination. A change is taken over live.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	Topics []TopicName `json:"topics,omitempty"`

	// group is the consumer group at the broker, at most 255 bytes. Unset, it is consumerName with _ for each /, such as
	// shop_billing. Consumers that share one group share its messages. Each partition is with one replica at a time:
	// replicas beyond the number of partitions wait. A change is taken over live; the new group starts at the oldest
	// message, and the inbox drops what was applied before.
	// +optional
	Group GroupName `json:"group,omitempty"`

	// offsetReset says what becomes of a partition whose next message was deleted before it was consumed. Fail stops at
	// the partition and says so in SourceReachable, while the others go on; Earliest goes on with the oldest message that
	// is left. A change is taken over live. Defaults to Fail.
	// +optional
	// +kubebuilder:default=Fail
	OffsetReset OffsetReset `json:"offsetReset,omitempty"`
}

// RabbitMQSource is a queue of a RabbitMQ.
// +kubebuilder:validation:XValidation:rule="!has(self.bindings) || self.topology == 'Declare'",fieldPath=".bindings",message="bindings are made under topology Declare only: choose it, or bind the queue yourself"
type RabbitMQSource struct {
	RabbitMQConnection `json:",inline"`

	// queue is the queue to consume, at most 255 bytes; a quorum queue, or one broken node can lose what it holds.
	// Consumers that share one queue share its messages. Under topology Declare it is made as a durable quorum queue, and
	// one that was made otherwise is not consumed. A change is taken over live: what the old queue still holds stays in
	// it.
	// +required
	Queue QueueName `json:"queue,omitempty"`

	// bindings say what the queue gets, at most 64. Under topology Declare they are added to those that it has, and none
	// is taken away. Under ordering.versions Enforce the queue needs all messages of a producer's destination: a part
	// makes gaps. A change is taken over live.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Bindings []RabbitMQBinding `json:"bindings,omitempty"`
}

// RabbitMQBinding says which messages of an exchange a queue gets.
type RabbitMQBinding struct {
	// exchange is where messages come from, at most 255 bytes.
	// +required
	Exchange ExchangeName `json:"exchange,omitempty"`

	// routingKey is that of the messages, at most 255 bytes. With a topic exchange * stands for one word and # for any
	// number of words, such as orders.#.
	// +required
	RoutingKey BindingKey `json:"routingKey,omitempty"`
}

// NATSSource is a durable consumer of a JetStream stream.
type NATSSource struct {
	NATSConnection `json:",inline"`

	// filterSubjects picks the subjects to consume, at most 64 patterns in which * stands for one part and > at the
	// end for all further ones. Empty takes the whole stream. A filter that takes only a part of what one producer
	// destination carries makes gaps under ordering.versions Enforce. A change is taken over live.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	FilterSubjects []SubjectPattern `json:"filterSubjects,omitempty"`

	// durable is the name of the durable consumer at the broker, at most 128 bytes. Unset, it is consumerName with
	// _ for each /, such as shop_billing. Consumers that share one durable share its messages. A change is taken
	// over live; the new durable starts at the beginning of the stream, and the inbox drops what was applied
	// before.
	// +optional
	Durable DurableName `json:"durable,omitempty"`
}

// Inbox is the database of a consumer's effects.
// +kubebuilder:validation:XValidation:rule="self.schemaPolicy != 'Managed' || has(self.migrationCredentialsSecretRef)",fieldPath=".migrationCredentialsSecretRef",message="schemaPolicy Managed needs migrationCredentialsSecretRef, the owner of the tables; or choose Verify and run postrider schema apply yourself"
// +kubebuilder:validation:XValidation:rule="duration(self.retention) >= duration(self.replayHorizon)",fieldPath=".retention",message="retention must be at least replayHorizon: a message replayed after its inbox row is gone would be applied again"
type Inbox struct {
	// postgres is the database that effects are written to. The inbox's tables live in it too.
	// +required
	Postgres Postgres `json:"postgres,omitzero"`

	// retention is how long applied messages are remembered, 1m to 87600h and at least replayHorizon. Within it an
	// effect is applied at most once. A change is taken over live. Defaults to 720h.
	// +optional
	// +kubebuilder:default="720h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('87600h')",message="must be 1m to 87600h"
	Retention Duration `json:"retention,omitempty"`

	// replayHorizon is the age of the oldest message that may still be delivered again, by the broker's own
	// retention or by a replay, up to retention. Nothing younger is forgotten. A change is taken over live.
	// Defaults to 336h.
	// +optional
	// +kubebuilder:default="336h"
	ReplayHorizon Duration `json:"replayHorizon,omitempty"`

	// schemaPolicy says who makes the tables. Managed applies the migrations before the consumer starts, with the
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
}

// Handler says what a message does. Exactly one kind of handler is set.
// +kubebuilder:validation:ExactlyOneOf=sql
type Handler struct {
	// sql runs a statement in the transaction that remembers the message.
	// +optional
	SQL *SQLHandler `json:"sql,omitempty"`
}

// UnmatchedPolicy says what becomes of a message that no route takes.
// +kubebuilder:validation:Enum=Ignore;DeadLetter
type UnmatchedPolicy string

// The policies for unmatched messages.
const (
	// UnmatchedIgnore counts the message and goes on.
	UnmatchedIgnore UnmatchedPolicy = "Ignore"
	// UnmatchedDeadLetter keeps the message as a dead letter.
	UnmatchedDeadLetter UnmatchedPolicy = "DeadLetter"
)

// SQLHandler runs one statement a message, chosen by event type. The statement is code: whoever may write this
// resource runs it with the rights of the database user in the credentials Secret.
type SQLHandler struct {
	// routes are 1 to 64 statements and the event types they are for. No event type or prefix is listed twice; an
	// exact one wins over a prefix, a longer prefix over a shorter one. A change is taken over live; statements are
	// prepared first, and a mistake in one shows as a condition, not as dead letters.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.eventTypes.all(t, self.exists_one(b, t in b.eventTypes)))",message="each event type or prefix must be listed by one route only"
	Routes []SQLRoute `json:"routes,omitempty"`

	// onUnmatched says what becomes of a message that no route takes. Ignore counts it and goes on; DeadLetter
	// keeps it as a dead letter. A change is taken over live. Defaults to Ignore.
	// +optional
	// +kubebuilder:default=Ignore
	OnUnmatched UnmatchedPolicy `json:"onUnmatched,omitempty"`
}

// EventTypePattern is an event type, such as order.paid; a prefix, such as order.*; or * for every type.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:XValidation:rule="self.matches('^([*]|[^[:space:][:cntrl:]*]+([.][*])?)$')",message="must be an event type such as order.paid, a prefix such as order.*, or *"
type EventTypePattern string

// SQLRoute is a statement and the event types it is for.
type SQLRoute struct {
	// eventTypes are 1 to 16 event types, exact or as prefix.*; * alone takes every type.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	EventTypes []EventTypePattern `json:"eventTypes,omitempty"`

	// statement is one SQL statement, at most 8192 characters, run for each message in the transaction of its inbox
	// row. Its values are named parameters only: @event_id, @event_type, @schema_version, @ordering_key,
	// @aggregate_version, @occurred_at, @source, @headers, @data (jsonb) and @payload (bytea).
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="self.matches('[^[:space:]]') && self.matches(r'^[^\\x00]*$')",message="must be one SQL statement, without NUL"
	Statement string `json:"statement,omitempty"`
}

// VersionPolicy says what an aggregate version decides.
// +kubebuilder:validation:Enum=Enforce;IgnoreOlder;Unchecked
type VersionPolicy string

// The version policies. None is called Off: YAML reads that word as false.
const (
	// VersionsEnforce applies the versions of a key one after the other and waits for a missing one.
	VersionsEnforce VersionPolicy = "Enforce"
	// VersionsIgnoreOlder applies what is newer than the last version applied and counts the rest.
	VersionsIgnoreOlder VersionPolicy = "IgnoreOlder"
	// VersionsUnchecked applies in the order of arrival.
	VersionsUnchecked VersionPolicy = "Unchecked"
)

// DeliveryPolicy says how many messages may be with consumers at once.
// +kubebuilder:validation:Enum=Shared;SingleActive
type DeliveryPolicy string

// The delivery policies.
const (
	// DeliveryShared lets all replicas work on the stream.
	DeliveryShared DeliveryPolicy = "Shared"
	// DeliverySingleActive keeps the source's order: one replica at a time has its messages.
	DeliverySingleActive DeliveryPolicy = "SingleActive"
)

// GapPolicy says what happens when a version stays missing.
// +kubebuilder:validation:Enum=Hold;Apply
type GapPolicy string

// The gap policies.
const (
	// GapHold waits for as long as it takes.
	GapHold GapPolicy = "Hold"
	// GapApply goes on without the missing version after the gap timeout.
	GapApply GapPolicy = "Apply"
)

// ConsumerOrdering says what order a consumer keeps.
type ConsumerOrdering struct {
	// mode says whether messages of one ordering key keep their order. PerKey holds the later messages of a key
	// while an earlier one waits; None applies each as it comes, whatever its version. A change is taken over live.
	// Defaults to PerKey.
	// +optional
	// +kubebuilder:default=PerKey
	Mode OrderingMode `json:"mode,omitempty"`

	// versions says what the aggregate version decides under mode PerKey. Enforce applies the versions of a key one
	// after the other, parks later ones and shows the gap; IgnoreOlder applies what is newer than the last;
	// Unchecked applies in the order of arrival. A change is taken over live. Defaults to Enforce.
	// +optional
	// +kubebuilder:default=Enforce
	Versions VersionPolicy `json:"versions,omitempty"`

	// delivery says how many messages may be with consumers at once. Shared lets all replicas work; SingleActive
	// hands out the next message only when the last is acknowledged, which is slow and keeps the stream's order
	// without versions; kafka keeps it by its partitions and takes Shared only, and rabbitMQ leaves it to the queue,
	// which must be one with a single active consumer. A change is taken over live. Defaults to Shared.
	// +optional
	// +kubebuilder:default=Shared
	Delivery DeliveryPolicy `json:"delivery,omitempty"`

	// gapTimeout is how long a version may stay missing before onGapTimeout decides, 1s to 87600h. A change is
	// taken over live. Defaults to 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('87600h')",message="must be 1s to 87600h"
	GapTimeout Duration `json:"gapTimeout,omitempty"`

	// onGapTimeout says what happens when a version stays missing. Hold waits for as long as it takes; Apply goes
	// on without it, and a missing version that comes later is a dead letter. A change is taken over live. Defaults
	// to Hold.
	// +optional
	// +kubebuilder:default=Hold
	OnGapTimeout GapPolicy `json:"onGapTimeout,omitempty"`
}

// Validation bounds a message before it is decoded. A message beyond a bound is a dead letter.
type Validation struct {
	// maxBytes is the largest message body, 1 to 64Mi. A change is taken over live. Defaults to 1Mi.
	// +optional
	// +kubebuilder:default="1Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1')) >= 0 && quantity(string(self)).compareTo(quantity('64Mi')) <= 0",message="must be 1 to 64Mi"
	MaxBytes resource.Quantity `json:"maxBytes,omitzero"`

	// maxDepth is the deepest nesting of a JSON body, 1 to 1000. A change is taken over live. Defaults to 64.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxDepth int32 `json:"maxDepth,omitempty"`
}

// Concurrency bounds what one Pod works on at once.
// +kubebuilder:validation:XValidation:rule="!has(self.maxBatchMessages) || !has(self.prefetch) || self.maxBatchMessages <= self.prefetch",fieldPath=".maxBatchMessages",message="maxBatchMessages must not exceed prefetch: a batch cannot hold more than was received"
type Concurrency struct {
	// lanes is the number of transactions that may be open at once, 1 to 256; the messages of one key always go
	// through one lane. A change is taken over live. Defaults to 8.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	Lanes int32 `json:"lanes,omitempty"`

	// prefetch is the largest number of messages received and not yet acknowledged, 1 to 100000. A change is taken
	// over live. Defaults to 1000.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Prefetch int32 `json:"prefetch,omitempty"`

	// maxBatchMessages is the largest number of messages in one transaction, 1 to 10000 and at most prefetch. A
	// change is taken over live. Defaults to 200.
	// +optional
	// +kubebuilder:default=200
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxBatchMessages int32 `json:"maxBatchMessages,omitempty"`

	// handlerTimeout is the longest time that the handler's statements of one batch may take, 100ms to 1h. A change
	// is taken over live. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('1h')",message="must be 100ms to 1h"
	HandlerTimeout Duration `json:"handlerTimeout,omitempty"`
}

// InboxConsumerStatus is what a consumer was seen to do. A count that nobody knows is absent, never 0.
type InboxConsumerStatus struct {
	WorkerStatus `json:",inline"`

	// lag counts what the broker holds for this consumer and is not applied. Absent while unknown.
	// +optional
	Lag *Lag `json:"lag,omitempty"`

	// inbox counts what was applied and what waits in the database. Absent while unknown.
	// +optional
	Inbox *InboxStatus `json:"inbox,omitempty"`

	// rates are the messages a second, averaged over the last status interval and rounded. Absent while unknown.
	// +optional
	Rates *ConsumerRates `json:"rates,omitempty"`

	// deadLetters counts the open dead letters of this consumer. Absent while unknown.
	// +optional
	DeadLetters *DeadLetterCount `json:"deadLetters,omitempty"`

	// source names the broker and what is consumed, such as nats/ORDERS, kafka/orders.events or
	// rabbitmq/billing.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=300
	Source string `json:"source,omitempty"`

	// lastAppliedTime is when a message was last applied, as far as known; it moves only with another change of
	// status.
	// +optional
	LastAppliedTime *metav1.Time `json:"lastAppliedTime,omitempty"`
}

// Lag counts messages that the broker holds for a consumer.
type Lag struct {
	// messages is the number of messages not yet applied.
	// +required
	// +kubebuilder:validation:Minimum=0
	Messages *int64 `json:"messages,omitempty"`

	// oldestMessageTime is when the oldest of them was made. Absent without any.
	// +optional
	OldestMessageTime *metav1.Time `json:"oldestMessageTime,omitempty"`
}

// InboxStatus counts what was applied and what waits in the database.
type InboxStatus struct {
	// processed is the number of messages applied by the Pods that run now, as a coarse number.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Processed *int64 `json:"processed,omitempty"`

	// duplicates is the number of deliveries that those Pods dropped because the message was known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Duplicates *int64 `json:"duplicates,omitempty"`

	// parked is the number of messages that wait in the database for their turn or their retry.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Parked *int64 `json:"parked,omitempty"`

	// gaps is the number of keys that wait for a missing version.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Gaps *int64 `json:"gaps,omitempty"`

	// blockedKeys is the number of keys that wait behind an open dead letter.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BlockedKeys *int64 `json:"blockedKeys,omitempty"`
}

// ConsumerRates are messages a second.
type ConsumerRates struct {
	// appliedPerSecond is the number of messages applied a second.
	// +optional
	// +kubebuilder:validation:Minimum=0
	AppliedPerSecond *int64 `json:"appliedPerSecond,omitempty"`
}
