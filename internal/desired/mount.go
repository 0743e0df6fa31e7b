package desired

import (
	"path"
	"slices"
	"strings"

	"github.com/postrider/postrider/api/v1alpha1"
)

// Root is where a worker's Pod has its files.
const Root = "/etc/postrider"

// Places of a worker's files below Root. Each is a directory of its own, mounted whole, so that the files of one
// Secret always belong together.
const (
	// ConfigMount holds ConfigFile.
	ConfigMount = "config"
	// ConfigFile is the name of the configuration file.
	ConfigFile = "config.json"
	// DatabaseCredentialsMount holds username and password for the database.
	DatabaseCredentialsMount = "database/credentials"
	// DatabaseCAMount holds ca.crt for the database.
	DatabaseCAMount = "database/ca"
	// DatabaseClientMount holds tls.crt and tls.key for the database.
	DatabaseClientMount = "database/client"
	// BrokerCredentialsMount holds username and password for the broker, or what NATS takes instead.
	BrokerCredentialsMount = "broker/credentials" //nolint:gosec // a directory, no credential
	// BrokerCAMount holds ca.crt for the broker.
	BrokerCAMount = "broker/ca"
	// BrokerClientMount holds tls.crt and tls.key for the broker.
	BrokerClientMount = "broker/client"
	// MigrationCredentialsMount holds username and password of the tables' owner. Only the step that applies
	// migrations has it.
	MigrationCredentialsMount = "migration/credentials"
)

// Kinds of what a Reference may name.
const (
	// KindSecret is a Secret.
	KindSecret = "Secret"
	// KindConfigMap is a ConfigMap.
	KindConfigMap = "ConfigMap"
)

// Reference is a Secret or ConfigMap that a resource names, what is used of it and where the worker wants it.
type Reference struct {
	// Field is the path of the referring field, such as "spec.source.postgres.credentialsSecretRef".
	Field string
	// Kind is KindSecret or KindConfigMap.
	Kind string
	// Name is that of an object in the resource's own namespace.
	Name string
	// Keys are all that is mounted of it.
	Keys []string
	// OneOf are sets of Keys of which exactly one is needed, whole. Nil means that all Keys are.
	OneOf [][]string
	// Mount is the directory below the root that holds one file a key.
	Mount string
}

// Directory returns the place of the reference's files below a root, such as Root.
func (r Reference) Directory(root string) string { return path.Join(root, r.Mount) }

// Fault says what is wrong with the keys that the object has, as the end of a sentence about it, such as "has no key
// password"; empty where nothing is.
func (r Reference) Fault(has func(key string) bool) string {
	missing := func(set []string) []string {
		return slices.DeleteFunc(slices.Clone(set), has)
	}
	if r.OneOf == nil {
		if lacks := missing(r.Keys); len(lacks) > 0 {
			return "has no key " + strings.Join(lacks, " and no key ")
		}
		return ""
	}
	var begun, whole []string // sets of which something is there
	for _, set := range r.OneOf {
		lacks := missing(set)
		if len(lacks) == len(set) {
			continue
		}
		begun = append(begun, keyWords(set))
		if len(lacks) == 0 {
			whole = append(whole, keyWords(set))
		}
	}
	switch {
	case len(begun) == 1 && len(whole) == 1:
		return ""
	case len(begun) > 1:
		return "has keys of several logins (" + strings.Join(begun, ", ") + "): keep one"
	default:
		return "needs " + r.Wanted()
	}
}

// Wanted names the keys that the object needs: "the keys username and password".
func (r Reference) Wanted() string {
	if r.OneOf == nil {
		return keyWords(r.Keys)
	}
	sets := make([]string, len(r.OneOf))
	for i, set := range r.OneOf {
		sets[i] = keyWords(set)
	}
	return strings.Join(sets, ", or ")
}

func keyWords(keys []string) string {
	if len(keys) == 1 {
		return "the key " + keys[0]
	}
	return "the keys " + strings.Join(keys, " and ")
}

// RelayReferences lists what a relay names, in the order of its fields.
func RelayReferences(relay *v1alpha1.OutboxRelay) []Reference {
	spec := &relay.Spec
	refs := postgresReferences("spec.source.postgres", &spec.Source.Postgres)
	if spec.Outbox.SchemaPolicy == v1alpha1.SchemaPolicyManaged {
		refs = append(refs, migrationReference("spec.outbox", spec.Outbox.MigrationCredentialsSecretRef)...)
	}
	if nats := spec.Destination.NATS; nats != nil {
		refs = append(refs, natsReferences("spec.destination.nats", &nats.NATSConnection)...)
	}
	if kafka := spec.Destination.Kafka; kafka != nil {
		refs = append(refs, kafkaReferences("spec.destination.kafka", &kafka.KafkaConnection)...)
	}
	if rabbit := spec.Destination.RabbitMQ; rabbit != nil {
		refs = append(refs, rabbitReferences("spec.destination.rabbitMQ", &rabbit.RabbitMQConnection)...)
	}
	return refs
}

// ConsumerReferences lists what a consumer names, in the order of its fields.
func ConsumerReferences(consumer *v1alpha1.InboxConsumer) []Reference {
	spec := &consumer.Spec
	var refs []Reference
	if kafka := spec.Source.Kafka; kafka != nil {
		refs = kafkaReferences("spec.source.kafka", &kafka.KafkaConnection)
	}
	if nats := spec.Source.NATS; nats != nil {
		refs = natsReferences("spec.source.nats", &nats.NATSConnection)
	}
	if rabbit := spec.Source.RabbitMQ; rabbit != nil {
		refs = rabbitReferences("spec.source.rabbitMQ", &rabbit.RabbitMQConnection)
	}
	refs = append(refs, postgresReferences("spec.inbox.postgres", &spec.Inbox.Postgres)...)
	if spec.Inbox.SchemaPolicy == v1alpha1.SchemaPolicyManaged {
		refs = append(refs, migrationReference("spec.inbox", spec.Inbox.MigrationCredentialsSecretRef)...)
	}
	return refs
}

func postgresReferences(field string, p *v1alpha1.Postgres) []Reference {
	refs := []Reference{credentials(field, p.CredentialsSecretRef.Name, DatabaseCredentialsMount)}
	return append(refs, tlsReferences(field, p.TLS, DatabaseCAMount, DatabaseClientMount)...)
}

func natsReferences(field string, n *v1alpha1.NATSConnection) []Reference {
	var refs []Reference
	if n.CredentialsSecretRef != nil {
		refs = append(refs, natsCredentials(field, n.CredentialsSecretRef.Name))
	}
	return append(refs, tlsReferences(field, n.TLS, BrokerCAMount, BrokerClientMount)...)
}

func kafkaReferences(field string, k *v1alpha1.KafkaConnection) []Reference {
	var refs []Reference
	if k.SASL != nil {
		refs = append(refs, credentials(field+".sasl", k.SASL.CredentialsSecretRef.Name, BrokerCredentialsMount))
	}
	return append(refs, tlsReferences(field, k.TLS, BrokerCAMount, BrokerClientMount)...)
}

func rabbitReferences(field string, r *v1alpha1.RabbitMQConnection) []Reference {
	refs := []Reference{credentials(field, r.CredentialsSecretRef.Name, BrokerCredentialsMount)}
	return append(refs, tlsReferences(field, r.TLS, BrokerCAMount, BrokerClientMount)...)
}

func credentials(field, name, mount string) Reference {
	return Reference{
		Field: field + ".credentialsSecretRef", Kind: KindSecret, Name: name,
		Keys: []string{v1alpha1.KeyUsername, v1alpha1.KeyPassword}, Mount: mount,
	}
}

// natsCredentials has all ways to log in to NATS mounted: the keys that the Secret has say which one it is.
func natsCredentials(field, name string) Reference {
	ref := credentials(field, name, BrokerCredentialsMount)
	ref.OneOf = [][]string{
		ref.Keys, {v1alpha1.KeyNATSToken}, {v1alpha1.KeyNATSNKey}, {v1alpha1.KeyNATSCredentials},
	}
	ref.Keys = slices.Concat(ref.OneOf...)
	return ref
}

func migrationReference(field string, ref *v1alpha1.SecretReference) []Reference {
	if ref == nil {
		return nil
	}
	return []Reference{{
		Field: field + ".migrationCredentialsSecretRef", Kind: KindSecret, Name: ref.Name,
		Keys: []string{v1alpha1.KeyUsername, v1alpha1.KeyPassword}, Mount: MigrationCredentialsMount,
	}}
}

func tlsReferences(field string, t v1alpha1.TLS, ca, client string) []Reference {
	var refs []Reference
	if t.CASecretRef != nil {
		refs = append(refs, Reference{
			Field: field + ".tls.caSecretRef", Kind: KindSecret, Name: t.CASecretRef.Name,
			Keys: []string{v1alpha1.KeyCA}, Mount: ca,
		})
	}
	if t.CAConfigMapRef != nil {
		refs = append(refs, Reference{
			Field: field + ".tls.caConfigMapRef", Kind: KindConfigMap, Name: t.CAConfigMapRef.Name,
			Keys: []string{v1alpha1.KeyCA}, Mount: ca,
		})
	}
	if t.ClientCertificateSecretRef != nil {
		refs = append(refs, Reference{
			Field: field + ".tls.clientCertificateSecretRef", Kind: KindSecret, Name: t.ClientCertificateSecretRef.Name,
			Keys: []string{v1alpha1.KeyTLSCertificate, v1alpha1.KeyTLSPrivateKey}, Mount: client,
		})
	}
	return refs
}
