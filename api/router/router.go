package router

import (
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/latency"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// The bounds of a request and its answer.
const (
	MaxBodyBytes  = 1 << 20
	answerTimeout = time.Minute
	StreamTimeout = 5 * time.Minute  // for one write to a stream
	Heartbeat     = 15 * time.Second // between signs of life
)

// Config is what the operations of all areas share.
type Config struct {
	Auth       hangar.Authenticator
	RateLimits RateLimits        // 0: none
	Region     hangar.Region     // part of the ids of requests; empty: none
	Params     map[string]Param  // the parameters of paths, by name
	Commands   map[string]string // lines of the CLI that do an operation, by its ID
	// Absent says why a path is not served, and what to do instead. It returns "" for an unknown path.
	// Nil: all paths are unknown.
	Absent func(path string) string
	Log    *slog.Logger
}

// Router has the operations of an API. They are added before it serves; after that it is never
// changed, and safe for concurrent use.
type Router struct {
	Config
	mux      *http.ServeMux
	limiters *ratelimit.Limiter[limited]    // nil: none
	signIns  *ratelimit.Limiter[netip.Addr] // of sources with invalid credentials
	routes   []Route
	mounted  []string // paths of Mount
	latency  *latency.Counts
}

// New returns a router without operations.
func New(config Config) *Router { return newRouter(config, time.Now) }

func newRouter(config Config, now func() time.Time) *Router {
	rt := &Router{
		Config: config, mux: http.NewServeMux(), signIns: ratelimit.New[netip.Addr](MaxLimiters, SignInPace.Refill(), now),
	}
	if config.RateLimits > 0 {
		rt.limiters = ratelimit.New[limited](MaxLimiters, destroyPace.Refill(), now)
	}
	rt.mux.Handle("/", rt.plain(rt.unknownPath))
	return rt
}

// Routes are the operations, in the order in which they were added.
func (rt *Router) Routes() []Route { return rt.routes }

// Mount serves everything below a path by another handler, which authenticates requests itself. The
// document does not describe it. Machines do not reach it over their own sockets.
func (rt *Router) Mount(path string, h http.Handler) {
	rt.mounted = append(rt.mounted, path)
	rt.mux.Handle(path, rt.self(Operation{}, h))
}

// Chain returns the handler of everything that was added, and the counts of its requests.
func (rt *Router) Chain() (http.Handler, *latency.Counts) {
	rt.latency = rt.measure()
	return rt.observe(rt.signIn(rt.exact(rt.mux))), rt.latency
}

// Handler answers one request: with what to write, or with an error.
type Handler func(r *http.Request) (Answer, error)

// Streamer writes its answer itself. An error that it returns before it has
// written anything is answered like any other.
type Streamer func(w http.ResponseWriter, r *http.Request) error

// plain bounds the body that h reads, and writes the answer of h.
func (rt *Router) plain(h Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, MaxBodyBytes)
		a, err := h(r)
		maps.Copy(w.Header(), a.Header)
		if err != nil {
			rt.WriteError(w, r, err)
			return
		}
		rt.Write(w, r, a)
	})
}
