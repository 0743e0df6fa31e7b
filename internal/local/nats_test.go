package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/local"
)

func startNATS(t *testing.T, cfg local.NATSConfig) *local.NATS {
	t.Helper()
	n, err := local.StartNATS(t.Context(), cfg)
	if err != nil {
		t.Fatalf("StartNATS() error = %v", err)
	}
	t.Cleanup(func() { stop(t, n) })
	return n
}

func jetStream(t *testing.T, n *local.NATS, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(n.URL(), options...)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestNATSRestart(t *testing.T) {
	t.Parallel()
	n := startNATS(t, local.NATSConfig{})
	js := jetStream(t, n, nats.MaxReconnects(0))
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"s.>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s.a", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	port := n.Port()
	if err := n.Restart(t.Context()); err != nil {
		t.Fatalf("Restart() error = %v", err)
	}
	if _, err := stream.Info(t.Context()); err == nil {
		t.Error("the connection survived kill -9")
	}
	if n.Port() != port {
		t.Errorf("the port moved from %d to %d", port, n.Port())
	}
	if stream, err = jetStream(t, n).Stream(t.Context(), "s"); err != nil {
		t.Fatalf("the stream is gone: %v", err)
	}
	got, err := stream.GetMsg(t.Context(), 1)
	if err != nil || string(got.Data) != "kept" {
		t.Errorf("message 1 = %v, %v, want the confirmed one", got, err)
	}
}

func TestNATSUsers(t *testing.T) {
	t.Parallel()
	n := startNATS(t, local.NATSConfig{MaxPayload: 2000, Users: []local.NATSUser{
		{Name: "all", Password: "pass"},
		{Name: "some", Password: "pass", Publish: []string{"s.>", "$JS.API.>"}},
	}})
	for name, options := range map[string][]nats.Option{
		"nobody":           nil,
		"a wrong password": {nats.UserInfo("all", "wrong")},
	} {
		if _, err := nats.Connect(n.URL(), options...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("connecting as %s: %v, want a refusal", name, err)
		}
	}
	js := jetStream(t, n, nats.UserInfo("all", "pass"))
	everything := jetstream.StreamConfig{Name: "s", Subjects: []string{">"}, NoAck: true}
	if _, err := js.CreateStream(t.Context(), everything); err != nil {
		t.Fatalf("a user without lists may not create a stream: %v", err)
	}
	if got := js.Conn().MaxPayload(); got != 2000 {
		t.Errorf("the largest payload is %d, want 2000", got)
	}
	refused := make(chan error, 1)
	some := jetStream(t, n, nats.UserInfo("some", "pass"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err := some.Conn().Publish("other.a", nil); err != nil {
		t.Fatal(err)
	}
	if err := some.Conn().FlushTimeout(soon); err != nil {
		t.Fatal(err)
	}
	if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("publishing outside the list: %v, want a refusal", err)
	}
}

func TestNATSFolder(t *testing.T) {
	t.Parallel()
	kept := t.TempDir()
	first := startNATS(t, local.NATSConfig{Dir: kept})
	if _, err := jetStream(t, first).CreateStream(t.Context(), jetstream.StreamConfig{Name: "s"}); err != nil {
		t.Fatal(err)
	}
	stop(t, first)
	second := startNATS(t, local.NATSConfig{Dir: kept})
	if _, err := jetStream(t, second).Stream(t.Context(), "s"); err != nil {
		t.Errorf("the stream did not outlive its server: %v", err)
	}
	info, err := os.Stat(filepath.Join(kept, "nats.json")) // it holds passwords
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the config is %v, %v, want it for its owner alone", info, err)
	}

	own := startNATS(t, local.NATSConfig{})
	dir := filepath.Dir(own.LogFile())
	stop(t, own)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder %s is still there: %v", dir, err)
	}
}

func TestNATSThatCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The store's folder cannot be made: a file has its name.
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := local.StartNATS(t.Context(), local.NATSConfig{
		Dir: dir, Users: []local.NATSUser{{Name: "u", Password: "canary"}},
	})
	if err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Fatalf("error = %v, want the reason", err)
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("error = %v: it shows a password", err)
	}
}
