package replay

import (
	"container/list"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// CacheStatus says what part the cache had in a replay. The target receives it in
// hangar.HeaderReplayCacheState.
type CacheStatus string

// The statuses of the memory.
const (
	CacheMiss   CacheStatus = "miss"
	CacheHit    CacheStatus = "hit"
	CacheBypass CacheStatus = "bypass" // the client did not want to be sent by memory
)

// The bounds of a Cache whose maker names none.
const (
	DefaultPerApp = 1_000
	DefaultTotal  = 100_000
)

// CacheOptions bound a Cache.
type CacheOptions struct {
	PerApp int              // 0: DefaultPerApp
	Total  int              // 0: DefaultTotal
	Now    func() time.Time // nil: time.Now
}

// Cache remembers where the requests of Apps were replayed: those below a path, by a CacheRule,
// and those of a session, by the config of a service. Everything is per App and host name. The
// least recently used entry is dropped first.
type Cache struct {
	now    func() time.Time
	perApp int
	total  int
	size   atomic.Int64 // of recent, for reads without a lock

	mu     sync.Mutex // guards the fields below, and every shelf
	apps   map[hangar.AppID]*shelf
	recent *list.List // of every *memory, most recent first
}

// shelf holds the entries of one App.
type shelf struct {
	memories map[key]*memory
	recent   *list.List // of *memory, most recent first
	depth    int        // the largest number of slashes of a path in memories
}

// key selects the requests that an entry applies to: those of a host below a path, and with a
// session only those that have it.
type key struct {
	host, prefix string
	session      [16]byte // zero: any session
}

type memory struct {
	app     hangar.AppID
	key     key
	in      *Instruction
	bypass  bool // clients may bypass it
	expires time.Time
	here    *list.Element // in the shelf's recent
	there   *list.Element // in the Cache's recent
}

// NewCache returns an empty Cache.
func NewCache(o CacheOptions) *Cache {
	if o.PerApp <= 0 {
		o.PerApp = DefaultPerApp
	}
	if o.Total <= 0 {
		o.Total = DefaultTotal
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Cache{
		now: o.Now, perApp: o.PerApp, total: o.Total, recent: list.New(),
		apps: map[hangar.AppID]*shelf{},
	}
}

// Lookup returns where a request of an App is to go, or nil. Options are those of the service
// port that it came to. The result never changes.
func (c *Cache) Lookup(app hangar.AppID, r *http.Request, options []hangar.ReplayCache) (*Instruction, CacheStatus) {
	if c.size.Load() == 0 {
		return nil, CacheMiss
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.apps[app]
	if s == nil {
		return nil, CacheMiss
	}
	path, host, skip := r.URL.EscapedPath(), hostOf(r.Host), skips(r.Header)
	if isUnclean(path) {
		return nil, CacheMiss
	}
	m := c.bySession(s, host, path, r, options)
	if m == nil {
		m = c.byPath(s, host, path)
	}
	switch {
	case m == nil:
		return nil, CacheMiss
	case skip && m.bypass:
		return nil, CacheBypass
	}
	s.recent.MoveToFront(m.here)
	c.recent.MoveToFront(m.there)
	return m.in, CacheHit
}

// Learn remembers where a request was replayed if the instruction, or the config of the
// service port for its session, says so. It reports whether there is anything to remember.
func (c *Cache) Learn(app hangar.AppID, r *http.Request, options []hangar.ReplayCache, in *Instruction) bool {
	path, host := r.URL.EscapedPath(), hostOf(r.Host)
	if in.Cache != nil && in.Cache.Invalidate {
		c.Forget(app, r, options)
		return false
	}
	if !in.Cacheable() || isUnclean(path) {
		return false
	}
	kept := *in
	kept.Cache = nil
	m := &memory{app: app, in: &kept}
	switch rule := in.Cache; {
	case rule != nil:
		if rule.Host != "" && rule.Host != host || !strings.HasPrefix(path, rule.Prefix) {
			return false // it does not apply to requests like this one
		}
		m.key, m.bypass, m.expires = key{host: host, prefix: rule.Prefix}, rule.AllowBypass, c.now().Add(rule.TTL)
	default:
		i, session, ok := sessionOf(path, r, options)
		if !ok {
			return false
		}
		o := &options[i]
		lives := time.Duration(min(int64(o.TTLSeconds), int64(MaxTTL/time.Second))) * time.Second
		m.key, m.bypass, m.expires = key{host, o.PathPrefix, session}, o.AllowBypass, c.now().Add(max(lives, MinTTL))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(m)
	return true
}

// Forget removes the entry that Lookup would find for a request.
func (c *Cache) Forget(app hangar.AppID, r *http.Request, options []hangar.ReplayCache) {
	path, host := r.URL.EscapedPath(), hostOf(r.Host)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.apps[app]
	if s == nil {
		return
	}
	if m := c.bySession(s, host, path, r, options); m != nil {
		c.drop(m)
	}
	if s = c.apps[app]; s == nil {
		return
	}
	if m := c.byPath(s, host, path); m != nil {
		c.drop(m)
	}
}

// Len is the number of entries.
func (c *Cache) Len() int { return int(c.size.Load()) }

// bySession finds the entry of the request's session. The caller holds mu.
func (c *Cache) bySession(s *shelf, host, path string, r *http.Request, options []hangar.ReplayCache) *memory {
	if len(options) == 0 {
		return nil
	}
	i, session, ok := sessionOf(path, r, options)
	if !ok {
		return nil
	}
	return c.alive(s.memories[key{host, options[i].PathPrefix, session}])
}

// byPath finds the entry with the longest path. The caller holds mu.
func (c *Cache) byPath(s *shelf, host, path string) *memory {
	var ends []int // of the path's prefixes that can be entries
	for i := 0; i < len(path) && len(ends) < s.depth; i++ {
		if path[i] == '/' {
			ends = append(ends, i+1)
		}
	}
	for _, end := range slices.Backward(ends) {
		if m := c.alive(s.memories[key{host: host, prefix: path[:end]}]); m != nil {
			return m
		}
	}
	return nil
}

// alive returns m unless it has expired. The caller holds mu.
func (c *Cache) alive(m *memory) *memory {
	if m != nil && !c.now().Before(m.expires) {
		c.drop(m)
		return nil
	}
	return m
}

// put stores m, replacing an older entry. The caller holds mu.
func (c *Cache) put(m *memory) {
	if s := c.apps[m.app]; s != nil {
		if old := s.memories[m.key]; old != nil {
			c.drop(old)
		} else if len(s.memories) >= c.perApp {
			c.drop(s.recent.Back().Value.(*memory))
		}
	}
	if c.recent.Len() >= c.total {
		c.drop(c.recent.Back().Value.(*memory))
	}
	s := c.apps[m.app]
	if s == nil {
		s = &shelf{memories: map[key]*memory{}, recent: list.New()}
		c.apps[m.app] = s
	}
	s.depth = max(s.depth, strings.Count(m.key.prefix, "/"))
	s.memories[m.key] = m
	m.here, m.there = s.recent.PushFront(m), c.recent.PushFront(m)
	c.size.Store(int64(c.recent.Len()))
}

// drop removes m. The caller holds mu.
func (c *Cache) drop(m *memory) {
	s := c.apps[m.app]
	delete(s.memories, m.key)
	s.recent.Remove(m.here)
	c.recent.Remove(m.there)
	if len(s.memories) == 0 {
		delete(c.apps, m.app)
	}
	c.size.Store(int64(c.recent.Len()))
}

// sessionOf finds the option with the longest prefix of the path whose cookie or header the
// request has, and the value of that.
func sessionOf(path string, r *http.Request, options []hangar.ReplayCache) (int, [16]byte, bool) {
	best, session := -1, ""
	for i := range options {
		o := &options[i]
		if !below(path, o.PathPrefix) || best >= 0 && len(o.PathPrefix) <= len(options[best].PathPrefix) {
			continue
		}
		value := ""
		if o.Type == "header" {
			value = r.Header.Get(o.Name)
		} else if cookie, err := r.Cookie(o.Name); err == nil {
			value = cookie.Value
		}
		if value != "" {
			best, session = i, o.Type+"\x00"+o.Name+"\x00"+value
		}
	}
	if best < 0 {
		return -1, [16]byte{}, false
	}
	sum := sha256.Sum256([]byte(session))
	return best, [16]byte(sum[:16]), true
}

// below reports whether a path equals a prefix, or continues it with another segment.
func below(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(prefix, "/"))
}

// skips reports whether the client bypasses the cache.
func skips(h http.Header) bool {
	v, ok := header(h, keyCacheControl)
	return ok && strings.EqualFold(strings.TrimSpace(v), "skip")
}

// hostOf is the name in a Host header, or its address.
func hostOf(sent string) string {
	if name := hangar.Canonical(sent); name != "" {
		return string(name)
	}
	return strings.ToLower(sent)
}
