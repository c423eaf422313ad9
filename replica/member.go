package replica

import (
	"fmt"

	"github.com/hangar-platform/hangar/replica/lease"
)

// member is the node as its lease sees it.
type member struct{ *Node }

// Identity implements lease.Member.
func (m member) Identity() (node uint64, cluster string, epoch uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id.Node, m.id.Cluster, m.id.Epoch
}

// Adopt implements lease.Member.
func (m member) Adopt(cluster string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.id.Cluster {
	case cluster:
		return nil
	case "":
		return m.identify(cluster, m.id.Epoch)
	}
	return fmt.Errorf("%w: %s, not %s", lease.ErrCluster, m.id.Cluster, cluster)
}

// Marks implements lease.Member. It holds roleMu, so that the node neither leads nor follows meanwhile.
func (m member) Marks() map[string]lease.Mark {
	m.roleMu.Lock()
	defer m.roleMu.Unlock()
	return m.marks()
}

// marks returns the marks of all databases.
func (n *Node) marks() map[string]lease.Mark {
	all := map[string]lease.Mark{}
	for _, db := range n.All() {
		epoch, id := db.Mark()
		if id > 0 {
			all[db.Name()] = lease.Mark{Epoch: epoch, TXID: uint64(id)}
		}
	}
	return all
}
