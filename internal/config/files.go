package config

// SecretPaths returns the files and directories of Secrets that the config names, each once.
func (r Relay) SecretPaths() []string {
	return secretPaths(r.Source.secrets(), brokerSecrets(r.NATS, r.Kafka, r.RabbitMQ))
}

// BrokerSecretPaths returns those that connections to the relay's broker need.
func (r Relay) BrokerSecretPaths() []string {
	return secretPaths(brokerSecrets(r.NATS, r.Kafka, r.RabbitMQ))
}

// SecretPaths returns the files and directories of Secrets that the config names, each once.
func (r Consumer) SecretPaths() []string {
	return secretPaths(r.Inbox.Postgres.secrets(), brokerSecrets(r.NATS, r.Kafka, r.RabbitMQ))
}

// SecretPaths returns the files and directories of Secrets that connections to the database need, each once.
func (p Postgres) SecretPaths() []string { return secretPaths(p.secrets()) }

// secrets is what a connection needs of Secrets.
type secrets struct {
	credentialsDir string
	tls            TLS
}

func (p Postgres) secrets() secrets { return secrets{p.CredentialsDir, p.TLS} }

func brokerSecrets(n *NATS, k *Kafka, q *RabbitMQ) secrets {
	switch {
	case q != nil:
		return secrets{q.CredentialsDir, q.TLS}
	case k != nil:
		return secrets{k.CredentialsDir, k.TLS}
	case n != nil:
		return secrets{n.CredentialsDir, n.TLS}
	default:
		return secrets{}
	}
}

func secretPaths(all ...secrets) []string {
	var paths []string
	seen := map[string]bool{"": true}
	for _, s := range all {
		for _, path := range [...]string{s.credentialsDir, s.tls.CAFile, s.tls.ClientCertificateDir} {
			if !seen[path] {
				seen[path] = true
				paths = append(paths, path)
			}
		}
	}
	return paths
}
