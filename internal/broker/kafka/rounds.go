package kafka

import (
	"context"

	"github.com/postrider/postrider/internal/broker"
)

// send hands over what is not settled yet and waits for the answers. It says false at the deadline.
func (c *call) send(ctx context.Context, with *client, found map[string]topic) bool {
	if !c.inRounds(found) {
		before := with.traffic()
		for i := range c.batch {
			c.hand(ctx, with, i, before)
		}
		return with.Flush(ctx) == nil && c.sendAlone(ctx, with)
	}
	for {
		before := with.traffic()
		now, later := c.turn(found)
		for _, i := range now {
			c.hand(ctx, with, i, before)
		}
		if with.Flush(ctx) != nil || !c.sendAlone(ctx, with) {
			return false
		}
		if !later {
			return true
		}
		if c.late() {
			c.noTime()
			return true
		}
	}
}

// inRounds says whether not all of the call may be with the library at once. Within a topic the library keeps a key
// together, and what a topic takes bounds its batches.
func (c *call) inRounds(found map[string]topic) bool {
	if len(found) > 1 && c.ordered() {
		return true
	}
	for _, one := range found {
		if one.maxBytes == 0 && one.err == nil {
			return true
		}
	}
	return false
}

// keyTurn is what a round knows of a key.
type keyTurn struct {
	topic string // where it goes to in this round
	cut   bool   // an earlier message was not confirmed
	waits bool   // an earlier message goes in a later round
}

// turn says which messages go in the next round, and whether there are others. A key goes to one topic in a round: what
// it has for another one is not sent before the first are confirmed. To a topic whose bound is not to be seen goes no
// more than fits into the usual batch, or one record that is larger: then the broker judges it alone.
func (c *call) turn(found map[string]topic) (now []int, later bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := make(map[string]keyTurn) // stays empty where keys are not kept in order
	unseen := make(map[string]int)   // bytes for topics whose bound is not to be seen
	for i := range c.batch {
		key := c.batch[i].OrderingKey
		k := keys[key]
		switch c.states[i] {
		case settled:
			k.cut = k.cut || c.results[i].Outcome != broker.Confirmed
		case waiting:
			name, size := c.records[i].Topic, c.sizes[i]
			full := unseen[name] > 0 && unseen[name]+size > assumedMaxBytes
			switch {
			case k.cut:
				c.settleLocked(i, broker.Behind())
			case k.waits || full || k.topic != "" && k.topic != name:
				k.waits, later = true, true
			default:
				k.topic, now = name, append(now, i)
				if found[name].maxBytes == 0 {
					unseen[name] += size
				}
			}
		case handed, again: // not between two rounds, except that the results are taken
		}
		if c.ordered() {
			keys[key] = k
		}
	}
	return now, later
}

// sendAlone sends what was refused with others again, one at a time: the one that is meant is refused again. It says false
// at the deadline.
func (c *call) sendAlone(ctx context.Context, with *client) bool {
	cut := make(map[string]bool)
	for i := range c.batch {
		c.mu.Lock()
		key, st, outcome := c.batch[i].OrderingKey, c.states[i], c.results[i].Outcome
		if st == again && cut[key] && c.ordered() {
			c.settleLocked(i, broker.Behind())
			st = settled
		}
		c.mu.Unlock()
		if st == again {
			if c.late() {
				c.noTime()
				return true
			}
			c.hand(ctx, with, i, with.traffic())
			if with.Flush(ctx) != nil {
				return false
			}
			outcome = c.alone(i)
		}
		if outcome != broker.Confirmed {
			cut[key] = true
		}
	}
	return true
}

// alone settles a message that was sent alone with what it was told.
func (c *call) alone(i int) broker.Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.states[i] == again {
		c.settleLocked(i, c.results[i])
	}
	return c.results[i].Outcome
}

// late says whether nothing more is begun.
func (c *call) late() bool {
	select {
	case <-c.lastCall:
		return true
	default:
		return false
	}
}

// noTime settles what was not sent, or has to be sent again.
func (c *call) noTime() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.batch {
		if c.states[i] == waiting || c.states[i] == again {
			c.settleLocked(i, broker.NoTime())
		}
	}
}
