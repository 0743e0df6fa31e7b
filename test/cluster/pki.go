package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificateLife is longer than any cluster of ours lives.
const certificateLife = 30 * 24 * time.Hour

// authority signs the certificates of one cluster and keeps them, with their keys, as files of one folder.
type authority struct {
	dir  string
	now  time.Time
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// identity is whom a certificate names: a user of the API, a server, or both.
type identity struct {
	user   string
	groups []string
	names  []string
	ips    []net.IP
}

func newAuthority(dir string, now time.Time) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for certificates: %w", err)
	}
	a := &authority{dir: dir, now: now}
	template := a.template(identity{user: "postrider-test"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	var err error
	if a.key, err = a.newKey("ca"); err != nil {
		return nil, err
	}
	a.cert = template
	return a, a.sign("ca", template, a.key)
}

// issue writes a key and a certificate under a name.
func (a *authority) issue(name string, who identity) error {
	key, err := a.newKey(name)
	if err != nil {
		return err
	}
	return a.sign(name, a.template(who), key)
}

func (a *authority) template(who identity) *x509.Certificate {
	return &x509.Certificate{
		Subject:      pkix.Name{CommonName: who.user, Organization: who.groups},
		SerialNumber: big.NewInt(time.Now().UnixNano()), // it only has to differ from the others
		NotBefore:    a.now.Add(-time.Hour), NotAfter: a.now.Add(certificateLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    who.names, IPAddresses: who.ips,
	}
}

func (a *authority) sign(name string, template *x509.Certificate, key *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	return a.write(name+".crt", "CERTIFICATE", der)
}

func (a *authority) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	return key, a.write(name+".key", "EC PRIVATE KEY", der)
}

func (a *authority) write(file, kind string, der []byte) error {
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if content == nil {
		return errors.New("encode " + file)
	}
	if err := os.WriteFile(filepath.Join(a.dir, file), content, 0o600); err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	return nil
}

// file is the path of a certificate or key.
func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }
