package testkit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/test/brokers"
)

// clusterTime bounds what a cluster takes to notice the loss or the return of a node, on a busy machine.
const clusterTime = 2 * time.Minute

// KafkaNodes is a Kafka of three nodes, 1 to 3, that is a test's alone until the test ends. The KafkaBroker is node 1,
// which holds the controller; Kill and Start are for nodes 2 and 3.
type KafkaNodes struct {
	*KafkaBroker

	cluster *brokers.KafkaCluster
	down    map[int32]bool
}

// sharedKafkaCluster is the cluster of this test binary, started by the first test that asks. It ends with the process.
var sharedKafkaCluster = sync.OnceValues(func() (*brokers.KafkaCluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), firstStart)
	defer cancel()
	return brokers.StartKafkaCluster(ctx, brokers.KafkaConfig{})
})

// kafkaClusterTurn is had by the test whose cluster it is.
var kafkaClusterTurn sync.Mutex

// KafkaCluster gives this test the cluster of the test binary, with all nodes up, once no other test has it. A test that
// runs side by side with others waits here, so it asks before it does anything that others wait for, and once only.
func KafkaCluster(t testing.TB) *KafkaNodes {
	t.Helper()
	kafkaClusterTurn.Lock()
	t.Cleanup(kafkaClusterTurn.Unlock)
	cluster, err := sharedKafkaCluster()
	if err != nil {
		t.Fatalf("starting a Kafka of three nodes for tests: %v", err)
	}
	c := &KafkaNodes{
		KafkaBroker: &KafkaBroker{Kafka: cluster.Node(1), t: t}, cluster: cluster, down: make(map[int32]bool),
	}
	t.Cleanup(c.restore)
	admin := c.Admin()
	Eventually(t, clusterTime, "all nodes are there", func() bool {
		found, err := admin.ListBrokers(t.Context())
		return err == nil && len(found) == brokers.KafkaNodes
	})
	return c
}

// restore starts what the test has left killed, for the next.
func (c *KafkaNodes) restore() {
	for node := range c.down {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), clusterTime)
		if err := c.cluster.Node(int(node)).Start(ctx); err != nil {
			c.t.Errorf("starting node %d: %v", node, err)
		}
		cancel()
	}
}

// Addrs are the addresses of all nodes, whether they are up or not.
func (c *KafkaNodes) Addrs() []string { return c.cluster.Addrs() }

// Kill ends a node with kill -9 and returns when it is dead. The cluster notices some seconds later: see Leader.
func (c *KafkaNodes) Kill(node int32) {
	c.t.Helper()
	if node == 1 {
		c.t.Fatal("node 1 holds the controller: kill 2 or 3")
	}
	if err := c.cluster.Node(int(node)).Kill(c.t.Context()); err != nil {
		c.t.Fatalf("killing node %d: %v", node, err)
	}
	c.down[node] = true
}

// Start starts a killed node again, on what it had stored, and returns when it takes connections.
func (c *KafkaNodes) Start(node int32) {
	c.t.Helper()
	if err := c.cluster.Node(int(node)).Start(c.t.Context()); err != nil {
		c.t.Fatalf("starting node %d: %v", node, err)
	}
	delete(c.down, node)
}

// PlacedTopic creates a topic whose partition i is kept by the nodes of replicas[i], led by the first of them, and returns
// its name when all of them have it.
func (c *KafkaNodes) PlacedTopic(settings map[string]string, replicas ...[]int32) string {
	c.t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = uniqueName("topic"), -1, -1
	for i, nodes := range replicas {
		placed := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		placed.Partition, placed.Replicas = int32(i), nodes
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, placed)
	}
	for name, value := range settings {
		setting := kmsg.NewCreateTopicsRequestTopicConfig()
		setting.Name, setting.Value = name, &value
		topic.Configs = append(topic.Configs, setting)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	ctx, cancel := context.WithTimeout(c.t.Context(), clusterTime)
	defer cancel()
	response, err := request.RequestWith(ctx, c.Client())
	if err == nil {
		err = kerr.ErrorForCode(response.Topics[0].ErrorCode)
	}
	if err != nil {
		c.t.Fatalf("creating topic %s: %v", topic.Topic, err)
	}
	for i, nodes := range replicas {
		c.AwaitPartition(topic.Topic, int32(i), "is kept by all its nodes", func(p kadm.PartitionDetail) bool {
			return p.Leader == nodes[0] && len(p.ISR) == len(nodes)
		})
	}
	return topic.Topic
}

// AwaitPartition waits until the cluster shows the partition in the state that is meant.
func (c *KafkaNodes) AwaitPartition(topic string, partition int32, state string, is func(kadm.PartitionDetail) bool) {
	c.t.Helper()
	admin := c.Admin()
	Eventually(c.t, clusterTime, topic+"/"+strconv.Itoa(int(partition))+" "+state, func() bool {
		detail, err := partitionDetail(c.t.Context(), admin, topic, partition)
		return err == nil && is(detail)
	})
}

// AwaitInSync waits until all nodes that keep the topic's partitions have all of them.
func (c *KafkaNodes) AwaitInSync(topic string, partitions int32) {
	c.t.Helper()
	for partition := range partitions {
		c.AwaitPartition(topic, partition, "is in sync", func(p kadm.PartitionDetail) bool {
			return p.Leader > 0 && len(p.ISR) == len(p.Replicas)
		})
	}
}

// Leader returns the node that leads the partition now, and 0 where none does.
func (c *KafkaNodes) Leader(topic string, partition int32) int32 {
	c.t.Helper()
	detail, err := partitionDetail(c.t.Context(), c.Admin(), topic, partition)
	if err != nil {
		c.t.Fatalf("looking up %s/%d: %v", topic, partition, err)
	}
	return max(detail.Leader, 0)
}

func partitionDetail(
	ctx context.Context, admin *kadm.Client, topic string, partition int32,
) (kadm.PartitionDetail, error) {
	found, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return kadm.PartitionDetail{}, err //nolint:wrapcheck // the caller says what it did
	}
	detail, ok := found[topic].Partitions[partition]
	if !ok {
		return kadm.PartitionDetail{}, errors.New("the partition is not there")
	}
	slices.Sort(detail.ISR)
	return detail, nil
}
