package inboxdb

import (
	"sync"

	"github.com/postrider/postrider/internal/verdict"
)

// keysPerGeneration bounds the cache to two generations of so many keys, about 8 MB.
const keysPerGeneration = 1 << 16

// keyCache remembers which key rows exist, so that a batch of known keys inserts none. It is a fast path only: a key that
// it wrongly knows does not come back from the lock, and is forgotten then.
type keyCache struct {
	mu         sync.Mutex
	young, old map[verdict.Hash]struct{}
}

func newKeyCache() *keyCache {
	return &keyCache{young: make(map[verdict.Hash]struct{})}
}

// missing returns the keys that are not known.
func (c *keyCache) missing(hashes []verdict.Hash) []verdict.Hash {
	c.mu.Lock()
	defer c.mu.Unlock()
	var m []verdict.Hash
	for _, h := range hashes {
		if _, there := c.young[h]; there {
			continue
		}
		if _, there := c.old[h]; there {
			c.add(h) // it is in use: it must not end with its generation
			continue
		}
		m = append(m, h)
	}
	return m
}

func (c *keyCache) add(h verdict.Hash) {
	if len(c.young) >= keysPerGeneration {
		c.old, c.young = c.young, make(map[verdict.Hash]struct{})
	}
	c.young[h] = struct{}{}
}

func (c *keyCache) know(hashes []verdict.Hash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range hashes {
		c.add(h)
	}
}

func (c *keyCache) forget(h verdict.Hash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.young, h)
	delete(c.old, h)
}
