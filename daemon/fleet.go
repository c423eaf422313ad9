package daemon

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/cluster/join"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/fleet"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// adminName is what the admin token of a server is called among those of its cluster. Each has its
// own, which is void once it is removed.
func (p *peers) adminName(id hangar.HostID) string {
	if p == nil || !p.rec.Joined {
		return "" // as that of a server that is alone
	}
	return adminTokenOf(id)
}

func adminTokenOf(id hangar.HostID) string { return "admin-" + string(id) }

// openFleet records this server among the hosts of the platform. From then on others can join by
// it, and those that it does not know are refused.
func (d *opening) openFleet(ctx context.Context, s *server, c *cluster, n *private, tokens *auth.Tokens, copies *backups) (*fleet.Fleet, error) {
	cfg := fleet.Config{Store: c.mirror, Self: s.self, Rows: c.rows, Heard: n.heard, Log: d.log, Now: time.Now}
	if d.options.Around.State == nil && (c.peers != nil || len(d.cfg.Etcd) > 0) {
		cfg.Presence, _ = c.store.(state.Presence)
	}
	if copies.store != nil {
		cfg.Backup = copies.make
	}
	if c.peers != nil {
		cfg.Joined, cfg.JoinURL = c.peers.rec.Joined, "https://"+s.self.Address
		cfg.NewToken = func() (hangar.JoinTokenID, string, []byte) {
			t := authority.NewToken(c.peers.identity.Authority().Fingerprint())
			return t.ID, t.String(), t.Digest()
		}
		cfg.Vacate = func(ctx context.Context, h hangar.Host) error {
			if _, ok := tokens.Find(hangar.TokenID(adminTokenOf(h.ID))); ok {
				if err := tokens.Revoke(ctx, hangar.TokenID(adminTokenOf(h.ID))); err != nil {
					return err
				}
			}
			return c.peers.seats.Vacate(ctx, string(h.ID), "https://"+h.Address)
		}
	}
	f := fleet.New(cfg)
	if err := f.Register(ctx); err != nil {
		return nil, explainRemoved(err)
	}
	if c.peers != nil {
		c.peers.door.SetKnown(func(id hangar.HostID) bool { return f.Knows(ctx, id) })
		c.peers.door.HandleOpen(join.Path, join.NewHandler(join.Config{
			Identity: c.peers.identity, Registrar: f, Endpoints: c.peers.endpoints, Members: c.peers.rec.Members, Domain: d.cfg.Domain,
			Keyset: func() ([]byte, error) { return os.ReadFile(filepath.Join(d.cfg.Dir, keyset.File)) }, Log: d.log, Now: time.Now,
		}))
	}
	return f, nil
}

// agents are the agents of all hosts, for control.
type agents struct {
	ctx   context.Context //nolint:containedctx // of the daemon: which hosts there are is read from memory, for callers without one
	local *host.Agent
	fleet *fleet.Fleet
	log   *slog.Logger
	// remote makes the agent of another host, at its Address. Nil: others cannot be reached.
	remote func(hangar.Host) (hangar.Agent, error)
}

// Agent implements hangar.Agents.
func (a *agents) Agent(id hangar.HostID) (hangar.Agent, error) {
	if id == a.local.Host().ID {
		return a.local, nil
	}
	h, ok := a.fleet.Lookup(a.ctx, id)
	switch {
	case !ok:
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "unknown host %q", id)
	case a.remote == nil || h.State == hangar.HostDead:
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "host %s cannot be reached", id)
	}
	return a.remote(h)
}

// Hosts implements hangar.Agents: those that are alive and take new Machines.
func (a *agents) Hosts() []hangar.Host {
	var hosts []hangar.Host
	all, err := a.fleet.All(a.ctx)
	if err != nil {
		a.log.Error("which hosts there are cannot be read", "error", err)
		return nil
	}
	for _, h := range all {
		if h.State == hangar.HostAlive && !h.Cordoned && (a.remote != nil || h.ID == a.local.Host().ID) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}
