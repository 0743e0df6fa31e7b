package v1alpha1

// ServerAddress is a host name or an IP address with an optional port, without scheme, credentials or spaces,
// such as "nats:4222", "10.0.0.7" or "[fd00::7]:4222".
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=261
// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[[][0-9A-Fa-f:.]+[]])(:[0-9]{1,5})?$') && (!self.startsWith('[') || isIP(self.substring(1, self.lastIndexOf(']'))))",message="must be host or host:port, without scheme, credentials or spaces; an IPv6 address stands in brackets"
// +kubebuilder:validation:XValidation:rule="!self.matches(':[0-9]{1,5}$') || (int(self.substring(self.lastIndexOf(':') + 1)) >= 1 && int(self.substring(self.lastIndexOf(':') + 1)) <= 65535)",message="the port must be 1 to 65535"
type ServerAddress string

// Subject is one NATS subject: parts joined by dots, without wildcards and without $.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_/:=@+-]+([.][A-Za-z0-9_/:=@+-]+)*$')",message="must be one subject of letters, digits and _ / : = @ + -, in parts joined by dots, without wildcards and without $"
type Subject string

// SubjectPattern is a NATS subject whose parts may be *, which stands for one part, and whose last part may be >,
// which stands for all further parts.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^(>|([A-Za-z0-9_/:=@+-]+|[*])([.]([A-Za-z0-9_/:=@+-]+|[*]))*([.]>)?)$')",message="must be a subject whose parts may be * and whose last part may be >, such as orders.* or orders.>, without $"
type SubjectPattern string

// StreamName is the name of a JetStream stream or durable consumer.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-]+$')",message="must be a name of letters, digits, _ and -"
type StreamName string

// DurableName is the name of a durable JetStream consumer.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-]+$')",message="must be a name of letters, digits, _ and -"
type DurableName string

// TopologyPolicy says who makes what a broker keeps messages in.
// +kubebuilder:validation:Enum=Verify;Declare
type TopologyPolicy string

// The topology policies.
const (
	// TopologyVerify checks what is there, changes nothing and reports what is missing.
	TopologyVerify TopologyPolicy = "Verify"
	// TopologyDeclare makes what is missing and never changes or deletes what is there.
	TopologyDeclare TopologyPolicy = "Declare"
)

// FencingPolicy says whether the broker is told who holds a shard.
// +kubebuilder:validation:Enum=Disabled;Enabled
type FencingPolicy string

// The fencing policies.
const (
	// FencingDisabled sends messages as they come. What a relay that has lost its shard still sends is a late duplicate.
	FencingDisabled FencingPolicy = "Disabled"
	// FencingEnabled has the broker refuse what a relay sends that has lost its shard.
	FencingEnabled FencingPolicy = "Enabled"
)

// NATSConnection says how to reach one JetStream stream.
type NATSConnection struct {
	// servers are 1 to 16 servers of one NATS cluster, as host or host:port; port 4222 where none is given.
	// A change is taken over live.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	Servers []ServerAddress `json:"servers,omitempty"`

	// stream is the name of the JetStream stream, at most 255 bytes. A change is taken over live.
	// +required
	Stream StreamName `json:"stream,omitempty"`

	// topology says who makes the stream and the durable consumer. Verify changes nothing at the broker and reports
	// what is missing with the command that makes it; Declare makes what is missing and never changes or deletes
	// what is there. A change is taken over live. Defaults to Verify.
	// +optional
	// +kubebuilder:default=Verify
	Topology TopologyPolicy `json:"topology,omitempty"`

	// credentialsSecretRef names the Secret that logs in, by one of: the keys username and password; nats-token; nkey,
	// the seed of a user's NKey; user.creds, a credentials file with a user's JWT. Without it no credentials are sent.
	// A change rolls the Pods; new content of the Secret is used by new connections.
	// +optional
	CredentialsSecretRef *SecretReference `json:"credentialsSecretRef,omitempty"`

	// tls says how the connection is protected. Defaults to mode VerifyFull with the system's certificates.
	// +optional
	// +kubebuilder:default={}
	TLS TLS `json:"tls,omitzero"`
}

// TopicName is the name of a Kafka topic.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=249
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$') && !self.startsWith('__') && self != '.' && self != '..'",message="must be a topic's name of letters, digits, dots, _ and -, and none of Kafka's own, which start with __"
type TopicName string

// SASLMechanism is how a client proves to Kafka who it is.
// +kubebuilder:validation:Enum=Plain;ScramSHA256;ScramSHA512
type SASLMechanism string

// The SASL mechanisms.
const (
	// SASLPlain sends the password; TLS alone protects it.
	SASLPlain SASLMechanism = "Plain"
	// SASLScramSHA256 proves the password without sending it.
	SASLScramSHA256 SASLMechanism = "ScramSHA256"
	// SASLScramSHA512 proves the password without sending it.
	SASLScramSHA512 SASLMechanism = "ScramSHA512"
)

// Compression is how batches of messages travel and are kept.
// +kubebuilder:validation:Enum=None;Gzip;Snappy;Lz4;Zstd
type Compression string

// The compressions.
const (
	// CompressionNone leaves messages as they are.
	CompressionNone Compression = "None"
	// CompressionGzip is read by every consumer.
	CompressionGzip Compression = "Gzip"
	// CompressionSnappy costs little and saves less.
	CompressionSnappy Compression = "Snappy"
	// CompressionLz4 costs little and saves less.
	CompressionLz4 Compression = "Lz4"
	// CompressionZstd saves most; consumers need a client from 2019 or later.
	CompressionZstd Compression = "Zstd"
)

// GroupName is the name of a Kafka consumer group.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._/:-]+$')",message="must be a group's name of letters, digits, dots, /, :, _ and -"
type GroupName string

// OffsetReset says what becomes of a partition whose next message is gone.
// +kubebuilder:validation:Enum=Fail;Earliest
type OffsetReset string

// The resets.
const (
	// OffsetResetFail stops at the partition and says so.
	OffsetResetFail OffsetReset = "Fail"
	// OffsetResetEarliest goes on with the oldest message that is left.
	OffsetResetEarliest OffsetReset = "Earliest"
)

// KafkaSASL says how a client proves who it is.
type KafkaSASL struct {
	// mechanism is the SASL mechanism that the listener of bootstrapServers takes. A change is taken over live.
	// +required
	Mechanism SASLMechanism `json:"mechanism,omitempty"`

	// credentialsSecretRef names the Secret whose keys username and password log in. A change rolls the Pods; new
	// content of the Secret is used by new connections.
	// +required
	CredentialsSecretRef SecretReference `json:"credentialsSecretRef,omitzero"`
}

// KafkaConnection says how to reach one Kafka cluster.
type KafkaConnection struct {
	// bootstrapServers are 1 to 16 brokers of one Kafka cluster, as host or host:port; port 9092 where none is given.
	// The cluster's other brokers are learnt from them. A change is taken over live.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	BootstrapServers []ServerAddress `json:"bootstrapServers,omitempty"`

	// sasl says how the worker proves who it is. Without it the broker knows it by its certificate, or not at all.
	// +optional
	SASL *KafkaSASL `json:"sasl,omitempty"`

	// tls says how the connection is protected. Defaults to mode VerifyFull with the system's certificates.
	// +optional
	// +kubebuilder:default={}
	TLS TLS `json:"tls,omitzero"`
}

// ExchangeName is the name of a RabbitMQ exchange other than the default one.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._:-]+$')",message="must be an exchange's name of letters, digits, dots, :, _ and -"
type ExchangeName string

// RoutingKey is what RabbitMQ chooses queues by.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^[!-~]+$') && !self.contains('*') && !self.contains('#') && !self.contains('/')",message="must be a routing key of printable ASCII without spaces, *, # and /"
type RoutingKey string

// QueueName is the name of a RabbitMQ queue.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^[!-~]+$') && !self.startsWith('amq.')",message="must be a queue's name of printable ASCII without spaces, and none of RabbitMQ's own, which start with amq."
type QueueName string

// BindingKey is a routing key, or a pattern of routing keys whose words may be *, which stands for one word, and #, which
// stands for any number.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="self.matches('^[!-~]+$')",message="must be a routing key or a pattern of printable ASCII without spaces"
type BindingKey string

// VirtualHost is a name space of a RabbitMQ.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=127
// +kubebuilder:validation:XValidation:rule="self.matches('^[!-~]+$')",message="must be a virtual host's name of printable ASCII without spaces"
type VirtualHost string

// RabbitMQConnection says how to reach one virtual host of a RabbitMQ.
type RabbitMQConnection struct {
	// hosts are 1 to 16 nodes of one RabbitMQ cluster, as host or host:port, tried in turn; port 5671 where none is
	// given, 5672 with tls.mode Insecure. A change is taken over live.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	Hosts []ServerAddress `json:"hosts,omitempty"`

	// virtualHost is the name space within RabbitMQ, at most 127 bytes. A change is taken over live. Defaults to /.
	// +optional
	// +kubebuilder:default="/"
	VirtualHost VirtualHost `json:"virtualHost,omitempty"`

	// topology says who makes a relay's exchange or a consumer's queue. Verify changes nothing at the broker and reports
	// what is missing with the command that makes it; Declare makes what is missing, durable, and never changes or
	// deletes what is there. A change is taken over live. Defaults to Verify.
	// +optional
	// +kubebuilder:default=Verify
	Topology TopologyPolicy `json:"topology,omitempty"`

	// credentialsSecretRef names the Secret whose keys username and password log in. A change rolls the Pods; new
	// content of the Secret is used by new connections.
	// +required
	CredentialsSecretRef SecretReference `json:"credentialsSecretRef,omitzero"`

	// tls says how the connection is protected. Defaults to mode VerifyFull with the system's certificates.
	// +optional
	// +kubebuilder:default={}
	TLS TLS `json:"tls,omitzero"`
}
