package brokers

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/postrider/postrider/internal/local"
)

// KafkaVersion is the version of Apache Kafka that tests run on.
const KafkaVersion = "4.4.0"

const (
	killed = syscall.SIGKILL // nobody reads a test server's data after its end

	// The one user of the SASL listener, made when the data folder is formatted.
	kafkaUser     = "relay"
	kafkaPassword = "relay-secret"

	kafkaClusterID = "cG9zdHJpZGVyLXRlc3RzMQ"
)

// kafkaFiles is Kafka in the cache: its jars, how it logs, and a data folder, formatted for node 1, to be copied.
type kafkaFiles struct{ java, dir string }

func (f kafkaFiles) lib() string  { return filepath.Join(f.dir, "lib") }
func (f kafkaFiles) data() string { return filepath.Join(f.dir, "data") }

// arguments are java's, for a class of Kafka's. A test's broker has little to hold, and starts faster without the
// optimising compiler.
func (f kafkaFiles) arguments(class string, args ...string) []string {
	return append([]string{
		"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dlog4j2.configurationFile=" + filepath.Join(f.dir, loggingFile),
		"-cp", filepath.Join(f.lib(), "*"), class,
	}, args...)
}

// kafkaInstall returns Kafka from the cache and fetches it first where it is not there.
func kafkaInstall(ctx context.Context) (kafkaFiles, error) {
	java, err := findJava(ctx)
	if err != nil {
		return kafkaFiles{}, err
	}
	dir, err := local.Cached(ctx, "kafka-"+KafkaVersion, func(ctx context.Context, dir string) error {
		return fetchKafka(ctx, kafkaFiles{java: java, dir: dir})
	})
	if err != nil {
		return kafkaFiles{}, fmt.Errorf("getting Kafka %s for the tests: %w", KafkaVersion, err)
	}
	return kafkaFiles{java: java, dir: dir}, nil
}

func fetchKafka(ctx context.Context, f kafkaFiles) error {
	for name, content := range map[string]string{
		pomFile:     pom("kafka", "org.apache.kafka:kafka_2.13:"+KafkaVersion),
		loggingFile: javaLogging,
		"format.properties": kafkaProperties(
			map[string]string{"log.dirs": f.data()}, kafkaNode{id: firstNode, ports: kafkaPorts{controller: 1}}),
	} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	if err := fetchJars(ctx, f.dir, f.lib()); err != nil {
		return err
	}
	return command(ctx, f.dir, f.java, f.arguments("kafka.tools.StorageTool", "format",
		"-t", kafkaClusterID, "-c", filepath.Join(f.dir, "format.properties"),
		"--add-scram", "SCRAM-SHA-256=[name="+kafkaUser+",password="+kafkaPassword+"]",
		"--add-scram", "SCRAM-SHA-512=[name="+kafkaUser+",password="+kafkaPassword+"]")...)
}

// KafkaConfig says how a Kafka is run. The zero value is one node whose topics are made by nobody but its clients.
type KafkaConfig struct {
	// Properties are added to the node's.
	Properties map[string]string
}

// Kafka is a running node of Apache Kafka: a broker, and where it is alone or the first of a cluster, the controller too.
type Kafka struct {
	server

	node kafkaNode
	pki  PKI
}

// firstNode is the id of a node that is alone, and of the one in a cluster that holds the controller.
const firstNode = 1

// kafkaNode is what tells a node from others.
type kafkaNode struct {
	id    int
	ports kafkaPorts
	// controller is the port of the cluster's controller, where that is another node.
	controller int
}

type kafkaPorts struct{ plain, controller, sasl, mtls int }

const portsPerNode = 4

// newNode takes the next ports of a list.
func newNode(id int, ports []int) kafkaNode {
	return kafkaNode{
		id: id, ports: kafkaPorts{plain: ports[0], controller: ports[1], sasl: ports[2], mtls: ports[3]},
	}
}

// StartKafka starts a node and returns when it takes connections.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	install, err := kafkaInstall(ctx)
	if err != nil {
		return nil, err
	}
	for range portTries {
		var ports []int
		if ports, err = freePorts(ctx, portsPerNode); err != nil {
			return nil, err
		}
		var k *Kafka
		if k, err = startKafka(ctx, install, cfg, newNode(firstNode, ports)); !portTaken(err) {
			return k, err
		}
	}
	return nil, err
}

func startKafka(ctx context.Context, install kafkaFiles, cfg KafkaConfig, node kafkaNode) (_ *Kafka, err error) {
	k := &Kafka{node: node}
	if k.dir, err = os.MkdirTemp("", "postrider-kafka-"); err != nil {
		return nil, fmt.Errorf("making the folder of Kafka: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(k.dir))
		}
	}()
	data := filepath.Join(k.dir, "data")
	if err := install.makeData(data, node.id); err != nil {
		return nil, err
	}
	if k.pki, err = NewPKI(k.dir); err != nil {
		return nil, err
	}
	properties := map[string]string{
		"log.dirs":                data,
		"ssl.keystore.location":   k.pki.ServerPEM,
		"ssl.truststore.location": k.pki.CA,
	}
	maps.Copy(properties, cfg.Properties)
	file := filepath.Join(k.dir, "server.properties")
	if err := os.WriteFile(file, []byte(kafkaProperties(properties, node)), 0o600); err != nil {
		return nil, fmt.Errorf("writing Kafka's properties: %w", err)
	}
	spec := k.spec(install.java, install.arguments("kafka.Kafka", file), nil,
		node.ports.plain, node.ports.sasl, node.ports.mtls)
	if err := k.start(ctx, spec); err != nil {
		return nil, fmt.Errorf("starting Kafka: %w", err)
	}
	return k, nil
}

// makeData makes a node's fresh data folder. The first node's is a copy of the formatted one; another needs the identity
// alone, and has all else from the controller.
func (f kafkaFiles) makeData(data string, node int) error {
	if node == firstNode {
		if err := os.CopyFS(data, os.DirFS(f.data())); err != nil {
			return fmt.Errorf("copying a fresh data folder: %w", err)
		}
		return nil
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("making a data folder: %w", err)
	}
	// A folder's id is 16 bytes in base64.
	folder := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "postrider-node%02d", node))
	identity := fmt.Sprintf("version=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=%s\n", kafkaClusterID, node, folder)
	if err := os.WriteFile(filepath.Join(data, "meta.properties"), []byte(identity), 0o600); err != nil {
		return fmt.Errorf("writing a node's identity: %w", err)
	}
	return nil
}

// Addr is the plain listener's address.
func (k *Kafka) Addr() string { return address(k.node.ports.plain) }

// SASLAddr is the address of the listener that takes SASL over TLS: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
func (k *Kafka) SASLAddr() string { return address(k.node.ports.sasl) }

// MTLSAddr is the address of the listener that wants a client certificate.
func (k *Kafka) MTLSAddr() string { return address(k.node.ports.mtls) }

// User returns the name and the password that the SASL listener takes.
func (k *Kafka) User() (name, password string) { return kafkaUser, kafkaPassword }

// PKI returns the certificates of the node and of its clients.
func (k *Kafka) PKI() PKI { return k.pki }

// Stop ends the node for good and removes its data.
func (k *Kafka) Stop(ctx context.Context) error {
	if err := k.keeper.Close(ctx); err != nil {
		return fmt.Errorf("stopping Kafka: %w", err)
	}
	return nil
}

// kafkaProperties is the configuration of a node that is a broker, and the controller where it is the first. It knows its
// controller by a static list, so that the ports are no part of its data.
func kafkaProperties(more map[string]string, node kafkaNode) string {
	clients := []string{
		"PLAINTEXT://" + address(node.ports.plain), "SASLSSL://" + address(node.ports.sasl),
		"MTLS://" + address(node.ports.mtls),
	}
	roles, listeners, controller := "broker", clients, address(node.controller)
	if node.id == firstNode {
		roles, controller = "broker,controller", address(node.ports.controller)
		listeners = append(slices.Clone(clients), "CONTROLLER://"+controller)
	}
	plainLogin := "org.apache.kafka.common.security.plain.PlainLoginModule required user_" +
		kafkaUser + `="` + kafkaPassword + `";`
	all := map[string]string{
		"process.roles": roles, "node.id": strconv.Itoa(node.id),
		"controller.quorum.voters":       strconv.Itoa(firstNode) + "@" + controller,
		"listeners":                      strings.Join(listeners, ","),
		"advertised.listeners":           strings.Join(clients, ","),
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASLSSL:SASL_SSL,MTLS:SSL",
		"controller.listener.names":      "CONTROLLER", "inter.broker.listener.name": "PLAINTEXT",
		"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM", "listener.name.mtls.ssl.client.auth": "required",
		"sasl.enabled.mechanisms":                              "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		"listener.name.saslssl.scram-sha-256.sasl.jaas.config": scramLogin,
		"listener.name.saslssl.scram-sha-512.sasl.jaas.config": scramLogin,
		"listener.name.saslssl.plain.sasl.jaas.config":         plainLogin,
		"auto.create.topics.enable":                            "false",
		"offsets.topic.replication.factor":                     "1", "offsets.topic.num.partitions": "1",
		"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
		"transaction.state.log.num.partitions":             "1",
		"share.coordinator.state.topic.replication.factor": "1", "share.coordinator.state.topic.min.isr": "1",
		"share.coordinator.state.topic.num.partitions": "1",
		"group.initial.rebalance.delay.ms":             "0", "log.cleaner.dedupe.buffer.size": "10485760",
		// Everything is allowed but what a test denies the SASL user.
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true",
		"group.min.session.timeout.ms": "1000", "num.network.threads": "2", "num.io.threads": "4",
	}
	maps.Copy(all, more)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.WriteString(name + "=" + all[name] + "\n")
	}
	return b.String()
}

const scramLogin = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
