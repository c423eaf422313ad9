package remote

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// DirectoryConfig has the dependencies of a Directory.
type DirectoryConfig struct {
	Agent hangar.Agent       // of this host
	Gate  hangar.MachineGate // the same
	Feed  hangar.HostFeed
	// Transport returns the transport to one host, which verifies the host; see Transport.
	Transport func(hangar.Host) http.RoundTripper
	// EnterTimeout bounds how long a request waits to be let into a Machine of another host, before the edge takes
	// another Machine. 0: DefaultEnterTimeout.
	EnterTimeout time.Duration
	Log          *slog.Logger
}

// Directory finds the agents and gates of all hosts of the cluster. It implements hangar.Agents and
// hangar.MachineGates.
//
// This host is served in process. Before Run has seen the feed it is the only one. A Directory is
// safe for concurrent use.
type Directory struct {
	cfg  DirectoryConfig
	self hangar.HostID

	changing sync.Mutex // held while the hosts change
	hosts    atomic.Pointer[known]
}

// known is the known hosts at one time. It is never changed.
type known struct {
	byID    map[hangar.HostID]*member
	synced  bool
	placing []hangar.Host // those that may take new Machines, sorted by id
	all     []hangar.Host // those that are not dead, sorted by id
}

// member is one host.
type member struct {
	host hangar.Host
	peer *peer // nil: it is this host
	gate hangar.MachineGate
}

var (
	_ hangar.Agents       = (*Directory)(nil)
	_ hangar.MachineGates = (*Directory)(nil)

	_ hangar.PushedReaders = (*Directory)(nil)
)

// NewDirectory returns a Directory that knows this host alone.
func NewDirectory(cfg DirectoryConfig) *Directory {
	d := &Directory{cfg: cfg, self: cfg.Agent.Host().ID}
	d.store(map[hangar.HostID]*member{}, false)
	return d
}

// store publishes the map of other hosts, and perhaps a record of this one.
func (d *Directory) store(byID map[hangar.HostID]*member, synced bool) {
	if byID[d.self] == nil {
		byID[d.self] = &member{host: d.cfg.Agent.Host(), gate: d.cfg.Gate}
	}
	k := &known{byID: byID, synced: synced}
	for id, m := range byID {
		if m.host.State == hangar.HostDead && id != d.self {
			continue
		}
		k.all = append(k.all, m.host)
		if !m.host.Cordoned && (m.host.State == hangar.HostAlive || m.host.State == "" || id == d.self) {
			k.placing = append(k.placing, m.host)
		}
	}
	order := func(a, b hangar.Host) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(k.all, order)
	slices.SortFunc(k.placing, order)
	d.hosts.Store(k)
}

// Run follows the feed until ctx ends, and closes the connections to other hosts.
func (d *Directory) Run(ctx context.Context) error {
	defer d.disconnect()
	return pause.Between(ctx, pause.Feeds, d.follow, func(err error) {
		d.cfg.Log.WarnContext(ctx, "the feed of hosts broke and is taken up again", "error", err)
	})
}

// follow applies one run of the feed. Hosts that it does not yield before it is in sync are gone.
func (d *Directory) follow(ctx context.Context) error {
	seen := map[hangar.HostID]bool{}
	synced := false
	for change, err := range d.cfg.Feed.WatchHosts(ctx) {
		switch {
		case err != nil:
			return err
		case change.Synced:
			synced = true
			for id := range d.hosts.Load().byID { // the dead ones, too
				if !seen[id] {
					d.apply(ctx, hangar.HostChange{ID: id}, true)
				}
			}
			d.apply(ctx, hangar.HostChange{}, true)
		default:
			seen[change.ID] = true
			d.apply(ctx, change, synced || d.hosts.Load().synced)
		}
	}
	return nil
}

// apply changes the known hosts.
func (d *Directory) apply(ctx context.Context, change hangar.HostChange, synced bool) {
	d.changing.Lock()
	defer d.changing.Unlock()
	byID := maps.Clone(d.hosts.Load().byID)
	var obsolete *peer
	switch before := byID[change.ID]; {
	case change.ID == "":
	case change.Host == nil:
		delete(byID, change.ID)
		if before != nil {
			obsolete = before.peer
		}
	case change.ID == d.self:
		byID[change.ID] = &member{host: *change.Host, gate: d.cfg.Gate}
	case before != nil && before.host.Address == change.Host.Address:
		byID[change.ID] = before.with(*change.Host)
	default:
		if before != nil {
			obsolete = before.peer
		}
		p := newPeer(ctx, *change.Host, d.cfg.Transport(*change.Host))
		byID[change.ID] = &member{host: *change.Host, peer: p, gate: newGate(p, cmp.Or(d.cfg.EnterTimeout, DefaultEnterTimeout))}
	}
	d.store(byID, synced)
	if obsolete != nil {
		obsolete.close()
	}
}

// with is the member with another record and the same connection.
func (m *member) with(host hangar.Host) *member {
	if reflect.DeepEqual(m.host, host) {
		return m
	}
	return &member{host: host, peer: m.peer, gate: m.gate}
}

func (d *Directory) disconnect() {
	d.changing.Lock()
	defer d.changing.Unlock()
	for _, m := range d.hosts.Load().byID {
		if m.peer != nil {
			m.peer.close()
		}
	}
}

// Agent implements hangar.Agents.
func (d *Directory) Agent(id hangar.HostID) (hangar.Agent, error) {
	if id == d.self {
		return d.cfg.Agent, nil
	}
	m := d.hosts.Load().byID[id]
	if m == nil {
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "unknown host %q", id)
	}
	if err := m.away(); err != nil {
		return nil, err
	}
	return remoteAgent{agent{m.peer}, m.host}, nil
}

// remoteAgent is an agent with the latest record of its host.
type remoteAgent struct {
	agent

	record hangar.Host
}

// Host implements hangar.Agent.
func (a remoteAgent) Host() hangar.Host { return a.record }

// away is the error of a host that is known to be unreachable.
func (m *member) away() error {
	switch {
	case m.host.State == hangar.HostDead:
		return hangar.Errorf(hangar.CodeUnavailable, "", "host %s is dead", m.host.ID)
	case m.host.Address == "":
		return m.peer.unreachable(errNoAddress)
	case m.peer.circuit.open():
		return m.peer.unreachable(errCircuitOpen)
	default:
		return nil
	}
}

// Gate implements hangar.MachineGates.
func (d *Directory) Gate(id hangar.HostID) (hangar.MachineGate, error) {
	if id == d.self {
		return d.cfg.Gate, nil
	}
	m := d.hosts.Load().byID[id]
	if m == nil {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "unknown host %q", id)
	}
	if err := m.away(); err != nil {
		return nil, err
	}
	return m.gate, nil
}

// Hosts implements hangar.Agents.
func (d *Directory) Hosts() []hangar.Host { return d.hosts.Load().placing }

// Known implements hangar.Agents.
func (d *Directory) Known() []hangar.Host { return d.hosts.Load().all }

// Admits reports whether a host may call this one: it has a record and is not dead. Before the feed
// is synced every host with a certificate may.
func (d *Directory) Admits(id hangar.HostID) bool {
	k := d.hosts.Load()
	if !k.synced {
		return true
	}
	m := k.byID[id]
	return m != nil && m.host.State != hangar.HostDead
}
