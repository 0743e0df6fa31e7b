package up_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/up"
)

func TestEndpointsStandInForEveryHost(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	text := `{"postgres":"127.0.0.1:5555","nats":"127.0.0.1:4444"}`
	if err := os.WriteFile(filepath.Join(data, up.EndpointsFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := up.ReadEndpoints(data)
	if err != nil {
		t.Fatal(err)
	}
	pg := config.Postgres{
		Hosts: []string{
			"a",
			"b",
		},
		Port:           5432,
		Database:       "orders",
		CredentialsDir: "/c",
		TLS:            config.TLS{Mode: "VerifyFull"},
	}
	if err := e.Database(&pg); err != nil {
		t.Fatal(err)
	}
	want := config.Postgres{
		Hosts: []string{
			"127.0.0.1",
		},
		Port:           5555,
		Database:       "orders",
		CredentialsDir: "/c",
		TLS:            config.TLS{Mode: "Insecure"},
	}
	if diff := cmp.Diff(want, pg); diff != "" {
		t.Errorf("database (-want +got):\n%s", diff)
	}
	n := config.NATS{Servers: []string{"nats://a", "nats://b"}, Stream: "S", TLS: config.TLS{Mode: "VerifyFull"}}
	e.Broker(&n)
	wantNATS := config.NATS{Servers: []string{"127.0.0.1:4444"}, Stream: "S", TLS: config.TLS{Mode: "Insecure"}}
	if diff := cmp.Diff(wantNATS, n); diff != "" {
		t.Errorf("broker (-want +got):\n%s", diff)
	}
}

func TestEndpointsThatAreNotThere(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	if _, err := up.ReadEndpoints(data); err == nil || !strings.Contains(err.Error(), "postrider up --data "+data) {
		t.Errorf("ReadEndpoints() = %v", err)
	}
	if err := os.WriteFile(filepath.Join(data, up.EndpointsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := up.ReadEndpoints(data); err == nil || !strings.Contains(err.Error(), up.EndpointsFile) {
		t.Errorf("ReadEndpoints() = %v", err)
	}
	if err := (up.Endpoints{Postgres: "nowhere"}).Database(&config.Postgres{}); err == nil {
		t.Error("an endpoint without a port was taken")
	}
}
