package v1alpha1

// Host is a host name or an IP address, without scheme, port or spaces.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="isIP(self) || self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",message="must be a host name or an IP address without scheme, port or spaces"
type Host string

// Identifier is one PostgreSQL identifier, not qualified. It is quoted wherever it is used, so its case counts.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z_][A-Za-z0-9_]*$')",message="must be one identifier: letters, digits and _, not beginning with a digit"
type Identifier string

// TableName is the name of an outbox table: an identifier short enough for the suffixes of the tables beside it.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=40
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z_][A-Za-z0-9_]*$')",message="must be one identifier: letters, digits and _, not beginning with a digit"
type TableName string

// SchemaPolicy says who makes and changes Postrider's tables.
// +kubebuilder:validation:Enum=Managed;Verify
type SchemaPolicy string

// The schema policies.
const (
	// SchemaPolicyManaged lets a step before the worker's start apply the migrations.
	SchemaPolicyManaged SchemaPolicy = "Managed"
	// SchemaPolicyVerify only checks the tables and reports what is missing.
	SchemaPolicyVerify SchemaPolicy = "Verify"
)

// Postgres says how to reach one PostgreSQL database, version 15 to 18.
type Postgres struct {
	// hosts are the 1 to 5 servers of one cluster; the one that accepts writes is found at each connect.
	// A change is taken over live; with schemaPolicy Managed it rolls the Pods as well, so that the tables are made
	// there too. The same holds for port, database and schema.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +listType=set
	Hosts []Host `json:"hosts,omitempty"`

	// port is the TCP port of every host, 1 to 65535. A change is taken over live. Defaults to 5432.
	// +optional
	// +kubebuilder:default=5432
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// database is the database's name, at most 63 bytes. Another database holds other messages: a change is taken
	// over live, and what waits in the old one stays there.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_][A-Za-z0-9_.$-]*$')",message="must be a database name of letters, digits and _ . $ -, not a connection string"
	Database string `json:"database,omitempty"`

	// credentialsSecretRef names the Secret whose keys username and password log in, such as CloudNativePG's
	// <cluster>-app. Neither superuser nor owner of the tables is needed: `postrider schema print --roles` prints
	// the least rights. A change rolls the Pods; new content of the Secret is used by new connections.
	// +required
	CredentialsSecretRef SecretReference `json:"credentialsSecretRef,omitzero"`

	// tls says how the connection is protected. Defaults to mode VerifyFull with the system's certificates.
	// +optional
	// +kubebuilder:default={}
	TLS TLS `json:"tls,omitzero"`

	// schema is the PostgreSQL schema that holds Postrider's tables, one identifier of at most 63 bytes.
	// A change is taken over live, and what waits in the old schema stays there. Defaults to public.
	// +optional
	// +kubebuilder:default=public
	Schema Identifier `json:"schema,omitempty"`

	// maxConnections is the largest number of connections that each Pod opens, 2 to 200. The database must allow it
	// times the replicas, which together stay within 1000. A change is taken over live. Defaults to 8.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=200
	MaxConnections int32 `json:"maxConnections,omitempty"`
}
