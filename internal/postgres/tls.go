package postgres

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/postrider/postrider/internal/config"
)

// The TLS modes of config.TLS. There is no fallback from one to another.
const (
	tlsVerifyFull = "VerifyFull"
	tlsVerifyCA   = "VerifyCA"
	tlsInsecure   = "Insecure"
)

// tlsTemplate returns what all hosts have in common; nil means plain text.
func tlsTemplate(cfg config.TLS, m material) (*tls.Config, error) {
	if cfg.Mode == tlsInsecure {
		return nil, nil //nolint:nilnil // pgx spells plain text as a nil config
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(m.ca) {
			return nil, credentialsError(cfg.CAFile, "holds no PEM certificate", nil)
		}
	}
	if cfg.ClientCertificateDir != "" {
		pair, err := tls.X509KeyPair(m.cert, m.key)
		if err != nil {
			// The cause is left out of the text: it may quote what the file holds.
			return nil, credentialsError(cfg.ClientCertificateDir, "holds no matching tls.crt and tls.key", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	if cfg.Mode == tlsVerifyCA {
		verifyChainOnly(t)
	}
	return t, nil
}

// verifyChainOnly checks who signed the server's certificate but not which host it names.
func verifyChainOnly(t *tls.Config) {
	roots := t.RootCAs
	t.InsecureSkipVerify = true
	t.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the server sent no certificate")
		}
		intermediates := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			intermediates.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
		if err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
		}
		return nil
	}
}

// tlsFor names the host whose certificate is expected.
func tlsFor(template *tls.Config, host string) *tls.Config {
	if template == nil {
		return nil
	}
	t := template.Clone()
	t.ServerName = host
	return t
}
