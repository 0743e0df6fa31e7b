package brokers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
)

// KafkaNodes is how many nodes a cluster of tests has.
const KafkaNodes = 3

// KafkaCluster is a Kafka of three nodes. The first holds the controller, so that the two others can be killed, alone or
// both, without anything but the loss of two brokers: a cluster that has lost its controllers answers nothing.
type KafkaCluster struct {
	nodes []*Kafka
}

// clusterProperties have a lost node noticed soon, and keep what the cluster itself needs on all nodes.
func clusterProperties() map[string]string {
	return map[string]string{
		"default.replication.factor": "3",
		"broker.session.timeout.ms":  "3000", "broker.heartbeat.interval.ms": "500",
		"replica.lag.time.max.ms": "3000", "replica.fetch.wait.max.ms": "200",
		"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "3",
	}
}

// StartKafkaCluster starts three nodes side by side and returns when all take connections. The properties of cfg are
// added to each node's.
func StartKafkaCluster(ctx context.Context, cfg KafkaConfig) (*KafkaCluster, error) {
	install, err := kafkaInstall(ctx)
	if err != nil {
		return nil, err
	}
	properties := clusterProperties()
	maps.Copy(properties, cfg.Properties)
	for range portTries {
		var c *KafkaCluster
		if c, err = startKafkaCluster(ctx, install, KafkaConfig{Properties: properties}); !portTaken(err) {
			return c, err
		}
	}
	return nil, err
}

func startKafkaCluster(ctx context.Context, install kafkaFiles, cfg KafkaConfig) (*KafkaCluster, error) {
	ports, err := freePorts(ctx, KafkaNodes*portsPerNode)
	if err != nil {
		return nil, err
	}
	c := &KafkaCluster{nodes: make([]*Kafka, KafkaNodes)}
	errs := make([]error, KafkaNodes)
	var starts sync.WaitGroup
	for i := range c.nodes {
		node := newNode(firstNode+i, ports[i*portsPerNode:])
		node.controller = ports[1] // the first node's
		starts.Go(func() { c.nodes[i], errs[i] = startKafka(ctx, install, cfg, node) })
	}
	starts.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// Node returns a node by its id, which is 1 for the first.
func (c *KafkaCluster) Node(id int) *Kafka { return c.nodes[id-firstNode] }

// Addrs are the plain listeners' addresses, the first node's first.
func (c *KafkaCluster) Addrs() []string {
	addrs := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		addrs[i] = node.Addr()
	}
	return addrs
}

// Stop ends all nodes for good and removes their data.
func (c *KafkaCluster) Stop(ctx context.Context) error {
	errs := make([]error, len(c.nodes))
	var stops sync.WaitGroup
	for i, node := range c.nodes {
		if node == nil {
			continue // never started
		}
		stops.Go(func() {
			if err := node.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("node %d: %w", firstNode+i, err)
			}
		})
	}
	stops.Wait()
	return errors.Join(errs...)
}
