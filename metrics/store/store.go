// Package store runs the store of metrics of one daemon, and knows the addresses of an external
// one: both are a metrics.Store.
//
// Store runs the program hangar-metrics as a child, from the first request on: a daemon that stores
// and queries nothing has no child. The parent holds the unix listener for the HTTP requests of its
// Client, so that requests wait in its queue while the child starts, or restarts after a crash. A
// child that keeps ending is restarted after ever longer pauses; meanwhile requests fail at once with
// CodeUnavailable.
//
// The child is in a cgroup of its own with a memory limit, and ends with the daemon. Acknowledged
// samples are on disk after at most twenty seconds (VictoriaMetrics waits in memory, twice two and
// twice five seconds, and merges). A kill -9 of the child or the daemon loses newer samples, not
// always the newest first, and nothing else.
//
// Cluster has the addresses of a VictoriaMetrics cluster that an operator runs.
//
// Both types are safe for concurrent use.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/metrics"
)

// Defaults of Options.
const (
	DefaultRetention    = 15 * 24 * time.Hour
	DefaultMemoryBytes  = 1 << 30
	DefaultMinFreeBytes = 256 << 20
	DefaultQueries      = 16
)

// Options of a Store. Fields with a default may be zero.
type Options struct {
	Dir string // of the data
	Run string // of the socket, with a short path; Open makes it, for root only
	// Program returns the path of hangar-metrics; package program does.
	Program func(context.Context) (string, error)
	// Group is the name of the cgroup of the child, below the root of each hierarchy. "": no cgroup,
	// and no memory limit.
	Group        string
	Retention    time.Duration // at least a day; older samples are removed
	MemoryBytes  int64         // limit of the child, beyond which the kernel kills it
	MinFreeBytes int64         // of free disk space, below which writes are refused
	Queries      int           // that the child runs concurrently
	Log          *slog.Logger
}

// Store is a metrics.Store whose child it starts and supervises.
type Store struct {
	opts      Options
	listener  *net.UnixListener
	transport *connections
	client    *http.Client
	workers   *background.Group

	closed sync.Once

	mu         sync.Mutex      // guards what follows
	supervisor *supervisor     // nil before the first request
	away       error           // why the child does not run and is not being started
	epoch      context.Context // ends when the child goes away, with the reason as its cause
	end        context.CancelCauseFunc
	pid        int // of the running child, or 0

	starts, crashes atomic.Uint64 // of children
}

var _ metrics.Store = (*Store)(nil)

// Open listens for the requests of Client. The context only provides values for the supervisor's own
// requests; it does not bound the life of the Store.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if opts.Dir == "" || opts.Run == "" || opts.Program == nil || opts.Log == nil {
		return nil, errors.New("metrics store: Dir, Run, Program and Log are needed")
	}
	opts.Retention = cmp.Or(opts.Retention, DefaultRetention)
	opts.MemoryBytes = cmp.Or(opts.MemoryBytes, DefaultMemoryBytes)
	opts.MinFreeBytes = cmp.Or(opts.MinFreeBytes, DefaultMinFreeBytes)
	opts.Queries = cmp.Or(opts.Queries, DefaultQueries)
	if opts.Retention < 24*time.Hour {
		return nil, fmt.Errorf("metrics store: a retention of %s is less than a day", opts.Retention)
	}
	listener, err := listen(ctx, opts.Run)
	if err != nil {
		return nil, fmt.Errorf("metrics store: %w", err)
	}
	s := &Store{opts: opts, listener: listener, workers: background.New(ctx)}
	s.epoch, s.end = context.WithCancelCause(s.workers.Context)
	s.transport = &connections{address: listener.Addr().String(), most: opts.Queries + 8}
	s.client = &http.Client{Transport: s}
	return s, nil
}

// maxSocketPath is the longest path that fits in a sockaddr_un with its zero byte.
const maxSocketPath = 107

// listen makes the socket. Only its owner can reach it.
func listen(ctx context.Context, dir string) (*net.UnixListener, error) {
	path := filepath.Join(dir, "metrics.sock")
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%s is longer than the %d bytes that a socket's path may have", path, maxSocketPath)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// A killed daemon leaves its socket.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l.(*net.UnixListener), nil
}

// Client returns a client whose requests start the child, wait while it starts, and fail with
// CodeUnavailable while it is away.
func (s *Store) Client() *http.Client { return s.client }

// QueryURL implements metrics.Store. It is the same for all tenants.
func (s *Store) QueryURL(metrics.Tenant) string { return "http://store/prometheus" }

// WriteURL implements metrics.Store.
func (s *Store) WriteURL(tenant metrics.Tenant) string {
	return "http://store/prometheus/api/v1/write?" + confine(tenant)
}

// SharedWriteURL implements metrics.Store.
func (s *Store) SharedWriteURL() string { return "http://store/tenants/write" }

// confine returns the URL parameter that sets, or requires, the label of a tenant.
func confine(tenant metrics.Tenant) string {
	return url.Values{"extra_label": {metrics.OrgLabel + "=" + string(tenant.Org)}}.Encode()
}

// Err returns why the child is away and not being started now, or nil.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// PID returns the id of the running child, or 0.
func (s *Store) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Rest ends the child, as Close does, until the next request. Requests fail meanwhile.
func (s *Store) Rest() {
	s.mu.Lock()
	resting := s.supervisor
	s.mu.Unlock()
	if resting == nil {
		return
	}
	s.setAway(errResting)
	resting.stop()
	<-resting.ended
	s.mu.Lock()
	s.supervisor = nil
	s.mu.Unlock()
	s.setStarting()
}

// Close ends the child, which first writes its memory to disk, and removes its cgroup and the socket.
// It may be repeated.
func (s *Store) Close() (err error) {
	s.closed.Do(func() {
		s.workers.Stop()
		s.workers.Wait()
		s.transport.CloseIdleConnections()
		err = errors.Join(s.listener.Close(), RemoveGroup(s.opts.Group))
	})
	return err
}

// unavailable is the error of requests while the child is away.
func unavailable(cause error) *hangar.Error {
	return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the metrics store is not available; try again later", Err: cause}
}
