package postgres_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/testkit"
)

// forward passes connections of a listener on to a server. With a TLS config it speaks TLS to the client, as a server
// that was built with it does.
func forward(t *testing.T, ln net.Listener, upstream string, terminate *terminator) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() { pass(ctx, client, upstream, terminate) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = ln.Close()
		running.Wait()
	})
}

func pass(ctx context.Context, raw net.Conn, upstream string, terminate *terminator) {
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	defer func() { _ = raw.Close() }()
	client := raw
	if terminate != nil {
		var err error
		if client, err = terminate.handshake(ctx, raw); err != nil {
			return
		}
	}
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", upstream)
	if err != nil {
		return
	}
	stopServer := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopServer()
	defer func() { _ = server.Close() }()
	done := make(chan struct{}, 2)
	for _, pair := range [2][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
}

// terminator gives a server TLS and remembers whether any client came through the handshake.
type terminator struct {
	config *tls.Config
	mu     sync.Mutex
	passed int
}

func (s *terminator) handshake(ctx context.Context, client net.Conn) (net.Conn, error) {
	request := make([]byte, 8)
	if _, err := io.ReadFull(client, request); err != nil {
		return nil, err
	}
	if !bytes.Equal(request, []byte{0, 0, 0, 8, 4, 210, 22, 47}) { // SSLRequest
		return nil, errors.New("the client sent something before TLS")
	}
	if _, err := client.Write([]byte{'S'}); err != nil {
		return nil, err
	}
	conn := tls.Server(client, s.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed++
	return conn, nil
}

func (s *terminator) handshakes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.passed
}

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := certificateTemplate("authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	_, a.key, a.cert = sign(t, template, template, nil)
	return a
}

func certificateTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func sign(
	t *testing.T,
	template, parent *x509.Certificate,
	by *ecdsa.PrivateKey,
) ([]byte, *ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, cert
}

// issue returns a certificate and key in PEM form.
func (a *authority) issue(change func(*x509.Certificate)) (cert, key []byte) {
	a.t.Helper()
	template := certificateTemplate("server")
	change(template)
	cert, private, _ := sign(a.t, template, a.cert, a.key)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// file writes the authority's certificate.
func (a *authority) file() string {
	a.t.Helper()
	name := filepath.Join(a.t.TempDir(), "ca.crt")
	if err := os.WriteFile(name, a.pem(), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return name
}

func (a *authority) serve(db *testkit.DB, change func(*x509.Certificate, *tls.Config)) (*terminator, config.Postgres) {
	a.t.Helper()
	s := &terminator{config: &tls.Config{MinVersion: tls.VersionTLS10}}
	cert, key := a.issue(func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		change(c, s.config)
	})
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		a.t.Fatal(err)
	}
	s.config.Certificates = []tls.Certificate{pair}
	ln, err := (&net.ListenConfig{}).Listen(a.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		a.t.Fatal(err)
	}
	forward(a.t, ln, db.Addr(), s)
	cfg := db.Config()
	cfg.Port = int32(ln.Addr().(*net.TCPAddr).Port)
	cfg.TLS = config.TLS{Mode: "VerifyFull", CAFile: a.file()}
	return s, cfg
}

func TestTLSModes(t *testing.T) {
	t.Parallel()
	type change = func(*x509.Certificate, *tls.Config)
	elsewhere := func(c *x509.Certificate, _ *tls.Config) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 9)} }
	expired := func(c *x509.Certificate, _ *tls.Config) { c.NotAfter = c.NotBefore.Add(time.Minute) }
	old := func(_ *x509.Certificate, s *tls.Config) { s.MaxVersion = tls.VersionTLS11 }
	plain := func(*x509.Certificate, *tls.Config) {}

	cases := map[string]struct {
		server      change
		mode        string
		otherCA     bool
		systemRoots bool
		ok          bool
	}{
		"VerifyFull takes the right certificate":           {server: plain, mode: "VerifyFull", ok: true},
		"VerifyFull refuses another host's certificate":    {server: elsewhere, mode: "VerifyFull"},
		"VerifyFull refuses another authority":             {server: plain, mode: "VerifyFull", otherCA: true},
		"VerifyFull refuses an expired certificate":        {server: expired, mode: "VerifyFull"},
		"VerifyFull refuses TLS 1.1":                       {server: old, mode: "VerifyFull"},
		"without a CA file the system's roots decide":      {server: plain, mode: "VerifyFull", systemRoots: true},
		"VerifyCA takes another host's certificate":        {server: elsewhere, mode: "VerifyCA", ok: true},
		"VerifyCA refuses another authority":               {server: plain, mode: "VerifyCA", otherCA: true},
		"VerifyCA refuses an expired certificate":          {server: expired, mode: "VerifyCA"},
		"VerifyCA refuses TLS 1.1":                         {server: old, mode: "VerifyCA"},
		"VerifyCA without a CA file asks the system's too": {server: plain, mode: "VerifyCA", systemRoots: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			server, cfg := newAuthority(t).serve(db, tc.server)
			cfg.TLS.Mode = tc.mode
			if tc.otherCA {
				cfg.TLS.CAFile = newAuthority(t).file()
			}
			if tc.systemRoots {
				cfg.TLS.CAFile = ""
			}
			_, err := ask[int](t.Context(), open(t, cfg, postgres.Options{}), "SELECT 1")
			if tc.ok {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if reasonOf(err) != postgres.ReasonTLSFailed {
				t.Errorf("error = %v, want TLSFailed", err)
			}
			if server.handshakes() != 0 {
				t.Error("the client completed the handshake: its credentials were on their way")
			}
		})
	}
}

func TestClientCertificate(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	ca := newAuthority(t)
	_, cfg := ca.serve(db, func(_ *x509.Certificate, s *tls.Config) {
		s.ClientAuth = tls.RequireAndVerifyClientCert
		s.ClientCAs = x509.NewCertPool()
		s.ClientCAs.AddCert(ca.cert)
	})
	if _, err := ask[int](t.Context(), open(t, cfg, postgres.Options{}), "SELECT 1"); err == nil {
		t.Fatal("the server takes a client without a certificate: this test shows nothing")
	}
	cert, key := ca.issue(func(*x509.Certificate) {})
	cfg.TLS.ClientCertificateDir = t.TempDir()
	writeSecretFiles(
		t,
		cfg.TLS.ClientCertificateDir,
		map[string]string{"tls.crt": string(cert), "tls.key": string(key)},
	)
	if _, err := ask[int](t.Context(), open(t, cfg, postgres.Options{}), "SELECT 1"); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
}

// A CA that is replaced in its file is in force for the next connection, without a restart.
func TestReplacedCAIsInForceAtOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	ca := newAuthority(t)
	_, cfg := ca.serve(db, func(*x509.Certificate, *tls.Config) {})
	right := ca.pem()
	writeSecretFiles(t, filepath.Dir(cfg.TLS.CAFile), map[string]string{"ca.crt": string(newAuthority(t).pem())})
	pool := open(t, cfg, postgres.Options{})
	if _, err := ask[int](t.Context(), pool, "SELECT 1"); reasonOf(err) != postgres.ReasonTLSFailed {
		t.Fatalf("with another CA: %v", err)
	}
	writeSecretFiles(t, filepath.Dir(cfg.TLS.CAFile), map[string]string{"ca.crt": string(right)})
	if _, err := ask[int](t.Context(), pool, "SELECT 1"); err != nil {
		t.Errorf("with the right CA: %v", err)
	}
}
