package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// HostAddr6 is the address of the host itself in the private networks, where the
// platform's services for Machines listen. It is valid after Open.
func (n *Network) HostAddr6() netip.Addr { return n.gateway6 }

// HostAddr4 is the address of the host as Machines see it by IPv4. It is valid after
// Open.
func (n *Network) HostAddr4() netip.Addr { return n.gateway4 }

// Ranges are all addresses that Machines may call the host from. They are valid after
// Open.
func (n *Network) Ranges() []netip.Prefix { return []netip.Prefix{Private, n.pool} }

// Owner returns the Machine that has the address, and its network. A packet from that
// address comes from no other. Any address of a Machine's /112 is the Machine's.
func (n *Network) Owner(addr netip.Addr) (hangar.MachineID, hangar.NetworkID, bool) {
	addr = addr.Unmap().WithZone("")
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr.Is6() {
		addr = machinePrefix(addr).Masked().Addr()
	}
	id, ok := n.taken[addr]
	if !ok {
		return "", 0, false
	}
	at, ok := n.attached[id]
	return id, networkOf(at.ipv6), ok
}

// networkOf is the network that a private address is of.
func networkOf(ipv6 netip.Addr) hangar.NetworkID {
	a := ipv6.As16()
	return hangar.NetworkID(binary.BigEndian.Uint32(a[networkOffset:]))
}

// AddNetwork lets whoever has an address of the network on this host reach each other:
// Machines, for which Attach does it, and peers. It is to be called for every member
// that Attach does not know, after every Open, and undone by RemoveNetwork.
func (n *Network) AddNetwork(ctx context.Context, id hangar.NetworkID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return n.join(id)
}

// RemoveNetwork undoes one AddNetwork. With the last member goes the permission.
func (n *Network) RemoveNetwork(ctx context.Context, id hangar.NetworkID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return n.leave(id)
}

func (n *Network) join(id hangar.NetworkID) error {
	if id == 0 {
		return errors.New("network 0 is the host's own")
	}
	n.membership.Lock()
	defer n.membership.Unlock()
	n.members[id]++
	if n.members[id] > 1 {
		return nil
	}
	err := n.firewall.change(func(c *nftables.Conn) error {
		return c.SetAddElements(n.networks(), networkElements([]hangar.NetworkID{id}))
	})
	if errors.Is(err, unix.ENOENT) { // somebody removed the table a moment ago
		err = n.replaceTable()
	}
	if err != nil {
		delete(n.members, id)
		return fmt.Errorf("open network %d: %w", id, err)
	}
	return nil
}

func (n *Network) leave(id hangar.NetworkID) error {
	n.membership.Lock()
	defer n.membership.Unlock()
	switch n.members[id] {
	case 0:
		return nil
	case 1:
		err := n.firewall.change(func(c *nftables.Conn) error {
			return c.SetDeleteElements(n.networks(), networkElements([]hangar.NetworkID{id}))
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // whoever removed the table did it
			return fmt.Errorf("close network %d: %w", id, err)
		}
		delete(n.members, id)
	default:
		n.members[id]--
	}
	return nil
}

// recount takes the members from what is attached.
func (n *Network) recount() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.membership.Lock()
	defer n.membership.Unlock()
	clear(n.members)
	for _, at := range n.attached {
		n.members[networkOf(at.ipv6)]++
	}
}
