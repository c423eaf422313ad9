package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// eth0 is the device inside a Machine's namespace.
const eth0 = "eth0"

// Attach makes the Endpoint's namespace, or restores the addresses and routes of an existing one.
// Call it before every start and resume of the Machine, never while the Machine runs. It may be
// repeated; on an error it leaves nothing new behind.
func (n *Network) Attach(ctx context.Context, e Endpoint) (Attachment, error) {
	if err := ctx.Err(); err != nil {
		return Attachment{}, err
	}
	if !e.ID.Valid() || !e.IPv6.Is6() || e.Number >= MaxNumber || e.IPv6 != Address(networkOf(e.IPv6), n.host, e.Number) {
		return Attachment{}, fmt.Errorf("attach machine %s: invalid endpoint: address %s, number %d", e.ID, e.IPv6, e.Number)
	}
	defer n.lock(e.ID)()
	if at, ok := n.attachments.known(e); ok {
		err := n.refill(e.ID, at)
		if err == nil {
			return n.attachment(e.ID, at), nil
		}
		n.log.WarnContext(ctx, "network of machine is damaged, creating it again",
			slog.String("machine", string(e.ID)), slog.Any("error", err))
	}
	// The existing one is partial, damaged or of another network.
	if err := n.detach(e.ID); err != nil {
		return Attachment{}, fmt.Errorf("attach machine %s: %w", e.ID, err)
	}
	at, err := n.build(e)
	if err != nil {
		return Attachment{}, fmt.Errorf("attach machine %s: %w", e.ID, err)
	}
	return n.attachment(e.ID, at), nil
}

// Detach removes the Machine's namespace and device, complete or partial. The device may stay on the
// host for some milliseconds, and List shows the Machine until it is gone. Detach may be repeated.
func (n *Network) Detach(id hangar.MachineID) error {
	if !id.Valid() {
		return fmt.Errorf("detach machine %q: invalid id", id)
	}
	defer n.lock(id)()
	if err := n.detach(id); err != nil {
		return fmt.Errorf("detach machine %s: %w", id, err)
	}
	return nil
}

func (n *Network) attachment(id hangar.MachineID, at endpoint) Attachment {
	return Attachment{
		NetNS: n.netnsPath(id),
		IPv4:  at.ipv4, IPv6: at.ipv6,
		Gateway4: n.gateway4, Gateway6: gatewayLinkLocal,
	}
}

// build makes the whole attachment of e. It writes the namespace's file first and the device's alias
// last: an attachment without either is partial.
func (n *Network) build(e Endpoint) (at endpoint, err error) {
	at, err = n.attachments.reserve(e)
	if err != nil {
		return endpoint{}, err
	}
	path, joined := n.netnsPath(e.ID), false
	defer func() {
		if err != nil {
			_, gone := removeNetNS(path)
			err = errors.Join(err, n.deleteLink(at.link), gone)
			if joined {
				err = errors.Join(err, n.leave(networkOf(at.ipv6)))
			}
			n.attachments.forget(e.ID, at)
		}
	}()
	if err := makeNetNS(path); err != nil {
		return endpoint{}, err
	}
	ns, err := openNetNS(path)
	if err != nil {
		return endpoint{}, err
	}
	defer func() { _ = ns.Close() }()
	device, err := n.buildHostSide(at, ns)
	if err != nil {
		return endpoint{}, err
	}
	if err := dropIngress(ns); err != nil {
		return endpoint{}, err
	}
	if err := n.fill(ns, at); err != nil {
		return endpoint{}, err
	}
	if err := n.join(networkOf(at.ipv6)); err != nil {
		return endpoint{}, err
	}
	joined = true
	if err := n.nl.LinkSetAlias(device, alias(e.ID, at)); err != nil {
		return endpoint{}, fmt.Errorf("label %s: %w", at.link, err)
	}
	n.attachments.add(e.ID, at)
	return at, nil
}

// buildHostSide makes the pair of devices and routes the Machine's addresses to it.
func (n *Network) buildHostSide(at endpoint, ns *os.File) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = at.link
	attrs.MTU = MTU
	attrs.HardwareAddr = gatewayMAC()
	attrs.Flags = net.FlagUp
	device := netlink.NewVeth(attrs)
	device.PeerName = eth0
	device.PeerMTU = MTU
	device.PeerHardwareAddr = machineMAC(at.number)
	device.PeerNamespace = netlink.NsFd(ns.Fd())
	// An earlier attachment's device may not be gone yet.
	if err := n.deleteLink(at.link); err != nil {
		return nil, err
	}
	if err := n.nl.LinkAdd(device); err != nil {
		return nil, fmt.Errorf("make device %s: %w", at.link, err)
	}
	// No link-local address is generated: the kernel would do so later, when the other end is up.
	if err := n.nl.LinkSetIP6AddrGenMode(device, nl6AddrGenNone); err != nil {
		return nil, fmt.Errorf("set up %s: %w", at.link, err)
	}
	if err := setDeviceVariables(at.link); err != nil {
		return nil, err
	}
	if err := n.nl.AddrReplace(device, addr(netip.PrefixFrom(gatewayLinkLocal, 64), unix.IFA_F_NODAD)); err != nil {
		return nil, fmt.Errorf("give %s to %s: %w", gatewayLinkLocal, at.link, err)
	}
	index, mac := device.Attrs().Index, machineMAC(at.number)
	if err := setNeighbours(n.nl, index, mac, at.ipv4, linkLocal(mac)); err != nil {
		return nil, err
	}
	// The other addresses of the Machine's /112 are reached through its link-local address.
	for _, r := range []netlink.Route{
		{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(at.ipv4, 32)), Src: n.gateway4.AsSlice(), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Dst: ipNet(machinePrefix(at.ipv6).Masked()), Src: n.gateway6.AsSlice(), Gw: linkLocal(mac).AsSlice()},
	} {
		if err := n.nl.RouteReplace(&r); err != nil {
			return nil, fmt.Errorf("route %s to %s: %w", r.Dst, at.link, err)
		}
	}
	return device, nil
}

// nl6AddrGenNone is IN6_ADDR_GEN_MODE_NONE of the kernel.
const nl6AddrGenNone = 1

// refill restores the addresses and routes that the last sandbox took out of the namespace.
func (n *Network) refill(id hangar.MachineID, at endpoint) error {
	ns, err := openNetNS(n.netnsPath(id))
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	return n.fill(ns, at)
}

// fill gives the devices inside the namespace their addresses, routes and neighbours.
func (n *Network) fill(ns *os.File, at endpoint) error {
	nl, err := netlinkIn(ns)
	if err != nil {
		return err
	}
	defer nl.Close()
	if err := nl.LinkSetUp(loopback()); err != nil {
		return fmt.Errorf("enable lo: %w", err)
	}
	device, err := nl.LinkByName(eth0)
	if err != nil {
		return fmt.Errorf("find %s: %w", eth0, err)
	}
	if device.Attrs().Flags&net.FlagUp == 0 {
		if err := nl.LinkSetUp(device); err != nil {
			return fmt.Errorf("enable %s: %w", eth0, err)
		}
	}
	for _, a := range []*netlink.Addr{
		addr(netip.PrefixFrom(linkLocal(machineMAC(at.number)), 64), unix.IFA_F_NODAD),
		addr(machinePrefix(at.ipv6), unix.IFA_F_NODAD),
		addr(netip.PrefixFrom(at.ipv4, 32), 0),
	} {
		if err := nl.AddrReplace(device, a); err != nil {
			return fmt.Errorf("give %s to %s: %w", a.IPNet, eth0, err)
		}
	}
	index := device.Attrs().Index
	for _, r := range []netlink.Route{
		{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(n.gateway4, 32)), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0)), Gw: n.gateway4.AsSlice()},
		{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(netip.IPv6Unspecified(), 0)), Gw: gatewayLinkLocal.AsSlice()},
	} {
		if err := nl.RouteReplace(&r); err != nil {
			return fmt.Errorf("route %s in the namespace: %w", r.Dst, err)
		}
	}
	return setNeighbours(nl, index, gatewayMAC(), n.gateway4, gatewayLinkLocal)
}

// detach removes a Machine's attachment. The kernel takes some 40 ms to delete a device, so detach
// lets the device disappear with its namespace instead of waiting. If the namespace is still in use,
// List continues to show the Machine, and the next detach deletes the device itself. Without a
// namespace to unbind, detach deletes the device at once.
func (n *Network) detach(id hangar.MachineID) error {
	at, known := n.attachments.find(id)
	link, leaving := n.attachments.left(id)
	bound, err := removeNetNS(n.netnsPath(id))
	if err != nil {
		return err
	}
	if known {
		link = at.link
	}
	if leaving || known && !bound {
		if err := n.deleteLink(link); err != nil {
			return err
		}
		link = ""
	}
	if known {
		if err := n.leave(networkOf(at.ipv6)); err != nil {
			return err
		}
	}
	n.attachments.forget(id, at)
	n.attachments.leaves(id, link)
	n.forgetLeft()
	return nil
}

// forgetLeft forgets devices that the kernel has deleted since. It examines few devices, but more than
// a detach adds.
func (n *Network) forgetLeft() {
	for id, link := range n.attachments.someLeaving(2) {
		if gone, err := n.linkGone(link); err == nil && gone {
			n.attachments.gone(id, link)
		}
	}
}

// setNeighbours makes the neighbours of a device permanent. The kernel need not ask for them, which a
// sandbox that boots or is suspended could not answer.
func setNeighbours(nl *netlink.Handle, index int, mac net.HardwareAddr, addrs ...netip.Addr) error {
	for _, a := range addrs {
		if err := nl.NeighSet(&netlink.Neigh{
			LinkIndex: index, IP: a.AsSlice(), HardwareAddr: mac, State: unix.NUD_PERMANENT,
		}); err != nil {
			return fmt.Errorf("set neighbour %s: %w", a, err)
		}
	}
	return nil
}
