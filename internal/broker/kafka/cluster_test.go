package kafka

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// clusterTime is for a cluster to be there again, on a busy machine.
const clusterTime = 2 * time.Minute

func clusterConfig(nodes *testkit.KafkaNodes) Config {
	cfg := testConfig(nodes.KafkaBroker, nil)
	cfg.BootstrapServers = nodes.Addrs()
	return cfg
}

// Too few copies are a state of the broker, never a fault of a message; partitions that have enough go on (G7, G8).
func TestTooFewReplicasPostponeMessagesAndLoseNone(t *testing.T) {
	t.Parallel()
	nodes := testkit.KafkaCluster(t)
	strict := nodes.PlacedTopic(map[string]string{settingMinISR: "2"}, []int32{1, 2, 3})
	alone := nodes.PlacedTopic(nil, []int32{1})
	p := newPublisher(t, clusterConfig(nodes), PublisherConfig{Topic: strict, Allowed: []string{alone}})
	warm := brokertest.Message("order-7", 1)
	want(t, "with three replicas", publish(t, p, warm)[0], broker.Confirmed, "")

	nodes.Kill(2)
	nodes.Kill(3)
	nodes.AwaitPartition(strict, 0, "has lost two nodes", func(d kadm.PartitionDetail) bool { return len(d.ISR) == 1 })
	batch := []message.Message{
		brokertest.Message("order-7", 2), brokertest.Message("order-7", 3), brokertest.Message("order-8", 1),
	}
	other := brokertest.Message("elsewhere", 1)
	other.Destination = alone
	var got []broker.Confirmation
	// The client may look for the leaders at a node that is gone, and says so first.
	testkit.Eventually(t, clusterTime, "the node that is left answers", func() bool {
		got = publish(t, p, append(batch, other)...)
		return got[len(batch)].Outcome == broker.Confirmed
	})
	for i := range batch {
		want(t, "with one replica", got[i], broker.Unavailable, broker.ReasonNotReplicated)
	}

	nodes.Start(2)
	brokertest.PublishAll(t, p, batch...)
	brokertest.WantInOrder(t, stored(t, nodes.KafkaBroker, strict), append(batch, warm), false)
}

// What is confirmed is on the node that leads next, and a key's order holds through the change (G2, G4).
func TestALeaderKilledUnderLoadLosesNothingConfirmed(t *testing.T) {
	t.Parallel()
	nodes := testkit.KafkaCluster(t)
	topic := nodes.PlacedTopic(
		map[string]string{settingMinISR: "2"},
		[]int32{2, 3, 1},
		[]int32{3, 2, 1},
		[]int32{1, 2, 3},
	)
	p := newPublisher(t, clusterConfig(nodes), PublisherConfig{Topic: topic})
	var all []message.Message
	for _, leader := range []int32{2, 3} {
		nodes.AwaitInSync(topic, 3)
		partition := leader - 2 // each of the two has begun as the leader of one
		var led atomic.Bool
		var load sync.WaitGroup
		load.Go(func() {
			for !led.Load() {
				batch := brokertest.Interleaved(12, 10)
				all = append(all, batch...)
				brokertest.PublishAll(t, p, batch...)
			}
		})
		nodes.Kill(leader)
		nodes.AwaitPartition(topic, partition, "has another leader", func(d kadm.PartitionDetail) bool {
			return d.Leader > 0 && d.Leader != leader
		})
		led.Store(true)
		load.Wait()
		nodes.Start(leader)
		if t.Failed() {
			t.FailNow()
		}
	}
	brokertest.WantInOrder(t, stored(t, nodes.KafkaBroker, topic), all, true)
}
