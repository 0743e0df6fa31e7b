package local

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

const (
	// kafkaPartitions are those of a topic of the stand-in: some keys share one, as they do in a cluster.
	kafkaPartitions = 6
	// kafkaLogins is the file in which the library keeps users and passwords.
	kafkaLogins = "sasl.json"
)

// KafkaUser may log in to a stand-in for Kafka, by each SASL mechanism.
type KafkaUser struct{ Name, Password string }

// KafkaConfig says how a stand-in for Kafka is run. The zero value takes everybody's connections on a free port, and keeps
// its topics in memory.
type KafkaConfig struct {
	// Dir keeps the topics and the groups' offsets beyond the end: a later start goes on with them.
	Dir string
	// Port to listen on; 0 means a free one.
	Port int
	// Users may log in; none means that nobody has to, and nobody can.
	Users []KafkaUser
	// Topics are made where they are missing.
	Topics []string
}

// Kafka stands in for a Kafka cluster, within this process: it speaks the protocol and keeps one copy of everything. It is
// for one person's machine, not for measuring or proving what a cluster does.
type Kafka struct {
	cluster *kfake.Cluster
	dir     string
	port    int
}

// StartKafka starts a stand-in.
func StartKafka(cfg KafkaConfig) (*Kafka, error) {
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.DefaultNumPartitions(kafkaPartitions)}
	if cfg.Port != 0 {
		if err := checkPort("Kafka", cfg.Port); err != nil {
			return nil, err
		}
		options = append(options, kfake.Ports(cfg.Port))
	}
	k := &Kafka{dir: cfg.Dir}
	if cfg.Dir != "" {
		if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("making the folder of Kafka: %w", err)
		}
		if err := k.forgetLogins(); err != nil { // the Secrets may have changed
			return nil, err
		}
		options = append(options, kfake.DataDir(cfg.Dir), kfake.SyncWrites())
	}
	if len(cfg.Users) > 0 {
		options = append(options, kfake.EnableSASL())
	}
	for _, user := range cfg.Users {
		for _, mechanism := range [...]string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
			options = append(options, kfake.Superuser(mechanism, user.Name, user.Password))
		}
	}
	var err error
	if k.cluster, err = kfake.NewCluster(options...); err != nil {
		return nil, fmt.Errorf("starting the stand-in for Kafka: %w", err)
	}
	if err := k.begin(cfg.Topics); err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	return k, nil
}

// begin learns the port and makes the topics.
func (k *Kafka) begin(topics []string) error {
	_, port, err := net.SplitHostPort(k.cluster.ListenAddrs()[0])
	if err != nil {
		return fmt.Errorf("learning the port of Kafka: %w", err)
	}
	if k.port, err = strconv.Atoi(port); err != nil {
		return fmt.Errorf("learning the port of Kafka: %w", err)
	}
	for _, topic := range topics {
		if k.cluster.TopicInfo(topic) != nil {
			continue
		}
		if err := k.cluster.CreateTopic(topic, kafkaPartitions, nil); err != nil {
			return fmt.Errorf("making topic %s: %w", topic, err)
		}
	}
	return nil
}

// Host is the address the stand-in listens on.
func (k *Kafka) Host() string { return loopback }

// Port is the port the stand-in listens on.
func (k *Kafka) Port() int { return k.port }

// Stop writes down what is to be kept, and ends the stand-in.
func (k *Kafka) Stop() error {
	k.cluster.Close()
	return k.forgetLogins()
}

// forgetLogins removes the file with passwords.
func (k *Kafka) forgetLogins() error {
	if k.dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(k.dir, kafkaLogins)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the logins of Kafka: %w", err)
	}
	return nil
}
