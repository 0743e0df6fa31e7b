package kafka

import "sync"

// What the library takes for a bound of batches.
const leastBatch, mostBatch = 512, 1 << 30

// batchBytes bounds a batch to the topic. Where the bound is not to be seen, the broker judges: see call.turn.
func (t *topic) batchBytes() int {
	if t.maxBytes == 0 {
		return mostBatch
	}
	return min(max(t.maxBytes, leastBatch), mostBatch)
}

// limits bounds a client's batches, by topic. The library asks when it meets a partition, and goes by the answer for as
// long as the client lives, whatever becomes of the topic: so the first answer stands.
type limits struct {
	mu    sync.Mutex
	topic map[string]limit
}

type limit struct {
	bytes int
	told  bool // the library goes by it
}

func newLimits() *limits { return &limits{topic: make(map[string]limit)} }

// allow sets the bound of batches to a topic unless the library goes by another one, and returns the one that holds.
func (l *limits) allow(name string, bytes int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.topic[name]; one.told {
		return one.bytes
	}
	l.topic[name] = limit{bytes: bytes}
	return bytes
}

// tell answers the library. It asks for no topic that nothing was sent to, but once for none, to check what we say.
func (l *limits) tell(name string) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, ok := l.topic[name]
	if !ok {
		one.bytes = assumedMaxBytes
	}
	one.told = true
	l.topic[name] = one
	return int32(one.bytes) //nolint:gosec // batchBytes bounds it
}
