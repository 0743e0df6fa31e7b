package nats

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/broker"
)

// errBlockedAddress says that a server's name led to an address that no worker dials.
var errBlockedAddress = errors.New("address is link-local, a metadata service, or no host's")

// maxSecretBytes bounds what is read of a credential or certificate file.
const maxSecretBytes = 1 << 20

// dialer makes the TCP connection under a NATS connection, so that it can be cut, cannot block for ever in a write, and
// never leads to a blocked address, whatever a name resolves to at that moment.
type dialer struct {
	ctx   context.Context //nolint:containedctx // natsgo.CustomDialer has no context of its own
	allow bool
	now   func() time.Time
	conn  *cuttable // the last connection made
}

// Dial implements natsgo.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	tcp := net.Dialer{Timeout: dialTimeout, ControlContext: d.control}
	conn, err := tcp.DialContext(d.ctx, network, address)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified by the caller
	}
	d.conn = &cuttable{Conn: conn, now: d.now}
	return d.conn, nil
}

// control sees the address after name resolution and before the connection is made.
func (d *dialer) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	if d.allow {
		return nil
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil || broker.BlockedAddress(to.Addr()) {
		return errBlockedAddress
	}
	return nil
}

// cuttable is a connection whose writes end, at the latest when it is closed from outside: natsgo writes under its
// lock, so that a full socket would block everything that touches the connection.
type cuttable struct {
	net.Conn
	now func() time.Time
}

func (c *cuttable) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(c.now().Add(writeTimeout)); err != nil {
		return 0, err //nolint:wrapcheck // a net.Conn's error
	}
	return c.Conn.Write(b) //nolint:wrapcheck // a net.Conn's error
}

// credentials reads username and password. Absent files are an error that names the file and nothing of its content.
func credentials(dir string) (username, password string, err error) {
	if username, err = readSecret(filepath.Join(dir, "username")); err != nil {
		return "", "", err
	}
	if password, err = readSecret(filepath.Join(dir, "password")); err != nil {
		return "", "", err
	}
	return username, password, nil
}

func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read credentials: %w", err)
	}
	if info.Size() > maxSecretBytes {
		return "", fmt.Errorf("read credentials: %s is larger than 1 MiB", path)
	}
	b, err := os.ReadFile(path) //nolint:gosec // the operator chose the folder, the Secret its content
	if err != nil {
		return "", fmt.Errorf("read credentials: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil // editors end files with a line break
}

// tlsOption returns how natsgo protects the connection to host, with certificates as the files are now.
func tlsOption(cfg TLS, host string) (natsgo.Option, error) {
	if cfg.Mode == Insecure {
		return func(*natsgo.Options) error { return nil }, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if cfg.CAFile != "" {
		pool, err := loadPool(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = pool
	}
	if dir := cfg.ClientCertificateDir; dir != "" {
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	if cfg.Mode == VerifyCA {
		// The chain is verified below, only the name is not.
		conf.InsecureSkipVerify = true
		conf.VerifyConnection = verifyChain(conf.RootCAs)
	}
	return natsgo.Secure(conf), nil
}

func loadPool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path) //nolint:gosec // the operator chose the folder
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read CA: %s holds no PEM certificate", path)
	}
	return pool, nil
}

// verifyChain checks the server's chain against the roots, its dates and its purpose, but not its name.
func verifyChain(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		intermediates := x509.NewCertPool()
		for _, cert := range state.PeerCertificates[1:] {
			intermediates.AddCert(cert)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
		return err //nolint:wrapcheck // crypto/tls wraps it
	}
}
