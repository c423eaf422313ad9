// Package listener is where a host takes connections of the other hosts of its cluster: one
// address, HTTP/2 and HTTP/1.1, with mutual TLS.
//
// Promises. A handler that was added with Handle sees only requests of hosts whose certificate the
// authority of the cluster has signed and that the cluster knows. HandleOpen is for handlers with
// their own authentication. Connections are bounded, in all and for each client that is no host.
//
// Concurrency. Handlers may be added while it serves, once for each pattern.
package listener

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/hostcert"
)

// DefaultAddress is where a host listens by default.
const DefaultAddress = ":4281"

// The bounds of connections.
const (
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	drainTime     = 2 * time.Second
	maxPerAddress = 256 // of one address, whichever hosts are there
	maxAll        = 16_384
)

// Listener serves the other hosts.
type Listener struct {
	identity *authority.Identity
	log      *slog.Logger
	mux      *http.ServeMux
	http2    *http.HTTP2Config
	known    atomic.Pointer[func(context.Context, hangar.HostID) bool]
}

// New returns a Listener that serves nothing yet, with settings of HTTP/2 that its handlers need.
func New(identity *authority.Identity, settings *http.HTTP2Config, log *slog.Logger) *Listener {
	return &Listener{identity: identity, http2: settings, log: log, mux: http.NewServeMux()}
}

// SetKnown has hosts refused that known does not report. Until then, each host with a certificate
// is served, because the list of hosts can only be read once the state of the cluster is reached.
func (l *Listener) SetKnown(known func(context.Context, hangar.HostID) bool) { l.known.Store(&known) }

// Handle serves hosts of the cluster at a pattern of http.ServeMux; see hostcert.Peer.
func (l *Listener) Handle(pattern string, h http.Handler) {
	l.mux.Handle(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, ok := hostcert.Peer(r.TLS)
		if !ok {
			http.Error(w, "a certificate of a host of the cluster is required", http.StatusForbidden)
			return
		}
		if known := l.known.Load(); known != nil && peer != l.identity.Host() && !(*known)(r.Context(), peer) {
			http.Error(w, "this host was removed from the cluster", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	}))
}

// HandleOpen serves every client at a pattern of http.ServeMux.
func (l *Listener) HandleOpen(pattern string, h http.Handler) { l.mux.Handle(pattern, h) }

// Serve serves connections until ctx ends, and closes inner.
func (l *Listener) Serve(ctx context.Context, inner net.Listener) error {
	server := &http.Server{
		Handler: l.mux, TLSConfig: l.identity.ServerConfig(),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		HTTP2:    l.http2,
		ErrorLog: slog.NewLogLogger(l.log.Handler(), slog.LevelDebug),
	}
	limited := connlimit.New(func(net.Conn) bool { return true }, maxPerAddress, maxAll).Listener(inner)
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(limited, "", "") }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Streams of the state and of its members do not end by themselves.
	_ = finish.Do(ctx, drainTime, func(ctx finish.Context) error { return server.Shutdown(ctx) })
	err := server.Close()
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
