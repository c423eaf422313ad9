package platform

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/host/remote"
	"github.com/hangar-platform/hangar/host/remote/remotetest"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Cluster is several servers that are one platform: each with its own Machines, API and edge, on one
// cluster state, and with the others' Machines over TLS.
type Cluster struct {
	tb        testing.TB
	authority *remotetest.Authority
	store     state.Store
	hosts     *hostFeed

	// Servers are the platforms as each server shows them.
	Servers []*Platform
	ids     []hangar.HostID
	doors   []*http.Server
}

// StartCluster runs n servers until the test ends. The data directory of the first is where keys and
// the token of the administrator are made.
func StartCluster(tb testing.TB, n int, o Options) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, authority: remotetest.NewAuthority(tb), store: state.NewMemory(), hosts: &hostFeed{changed: make(chan struct{})}}
	for range n {
		o.member = &member{cluster: c}
		c.Servers = append(c.Servers, Start(tb, o))
	}
	c.await(func() bool {
		for _, p := range c.Servers {
			if len(p.member.directory.Known()) != n {
				return false
			}
		}
		return true
	})
	return c
}

// ID is that of a server.
func (c *Cluster) ID(server int) hangar.HostID { return c.ids[server] }

// Agent is the agent of a server, and the gate of its Machines, as another server, or itself, uses
// them.
func (c *Cluster) Agent(from, of int) (hangar.Agent, hangar.MachineGate) {
	c.tb.Helper()
	agent, err := c.Servers[from].member.directory.Agent(c.ids[of])
	if err != nil {
		c.tb.Fatal(err)
	}
	gate, err := c.Servers[from].member.directory.Gate(c.ids[of])
	if err != nil {
		c.tb.Fatal(err)
	}
	return agent, gate
}

// Cordon keeps new Machines from a server, and returns when all servers know.
func (c *Cluster) Cordon(server int) {
	c.tb.Helper()
	c.hosts.change(c.ids[server], func(h *hangar.Host) { h.Cordoned = true })
	c.await(func() bool {
		return !slices.ContainsFunc(c.Servers, func(p *Platform) bool {
			return slices.ContainsFunc(p.member.directory.Hosts(), func(h hangar.Host) bool { return h.ID == c.ids[server] })
		})
	})
}

// Isolate ends the server's answers to others. It runs on.
func (c *Cluster) Isolate(server int) { _ = c.doors[server].Close() }

func (c *Cluster) await(true func() bool) {
	c.tb.Helper()
	for changed := c.hosts.waiting(); !true(); {
		select {
		case <-changed:
			changed = c.hosts.waiting()
		case <-c.tb.Context().Done():
			c.tb.Fatal("the hosts do not know each other")
		}
	}
}

// member is one server of a cluster; nil: of none.
type member struct {
	cluster   *Cluster
	directory *remote.Directory
}

func (m *member) state() state.Store {
	if m == nil {
		return state.NewMemory()
	}
	return m.cluster.store
}

// prepare gives a data directory what a server gets that joins: the keys and the token of the
// administrator.
func (m *member) prepare(dir string) {
	c := m.cluster
	c.tb.Helper()
	if len(c.Servers) == 0 {
		return
	}
	for _, name := range []string{keyset.File, auth.AdminFile} {
		content, err := os.ReadFile(filepath.Join(c.Servers[0].dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			c.tb.Fatal(err)
		}
	}
}

// join serves the agent of a server to the others, and finds those of the others.
func (m *member) join(agent hangar.Agent, gate hangar.MachineGate) (daemon.Hosts, error) {
	c := m.cluster
	host := agent.Host()
	own := c.authority.Certificate(remotetest.URI(host.ID))
	log := slog.New(slog.NewTextHandler(c.tb.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	m.directory = remote.NewDirectory(remote.DirectoryConfig{
		Agent: agent, Gate: gate, Feed: c.hosts, Log: log,
		Transport: func(h hangar.Host) http.RoundTripper {
			return remotetest.Patient(remote.Transport(c.authority.Client(own, h.ID)))
		},
		EnterTimeout: remotetest.Patience,
	})
	listener, err := (&net.ListenConfig{}).Listen(c.tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(remote.Path, remote.NewHandler(remote.HandlerConfig{Agent: agent, Gate: gate, Admits: m.directory.Admits, Log: log}))
	door := &http.Server{
		Handler: mux, TLSConfig: c.authority.Server(own), HTTP2: remote.Server(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(c.tb.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := door.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			c.tb.Error(err)
		}
	})
	running.Go(func() { _ = m.directory.Run(ctx) })
	c.tb.Cleanup(func() {
		stop()
		_ = door.Close()
		running.Wait()
	})
	host.Address, host.State = listener.Addr().String(), hangar.HostAlive
	c.ids, c.doors = append(c.ids, host.ID), append(c.doors, door)
	c.hosts.put(host)
	return m.directory, nil
}

// hostFeed is the records of hosts, in memory.
type hostFeed struct {
	mu      sync.Mutex
	hosts   []hangar.Host
	changed chan struct{} // closed and replaced with each change, and when a watcher has seen one
}

func (f *hostFeed) put(h hangar.Host) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts = append(f.hosts, h)
	f.tell()
}

func (f *hostFeed) change(id hangar.HostID, change func(*hangar.Host)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hosts := slices.Clone(f.hosts)
	for i := range hosts {
		if hosts[i].ID == id {
			change(&hosts[i])
		}
	}
	f.hosts = hosts
	f.tell()
}

// tell wakes all who wait. f.mu is held.
func (f *hostFeed) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// waiting is closed when something has changed, or a watcher has come to know it.
func (f *hostFeed) waiting() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// WatchHosts implements hangar.HostFeed. It yields all hosts with every change.
func (f *hostFeed) WatchHosts(ctx context.Context) iter.Seq2[hangar.HostChange, error] {
	return func(yield func(hangar.HostChange, error) bool) {
		var last []hangar.Host
		for synced := false; ; synced = true {
			f.mu.Lock()
			hosts, changed := slices.Clone(f.hosts), f.changed
			f.mu.Unlock()
			fresh := len(hosts) != len(last)
			for i, h := range hosts {
				fresh = fresh || h.Cordoned != last[i].Cordoned
				if !yield(hangar.HostChange{ID: h.ID, Host: &h}, nil) {
					return
				}
			}
			if !synced && !yield(hangar.HostChange{Synced: true}, nil) {
				return
			}
			if last = hosts; fresh {
				f.mu.Lock()
				f.tell() // for who awaits that this watcher knows
				f.mu.Unlock()
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(hangar.HostChange{}, io.EOF)
				return
			}
		}
	}
}
