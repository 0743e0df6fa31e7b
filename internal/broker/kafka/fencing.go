package kafka

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
)

// transactionTimeout is when the broker ends a transaction that nobody ends: readers of committed records wait for it. As
// a rule the shard's next Publish is earlier, wherever it is made, and ends it.
const transactionTimeout = 5 * time.Minute

// holding is this publisher's hold on a shard: the one client that the broker knows as the shard's producer.
type holding struct {
	term   int64
	client *client // nil while a Publish has it, and before the first
}

// fence returns the holding that a Publish is made under, and false where the publisher does not fence.
func (p *Publisher) fence(ctx context.Context) (broker.Fence, bool) {
	f, ok := broker.FenceOf(ctx)
	return f, ok && p.publish.FencingID != ""
}

// transactionalID is the same for every holder of the shard.
func (p *Publisher) transactionalID(shard int16) string {
	return p.publish.FencingID + "/" + strconv.Itoa(int(shard))
}

// takeFenced returns the client of the shard, which nobody else uses meanwhile.
func (p *Publisher) takeFenced(f broker.Fence) (*client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, publisherClosed()
	}
	h := p.shards[f.Shard]
	if h.term != f.Term && h.client != nil { // another relay has had the shard since
		p.dropLocked(h.client)
		h.client = nil
	}
	with := h.client
	if with == nil {
		var err error
		if with, err = p.open(
			kgo.TransactionalID(p.transactionalID(f.Shard)), kgo.TransactionTimeout(transactionTimeout),
		); err != nil {
			return nil, err
		}
	}
	p.shards[f.Shard] = holding{term: f.Term}
	return with, nil
}

// giveFenced keeps the client of the shard for its next Publish.
func (p *Publisher) giveFenced(f broker.Fence, with *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.shards[f.Shard]
	if p.closed || h.term != f.Term || h.client != nil || p.renewedLocked(with) {
		p.dropLocked(with)
		return
	}
	p.shards[f.Shard] = holding{term: f.Term, client: with}
}

const fencedDetail = "another relay has taken the shard over at the broker: this one's records are not taken any more"

// isFenced says whether the broker knows another producer under the transactional id.
func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) ||
		errors.Is(err, kerr.InvalidProducerIDMapping)
}

// begin begins the call's transaction. A new client takes the shard over at the broker with that: what a client before it
// has not committed is dropped, and what that sends later is refused.
func (c *call) begin(with *client) error {
	if !c.fenced {
		return nil
	}
	err := with.BeginTransaction()
	if err == nil {
		return nil
	}
	c.broken.Store(true)
	if isFenced(err) {
		return &broker.Error{Reason: broker.ReasonFenced, Detail: fencedDetail}
	}
	return stateError(with.dial, "begin a transaction", err)
}

// commit ends the call's transaction. What was written in it is confirmed only now.
func (c *call) commit(ctx context.Context, with *client) {
	if !c.fenced {
		return
	}
	err := with.EndTransaction(ctx, kgo.TryCommit)
	if err != nil {
		c.broken.Store(true) // the next client of the shard ends what this one leaves open
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken {
		return
	}
	c.committed = true
	for i := range c.results {
		if err != nil && c.results[i].Outcome == broker.Confirmed {
			c.results[i] = uncommitted(err)
		}
	}
}

// uncommitted is for a record whose transaction was not seen to commit.
func uncommitted(err error) broker.Confirmation {
	switch {
	case isFenced(err):
		return broker.Postpone(broker.ReasonFenced, fencedDetail)
	case errors.Is(err, kerr.OperationNotAttempted):
		return broker.Postpone(broker.ReasonNotSent, "the transaction was given up: another record of it failed")
	default:
		return broker.Doubt(broker.ReasonNoAnswer, "the broker did not say whether it has committed the transaction")
	}
}
