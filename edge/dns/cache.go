package dns

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// cache keeps the most recently used answers of resolvers, within bounds. An answer stays for
// MaxStale after its expiry, in case no resolver answers.
type cache struct {
	bytes int // at most

	mu      sync.Mutex // guards what follows
	replies *simplelru.LRU[string, *reply]
	held    int // bytes
}

// newCache returns a cache that is bounded by a number of replies, which must be positive, and by
// their total bytes.
func newCache(replies, bytes int) *cache {
	c := &cache{bytes: bytes}
	var err error
	c.replies, err = simplelru.NewLRU(replies, func(_ string, r *reply) { c.held -= r.size() })
	if err != nil {
		panic(err)
	}
	return c
}

// overhead is the memory of a reply beside its bytes.
const overhead = 300

func (r *reply) size() int { return len(r.key) + len(r.wire) + overhead }

func (c *cache) get(key []byte, now time.Time) *reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.replies.Get(string(key))
	if ok && now.After(r.expires.Add(MaxStale)) {
		c.replies.Remove(r.key)
		return nil
	}
	return r
}

// size returns how many bytes the cache holds.
func (c *cache) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

func (c *cache) put(r *reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replies.Remove(r.key)
	c.held += r.size()
	c.replies.Add(r.key, r)
	for c.held > c.bytes {
		c.replies.RemoveOldest()
	}
}
