package config

// SecretPaths returns the files and directories of Secrets that the config names, each once.
func (r Relay) SecretPaths() []string { return secretPaths(r.Source, r.NATS) }

// SecretPaths returns the files and directories of Secrets that the config names, each once.
func (r Consumer) SecretPaths() []string { return secretPaths(r.Inbox.Postgres, r.NATS) }

func secretPaths(p Postgres, n *NATS) []string {
	named := []string{p.CredentialsDir, p.TLS.CAFile, p.TLS.ClientCertificateDir}
	if n != nil {
		named = append(named, n.CredentialsDir, n.TLS.CAFile, n.TLS.ClientCertificateDir)
	}
	var paths []string
	seen := map[string]bool{"": true}
	for _, path := range named {
		if !seen[path] {
			seen[path] = true
			paths = append(paths, path)
		}
	}
	return paths
}
