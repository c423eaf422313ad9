package mesh

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// member is a network at a host.
type member struct {
	host    hangar.HostID
	network hangar.NetworkID
}

// members counts each host's members of each network: Machines, and one if there are peers.
type members map[hangar.HostID]map[hangar.NetworkID]int

func (m members) has(at member) bool { return m[at.host][at.network] > 0 }

// add reports whether the host has got the first of the network, or has lost the last.
func (m members) add(at member, by int) (crossed bool) {
	networks := m[at.host]
	if networks == nil {
		networks = map[hangar.NetworkID]int{}
		m[at.host] = networks
	}
	before := networks[at.network]
	networks[at.network] = before + by
	if before+by == 0 {
		delete(networks, at.network)
		if len(networks) == 0 {
			delete(m, at.host)
		}
	}
	return (before > 0) != (before+by > 0)
}

// count adds to the number of a host's members of a network. The caller holds mu.
func (m *Mesh) count(at member, by int) {
	if at.network == 0 || !m.members.add(at, by) {
		return // that network is hosts' own
	}
	if at.host != m.Host {
		m.changed[at] = struct{}{}
	} else {
		for id := range m.neighbor {
			m.changed[member{id, at.network}] = struct{}{}
		}
	}
	m.nudge()
}

// Observe takes a Machine of any host: old is nil for a new one, row for one that is gone.
// Changes must come in order, from the first one on.
func (m *Mesh) Observe(old, row *hangar.MachineRow) {
	if old != nil && row != nil && old.Network == row.Network && old.Machine.Host == row.Machine.Host {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if row != nil {
		m.count(member{row.Machine.Host, row.Network}, 1)
	}
	if old != nil {
		m.count(member{old.Machine.Host, old.Network}, -1)
	}
}

// followPeers follows which hosts' gateways have peers of which networks.
func (m *Mesh) followPeers(ctx context.Context) error {
	for peers, err := range m.Peers.WatchPeers(ctx) {
		if err != nil {
			return err
		}
		now := make(map[member]struct{})
		for _, p := range peers {
			now[member{p.Host, p.NetworkID}] = struct{}{}
		}
		m.mu.Lock()
		for at := range now {
			if _, ok := m.peers[at]; !ok {
				m.count(at, 1)
			}
		}
		for at := range m.peers {
			if _, ok := now[at]; !ok {
				m.count(at, -1)
			}
		}
		m.peers = now
		m.mu.Unlock()
	}
	return errFeedEnded
}

// followHosts follows the other hosts. A host that is dead may only be unreachable, and stays until
// it is removed.
func (m *Mesh) followHosts(ctx context.Context, hosts hangar.HostFeed) error {
	seen, synced := map[hangar.HostID]bool{}, false
	for change, err := range hosts.WatchHosts(ctx) {
		if err != nil {
			return err
		}
		m.mu.Lock()
		switch {
		case change.Synced:
			for id := range m.hosts {
				if !synced && !seen[id] {
					delete(m.hosts, id)
				}
			}
			synced = true
		case change.ID == m.Host:
		case change.Host == nil:
			delete(m.hosts, change.ID)
		default:
			seen[change.ID] = true
			m.hosts[change.ID] = *change.Host
		}
		m.mu.Unlock()
		m.nudge()
	}
	return errFeedEnded
}
