package up

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
)

// EndpointsFile is the file of a data folder that says where the embedded servers listen. It is there from the moment
// on at which databases, tables, users and streams are made, until the servers stop.
const EndpointsFile = "endpoints.json"

// Endpoints are the addresses of the embedded servers, as host:port. They stand in for every host that the resources
// name; users and passwords are those of the Secrets.
type Endpoints struct {
	Postgres string `json:"postgres"`
	// NATS and Kafka are empty where no resource names one.
	NATS  string `json:"nats,omitempty"`
	Kafka string `json:"kafka,omitempty"`
	// KafkaOpen says that Kafka takes connections without a login, and none with one.
	KafkaOpen bool `json:"kafkaOpen,omitempty"`
}

// ReadEndpoints reads what a run with this data folder wrote.
func ReadEndpoints(data string) (Endpoints, error) {
	var e Endpoints
	raw, err := os.ReadFile(filepath.Join(data, EndpointsFile)) //nolint:gosec // the folder is the user's own argument
	if errors.Is(err, fs.ErrNotExist) {
		return e, fmt.Errorf("no `postrider up --data %s` is running: start it first, in another terminal", data)
	}
	if err != nil {
		return e, fmt.Errorf("find the embedded servers of `postrider up --data %s`: %w", data, err)
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return e, fmt.Errorf("read %s: %w", filepath.Join(data, EndpointsFile), err)
	}
	return e, nil
}

// Write puts the file in place, whole or not at all: others wait for it to appear.
func (e Endpoints) Write(data string) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode endpoints: %w", err)
	}
	file := filepath.Join(data, EndpointsFile)
	if err := os.WriteFile(file+".new", append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write endpoints: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("write endpoints: %w", err)
	}
	return nil
}

// Database replaces the hosts of a database by the embedded PostgreSQL.
func (e Endpoints) Database(pg *config.Postgres) error {
	host, port, err := net.SplitHostPort(e.Postgres)
	if err != nil {
		return fmt.Errorf("endpoint %q of PostgreSQL: %w", e.Postgres, err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return fmt.Errorf("port %q of PostgreSQL: %w", port, err)
	}
	pg.Hosts, pg.Port, pg.TLS = []string{host}, int32(number), plainText()
	return nil
}

// Broker replaces the servers of a stream by the embedded NATS.
func (e Endpoints) Broker(n *config.NATS) {
	if n != nil {
		n.Servers, n.TLS = []string{e.NATS}, plainText()
	}
}

// Cluster replaces the brokers of a cluster by the stand-in for Kafka.
func (e Endpoints) Cluster(k *config.Kafka) {
	if k == nil {
		return
	}
	k.BootstrapServers, k.TLS = []string{e.Kafka}, plainText()
	if e.KafkaOpen {
		k.Mechanism, k.CredentialsDir = "", ""
	}
}

func plainText() config.TLS { return config.TLS{Mode: string(v1alpha1.TLSModeInsecure)} }
