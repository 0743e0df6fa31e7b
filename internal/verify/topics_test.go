package verify_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/kafka"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/testkit"
)

// cluster is a world whose messages went through a topic of two partitions.
type cluster struct {
	*world
	server *testkit.KafkaBroker
	client *kgo.Client
	topic  string
	rows   uint64
}

func newCluster(t *testing.T, settings map[string]string) *cluster {
	t.Helper()
	c := &cluster{world: newWorld(t), server: testkit.Kafka(t)}
	c.grace = time.Hour
	c.topic = c.server.Topic(2, settings)
	c.client = c.server.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	return c
}

// produce stores a message in the partition of its key, and returns its position.
func (c *cluster) produce(m message.Message) string {
	c.t.Helper()
	encoded, err := message.Encode(&m)
	if err != nil {
		c.t.Fatal(err)
	}
	record := &kgo.Record{Topic: c.topic, Partition: int32(m.ID[14] % 2), Key: encoded.Key, Value: encoded.Body}
	for _, h := range encoded.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
	}
	stored, err := c.client.ProduceSync(c.t.Context(), record).First()
	if err != nil {
		c.t.Fatal(err)
	}
	return c.topic + "/" + strconv.Itoa(int(stored.Partition)) + "@" + strconv.FormatInt(stored.Offset, 10)
}

// settle writes the archive's row of a message at a place.
func (c *cluster) settle(m message.Message, position string) {
	c.t.Helper()
	c.rows++
	c.archive(m, c.rows)
	c.outbox.Exec(
		`UPDATE message_outbox_published SET broker_position = $1 WHERE event_id = $2`,
		position,
		m.ID.String(),
	)
}

func (c *cluster) all(m message.Message) {
	c.t.Helper()
	c.settle(m, c.produce(m))
	c.remember(m, "A")
	c.effect(m)
}

// commit says that the group has seen everything below an offset.
func (c *cluster) commit(partition int32, offset int64) {
	c.t.Helper()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: c.topic, Partition: partition, At: offset, LeaderEpoch: -1})
	if _, err := c.server.Admin().CommitOffsets(c.t.Context(), c.topic, offsets); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) report() verify.Report {
	c.t.Helper()
	reader, err := kafka.NewReader(kafka.Config{
		BootstrapServers: []string{c.server.Addr()}, TLS: endpoint.TLS{Mode: endpoint.Insecure},
	}, []string{c.topic})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(reader.Close)
	in := c.input()
	stream := verify.Stream{Kafka: reader, Name: c.topic}
	in.Relays[0].Stream, in.Consumers[0].Stream, in.Consumers[0].Durable = stream, stream, c.topic
	report, err := verify.Run(c.t.Context(), in)
	if err != nil {
		c.t.Fatal(err)
	}
	return report
}

// results returns how each check ended, by its title.
func results(report verify.Report) map[string]verify.Result {
	all := make(map[string]verify.Result)
	for _, section := range report.Sections {
		for _, check := range section.Checks {
			all[check.Title] = check.Result
		}
	}
	return all
}

func TestTopicsOfKafka(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		settings map[string]string
		change   func(c *cluster)
		want     map[string]verify.Result // of those that are not kept
		copies   int64
	}{
		"what went through is kept, and copies are counted": {
			change: func(c *cluster) { c.produce(event(1, 1)) },
			copies: 1,
		},
		"a published row that no partition holds": {
			change: func(c *cluster) { c.settle(event(9, 1), c.topic+"/1@0") },
			want: map[string]verify.Result{
				"every published row is in the stream":                  verify.Broken,
				"every published row is where its broker position says": verify.Broken,
			},
		},
		"a row is in another partition than it says": {
			change: func(c *cluster) { c.settle(event(8, 1), "x"); c.fixPlace(event(8, 1)) },
			want: map[string]verify.Result{
				"every published row is where its broker position says": verify.Broken,
			},
		},
		"a key out of order": {
			change: func(c *cluster) {
				for _, version := range []int{2, 1} {
					c.settle(event(5, version), c.produce(event(5, version)))
					c.remember(event(5, version), "A")
				}
				c.effect(event(5, 1))
				c.effect(event(5, 2))
			},
			want: map[string]verify.Result{
				"the first deliveries of a key are in order of their versions": verify.Broken,
			},
		},
		"acknowledged and without an outcome": {
			change: func(c *cluster) {
				c.settle(event(7, 1), c.produce(event(7, 1)))
				c.commit(1, 4)
			},
			want: map[string]verify.Result{
				"everything acknowledged has an outcome or a dead letter": verify.Broken,
			},
		},
		"a compacted topic proves nothing": {
			settings: map[string]string{"cleanup.policy": "compact"},
			want: map[string]verify.Result{
				"every published row is in the stream": verify.NotChecked,
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, tc.settings)
			for version := 1; version <= 3; version++ {
				c.all(event(1, version))
				c.all(event(2, version))
			}
			c.commit(0, 3)
			c.commit(1, 3)
			if tc.change != nil {
				tc.change(c)
			}
			report := c.report()
			got := results(report)
			for title, want := range tc.want {
				if got[title] != want {
					t.Errorf("%q is %v, want %v", title, got[title], want)
				}
			}
			for title, result := range got {
				if _, named := tc.want[title]; result == verify.Broken && !named {
					t.Errorf("%q is broken", title)
				}
			}
			if copies := report.Fact(verify.FactDuplicates); copies != tc.copies {
				t.Errorf("%d copies are counted, want %d", copies, tc.copies)
			}
		})
	}
}

// fixPlace stores a message and has its row name the same offset of the other partition.
func (c *cluster) fixPlace(m message.Message) {
	c.t.Helper()
	c.produce(m)
	c.remember(m, "A")
	c.effect(m)
	c.outbox.Exec(`UPDATE message_outbox_published SET broker_position = $1 WHERE event_id = $2`,
		c.topic+"/1@0", m.ID.String())
}
