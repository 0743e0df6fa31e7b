package nats

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
	"strings"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

const canary = "canary-7f3a"

func writeCredentials(t *testing.T, username, password string) string {
	t.Helper()
	dir := t.TempDir()
	setCredentials(t, dir, username, password)
	return dir
}

func setCredentials(t *testing.T, dir, username, password string) {
	t.Helper()
	for name, text := range map[string]string{"username": username, "password": password + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// waitState waits until the connection is in the state of that reason; empty means connected.
func waitState(t *testing.T, conn *Conn, reason broker.Reason) *broker.Error {
	t.Helper()
	var state *broker.Error
	testkit.Eventually(t, 15*time.Second, "the connection's state is "+string(reason), func() bool {
		err := conn.State()
		if err == nil {
			return reason == ""
		}
		return errors.As(err, &state) && state.Reason == reason && !strings.Contains(state.Detail, "first connection")
	})
	return state
}

func TestWrongPasswordAndRotation(t *testing.T) {
	t.Parallel()
	server := testkit.NATSServer(t, local.NATSConfig{Users: []local.NATSUser{{Name: "app", Password: canary}}})
	stream := server.Stream(jetstream.StreamConfig{}, natsgo.UserInfo("app", canary))
	log := testkit.NewLog(t)
	cfg := testConfig(server.Addr(), stream.Name)
	cfg.CredentialsDir = writeCredentials(t, "app", canary+"-old")
	cfg.Log = log.Logger()
	conn := dial(t, cfg)
	p := newPublisher(t, conn, PublisherConfig{Subject: stream.Subject("a")})
	r := newReceiver(t, conn, ReceiverConfig{Durable: "d"})

	state := waitState(t, conn, broker.ReasonAuthFailed)
	got := publish(t, p, keyed("k")...)[0]
	want(t, got, broker.Unavailable, broker.ReasonAuthFailed)
	_, err := r.Receive(t.Context())
	var failure *broker.Error
	if !errors.As(err, &failure) || failure.Reason != broker.ReasonAuthFailed {
		t.Errorf("Receive() = %v", err)
	}

	setCredentials(t, cfg.CredentialsDir, "app", canary)
	eventually(t, p, keyed("k")[0], broker.Confirmed, "")
	_ = waitState(t, conn, "")

	if err := os.Remove(filepath.Join(cfg.CredentialsDir, "password")); err != nil {
		t.Fatal(err)
	}
	s, _, _ := conn.look()
	s.cut()
	missing := waitState(t, conn, broker.ReasonNoCredentials)
	setCredentials(t, cfg.CredentialsDir, "app", canary)
	_ = waitState(t, conn, "")
	for _, text := range []string{log.String(), got.Detail, state.Error(), missing.Error(), err.Error()} {
		if strings.Contains(text, canary) {
			t.Errorf("a password shows: %s", text)
		}
	}
}

func TestUnreachableServers(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	_ = ln.Close()
	for server, detail := range map[string]string{
		closed:                        "cannot reach " + closed,
		"169.254.169.254:4222":        "never dial",
		"[fe80::1]:4222":              "never dial",
		"[::ffff:169.254.169.254]:80": "never dial",
		"no-such-host.invalid:4222":   "no-such-host.invalid:4222",
	} {
		conn := dial(t, testConfig(server, "S"))
		if got := waitState(t, conn, broker.ReasonUnreachable); !strings.Contains(got.Detail, detail) {
			t.Errorf("%s: %v, want %q", server, got, detail)
		}
	}
	for _, allow := range []bool{false, true} {
		brief, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := (&dialer{ctx: brief, allow: allow, now: time.Now}).Dial("tcp", "169.254.1.1:4222")
		stop()
		if refused := errors.Is(err, endpoint.ErrBlockedAddress); refused == allow {
			t.Errorf("a link-local address, allowed %v: %v", allow, err)
		}
	}
}

func TestTheSecondServerIsTried(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	cfg := testConfig("127.0.0.1:1", stream.Name)
	cfg.Servers = append(cfg.Servers, server.Addr())
	_ = waitState(t, dial(t, cfg), "")
}

// authority is a certificate authority with a server certificate for a name, in files.
type authority struct {
	ca   string // file
	cert tls.Certificate
}

func newAuthority(t *testing.T, host string) authority {
	t.Helper()
	caKey, serverKey := newKey(t), newKey(t)
	template := func(name string) *x509.Certificate {
		serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
		if err != nil {
			t.Fatal(err)
		}
		return &x509.Certificate{
			SerialNumber: serial, Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		}
	}
	ca := template("test authority")
	ca.IsCA, ca.KeyUsage = true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	server := template(host)
	server.DNSNames = []string{host}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if ip := net.ParseIP(host); ip != nil {
		server.DNSNames, server.IPAddresses = nil, []net.IP{ip}
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, &serverKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return authority{ca: file, cert: tls.Certificate{Certificate: [][]byte{serverDER}, PrivateKey: serverKey}}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// tlsServer is a real NATS server that requires TLS, in this process.
func tlsServer(t *testing.T, a authority) string {
	t.Helper()
	s, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, TLS: true, TLSTimeout: 5,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{a.cert}, MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the TLS server does not start")
	}
	return s.Addr().String()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	named, other := newAuthority(t, "127.0.0.1"), newAuthority(t, "nats.example")
	cases := map[string]struct {
		server authority
		tls    endpoint.TLS
		reason broker.Reason
		detail string
	}{
		"chain and name are right": {named, endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: named.ca}, "", ""},
		"the authority is another": {
			named,
			endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: other.ca},
			broker.ReasonTLSFailed,
			"unknown authority",
		},
		"the name is another": {
			other,
			endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: other.ca},
			broker.ReasonTLSFailed,
			"another name",
		},
		"the name may be another": {other, endpoint.TLS{Mode: endpoint.VerifyCA, CAFile: other.ca}, "", ""},
		"the authority may not be, all the same": {
			other,
			endpoint.TLS{Mode: endpoint.VerifyCA, CAFile: named.ca},
			broker.ReasonTLSFailed,
			"unknown authority",
		},
		"the system does not know the authority": {
			named,
			endpoint.TLS{Mode: endpoint.VerifyFull},
			broker.ReasonTLSFailed,
			"unknown authority",
		},
		"the CA file is missing": {
			named,
			endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: "/none"},
			broker.ReasonTLSFailed,
			"TLS files",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(tlsServer(t, tc.server), "S")
			cfg.TLS = tc.tls
			state := waitState(t, dial(t, cfg), tc.reason)
			if tc.reason != "" && !strings.Contains(state.Detail, tc.detail) {
				t.Errorf("%v, want %q", state, tc.detail)
			}
		})
	}
}

func TestCAIsReadAgain(t *testing.T) {
	t.Parallel()
	right, wrong := newAuthority(t, "127.0.0.1"), newAuthority(t, "127.0.0.1")
	cfg := testConfig(tlsServer(t, right), "S")
	cfg.TLS = endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: wrong.ca}
	conn := dial(t, cfg)
	_ = waitState(t, conn, broker.ReasonTLSFailed)
	pemBytes, err := os.ReadFile(right.ca)
	if err == nil {
		err = os.WriteFile(wrong.ca, pemBytes, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = waitState(t, conn, "")
}

// TestNoCredentialReachesAStranger plays servers that are not the one meant, and reads all that the client sends.
func TestNoCredentialReachesAStranger(t *testing.T) {
	t.Parallel()
	right, wrong := newAuthority(t, "127.0.0.1"), newAuthority(t, "127.0.0.1")
	const info = `INFO {"server_id":"x","version":"2.12.0","headers":true,"max_payload":1048576,"tls_required":%}` + "\r\n"
	cases := map[string]func(net.Conn) net.Conn{
		"a server without TLS": func(c net.Conn) net.Conn {
			_, _ = io.WriteString(c, strings.Replace(info, "%", "false", 1))
			return c
		},
		"a server of another authority": func(c net.Conn) net.Conn {
			_, _ = io.WriteString(c, strings.Replace(info, "%", "true", 1))
			return tls.Server(c, &tls.Config{Certificates: []tls.Certificate{wrong.cert}, MinVersion: tls.VersionTLS12})
		},
	}
	for name, greet := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var heard bytes.Buffer
			var ended sync.WaitGroup
			ended.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					ended.Go(func() {
						defer func() { _ = c.Close() }()
						b, _ := io.ReadAll(greet(c))
						mu.Lock()
						defer mu.Unlock()
						heard.Write(b)
					})
				}
			})
			cfg := testConfig(ln.Addr().String(), "S")
			cfg.TLS = endpoint.TLS{Mode: endpoint.VerifyFull, CAFile: right.ca}
			cfg.CredentialsDir = writeCredentials(t, "app", canary)
			conn := dial(t, cfg)
			_ = waitState(t, conn, broker.ReasonTLSFailed)
			closeWithin(t, conn.Close)
			_ = ln.Close()
			ended.Wait()
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(heard.String(), canary) || strings.Contains(heard.String(), "CONNECT") {
				t.Errorf("the stranger heard %q", heard.String())
			}
		})
	}
}

// A12: neither goroutines nor sockets.
func TestReconnectsLeaveNothingBehind(t *testing.T) { //nolint:paralleltest // counts what the process holds
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	proxy := testkit.Proxy(t, server.Addr())
	cfg := testConfig(proxy.Addr(), stream.Name)
	cfg.FirstPause, cfg.LongestPause = time.Millisecond, 2*time.Millisecond
	conn := dial(t, cfg)
	p := newPublisher(t, conn, PublisherConfig{Subject: stream.Subject("a")})
	r := newReceiver(t, conn, ReceiverConfig{Durable: "d"})
	through := func() {
		t.Helper()
		eventually(t, p, keyed("k")[0], broker.Confirmed, "")
		for _, d := range receive(t, r, 1) {
			_ = d.Ack(t.Context()) // its connection may be gone
		}
	}
	through()
	shrinks := testkit.Footprint(t)
	for range 40 {
		s, _, _ := conn.look()
		if s != nil {
			s.cut()
			<-s.done
		}
		through()
	}
	shrinks(10)
}

func TestCloseIsFinal(t *testing.T) {
	t.Parallel()
	server := testkit.NATS(t)
	stream := server.Stream(jetstream.StreamConfig{})
	conn, err := Dial(t.Context(), testConfig(server.Addr(), stream.Name))
	if err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, conn, PublisherConfig{Subject: stream.Subject("a")})
	want(t, publish(t, p, keyed("k")...)[0], broker.Confirmed, "")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := conn.Close(ctx); err != nil {
		t.Fatal(err)
	}
	want(t, publish(t, p, keyed("k")...)[0], broker.Unavailable, broker.ReasonUnreachable)
	if err := conn.Close(ctx); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}
