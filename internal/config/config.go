// Package config is the one bridge between the planes: the file the manager (or `postrider up`) writes
// and a worker loads. It holds values and paths, never a credential.
//
// Load refuses unknown fields and contradictions with the file and field named. It dials nothing.
package config

// Version is the version of the file this code writes and reads.
const Version = 1

// Relay is the configuration of a relay process.
type Relay struct {
	Version    int      `json:"version"`
	Resource   Resource `json:"resource"`
	RunPolicy  string   `json:"runPolicy"` // Run, Pause or Drain
	Source     Postgres `json:"source"`
	Outbox     Outbox   `json:"outbox"`
	NATS       *NATS    `json:"nats"` // the destination
	Allowed    []string `json:"allowed,omitempty"`
	Ordering   string   `json:"ordering"` // PerKey or None
	Lease      Duration `json:"leaseDuration"`
	Batch      Batch    `json:"batch"`
	Backoff    Backoff  `json:"backoff"`
	StatusTick Duration `json:"statusInterval"`
}

// Resource names the custom resource a worker runs for.
type Resource struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
}

// String returns namespace/name, the name leases and owners carry.
func (r Resource) String() string { return r.Namespace + "/" + r.Name }

// Postgres says how to reach one database.
type Postgres struct {
	Hosts    []string `json:"hosts"`
	Port     int32    `json:"port"`
	Database string   `json:"database"`
	Schema   string   `json:"schema"`
	// CredentialsDir holds the files username and password.
	CredentialsDir string `json:"credentialsDir"`
	TLS            TLS    `json:"tls"`
	MaxConnections int32  `json:"maxConnections"`
}

// TLS says how a connection is protected.
type TLS struct {
	Mode string `json:"mode"` // VerifyFull, VerifyCA or Insecure (plain text)
	// CAFile is a PEM bundle; empty means the system's roots.
	CAFile string `json:"caFile,omitempty"`
	// ClientCertificateDir holds tls.crt and tls.key.
	ClientCertificateDir string `json:"clientCertificateDir,omitempty"`
}

// Outbox locates the outbox tables.
type Outbox struct {
	Table              string   `json:"table"`
	Shards             int32    `json:"shards"`
	PublishedRetention Duration `json:"publishedRetention"`
}

// NATS says how to reach a stream, for a relay or a consumer.
type NATS struct {
	Servers        []string `json:"servers"`
	Stream         string   `json:"stream"`
	Topology       string   `json:"topology"`                 // Verify or Declare
	CredentialsDir string   `json:"credentialsDir,omitempty"` // username and password; empty: none
	TLS            TLS      `json:"tls"`
	// Subject is the relay's default destination.
	Subject string `json:"subject,omitempty"`
	// FilterSubjects and Durable are the consumer's.
	FilterSubjects []string `json:"filterSubjects,omitempty"`
	Durable        string   `json:"durable,omitempty"`
}

// Batch bounds what a lane reads and sends at once.
type Batch struct {
	MaxMessages    int32    `json:"maxMessages"`
	MaxBytes       int64    `json:"maxBytes"`
	PollInterval   Duration `json:"pollInterval"`
	PublishTimeout Duration `json:"publishTimeout"`
}

// Backoff bounds the growing, jittered pause between tries.
type Backoff struct {
	Initial Duration `json:"initial"`
	Max     Duration `json:"max"`
}

// Consumer is the configuration of a consumer process.
type Consumer struct {
	Version      int         `json:"version"`
	Resource     Resource    `json:"resource"`
	RunPolicy    string      `json:"runPolicy"`
	ConsumerName string      `json:"consumerName"`
	NATS         *NATS       `json:"nats"` // the source
	Inbox        Inbox       `json:"inbox"`
	SQL          *SQLHandler `json:"sql"` // the handler
	Ordering     Ordering    `json:"ordering"`
	Validation   Validation  `json:"validation"`
	Concurrency  Concurrency `json:"concurrency"`
	Backoff      Backoff     `json:"backoff"`
	StatusTick   Duration    `json:"statusInterval"`
}

// Inbox locates the inbox tables and says how long they remember.
type Inbox struct {
	Postgres      Postgres `json:"postgres"`
	Retention     Duration `json:"retention"`
	ReplayHorizon Duration `json:"replayHorizon"`
}

// SQLHandler applies one statement a message, chosen by event type.
type SQLHandler struct {
	Routes      []SQLRoute `json:"routes"`
	OnUnmatched string     `json:"onUnmatched"` // Ignore or DeadLetter
}

// SQLRoute maps event types, exact or "prefix.*", to a statement with named parameters.
type SQLRoute struct {
	EventTypes []string `json:"eventTypes"`
	Statement  string   `json:"statement"`
}

// Ordering says what order the consumer keeps.
type Ordering struct {
	Mode         string   `json:"mode"`         // PerKey or None
	Versions     string   `json:"versions"`     // Enforce, IgnoreOlder or Unchecked
	Delivery     string   `json:"delivery"`     // Shared or SingleActive
	GapTimeout   Duration `json:"gapTimeout"`   // how long a gap may last before OnGapTimeout
	OnGapTimeout string   `json:"onGapTimeout"` // Hold or Apply
}

// Validation bounds a message before it is decoded.
type Validation struct {
	MaxBytes int64 `json:"maxBytes"`
	MaxDepth int32 `json:"maxDepth"`
}

// Concurrency bounds the consumer.
type Concurrency struct {
	Lanes            int32    `json:"lanes"`
	Prefetch         int32    `json:"prefetch"`
	MaxBatchMessages int32    `json:"maxBatchMessages"`
	HandlerTimeout   Duration `json:"handlerTimeout"`
}
