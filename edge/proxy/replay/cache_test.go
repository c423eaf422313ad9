package replay

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
)

// clock is a time that the test advances.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newCache(perApp, total int) (*Cache, *clock) {
	c := &clock{now: time.Unix(1_700_000_000, 0)}
	return NewCache(CacheOptions{PerApp: perApp, Total: total, Now: c.Now}), c
}

// ask makes a request; headers come in pairs.
func ask(tb testing.TB, url string, headers ...string) *http.Request {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	r.Header = answer(headers...)
	return r
}

// to is an instruction that is cached for a path.
func to(app hangar.AppName, prefix string, ttl time.Duration) *Instruction {
	return &Instruction{App: app, Cache: &CacheRule{Prefix: prefix, TTL: ttl}}
}

func (c *Cache) wants(t *testing.T, app hangar.AppID, r *http.Request, options []hangar.ReplayCache, target hangar.AppName, status CacheStatus) {
	t.Helper()
	in, got := c.Lookup(app, r, options)
	var found hangar.AppName
	if in != nil {
		found = in.App
	}
	if found != target || got != status {
		t.Errorf("%s %s leads to %q (%s), want %q (%s)", r.Host, r.URL.EscapedPath(), found, got, target, status)
	}
}

func TestCacheByPath(t *testing.T) {
	c, clock := newCache(10, 100)
	first := ask(t, "http://web.example/some/path/x?y=z")
	c.wants(t, "web", first, nil, "", CacheMiss)
	if !c.Learn("web", first, nil, to("target", "/some/path/", time.Minute)) {
		t.Fatal("it is not remembered")
	}
	c.wants(t, "web", first, nil, "target", CacheHit)
	c.wants(t, "web", ask(t, "http://WEB.example:80/some/path/"), nil, "target", CacheHit)
	c.wants(t, "web", ask(t, "http://web.example/some/path"), nil, "", CacheMiss)
	c.wants(t, "web", ask(t, "http://web.example/some/pathology/x"), nil, "", CacheMiss)
	c.wants(t, "web", ask(t, "http://web.example/some/path/../admin"), nil, "", CacheMiss)
	c.wants(t, "web", ask(t, "http://web.example/some/path/%2E%2e/admin"), nil, "", CacheMiss)
	c.wants(t, "web", ask(t, "http://other.example/some/path/x"), nil, "", CacheMiss)
	c.wants(t, "other", first, nil, "", CacheMiss)

	// The longest path counts.
	deep := ask(t, "http://web.example/some/path/deep/x")
	c.Learn("web", deep, nil, to("deeper", "/some/path/deep/", time.Minute))
	c.Learn("web", first, nil, to("root", "/", time.Hour))
	c.wants(t, "web", deep, nil, "deeper", CacheHit)
	c.wants(t, "web", first, nil, "target", CacheHit)
	c.wants(t, "web", ask(t, "http://web.example/"), nil, "root", CacheHit)

	// It expires, and the shorter path applies.
	clock.pass(time.Minute)
	c.wants(t, "web", deep, nil, "root", CacheHit)
	if c.Len() != 1 {
		t.Errorf("%d are remembered", c.Len())
	}

	// A later answer replaces an earlier one.
	c.Learn("web", first, nil, to("newer", "/", time.Hour))
	c.wants(t, "web", first, nil, "newer", CacheHit)
	c.Learn("web", first, nil, &Instruction{App: "web", Cache: &CacheRule{Invalidate: true}})
	c.wants(t, "web", first, nil, "", CacheMiss)
	if c.Len() != 0 || len(c.apps) != 0 {
		t.Error("something is left")
	}
}

func TestWhatIsNotRemembered(t *testing.T) {
	rule := &CacheRule{Prefix: "/", TTL: time.Minute}
	for name, in := range map[string]*Instruction{
		"nothing asked": {App: "x"},
		"state":         {App: "x", State: "s", Cache: rule},
		"transform":     {App: "x", Transform: &Transform{Path: "/"}, Cache: rule},
		"timeout":       {App: "x", Timeout: time.Second, Cache: rule},
		"fallback":      {App: "x", Fallback: FallbackForce, Cache: rule},
		"elsewhere":     {Elsewhere: true, Cache: rule},
		"another path":  {App: "x", Cache: &CacheRule{Prefix: "/other/", TTL: time.Minute}},
		"another host":  {App: "x", Cache: &CacheRule{Host: "other.example", Prefix: "/", TTL: time.Minute}},
	} {
		c, _ := newCache(10, 100)
		if c.Learn("web", ask(t, "http://web.example/a/b"), nil, in) || c.Len() != 0 {
			t.Errorf("%s: it is remembered", name)
		}
	}
	c, _ := newCache(10, 100)
	if c.Learn("web", ask(t, "http://web.example/a/../b"), nil, to("x", "/a/", time.Minute)) {
		t.Error("a path with steps upwards is remembered")
	}
	if !c.Learn("web", ask(t, "http://web.example/a/b"), nil, &Instruction{App: "x", Cache: &CacheRule{Host: "web.example", Prefix: "/a/", TTL: time.Minute}}) {
		t.Error("the same host by its name is not remembered")
	}
}

func TestCacheBypass(t *testing.T) {
	c, _ := newCache(10, 100)
	plain, skip := ask(t, "http://web.example/"), ask(t, "http://web.example/", "fly-replay-cache-control", "skip")
	in := to("x", "/", time.Minute)
	c.Learn("web", plain, nil, in)
	c.wants(t, "web", skip, nil, "x", CacheHit)
	in.Cache.AllowBypass = true
	c.Learn("web", plain, nil, in)
	c.wants(t, "web", skip, nil, "", CacheBypass)
	c.wants(t, "web", ask(t, "http://web.example/", "platform-replay-cache-control", "Skip"), nil, "", CacheBypass)
	c.wants(t, "web", plain, nil, "x", CacheHit)
}

func TestCacheBySession(t *testing.T) {
	c, clock := newCache(10, 100)
	options := []hangar.ReplayCache{
		{PathPrefix: "/", TTLSeconds: 60, Type: "cookie", Name: "session"},
		{PathPrefix: "/api", TTLSeconds: 3600, Type: "header", Name: "X-Tenant", AllowBypass: true},
	}
	web := func(path string, headers ...string) *http.Request {
		return ask(t, "http://web.example"+path, headers...)
	}
	target := &Instruction{App: "alice", Instance: "11111111111111"}
	if c.Learn("web", web("/"), options, target) {
		t.Error("a request without a session is remembered")
	}
	if !c.Learn("web", web("/", "Cookie", "a=b; session=alice"), options, target) ||
		!c.Learn("web", web("/api/v1", "X-Tenant", "bob"), options, &Instruction{App: "bob", PreferInstance: "22222222222222"}) {
		t.Fatal("sessions are not remembered")
	}
	c.wants(t, "web", web("/any/path", "Cookie", "session=alice"), options, "alice", CacheHit)
	c.wants(t, "web", web("/", "Cookie", "session=mallory"), options, "", CacheMiss)
	c.wants(t, "web", web("/", "session", "alice"), options, "", CacheMiss)
	c.wants(t, "web", web("/api", "X-Tenant", "bob", "Cookie", "session=alice"), options, "bob", CacheHit)
	c.wants(t, "web", web("/apis", "X-Tenant", "bob"), options, "", CacheMiss)
	c.wants(t, "web", web("/api/x", "X-Tenant", "bob", "fly-replay-cache-control", "skip"), options, "", CacheBypass)
	c.wants(t, "web", web("/", "Cookie", "session=alice"), nil, "", CacheMiss) // the config has changed

	c.Forget("web", web("/api", "X-Tenant", "bob"), options)
	c.wants(t, "web", web("/api", "X-Tenant", "bob"), options, "", CacheMiss)
	clock.pass(time.Minute)
	c.wants(t, "web", web("/", "Cookie", "session=alice"), options, "", CacheMiss)
	if c.Len() != 0 || len(c.apps) != 0 {
		t.Error("something is left")
	}
}

func TestCacheIsBounded(t *testing.T) {
	c, _ := newCache(3, 5)
	learn := func(app hangar.AppID, n int) {
		path := fmt.Sprintf("/%d/", n)
		c.Learn(app, ask(t, "http://web.example"+path), nil, &Instruction{App: "x", Instance: hangar.MachineID(fmt.Sprintf("%014x", n)), Cache: &CacheRule{Prefix: path, TTL: time.Hour}})
	}
	at := func(n int) *http.Request { return ask(t, fmt.Sprintf("http://web.example/%d/", n)) }
	for n := range 3 {
		learn("web", n)
	}
	c.wants(t, "web", at(0), nil, "x", CacheHit)
	learn("web", 3)
	c.wants(t, "web", at(1), nil, "", CacheMiss) // which no request used since
	c.wants(t, "web", at(0), nil, "x", CacheHit)
	for n := range 3 {
		learn("other", n)
	}
	if c.Len() != 5 {
		t.Errorf("%d are remembered", c.Len())
	}
	c.wants(t, "web", at(2), nil, "", CacheMiss) // the oldest of all
	for n := range 4 {
		c.Forget("other", at(n), nil)
		c.Forget("web", at(n), nil)
		c.Forget("web", at(n), nil)
	}
	if c.Len() != 0 || len(c.apps) != 0 {
		t.Error("something is left")
	}
}

// TestCacheAgainstModel compares the Cache with a plain list of what was learned.
func TestCacheAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, clock := newCache(1000, 1000)
		type fact struct {
			app      hangar.AppID
			prefix   string
			instance hangar.MachineID
			until    time.Time
		}
		var facts []fact
		paths := rapid.SampledFrom([]string{"/", "/a/", "/a/b/", "/a/b/c", "/b/x", "/a"})
		apps := rapid.SampledFrom([]hangar.AppID{"one", "two"})
		machines := rapid.SampledFrom([]hangar.MachineID{"m1", "m2", "m3"})
		rt.Repeat(map[string]func(*rapid.T){
			"learn": func(rt *rapid.T) {
				app, prefix, id := apps.Draw(rt, "app"), rapid.SampledFrom([]string{"/", "/a/", "/a/b/"}).Draw(rt, "prefix"), machines.Draw(rt, "machine")
				ttl := time.Duration(rapid.IntRange(10, 30).Draw(rt, "ttl")) * time.Second
				c.Learn(app, ask(t, "http://h.example"+prefix+"x"), nil, &Instruction{Instance: id, Cache: &CacheRule{Prefix: prefix, TTL: ttl}})
				kept := facts[:0]
				for _, f := range facts {
					if f.app != app || f.prefix != prefix {
						kept = append(kept, f)
					}
				}
				facts = append(kept, fact{app, prefix, id, clock.Now().Add(ttl)})
			},
			"forget": func(rt *rapid.T) {
				app, prefix := apps.Draw(rt, "app"), rapid.SampledFrom([]string{"/", "/a/", "/a/b/"}).Draw(rt, "prefix")
				c.Forget(app, ask(t, "http://h.example"+prefix), nil)
				longest := -1
				for i, f := range facts {
					if f.app == app && clock.Now().Before(f.until) && strings.HasPrefix(prefix, f.prefix) && (longest < 0 || len(f.prefix) > len(facts[longest].prefix)) {
						longest = i
					}
				}
				if longest >= 0 {
					facts = slices.Delete(facts, longest, longest+1)
				}
			},
			"time": func(rt *rapid.T) { clock.pass(time.Duration(rapid.IntRange(1, 10).Draw(rt, "s")) * time.Second) },
			"": func(rt *rapid.T) {
				app, path := apps.Draw(rt, "app"), paths.Draw(rt, "path")
				var want hangar.MachineID
				longest := -1
				for _, f := range facts {
					if f.app == app && clock.Now().Before(f.until) && len(path) >= len(f.prefix) && path[:len(f.prefix)] == f.prefix && len(f.prefix) > longest {
						want, longest = f.instance, len(f.prefix)
					}
				}
				var got hangar.MachineID
				if in, _ := c.Lookup(app, ask(t, "http://h.example"+path), nil); in != nil {
					got = in.Instance
				}
				if got != want {
					rt.Fatalf("%s %s leads to %q, want %q", app, path, got, want)
				}
			},
		})
	})
}

func TestCacheFromManySides(t *testing.T) {
	c, clock := newCache(20, 50)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 500 {
				app := hangar.AppID(fmt.Sprint("app", (n+i)%5))
				path := fmt.Sprintf("/%d/", i%37)
				r := ask(t, "http://h.example"+path)
				switch i % 7 {
				case 0, 1, 2:
					c.Forget(app, r, nil)
				case 3:
					clock.pass(time.Second)
				default:
					c.Learn(app, r, nil, &Instruction{Instance: hangar.MachineID(fmt.Sprint("m", i%3)), Cache: &CacheRule{Prefix: path, TTL: MinTTL}})
					c.Lookup(app, r, nil)
				}
			}
		})
	}
	all.Wait()
	for n := range 5 * 37 {
		c.Forget(hangar.AppID(fmt.Sprint("app", n%5)), ask(t, fmt.Sprintf("http://h.example/%d/", n/5)), nil)
	}
	if c.Len() != 0 || len(c.apps) != 0 {
		t.Errorf("%d are left", c.Len())
	}
}

func BenchmarkLookup(b *testing.B) {
	c, _ := newCache(1000, 1000)
	r := ask(b, "http://web.example/a/b/c/d?e=f")
	b.Run("nothing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Lookup("web", r, nil)
		}
	})
	c.Learn("web", r, nil, to("x", "/a/b/", time.Hour))
	b.Run("another app's", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Lookup("other", r, nil)
		}
	})
	b.Run("hit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Lookup("web", r, nil)
		}
	})
}
