package outbox

import "context"

// Collector gathers the messages of one transaction, so that they are written once, late and in an order of locks
// that no other writer crosses. It belongs to one transaction and is not for several goroutines at a time.
type Collector struct {
	writer  *Writer
	msgs    []Message
	all     *together
	flushed bool
}

// Collect returns a collector for one transaction.
func (w *Writer) Collect() *Collector { return &Collector{writer: w, all: newTogether()} }

// Add takes a message to be written by Flush, after checking it, and returns its id. Payload and headers must not be
// changed until then. A message that is refused is not kept.
func (c *Collector) Add(m Message) (EventID, error) {
	if c.flushed {
		return EventID{}, ErrFlushed
	}
	if len(c.msgs) == MaxMessages {
		return EventID{}, tooMany(MaxMessages+1, MaxMessages)
	}
	if err := c.writer.check(len(c.msgs), &m, c.all); err != nil {
		return EventID{}, err
	}
	c.msgs = append(c.msgs, m)
	return m.ID, nil
}

// Len is the number of messages that were added.
func (c *Collector) Len() int { return len(c.msgs) }

// Flush writes what was added, in the order of adding, in one statement. Call it once, right before the commit: it
// spends the collector. After an error the transaction must be rolled back.
func (c *Collector) Flush(ctx context.Context, tx Tx) ([]Written, error) {
	if c.flushed {
		return nil, ErrFlushed
	}
	c.flushed = true
	return c.writer.Write(ctx, tx, c.msgs...)
}

// FlushSQL does what Flush does in a transaction of database/sql.
func (c *Collector) FlushSQL(ctx context.Context, tx SQLTx) ([]Written, error) {
	if c.flushed {
		return nil, ErrFlushed
	}
	c.flushed = true
	return c.writer.WriteSQL(ctx, tx, c.msgs...)
}
