package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// PublisherConfig says what a Publisher sends where.
type PublisherConfig struct {
	// Topic is the destination of rows that name none.
	Topic string
	// Allowed lists the topics that rows may name: see broker.NewDestinations.
	Allowed []string
	// Compression is how batches travel and are kept. Defaults to CompressionNone.
	Compression Compression
	// Unordered lets a message be sent after an earlier one of its key was refused (ordering.mode None).
	Unordered bool
	// Format is how messages are laid out. Defaults to message.Native.
	Format message.Format
	// FencingID, where not empty, has the broker fence those who published for a shard before: what a Publish under a
	// broker.Fence sends is one transaction of the producer FencingID/<shard>, which the latest holder of the shard is.
	FencingID string
}

// maxIdle bounds the clients that are kept for the next Publish: as many as lanes that publish side by side.
const maxIdle = 16

// Publisher is a broker.Publisher to one cluster. It is safe for concurrent use; the caller never has messages of one
// key in two calls at once.
//
// Each Publish has a client of the library to itself, and hands over the whole batch before anything is sent; where a key
// goes to several topics, what may go together (see call.turn). A record that the broker refuses takes those down that
// wait for the same partition: that way they are all of this batch, none is sent behind it, and what gets no answer is cut
// off without touching what others have under way.
type Publisher struct {
	cfg          Config
	publish      PublisherConfig
	destinations broker.Destinations
	topics       topics
	partitioner  partitioner
	cuts         atomic.Int64

	mu       sync.Mutex
	renewals int // of all clients
	idle     []*client
	shards   map[int16]holding
	all      map[*client]struct{} // idle, in use or a shard's
	closed   bool
}

// NewPublisher returns a publisher. It sends nothing and waits for nothing.
func NewPublisher(cfg Config, publish PublisherConfig) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = discard()
	}
	if !validTopic(publish.Topic) {
		return nil, errors.New("kafka.topic is not a topic's name: letters, digits, dots, dashes and underscores")
	}
	destinations, err := broker.NewDestinations(publish.Topic, publish.Allowed)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	if _, err := codec(publish.Compression); err != nil {
		return nil, err
	}
	if err := publish.Format.Validate(); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &Publisher{
		cfg: cfg, publish: publish, destinations: destinations, partitioner: newPartitioner(publish.Topic),
		all: make(map[*client]struct{}), shards: make(map[int16]holding),
	}, nil
}

func codec(c Compression) (kgo.CompressionCodec, error) {
	switch c {
	case "", CompressionNone:
		return kgo.NoCompression(), nil
	case CompressionGzip:
		return kgo.GzipCompression(), nil
	case CompressionSnappy:
		return kgo.SnappyCompression(), nil
	case CompressionLz4:
		return kgo.Lz4Compression(), nil
	case CompressionZstd:
		return kgo.ZstdCompression(), nil
	default:
		return kgo.CompressionCodec{}, errors.New("kafka.compression is none of None, Gzip, Snappy, Lz4, Zstd")
	}
}

// take returns a client that nobody else uses.
func (p *Publisher) take() (*client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, publisherClosed()
	}
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return c, nil
	}
	return p.open()
}

func publisherClosed() error {
	return &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the publisher is closed"}
}

// open makes a client. The lock is held.
func (p *Publisher) open(more ...kgo.Opt) (*client, error) {
	compression, err := codec(p.publish.Compression)
	if err != nil {
		return nil, err
	}
	bounds, keys := newLimits(), newSteady()
	c, err := newClient(p.cfg, append([]kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(compression),
		kgo.RecordPartitioner(keys),
		kgo.ManualFlushing(),
		kgo.MaxBufferedRecords(1 << 20),
		kgo.RecordRetries(recordTries),
		kgo.UnknownTopicRetries(1),
		kgo.ProducerBatchMaxBytesFn(bounds.tell),
		// Else the library begins anew by itself where the broker has forgotten the producer, sends all again in silence,
		// and where that goes on tells of tries and not of their cause.
		kgo.StopProducerOnDataLossDetected(),
	}, more...)...)
	if err != nil {
		return nil, err
	}
	c.limits, c.keys, c.renewal = bounds, keys, p.renewals
	p.all[c] = struct{}{}
	return c, nil
}

// drop cuts a client off.
func (p *Publisher) drop(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(c)
}

func (p *Publisher) dropLocked(c *client) {
	delete(p.all, c)
	c.close()
}

// dropOlder cuts off the clients that nobody uses and that go by another bound of batches to the topic.
func (p *Publisher) dropOlder(name string, takes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(c *client) bool {
		older := c.limits.allow(name, takes) != takes
		if older {
			p.dropLocked(c)
		}
		return older
	})
}

// learn keeps what a look has shown. Where a topic has another number of partitions than it had, it drops all clients,
// those in use when they are given back: each goes by what it has seen itself, and a key is not to go to one partition and
// to another as its batches meet this client or that. So it moves once.
func (p *Publisher) learn(found map[string]topic) {
	if !p.topics.keep(found) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewals++
	for _, c := range p.idle {
		p.dropLocked(c)
	}
	p.idle = nil
	for id, h := range p.shards {
		if h.client != nil {
			p.dropLocked(h.client)
			p.shards[id] = holding{term: h.term}
		}
	}
}

// renewed says whether a client is of before the last renewal.
func (p *Publisher) renewed(c *client) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.renewedLocked(c)
}

func (p *Publisher) renewedLocked(c *client) bool { return c.renewal != p.renewals }

// give keeps a client that has nothing under way for the next Publish.
func (p *Publisher) give(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= maxIdle || p.renewedLocked(c) {
		p.dropLocked(c)
		return
	}
	p.idle = append(p.idle, c)
}

// Close cuts all connections. What is under way is Unknown to its caller.
func (p *Publisher) Close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.idle = true, nil
	for c := range p.all {
		c.close()
	}
	clear(p.all)
	clear(p.shards)
	return nil
}

// Cuts counts the calls whose connections were cut because their deadline passed.
func (p *Publisher) Cuts() int64 { return p.cuts.Load() }

// Publish implements broker.Publisher. The payloads of the batch must not be changed afterwards.
func (p *Publisher) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	c := newCall(p, batch)
	if len(batch) == 0 {
		return c.results
	}
	if ctx.Err() != nil {
		return c.abandon(broker.Postpone(broker.ReasonNotSent, "the deadline had passed"))
	}
	fence, fenced := p.fence(ctx)
	with, err := p.takeFor(fence, fenced)
	if err != nil {
		return c.abandon(unavailable(err))
	}
	c.fenced = fenced
	before := with.traffic()
	go c.run(ctx, with)
	select {
	case <-c.over:
	case <-ctx.Done():
	}
	if c.ended() {
		if c.failed() {
			p.topics.forget() // the next call looks before it sends
		}
		switch {
		case c.broken.Load():
			p.drop(with)
		case fenced:
			p.giveFenced(fence, with)
		default:
			p.give(with)
		}
		return c.results
	}
	// What still sits in buffers must not arrive long after the deadline, when another relay may be at work.
	p.drop(with)
	p.cuts.Add(1)
	p.topics.forget()
	return c.finish(with, before)
}

// takeFor returns a client that nobody else uses: the shard's own where it is fenced.
func (p *Publisher) takeFor(f broker.Fence, fenced bool) (*client, error) {
	if fenced {
		return p.takeFenced(f)
	}
	return p.take()
}

// Check says whether the relay's own topic is usable (the error is *broker.Error) and what about it may hurt later.
func (p *Publisher) Check(ctx context.Context) ([]broker.Warning, error) {
	c, err := p.take()
	if err != nil {
		return nil, err
	}
	name := p.publish.Topic
	found, err := c.look(ctx, name)
	if err != nil {
		p.drop(c)
		return nil, err
	}
	p.learn(found)
	p.give(c)
	if err := usable(name, found[name]); err != nil {
		return nil, err
	}
	return append(topicWarnings(name, found[name]), p.topics.warnings(name, c.now())...), nil
}
