package dns

import (
	"container/list"
	"sync"
	"time"
)

// cache keeps the answers of resolvers, the ones used last, within bounds. An answer
// stays for MaxStale after its time, for when no resolver answers.
type cache struct {
	entries int // at most
	bytes   int // at most

	mu    sync.Mutex // guards what follows
	byKey map[string]*list.Element
	used  list.List // of *reply, the one used last first
	held  int       // bytes
}

// overhead is what an entry takes beside its bytes.
const overhead = 300

func (c *cache) get(key []byte, now time.Time) *reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[string(key)]
	if !ok {
		return nil
	}
	r := e.Value.(*reply)
	if now.After(r.expires.Add(MaxStale)) {
		c.drop(e)
		return nil
	}
	c.used.MoveToFront(e)
	return r
}

func (c *cache) put(r *reply) {
	size := len(r.key) + len(r.wire) + overhead
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byKey[r.key]; ok {
		c.drop(e)
	}
	for c.used.Len() > 0 && (c.used.Len() >= c.entries || c.held+size > c.bytes) {
		c.drop(c.used.Back())
	}
	if c.byKey == nil {
		c.byKey = make(map[string]*list.Element)
	}
	c.byKey[r.key] = c.used.PushFront(r)
	c.held += size
}

func (c *cache) drop(e *list.Element) {
	r := c.used.Remove(e).(*reply)
	delete(c.byKey, r.key)
	c.held -= len(r.key) + len(r.wire) + overhead
}
