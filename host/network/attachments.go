package network

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/hangar-platform/hangar"
)

// attachments are the attached Machines, with their numbers and addresses.
type attachments struct {
	gateway *gateway

	mu       sync.Mutex
	attached map[hangar.MachineID]endpoint   // complete attachments
	numbers  map[uint64]hangar.MachineID     // of attached Machines
	taken    map[netip.Addr]hangar.MachineID // IPv4 addresses, and the first of the IPv6 ones
	// sixes are the ports at which a service of a Machine has answered by IPv6 only.
	sixes   map[hangar.MachineID]map[int]bool
	leaving map[hangar.MachineID]string // of detached Machines: the device that the kernel has yet to delete
}

// endpoint is a complete attachment, from the alias of its device.
type endpoint struct {
	link   string
	number uint64
	ipv4   netip.Addr
	ipv6   netip.Addr
}

func newAttachments(g *gateway) *attachments {
	return &attachments{
		gateway:  g,
		attached: map[hangar.MachineID]endpoint{},
		numbers:  map[uint64]hangar.MachineID{},
		taken:    map[netip.Addr]hangar.MachineID{},
		sixes:    map[hangar.MachineID]map[int]bool{},
		leaving:  map[hangar.MachineID]string{},
	}
}

// clear forgets what is attached.
func (a *attachments) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.attached)
	clear(a.numbers)
	clear(a.taken)
	clear(a.leaving)
}

// add records a complete attachment.
func (a *attachments) add(id hangar.MachineID, at endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.take(id, at)
	a.attached[id] = at
	delete(a.leaving, id) // its device's name was taken over
}

// find returns a complete attachment.
func (a *attachments) find(id hangar.MachineID) (endpoint, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.attached[id]
	return at, ok
}

// known returns the complete attachment of e, if it has e's number and address.
func (a *attachments) known(e Endpoint) (endpoint, bool) {
	at, ok := a.find(e.ID)
	return at, ok && at.number == e.Number && at.ipv6 == e.IPv6 && a.gateway.pool.Contains(at.ipv4)
}

// reserve gives e an IPv4 address that no other Machine has.
func (a *attachments) reserve(e Endpoint) (endpoint, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := endpoint{link: linkName(a.gateway.prefix, e.Number), number: e.Number, ipv6: e.IPv6}
	if id, ok := a.numbers[e.Number]; ok {
		return endpoint{}, fmt.Errorf("number %d is machine %s's", e.Number, id)
	}
	if id, ok := a.taken[machinePrefix(e.IPv6).Masked().Addr()]; ok {
		return endpoint{}, fmt.Errorf("address %s is machine %s's", e.IPv6, id)
	}
	at.ipv4 = preferred4(a.gateway.pool, e.Number)
	for i := uint64(1); ; i++ {
		if _, taken := a.taken[at.ipv4]; !taken {
			break
		}
		if at.ipv4 = preferred4(a.gateway.pool, e.Number+i); at.ipv4 == preferred4(a.gateway.pool, e.Number) {
			return endpoint{}, fmt.Errorf("no free IPv4 address in %s", a.gateway.pool)
		}
	}
	a.take(e.ID, at)
	return at, nil
}

// take reserves the number and the addresses of at for a Machine. a.mu is held.
func (a *attachments) take(id hangar.MachineID, at endpoint) {
	a.numbers[at.number] = id
	a.taken[at.ipv4] = id
	a.taken[machinePrefix(at.ipv6).Masked().Addr()] = id
}

func (a *attachments) forget(id hangar.MachineID, at endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.attached, id)
	delete(a.sixes, id)
	if a.numbers[at.number] == id {
		delete(a.numbers, at.number)
	}
	for _, addr := range []netip.Addr{at.ipv4, machinePrefix(at.ipv6).Masked().Addr()} {
		if a.taken[addr] == id {
			delete(a.taken, addr)
		}
	}
}

// left returns the device of a detached Machine that the kernel has yet to delete.
func (a *attachments) left(id hangar.MachineID) (link string, leaving bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	link, leaving = a.leaving[id]
	return link, leaving
}

// leaves records the device that the kernel has yet to delete; empty: none.
func (a *attachments) leaves(id hangar.MachineID, link string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.leaving, id)
	if link != "" {
		a.leaving[id] = link
	}
}

// service returns where a Machine is, and whether IPv6 has answered at the port.
func (a *attachments) service(id hangar.MachineID, port int) (endpoint, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.attached[id]
	if !ok {
		return endpoint{}, false, fmt.Errorf("machine %s is not on the network", id)
	}
	return at, a.sixes[id][port], nil
}

// gone records that the kernel has deleted a device.
func (a *attachments) gone(id hangar.MachineID, link string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving[id] == link {
		delete(a.leaving, id)
	}
}

// present returns the attached Machines, and the devices that the kernel has yet to delete.
func (a *attachments) present() (attached []hangar.MachineID, leaving map[hangar.MachineID]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.attached)), maps.Clone(a.leaving)
}

// someLeaving returns at most count of the devices that the kernel has yet to delete.
func (a *attachments) someLeaving(count int) map[hangar.MachineID]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	some := make(map[hangar.MachineID]string, count)
	for id, link := range a.leaving {
		if len(some) == count {
			break
		}
		some[id] = link
	}
	return some
}

// memberships returns the number of attached Machines of each network.
func (a *attachments) memberships() map[hangar.NetworkID]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	members := make(map[hangar.NetworkID]int)
	for _, at := range a.attached {
		members[networkOf(at.ipv6)]++
	}
	return members
}

// answered records the address family by which a service has answered at a port.
func (a *attachments) answered(id hangar.MachineID, at endpoint, port int, six bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch now, ok := a.attached[id]; {
	case !ok || now != at:
	case !six:
		delete(a.sixes[id], port)
	default:
		if a.sixes[id] == nil {
			a.sixes[id] = make(map[int]bool)
		}
		a.sixes[id][port] = true
	}
}

// Owner returns the Machine that has the address, and its network. The rules drop packets that carry
// a Machine's address and come from elsewhere. A Machine owns every address of its /112.
func (a *attachments) Owner(addr netip.Addr) (hangar.MachineID, hangar.NetworkID, bool) {
	addr = addr.Unmap().WithZone("")
	a.mu.Lock()
	defer a.mu.Unlock()
	if addr.Is6() {
		addr = machinePrefix(addr).Masked().Addr()
	}
	id, ok := a.taken[addr]
	if !ok {
		return "", 0, false
	}
	at, ok := a.attached[id]
	return id, networkOf(at.ipv6), ok
}

// networkOf returns the network of a private address.
func networkOf(ipv6 netip.Addr) hangar.NetworkID {
	a := ipv6.As16()
	return hangar.NetworkID(binary.BigEndian.Uint32(a[networkOffset:]))
}

// machinePrefix is the /112 of a Machine's address.
func machinePrefix(ipv6 netip.Addr) netip.Prefix { return netip.PrefixFrom(ipv6, machineBits) }
