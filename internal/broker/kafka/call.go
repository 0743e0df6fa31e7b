package kafka

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/message"
)

// state is how far a message of a call has come.
type state uint8

const (
	waiting state = iota // not handed to the library
	handed               // the library has it
	again                // refused with others: to be sent alone
	settled              // its confirmation stands
)

// call is one Publish. One goroutine drives it; the caller takes the results when it is over or when its context ends,
// whichever is first.
type call struct {
	publisher *Publisher
	batch     []message.Message
	fenced    bool            // all that is sent is one transaction
	over      chan struct{}   // closed when all are settled
	lastCall  <-chan struct{} // closed when nothing more is begun
	broken    atomic.Bool     // the client is of no more use

	mu        sync.Mutex
	taken     bool // the caller has the results; nothing more is sent
	committed bool // the transaction has ended
	states    []state
	results   []broker.Confirmation
	records   []*kgo.Record
	sizes     []int // of records
}

func newCall(p *Publisher, batch []message.Message) *call {
	return &call{
		publisher: p, batch: batch, over: make(chan struct{}),
		states: make([]state, len(batch)), results: make([]broker.Confirmation, len(batch)),
		records: make([]*kgo.Record, len(batch)), sizes: make([]int, len(batch)),
	}
}

// abandon gives all messages that have none yet one confirmation. Nothing was sent.
func (c *call) abandon(all broker.Confirmation) []broker.Confirmation {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committed = true
	for i := range c.results {
		if c.states[i] != settled {
			c.settleLocked(i, all)
		}
	}
	return c.results
}

// run prepares, sends and settles all messages.
func (c *call) run(ctx context.Context, with *client) {
	defer close(c.over)
	sending, cancel := broker.LastCall(ctx)
	defer cancel()
	c.lastCall = sending.Done()
	with.keys.anew()
	c.build()
	found, err := c.lookUp(ctx, with)
	if err != nil {
		c.abandon(unavailable(err))
		return
	}
	if c.publisher.renewed(with) {
		c.abandon(broker.Postpone(broker.ReasonNotSent, "a topic has other partitions: the next connection sends it"))
		return
	}
	c.check(found, c.fit(with, found))
	if err := c.begin(with); err != nil {
		c.abandon(unavailable(err))
		return
	}
	if !c.send(ctx, with, found) {
		return // the deadline: finish gives the rest their words
	}
	c.commit(ctx, with)
}

// build makes the records. What the message alone decides is settled here.
func (c *call) build() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.batch {
		m := &c.batch[i]
		topic, ok := c.publisher.destinations.Resolve(m)
		switch {
		case m.Destination != "" && !validTopic(m.Destination):
			c.settleLocked(i, broker.Reject(broker.ReasonInvalidDestination,
				"the destination is not a topic: letters, digits, dots, dashes and underscores, not __ in front"))
			continue
		case !ok:
			c.settleLocked(i, broker.Reject(broker.ReasonNotAllowed,
				"the destination is not in destination.allowed: add it, or correct the row"))
			continue
		}
		rec, refusal := broker.Encode(m, c.publisher.publish.Format, message.KafkaBinding)
		if refusal != nil {
			c.settleLocked(i, *refusal)
			continue
		}
		c.records[i] = kafkaRecord(topic, &rec)
		c.sizes[i] = recordBytes(c.records[i])
	}
}

func kafkaRecord(topic string, rec *message.Record) *kgo.Record {
	headers := make([]kgo.RecordHeader, len(rec.Headers))
	for i, h := range rec.Headers {
		headers[i] = kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)}
	}
	return &kgo.Record{Topic: topic, Key: rec.Key, Value: rec.Body, Headers: headers}
}

// lookUp makes sure that all topics of the call have been looked at: again where one is known to take less than a record
// of the call, as its setting may have been raised since.
func (c *call) lookUp(ctx context.Context, with *client) (map[string]topic, error) {
	found := make(map[string]topic)
	var unknown []string
	now := with.now()
	for i, record := range c.records {
		if record == nil {
			continue
		}
		name := record.Topic
		known, seen := found[name]
		if !seen {
			var ok bool
			if known, ok = c.publisher.topics.get(name); !ok {
				unknown = append(unknown, name)
			}
			found[name] = known
		}
		if known.refuses(c.sizes[i]) && known.old(now) {
			unknown, found[name] = append(unknown, name), topic{}
		}
	}
	if len(unknown) == 0 {
		return found, nil
	}
	looked, err := with.look(ctx, unknown...)
	if err != nil {
		return nil, err
	}
	c.publisher.learn(looked)
	maps.Copy(found, looked)
	return found, nil
}

// fit sees to it that the client's batches are as large as the topics take. It returns the bounds of those that take more
// than the client does. A client that goes by what has changed is dropped after the call.
func (c *call) fit(with *client, found map[string]topic) map[string]int {
	var narrow map[string]int
	for name, one := range found {
		if one.err != nil {
			continue
		}
		takes := one.batchBytes()
		bound := with.limits.allow(name, takes)
		if bound != takes && one.maxBytes > 0 {
			c.outdated(name, takes)
		}
		if bound < takes {
			if narrow == nil {
				narrow = make(map[string]int)
			}
			narrow[name] = bound
		}
	}
	return narrow
}

// outdated drops the clients that go by another bound than the topic's: this one after the call.
func (c *call) outdated(name string, takes int) {
	c.broken.Store(true)
	c.publisher.dropOlder(name, takes)
}

// check settles what a look at the topics decides, and what comes behind a refused message of its key. Narrow are the
// topics that take more than the client does.
func (c *call) check(found map[string]topic, narrow map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cut := make(map[string]bool)
	for i := range c.batch {
		key := c.batch[i].OrderingKey
		if cut[key] && c.ordered() {
			c.settleLocked(i, broker.Behind())
			continue
		}
		if c.states[i] == waiting {
			name := c.records[i].Topic
			if refusal, ok := c.refusal(i, found[name]); ok {
				c.settleLocked(i, refusal)
			} else if bound, ok := narrow[name]; ok && c.sizes[i] > bound {
				t := found[name]
				c.outdated(name, t.batchBytes())
				c.settleLocked(i, broker.Postpone(broker.ReasonNotSent,
					"the topic takes larger records than it did: the next connection sends it"))
			}
		}
		if c.states[i] == settled {
			cut[key] = true
		}
	}
}

func (c *call) ordered() bool { return !c.publisher.publish.Unordered }

// refusal says why a record cannot be written to its topic as that is.
func (c *call) refusal(i int, t topic) (broker.Confirmation, bool) {
	if t.err != nil {
		record := c.records[i]
		return answerTo(t.err, record.Topic, c.fallback(record)).confirmation, true
	}
	if t.refuses(c.sizes[i]) {
		return broker.Reject(broker.ReasonTooLarge, "the record with its headers is "+strconv.Itoa(c.sizes[i])+
			" bytes, the topic's max.message.bytes is "+strconv.Itoa(t.maxBytes)), true
	}
	return broker.Confirmation{}, false
}

func (c *call) fallback(record *kgo.Record) bool { return record.Topic == c.publisher.publish.Topic }

// recordBytes is at least what a batch with this record alone takes before compression.
func recordBytes(record *kgo.Record) int {
	const batchBytes, perRecord, perHeader = 70, 30, 6 // with room for their lengths
	n := batchBytes + perRecord + len(record.Key) + len(record.Value)
	for _, h := range record.Headers {
		n += perHeader + len(h.Key) + len(h.Value)
	}
	return n
}

// hand gives a message to the library, which sends nothing before the flush. Before is what the client had sent and
// heard then.
func (c *call) hand(ctx context.Context, with *client, i int, before traffic) {
	c.mu.Lock()
	if c.taken || c.states[i] != waiting && c.states[i] != again {
		c.mu.Unlock()
		return
	}
	c.states[i] = handed
	record := c.records[i]
	c.mu.Unlock()
	with.Produce(ctx, record, func(record *kgo.Record, err error) { c.told(with, i, record, err, before) })
}

// told takes the library's word on a message.
func (c *call) told(with *client, i int, record *kgo.Record, err error, before traffic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken || c.states[i] != handed {
		return
	}
	if err == nil {
		c.publisher.topics.wrote(record.Topic, record.Partition)
		c.settleLocked(i, broker.Confirmation{Outcome: broker.Confirmed, Position: position(record)})
		return
	}
	if errors.Is(err, kgo.ErrRecordRetries) && with.produced.Load() == before.produced {
		c.settleLocked(i, unsent(with, before)) // no request has left since
		return
	}
	if c.fenced && isFenced(err) { // what the transaction holds is never seen
		c.broken.Store(true)
		c.settleLocked(i, broker.Postpone(broker.ReasonFenced, fencedDetail))
		return
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
		// The look has found the topic: it was made again, and the client takes it for the one before for ever.
		c.broken.Store(true)
	}
	if isSequence(err) { // the client's producer is at its end: whatever it sends later fails the same way
		c.broken.Store(true)
	}
	got := answerTo(err, record.Topic, c.fallback(record))
	if got.confirmation.Reason == broker.ReasonTooLarge { // the look says otherwise
		c.publisher.topics.doubt(record.Topic, with.now())
	}
	if got.shared {
		c.states[i], c.results[i] = again, got.confirmation
		return
	}
	c.settleLocked(i, got.confirmation)
}

func position(record *kgo.Record) string {
	return record.Topic + "/" + strconv.FormatInt(int64(record.Partition), 10) + "@" +
		strconv.FormatInt(record.Offset, 10)
}

// unsent says why nothing could be sent. What another broker answered meanwhile is not the cluster's failure: it is that
// of the partitions whose leader is away.
func unsent(with *client, before traffic) broker.Confirmation {
	server, err := with.dial.failure()
	state := endpoint.StateError(server, err)
	if state != nil && state.Reason != broker.ReasonUnreachable {
		return unavailable(state)
	}
	if with.heard.Load() != before.heard {
		return broker.Postpone(broker.ReasonBrokerError, "the leader of the message's partition is not reachable")
	}
	if state != nil {
		return unavailable(state)
	}
	return broker.Postpone(broker.ReasonUnreachable, "the brokers of the messages' partitions are not reachable")
}

// settleLocked gives a message its confirmation. The lock is held.
func (c *call) settleLocked(i int, r broker.Confirmation) {
	if !c.taken {
		c.states[i], c.results[i] = settled, r
	}
}

// ended says whether all messages are settled; the results are then the caller's.
func (c *call) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.states {
		if st != settled {
			return false
		}
	}
	if c.fenced && !c.committed {
		return false
	}
	c.taken = true
	return true
}

// failed says whether the environment refused something.
func (c *call) failed() bool {
	for i := range c.results {
		r := &c.results[i]
		if r.Outcome == broker.Unknown || r.Outcome == broker.Unavailable && r.Reason != broker.ReasonNotSent {
			return true
		}
	}
	return false
}

// finish takes the results after the client was cut: what has no answer is Unknown, unless no request has left at all.
func (c *call) finish(with *client, before traffic) []broker.Confirmation {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := with.produced.Load() != before.produced
	for i := range c.batch {
		switch c.states[i] {
		case settled:
			if c.fenced && !c.committed && c.results[i].Outcome == broker.Confirmed {
				c.results[i] = uncommitted(nil)
			}
		case waiting:
			c.results[i] = broker.NoTime()
		case again: // it was refused with others, and is not at the broker
			c.results[i] = broker.Postpone(broker.ReasonNotSent, "the deadline came before the message was sent alone")
		case handed:
			c.results[i] = broker.Doubt(broker.ReasonNoAnswer, "no answer in time")
			if !sent {
				c.results[i] = unsent(with, before)
			}
		}
	}
	c.taken = true
	return c.results
}
