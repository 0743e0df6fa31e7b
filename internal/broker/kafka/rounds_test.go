package kafka

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// planned is a message of a call that nobody has sent.
type planned struct {
	key, topic string
	size       int
}

func plan(unordered bool, all ...planned) *call {
	c := newCall(&Publisher{publish: PublisherConfig{Unordered: unordered}}, make([]message.Message, len(all)))
	for i, one := range all {
		c.batch[i].OrderingKey, c.sizes[i] = one.key, one.size
		c.records[i] = &kgo.Record{Topic: one.topic}
	}
	return c
}

func TestRounds(t *testing.T) {
	t.Parallel()
	seen := map[string]topic{"x": {maxBytes: 9}, "y": {maxBytes: 9}}
	const most = assumedMaxBytes
	cases := map[string]struct {
		found     map[string]topic
		unordered bool
		all       []planned
		rounds    [][]int
		refused   int // the message that is not confirmed, -1 for none
	}{
		"keys of one topic each": {
			seen, false, []planned{{"a", "x", 1}, {"b", "y", 1}, {"a", "x", 1}}, [][]int{{0, 1, 2}}, -1,
		},
		"a key of two topics": {
			seen, false,
			[]planned{{"a", "x", 1}, {"a", "y", 1}, {"b", "x", 1}, {"a", "x", 1}, {"b", "x", 1}},
			[][]int{{0, 2, 4}, {1}, {3}},
			-1,
		},
		"a key of two topics whose first is refused": {
			seen, false, []planned{{"a", "x", 1}, {"a", "y", 1}, {"b", "y", 1}, {"b", "x", 1}}, [][]int{{0, 2}, {3}}, 0,
		},
		"keys without order": {
			seen, true, []planned{{"a", "x", 1}, {"a", "y", 1}, {"a", "x", 1}}, [][]int{{0, 1, 2}}, -1,
		},
		"a topic whose bound is not to be seen": {
			map[string]topic{"x": {}},
			false,
			[]planned{
				{"a", "x", most / 2},
				{"b", "x", most / 2},
				{"c", "x", 3 * most},
				{"c", "x", 1},
				{"d", "x", most},
			},
			[][]int{{0, 1}, {2}, {3}, {4}},
			-1,
		},
		"the same without order": {
			map[string]topic{"x": {}}, true, []planned{{"a", "x", most}, {"a", "x", most}}, [][]int{{0}, {1}}, -1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := plan(tc.unordered, tc.all...)
			var rounds [][]int
			for later := true; later; {
				var now []int
				now, later = c.turn(tc.found)
				for _, i := range now {
					outcome := broker.Confirmed
					if i == tc.refused {
						outcome = broker.Rejected
					}
					c.settleLocked(i, broker.Confirmation{Outcome: outcome})
				}
				rounds = append(rounds, now)
			}
			if !slices.EqualFunc(rounds, tc.rounds, slices.Equal[[]int]) {
				t.Errorf("rounds %v, want %v", rounds, tc.rounds)
			}
			for i := range c.results {
				if c.results[i].Outcome != broker.Confirmed && i != tc.refused && c.results[i] != broker.Behind() {
					t.Errorf("message %d is %+v", i, c.results[i])
				}
			}
		})
	}
}

func TestABatchToOneTopicIsSentAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		found     map[string]topic
		unordered bool
		rounds    bool
	}{
		"one topic":                   {map[string]topic{"x": {maxBytes: 9}}, false, false},
		"two topics":                  {map[string]topic{"x": {maxBytes: 9}, "y": {maxBytes: 9}}, false, true},
		"two topics, no order":        {map[string]topic{"x": {maxBytes: 9}, "y": {maxBytes: 9}}, true, false},
		"one whose bound is not seen": {map[string]topic{"x": {}}, false, true},
	} {
		if got := plan(tc.unordered).inRounds(tc.found); got != tc.rounds {
			t.Errorf("%s: in rounds %v, want %v", name, got, tc.rounds)
		}
	}
}

// What a slow broker has no time for is not begun, also where messages go one by one: nobody is in doubt about them.
func TestWhatGoesOneByOneEndsInTime(t *testing.T) {
	t.Parallel()
	const many, patience, delay = 200, 3 * time.Second, 20 * time.Millisecond
	cases := map[string]struct {
		limit string
		batch func(other string) []message.Message
	}{
		"sent alone after a refusal": {"1500", func(string) []message.Message {
			return brokertest.Interleaved(many, 1)
		}},
		"one key to two topics": {"1048588", func(other string) []message.Message {
			batch := brokertest.Interleaved(1, many)
			for i := range batch {
				if i%2 == 1 {
					batch[i].Destination = other
				}
			}
			return batch
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.Kafka(t)
			own := server.Topic(1, map[string]string{settingMaxBytes: tc.limit})
			other := server.Topic(1, nil)
			proxy := testkit.Proxy(t, server.Addr())
			p := newPublisher(t, testConfig(server, proxy), PublisherConfig{Topic: own, Allowed: []string{other}})
			p.topics.keep(map[string]topic{own: {at: time.Now(), maxBytes: 1 << 20, partitions: 1}}) // as it was before
			first := tc.batch(other)[:2]
			for i := range first {
				first[i].OrderingKey, first[i].AggregateVersion = fmt.Sprintf("first-%d", i), 1
			}
			brokertest.PublishAll(t, p, first...)
			proxy.Delay(delay)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			batch := tc.batch(other)
			confirmed, left := 0, 0
			for i, c := range p.Publish(ctx, batch) {
				switch {
				case c.Outcome == broker.Confirmed:
					confirmed++
				case c.Outcome == broker.Unavailable && c.Reason == broker.ReasonNotSent:
					left++
				default:
					t.Errorf("message %d: %+v", i, c)
				}
			}
			if confirmed == 0 || left == 0 || p.Cuts() != 0 {
				t.Errorf("%d confirmed, %d not sent, %d connections cut", confirmed, left, p.Cuts())
			}
			proxy.Delay(0)
			brokertest.PublishAll(t, p, batch[:4]...)
		})
	}
}
