package image_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/remote"
	"github.com/hangar-platform/hangar/host/remote/remotetest"
)

// shared is the content of a test's catalog, common to all hosts.
type shared struct {
	mu           sync.Mutex
	revision     int64
	repositories map[string]hangar.PushedRepository
	hosts        map[string]map[hangar.HostID]bool // that hold something of a repository
	away         bool
	listed       func() // called after each Repository, if set
	released     func() // called after each Release that has succeeded, if set
}

func newShared() *shared {
	return &shared{repositories: map[string]hangar.PushedRepository{}, hosts: map[string]map[hangar.HostID]bool{}}
}

// catalog is the catalog of one host.
type catalog struct {
	*shared

	host hangar.HostID
}

func (c catalog) lock() error {
	c.mu.Lock()
	if c.away {
		c.mu.Unlock()
		return hangar.Errorf(hangar.CodeUnavailable, "", "The cluster state cannot be reached")
	}
	return nil
}

func unknown() error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "not there")
}

func (c catalog) Manifest(_ context.Context, repository, reference string) (hangar.PushedManifest, error) {
	if err := c.lock(); err != nil {
		return hangar.PushedManifest{}, err
	}
	defer c.mu.Unlock()
	all := c.repositories[repository]
	if d, ok := all.Tags[reference]; ok {
		reference = d
	}
	m, ok := all.Manifests[reference]
	if !ok {
		return m, unknown()
	}
	return m, nil
}

func (c catalog) Repository(_ context.Context, repository string) (hangar.PushedRepository, error) {
	if err := c.lock(); err != nil {
		return hangar.PushedRepository{}, err
	}
	if c.listed != nil {
		defer c.listed()
	}
	defer c.mu.Unlock()
	all := c.repositories[repository]
	return hangar.PushedRepository{Manifests: maps.Clone(all.Manifests), Tags: maps.Clone(all.Tags)}, nil
}

func (c catalog) Repositories(_ context.Context, root string) ([]string, error) {
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	var paths []string
	for path, all := range c.repositories {
		if strings.HasPrefix(path, root+"/") && len(all.Manifests) > 0 {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

func (c catalog) Holders(_ context.Context, repository string) ([]hangar.HostID, error) {
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.hosts[repository])), nil
}

func (c catalog) Push(_ context.Context, repository string, m hangar.PushedManifest, tag string) error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	all := c.repositories[repository]
	if all.Manifests == nil {
		all = hangar.PushedRepository{Manifests: map[string]hangar.PushedManifest{}, Tags: map[string]string{}}
		c.repositories[repository], c.hosts[repository] = all, map[hangar.HostID]bool{}
	}
	c.hosts[repository][c.host] = true
	c.revision++
	hosts := slices.DeleteFunc(slices.Clone(all.Manifests[m.Digest].Hosts), func(h hangar.HostID) bool { return h == c.host })
	m.Revision, m.Hosts = c.revision, append(hosts, c.host)
	all.Manifests[m.Digest] = m
	if tag != "" {
		all.Tags[tag] = m.Digest
	}
	return nil
}

func (c catalog) Delete(_ context.Context, repository, reference string) error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	all := c.repositories[repository]
	if _, ok := all.Tags[reference]; ok {
		delete(all.Tags, reference)
		return nil
	}
	if _, ok := all.Manifests[reference]; !ok {
		return unknown()
	}
	delete(all.Manifests, reference)
	maps.DeleteFunc(all.Tags, func(_, d string) bool { return d == reference })
	return nil
}

func (c catalog) Release(_ context.Context, repository string, m hangar.PushedManifest) (bool, error) {
	if err := c.lock(); err != nil {
		return false, err
	}
	defer c.mu.Unlock()
	all := c.repositories[repository]
	now := all.Manifests[m.Digest]
	if now.Revision != m.Revision || slices.Contains(slices.Collect(maps.Values(all.Tags)), m.Digest) {
		return false, nil
	}
	now.Hosts = slices.DeleteFunc(slices.Clone(now.Hosts), func(h hangar.HostID) bool { return h == c.host })
	all.Manifests[m.Digest] = now
	if len(now.Hosts) == 0 {
		delete(all.Manifests, m.Digest)
	}
	if c.released != nil {
		c.mu.Unlock()
		defer c.mu.Lock()
		c.released()
	}
	return true, nil
}

// agentStub is an agent that only has a name.
type agentStub struct {
	hangar.Agent
	hangar.MachineGate

	id hangar.HostID
}

func (a agentStub) Host() hangar.Host { return hangar.Host{ID: a.id} }

// hostFeed is a feed of hosts that never changes.
type hostFeed []hangar.Host

func (f hostFeed) WatchHosts(ctx context.Context) iter.Seq2[hangar.HostChange, error] {
	return func(yield func(hangar.HostChange, error) bool) {
		for _, h := range f {
			if !yield(hangar.HostChange{ID: h.ID, Host: &h}, nil) {
				return
			}
		}
		if yield(hangar.HostChange{Synced: true}, nil) {
			<-ctx.Done()
		}
	}
}

// atHost is a host of a test: its images, behind HTTP for clients, and mutual TLS for other hosts.
type atHost struct {
	*image.Store

	id      hangar.HostID
	dir     string
	clients string // host:port of the registry
	server  *http.Server
	peers   latePeers
	opened  atomic.Int64 // reads of other hosts that are under way
	reads   atomic.Int64 // that there were
	// wrap, if set, replaces the content that other hosts get.
	wrap atomic.Pointer[func(context.Context, hangar.PushedRead, hangar.PushedContent) hangar.PushedContent]
}

// latePeers only exist once all hosts do.
type latePeers struct {
	directory atomic.Pointer[remote.Directory]
}

func (l *latePeers) Pushed(id hangar.HostID) (hangar.PushedReader, error) {
	return l.directory.Load().Pushed(id)
}

// OpenPushed is what other hosts call.
func (h *atHost) OpenPushed(ctx context.Context, in hangar.PushedRead) (hangar.PushedContent, error) {
	c, err := h.Pushed().OpenPushed(ctx, in)
	if err != nil {
		return nil, err
	}
	if wrap := h.wrap.Load(); wrap != nil {
		c = (*wrap)(ctx, in, c)
	}
	h.opened.Add(1)
	h.reads.Add(1)
	return counted{c, h}, nil
}

type counted struct {
	hangar.PushedContent

	h *atHost
}

func (c counted) Close() error {
	c.h.opened.Add(-1)
	return c.PushedContent.Close()
}

// onRead replaces what other hosts get.
func (h *atHost) onRead(f func(context.Context, hangar.PushedRead, hangar.PushedContent) hangar.PushedContent) {
	h.wrap.Store(&f)
}

// The hosts of a test.
const (
	aa hangar.HostID = "0000aaaa"
	bb hangar.HostID = "0000bbbb"
	cc hangar.HostID = "0000cccc"
)

// limits are short, so that slow transfers fail soon.
var limits = image.Limits{RetryPause: time.Millisecond, RateWindow: 2 * time.Second}

const builtIn = "registry.hangar.localhost"

// cluster makes hosts that share a catalog.
func cluster(tb testing.TB, ids ...hangar.HostID) (*shared, map[hangar.HostID]*atHost) {
	tb.Helper()
	return clusterWith(tb, limits, ids...)
}

func clusterWith(tb testing.TB, limits image.Limits, ids ...hangar.HostID) (*shared, map[hangar.HostID]*atHost) {
	tb.Helper()
	authority := remotetest.NewAuthority(tb)
	all := newShared()
	hosts := map[hangar.HostID]*atHost{}
	var feed hostFeed
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	tb.Cleanup(func() { // after the stores were closed
		stop()
		running.Wait()
	})
	for _, id := range ids {
		h := &atHost{id: id, dir: tb.TempDir()}
		h.Store = open(tb, image.Options{Dir: h.dir, Local: []string{builtIn}, Limits: limits, Catalog: catalog{all, id}, Peers: &h.peers, Host: id})
		if err := h.Pushed().Publish(tb.Context()); err != nil {
			tb.Fatal(err)
		}
		h.listen(tb)
		l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		mux := http.NewServeMux()
		mux.Handle(remote.Path, remote.NewHandler(remote.HandlerConfig{Agent: agentStub{id: id}, Pushed: h, Log: slog.New(slog.DiscardHandler)}))
		h.server = &http.Server{
			Handler: mux, TLSConfig: authority.Server(authority.Certificate(remotetest.URI(id))), HTTP2: remote.Server(),
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		}
		running.Go(func() { _ = h.server.ServeTLS(l, "", "") })
		tb.Cleanup(func() { _ = h.server.Close() })
		feed = append(feed, hangar.Host{ID: id, Address: l.Addr().String(), State: hangar.HostAlive})
		hosts[id] = h
	}
	for id, h := range hosts {
		own := authority.Certificate(remotetest.URI(id))
		d := remote.NewDirectory(remote.DirectoryConfig{
			Agent: agentStub{id: id}, Gate: agentStub{id: id}, Feed: feed, Log: slog.New(slog.DiscardHandler),
			Transport: func(to hangar.Host) http.RoundTripper {
				return remotetest.Patient(remote.Transport(authority.Client(own, to.ID)))
			},
		})
		h.peers.directory.Store(d)
		running.Go(func() { _ = d.Run(ctx) })
		for len(d.Known()) < len(ids) {
			<-time.After(time.Millisecond)
		}
	}
	return all, hosts
}

// changed is a blob as modified by a test.
type changed struct {
	io.Reader
	hangar.PushedContent
}

func (c changed) Read(p []byte) (int, error) { return c.Reader.Read(p) }

var errBroken = errors.New("the disk broke")

// listen serves the clients of a host.
func (h *atHost) listen(tb testing.TB) {
	tb.Helper()
	clients := httptest.NewServer(h.Registry(access{"personal": tenant.Org, "other": "orgother"}))
	tb.Cleanup(clients.Close)
	h.clients = strings.TrimPrefix(clients.URL, "http://")
}

// age makes files old enough for the collector.
func age(tb testing.TB, dir string) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	old := time.Now().Add(-48 * time.Hour)
	for _, e := range entries {
		if err := os.Chtimes(filepath.Join(dir, e.Name()), old, old); err != nil {
			tb.Fatal(err)
		}
	}
}
