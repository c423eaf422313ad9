package daemon

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/cluster/join"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/fleet"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/host/remote"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// adminTokenOf is the id of a server's admin token in its cluster. Each server has its own, which
// is void once the server is removed. That of the first server is like that of one that is alone.
func adminTokenOf(id hangar.HostID, joined bool) hangar.TokenID {
	if !joined {
		return auth.AdminName
	}
	return auth.AdminName + "-" + hangar.TokenID(id)
}

// servers is how this server knows the servers of the platform.
type servers struct {
	tokens  *auth.Tokens
	fleet   *fleet.Fleet
	backups *backups
	hosts   Hosts
	follow  func(context.Context) error // keeps hosts true, until its context ends
}

// openFleet registers this server among the hosts of the platform, and finds the others. From then on
// others can join through it and use its Machines, and unknown ones are refused.
func (d *opening) openFleet(ctx context.Context, s *server, c *cluster, n *private, m *machines, in *signIns) (*servers, error) {
	admin := adminTokenOf(s.self.ID, c.peers != nil && c.peers.rec.Joined)
	f := &servers{
		tokens:  auth.New(auth.Config{Store: c.mirror, Dir: d.cfg.Dir, Name: string(admin), Log: d.log}),
		backups: d.newBackups(c.store),
	}
	f.fleet = fleet.New(d.fleetConfig(s, c, n, f))
	if err := f.fleet.Register(ctx); err != nil { // first: a removed server gets no token any more
		return nil, explainRemoved(err)
	}
	if err := f.tokens.Open(ctx); err != nil {
		return nil, err
	}
	if c.peers != nil {
		d.serveJoins(c.peers, f.fleet)
	}
	return f, d.findHosts(c.peers, m, in, f)
}

func (d *opening) fleetConfig(s *server, c *cluster, n *private, f *servers) fleet.Config {
	cfg := fleet.Config{Store: c.mirror, Self: s.self, Rows: c.rows, Heard: n.heard, Log: d.log, Now: time.Now}
	cfg.Room = func(ctx context.Context, id hangar.HostID) (hangar.HostRoom, error) {
		agent, err := f.hosts.Agent(id) // hosts is set before the first call
		if err != nil {
			return hangar.HostRoom{}, err
		}
		return agent.Room(ctx)
	}
	if d.options.Around.State == nil && (c.peers != nil || len(d.cfg.Etcd) > 0) {
		cfg.Presence, _ = c.store.(state.Presence)
	}
	if f.backups.store != nil {
		cfg.Backup = f.backups.make
	}
	if c.peers == nil {
		return cfg
	}
	cfg.Joined, cfg.JoinURL = c.peers.rec.Joined, "https://"+s.self.Address
	cfg.NewToken = func() (hangar.JoinTokenID, string, []byte) {
		t := authority.NewToken(c.peers.identity.Authority().Fingerprint())
		return t.ID, t.String(), t.Digest()
	}
	cfg.Vacate = func(ctx context.Context, h hangar.Host, joined bool) error {
		if err := f.tokens.Revoke(ctx, adminTokenOf(h.ID, joined)); err != nil {
			return err
		}
		return c.peers.seats.Vacate(ctx, string(h.ID), "https://"+h.Address)
	}
	return cfg
}

// dutyHealing is the duty to look for interrupted work at intervals.
const (
	dutyHealing  = "healing"
	healInterval = 5 * time.Minute
)

// heals returns the loop that looks for interrupted work while this server has that duty.
func (f *servers) heals(c *cluster, decide *control.Control) func(context.Context) error {
	if c.peers == nil {
		return func(ctx context.Context) error { return decide.HealEvery(ctx, healInterval) }
	}
	duty := f.fleet.Duty(dutyHealing, 0)
	return func(ctx context.Context) error {
		return duty.Run(ctx, func(ctx context.Context) { _ = decide.HealEvery(ctx, healInterval) }, func() {}) // it ends with ctx only
	}
}

// serveJoins lets other servers join.
func (d *opening) serveJoins(p *peers, f *fleet.Fleet) {
	p.door.SetKnown(f.Knows)
	p.door.HandleOpen(join.Path, join.NewHandler(join.Config{
		Identity: p.identity, Registrar: f, Endpoints: p.endpoints, Members: p.rec.Members, Domain: d.cfg.Domain,
		Keyset: func() ([]byte, error) { return os.ReadFile(filepath.Join(d.cfg.Dir, keyset.File)) }, Log: d.log, Now: time.Now,
	}))
}

// latePushed finds the registries of other servers, once the servers are known.
type latePushed struct {
	readers atomic.Pointer[hangar.PushedReaders]
}

func (l *latePushed) set(readers hangar.PushedReaders) { l.readers.Store(&readers) }

// Pushed implements hangar.PushedReaders.
func (l *latePushed) Pushed(id hangar.HostID) (hangar.PushedReader, error) {
	if readers := l.readers.Load(); readers != nil {
		return (*readers).Pushed(id)
	}
	return nil, hangar.Errorf(hangar.CodeUnavailable, "", "the other servers are not known yet")
}

// findHosts finds the agents of all hosts, and offers this server's agent to them.
func (d *opening) findHosts(p *peers, m *machines, in *signIns, f *servers) (err error) {
	local := agent{m.agent, in.server}
	if around := d.options.Around.Hosts; around != nil {
		f.follow = func(context.Context) error { return nil }
		f.hosts, err = around(local, m.agent)
		return err
	}
	directory := remote.NewDirectory(remote.DirectoryConfig{
		Agent: local, Gate: m.agent, Feed: f.fleet, Log: d.log,
		Transport: func(h hangar.Host) http.RoundTripper { return remote.Transport(p.identity.ClientConfig(h.ID)) },
	})
	f.hosts, f.follow = directory, directory.Run
	d.late.pushed.set(directory)
	if p != nil {
		p.door.Handle(remote.Path, remote.NewHandler(remote.HandlerConfig{Agent: local, Gate: m.agent, Pushed: m.images.Pushed(), Admits: directory.Admits, Log: d.log}))
	}
	return nil
}
