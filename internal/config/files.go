package config

// SecretPaths returns the files and directories of Secrets that the config names, each once.
func (r Relay) SecretPaths() []string {
	at := natsSecrets(r.NATS)
	if r.Kafka != nil {
		at = kafkaSecrets(r.Kafka)
	}
	if r.RabbitMQ != nil {
		at = rabbitSecrets(r.RabbitMQ)
	}
	return secretPaths(secrets{r.Source.CredentialsDir, r.Source.TLS}, at)
}

// SecretPaths returns the files and directories of Secrets that the config names, each once.
func (r Consumer) SecretPaths() []string {
	at := natsSecrets(r.NATS)
	if r.Kafka != nil {
		at = kafkaSecrets(r.Kafka)
	}
	if r.RabbitMQ != nil {
		at = rabbitSecrets(r.RabbitMQ)
	}
	return secretPaths(secrets{r.Inbox.Postgres.CredentialsDir, r.Inbox.Postgres.TLS}, at)
}

// secrets is what a connection needs of Secrets.
type secrets struct {
	credentialsDir string
	tls            TLS
}

func natsSecrets(n *NATS) secrets {
	if n == nil {
		return secrets{}
	}
	return secrets{n.CredentialsDir, n.TLS}
}

func kafkaSecrets(k *Kafka) secrets { return secrets{k.CredentialsDir, k.TLS} }

func rabbitSecrets(q *RabbitMQ) secrets { return secrets{q.CredentialsDir, q.TLS} }

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
