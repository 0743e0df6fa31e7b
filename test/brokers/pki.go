package brokers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// PKI is a made-up authority with a certificate for a server on loopback and one for its clients, in files.
type PKI struct {
	// CA is the authority's certificate.
	CA string
	// ServerPEM holds the server's key and certificate, ServerCert and ServerKey each alone.
	ServerPEM, ServerCert, ServerKey string
	// ClientDir holds a client's tls.crt and tls.key.
	ClientDir string
}

// NewPKI makes an authority below the folder. Each call makes another one.
func NewPKI(dir string) (PKI, error) {
	p := PKI{
		CA: filepath.Join(dir, "ca.crt"), ServerPEM: filepath.Join(dir, "server.pem"),
		ServerCert: filepath.Join(dir, "server.crt"), ServerKey: filepath.Join(dir, "server.key"),
		ClientDir: filepath.Join(dir, "client"),
	}
	ca, err := issue(nil, certificate("test authority", func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
	}))
	if err != nil {
		return PKI{}, err
	}
	server, err := issue(ca, certificate("localhost", func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{"localhost"}, []net.IP{net.ParseIP(loopback)}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}))
	if err != nil {
		return PKI{}, err
	}
	client, err := issue(ca, certificate("client", func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}))
	if err != nil {
		return PKI{}, err
	}
	if err := os.MkdirAll(p.ClientDir, 0o700); err != nil {
		return PKI{}, fmt.Errorf("making a folder for certificates: %w", err)
	}
	for path, text := range map[string][]byte{
		p.CA: ca.cert, p.ServerPEM: append(server.key, server.cert...), p.ServerCert: server.cert, p.ServerKey: server.key,
		filepath.Join(p.ClientDir, "tls.crt"): client.cert, filepath.Join(p.ClientDir, "tls.key"): client.key,
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return PKI{}, fmt.Errorf("writing a certificate: %w", err)
		}
	}
	return p, nil
}

// issued is a certificate with its key, also as PEM.
type issued struct {
	x509      *x509.Certificate
	private   *ecdsa.PrivateKey
	cert, key []byte
}

func certificate(name string, change func(*x509.Certificate)) *x509.Certificate {
	now := time.Now()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		BasicConstraintsValid: true,
	}
	change(c)
	return c
}

// issue signs a certificate, by itself where there is no authority.
func issue(by *issued, template *x509.Certificate) (*issued, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	template.SerialNumber = serial
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.x509, by.private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	return &issued{
		x509: template, private: key,
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}
