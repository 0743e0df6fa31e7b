// Package endpoint holds what the adapters share of reaching a broker: TLS as the files are now, credentials from a
// mounted Secret, and a dialer that never leads to an address a worker must not dial.
//
// It promises that certificates and credentials are read again for each connection, and that none of them, nor the remote
// end's words, gets into an error.
package endpoint

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/broker"
)

// TLSMode says how a connection is protected.
type TLSMode string

// The TLS modes.
const (
	// VerifyFull checks the server's chain and its name.
	VerifyFull TLSMode = "VerifyFull"
	// VerifyCA checks the server's chain only.
	VerifyCA TLSMode = "VerifyCA"
	// Insecure is plain text.
	Insecure TLSMode = "Insecure"
)

// TLS says how a connection is protected. The files are read again for each connection.
type TLS struct {
	Mode TLSMode
	// CAFile is a PEM bundle; empty means the system's roots.
	CAFile string
	// ClientCertificateDir holds tls.crt and tls.key; empty means no client certificate.
	ClientCertificateDir string
}

// Validate says whether the mode is one of those there are.
func (t TLS) Validate() error {
	switch t.Mode {
	case VerifyFull, VerifyCA, Insecure:
		return nil
	default:
		return fmt.Errorf("mode is none of %s, %s, %s", VerifyFull, VerifyCA, Insecure)
	}
}

// Config returns how crypto/tls protects a connection to the host, with certificates as the files are now; nil where the
// mode is Insecure.
func (t TLS) Config(host string) (*tls.Config, error) {
	if t.Mode == Insecure {
		return nil, nil //nolint:nilnil // as documented
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.CAFile != "" {
		pool, err := loadPool(t.CAFile)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = pool
	}
	if dir := t.ClientCertificateDir; dir != "" {
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	if t.Mode == VerifyCA {
		// The chain is verified below, only the name is not.
		conf.InsecureSkipVerify = true
		conf.VerifyConnection = verifyChain(conf.RootCAs)
	}
	return conf, nil
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

// maxSecretBytes bounds what is read of a credential file.
const maxSecretBytes = 1 << 20

// Credentials reads the files username and password of a mounted Secret. Absent files are an error that names the file
// and nothing of its content.
func Credentials(dir string) (username, password string, err error) {
	if username, err = ReadSecret(dir, "username"); err != nil {
		return "", "", err
	}
	if password, err = ReadSecret(dir, "password"); err != nil {
		return "", "", err
	}
	return username, password, nil
}

// ReadSecret reads one file of a mounted Secret, without the line breaks at its end. Its errors name the file and nothing
// of its content; that of an absent file is os.ErrNotExist.
func ReadSecret(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
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

// ErrBlockedAddress says that a server's name led to an address that no worker dials.
var ErrBlockedAddress = errors.New("address is link-local, a metadata service, or no host's")

// Dial makes a TCP connection, and refuses blocked addresses (broker.BlockedAddress), whatever a name resolves to at that
// moment, unless they are allowed.
func Dial(ctx context.Context, address string, timeout time.Duration, allowBlocked bool) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout}
	if !allowBlocked {
		dialer.ControlContext = refuseBlocked
	}
	return dialer.DialContext(ctx, "tcp", address) //nolint:wrapcheck // classified by the caller
}

// refuseBlocked sees the address after name resolution and before the connection is made.
func refuseBlocked(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || broker.BlockedAddress(to.Addr()) {
		return ErrBlockedAddress
	}
	return nil
}

// ParseAddress returns host:port of "host" or "host:port". Its errors never quote the text: a password may stand in it
// by mistake.
func ParseAddress(s string, defaultPort int) (string, error) {
	if strings.Contains(s, "@") {
		return "", errors.New("holds credentials; they belong into the Secret")
	}
	if strings.ContainsAny(s, " \t\r\n/?#\x00") || s == "" {
		return "", errors.New("is not host:port")
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil { // no port
		host, port = strings.Trim(s, "[]"), strconv.Itoa(defaultPort)
		if strings.Count(host, ":") == 1 {
			return "", errors.New("is not host:port")
		}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" {
		return "", errors.New("is not host:port")
	}
	return net.JoinHostPort(host, port), nil
}

// filesError marks an error of the files of TLS or of the credentials.
type filesError struct {
	reason broker.Reason
	detail string
	err    error
}

func (e *filesError) Error() string { return e.detail + ": " + e.err.Error() }
func (e *filesError) Unwrap() error { return e.err }

// TLSFilesError marks an error of TLS.Config for StateError.
func TLSFilesError(err error) error {
	return &filesError{broker.ReasonTLSFailed, "mend the TLS files", err}
}

// CredentialsError marks an error of Credentials for StateError.
func CredentialsError(err error) error {
	return &filesError{broker.ReasonNoCredentials, "create the Secret with username and password", err}
}

// StateError says what keeps us from a server, in words of ours: the error's own may be the server's. It returns nil
// where the error is none of connecting.
func StateError(server string, err error) *broker.Error {
	var files *filesError
	var network *net.OpError
	var name *net.DNSError
	switch {
	case errors.As(err, &files):
		return &broker.Error{Reason: files.reason, Detail: files.detail, Err: files.err}
	case isTLS(err):
		return &broker.Error{Reason: broker.ReasonTLSFailed, Detail: TLSDetail(server, err)}
	case errors.Is(err, ErrBlockedAddress):
		return &broker.Error{
			Reason: broker.ReasonUnreachable,
			Detail: server + " leads to an address that workers never dial (link-local or metadata service)",
		}
	case errors.As(err, &name):
		return &broker.Error{
			Reason: broker.ReasonUnreachable, Detail: "the name in " + server + " is not known: check it",
		}
	case errors.As(err, &network):
		return &broker.Error{
			Reason: broker.ReasonUnreachable, Detail: "cannot reach " + server + ": check host, port and network",
			Err: network.Err,
		}
	default:
		return nil
	}
}

func isTLS(err error) bool {
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var authority x509.UnknownAuthorityError
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "remote error" {
		return true // an alert of the server: it refuses our certificate, or that there is none
	}
	return errors.As(err, &verification) || errors.As(err, &record) || errors.As(err, &alert) ||
		errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &authority)
}

// TLSDetail says which part of TLS failed. Names in the server's certificate are not repeated.
func TLSDetail(server string, err error) string {
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var authority x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &host):
		return server + " shows a certificate for another name: check host and certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return server + " shows an expired certificate: renew it"
	case errors.As(err, &authority):
		return server + " shows a certificate of an unknown authority: check the CA"
	case errors.As(err, &record):
		return server + " does not speak TLS on this port: check the port, or set tls.mode"
	default:
		return "TLS with " + server + " failed: check CA, client certificate and tls.mode"
	}
}
