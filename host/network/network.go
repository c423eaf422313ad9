// Package network gives every Machine of a host a network namespace with its
// private IPv6 address and a way out to the internet.
//
// Each Machine has a namespace of its own, joined to the host by a routed pair of
// virtual Ethernet devices: eth0 inside, a device that carries the instance's name
// outside. There is no bridge, so there is no limit of ports, no flooding and no
// neighbour discovery between Machines: the host routes a /112 and one IPv4 address
// to each device, and with static neighbours on both sides the first packet leaves at
// once. Traffic to the internet is masqueraded.
//
// Everything else is closed. A Machine reaches the Machines of its own network by IPv6, the
// platform's services, the Apps that the host serves in that network (Ingress) and the internet. It
// does not reach other networks. It reaches other services of the host only where OpenPorts says so,
// and private ranges behind the host only where Options.AllowEgress does. Only the host opens
// connections to a Machine from outside its network. A packet with a forged source address is
// dropped, so that Owner can identify the sender. The rules are one nftables table of the instance.
// No rule is about a single Machine: what changes is the content of the sets of networks, of Apps'
// addresses, of open ports and of tracked connections.
//
// The kernel is the record. The last step of Attach writes the attachment into the alias of its
// device, and Open reads the aliases back; a device without an alias is partial and is removed. So
// after a kill at any moment, List shows or Open repairs everything, and the network of a running
// Machine outlives the daemon untouched. Addresses and the MAC derive from the Endpoint, so they are
// the same after every Attach. Only the IPv4 address may differ after the host was rebooted, when
// every IPv4 connection is gone anyway.
//
// The sandbox takes the addresses and routes out of the namespace when it starts: from then on its
// own network stack has them, and the kernel must not answer in its place. So Attach is called
// before every start and resume. In between, an ingress hook drops the packets that would reach the
// kernel's stack, which would reset connections that are about to be restored.
//
// All methods may be called from many goroutines; calls for one Machine wait for each other. A
// thread that cannot return from a Machine's namespace to the host's is discarded. One goroutine
// runs between Open and Close: it restores the nftables table when another program changes or
// removes it.
//
// The package enables forwarding for the whole host, as routing needs it, and leaves
// it enabled. It does not resolve names. Package mesh connects the other hosts: their Machines and
// peers are behind MeshDevice, under the same rules as those of this host.
package network

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// DefaultRunDir is where namespaces are bound, so that ip-netns(8) shows them.
const DefaultRunDir = "/run/netns"

// MTU of every Machine's eth0, in bytes. It leaves room for a tunnel between hosts.
const MTU = 1420

// Options of a Network.
type Options struct {
	// Instance is the short id of the data directory: 1 to 8 characters of a-z and 0-9. It is part of
	// the name of everything that a Network makes.
	Instance string
	Host     hangar.HostID
	Log      *slog.Logger
	// RunDir is where namespaces are bound; empty: DefaultRunDir.
	RunDir string
	// IPv4Pool is the range of the Machines' IPv4 addresses, a /24 or larger. If it is the zero
	// Prefix, Open chooses a /16 that no route of the host overlaps, and keeps it until Remove or a
	// reboot.
	IPv4Pool netip.Prefix
	// AllowEgress are networks outside the public internet that Machines may reach, such as a database
	// server's beside this host. No option opens another private network or the host's own services.
	AllowEgress []netip.Prefix
	// Own are IPv6 networks that become the host's own: programs can listen, with IPV6_FREEBIND, at
	// every address in them. Only this host routes them.
	Own []netip.Prefix
	// MaxConnections is how many connections of one Machine, by IPv4 and by IPv6 each, the kernel
	// tracks at once. A new connection beyond that is dropped, because all Machines share the kernel's
	// table with the server itself. 0: a 32nd of that table, and at least 1024.
	MaxConnections uint32
}

// Endpoint is a Machine's place in the network.
type Endpoint struct {
	ID hangar.MachineID
	// IPv6 is what Address returned for the Machine.
	IPv6 netip.Addr
	// Number is the Machine's number on this host, below MaxNumber and never reused. The MAC and the
	// IPv4 address derive from it.
	Number uint64
}

// Attachment is what other packages need to know about an attached Endpoint.
type Attachment struct {
	NetNS              string // path of the namespace
	IPv4, IPv6         netip.Addr
	Gateway4, Gateway6 netip.Addr // as the Machine sees the host
}

// Network is the network of one instance on this host.
type Network struct {
	*gateway     // the host as Machines see it
	*attachments // what is attached
	*filter      // what may reach what

	log    *slog.Logger
	runDir string
	own    []netip.Prefix  // Options.Own
	nl     *netlink.Handle // of the host's namespace; set by Open

	seed  maphash.Seed
	locks [64]sync.Mutex // by hash of the Machine's id: one change at a time
}

// New returns a Network that Open makes usable.
func New(o Options) *Network {
	if o.RunDir == "" {
		o.RunDir = DefaultRunDir
	}
	g := &gateway{
		instance: o.Instance, prefix: linkPrefix(o.Instance), host: o.Host, wanted: o.IPv4Pool, gateway6: HostAddress(o.Host),
	}
	return &Network{
		gateway:     g,
		attachments: newAttachments(g),
		filter: &filter{
			gateway: g, allowed: o.AllowEgress, most: o.MaxConnections, log: o.Log,
			members: map[hangar.NetworkID]int{}, ingress: map[netip.Addr]struct{}{}, ports: map[OpenPort]struct{}{},
		},
		log:    o.Log,
		runDir: o.RunDir,
		own:    o.Own,
		seed:   maphash.MakeSeed(),
	}
}

// Open reads back the attachments, removes partial ones, and readies the host: its own addresses,
// forwarding and the nftables table. It needs root, and may be repeated after Close.
func (n *Network) Open(ctx context.Context) (err error) {
	if err := n.check(); err != nil {
		return err
	}
	if err := os.MkdirAll(n.runDir, 0o755); err != nil { //nolint:gosec // G301: as ip-netns(8) makes it; the names in it are no secret
		return err
	}
	// Two daemons that start at once must not choose the same pool.
	unlock, err := lockDir(n.runDir)
	if err != nil {
		return err
	}
	defer unlock()

	if err := n.connect(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	links, err := n.links()
	if err != nil {
		return err
	}
	if err := n.adopt(links); err != nil {
		return err
	}
	if err := n.gateway.open(n.nl); err != nil {
		return err
	}
	if err := n.openLocals(); err != nil {
		return err
	}
	n.filter.recount(n.attachments.memberships())
	if err := n.installRules(); err != nil {
		return err
	}
	if err := enableForwarding(); err != nil {
		return err
	}
	n.watchRules(ctx)
	n.log.DebugContext(ctx, "network ready", slog.String("pool", n.pool.String()), slog.Int("attached", len(n.attached)))
	return nil
}

// Close releases the resources of this process. Everything on the host stays.
func (n *Network) Close() error {
	if n.nl == nil {
		return nil
	}
	n.nl.Close()
	n.nl = nil
	return n.firewall.close()
}

// Remove removes everything of this instance from the host, whether or not the Network is open.
// Destroy the Machines first. It may be repeated.
func (n *Network) Remove(ctx context.Context) error {
	if err := n.check(); err != nil {
		return err
	}
	if n.nl == nil {
		if err := n.connect(); err != nil {
			return err
		}
		defer func() { _ = n.Close() }()
	}
	n.firewall.stopWatching() // which would restore the table
	links, err := n.links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := n.deleteLink(l.Attrs().Name); err != nil {
			return err
		}
	}
	ids, err := n.List(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(8)
	for _, id := range ids {
		group.Go(func() error { return n.Detach(id) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := n.gateway.close(n.nl); err != nil {
		return err
	}
	if err := n.closeLocals(); err != nil {
		return err
	}
	return n.removeRules()
}

// List returns the Machines that have a complete or partial attachment of this instance on the host,
// sorted.
func (n *Network) List(ctx context.Context) ([]hangar.MachineID, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(n.runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []hangar.MachineID
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), n.netnsPrefix()); ok {
			ids = append(ids, hangar.MachineID(id))
		}
	}
	attached, leaving := n.attachments.present()
	ids = append(ids, attached...)
	for id, link := range leaving {
		gone, err := n.linkGone(link)
		if err != nil {
			return nil, err
		}
		if !gone {
			ids = append(ids, id)
			continue
		}
		n.attachments.gone(id, link)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// check validates the options.
func (n *Network) check() error {
	valid := len(n.instance) >= 1 && len(n.instance) <= 8
	for _, c := range n.instance {
		valid = valid && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	// With eight characters, a first w or m would make the devices look like another instance's
	// PeerDevice or MeshDevice.
	if !valid || len(n.instance) == 8 && (n.instance[0] == 'w' || n.instance[0] == 'm') {
		return fmt.Errorf("instance %q: must be 1 to 8 characters of a-z and 0-9, and 8 must not begin with m or w", n.instance)
	}
	for _, p := range n.allowed {
		if !p.IsValid() {
			return fmt.Errorf("allowed network %s is invalid", p)
		}
	}
	for _, p := range n.own {
		if !p.Addr().Is6() || p != p.Masked() || p.Overlaps(Private) {
			return fmt.Errorf("own network %s: must be an IPv6 network outside of %s", p, Private)
		}
	}
	if !n.gateway6.IsValid() {
		return fmt.Errorf("host %q: must be 8 hexadecimal characters", n.host)
	}
	if p := n.wanted; p.IsValid() && (!p.Addr().Is4() || p.Bits() > 24 || p != p.Masked()) {
		return fmt.Errorf("IPv4 pool %s: must be an IPv4 network of /24 or larger", p)
	}
	return nil
}

// connect opens the connections to the kernel.
func (n *Network) connect() error {
	rules, err := openFirewall()
	if err != nil {
		return err
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return errors.Join(fmt.Errorf("open netlink: %w", err), rules.close())
	}
	n.nl, n.firewall = nl, rules
	return nil
}

// links returns the devices of this instance.
func (n *Network) links() ([]netlink.Link, error) {
	all, err := dump(n.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool {
		return !strings.HasPrefix(l.Attrs().Name, n.prefix)
	}), nil
}

// adopt records the attachments that the aliases of links describe, and deletes partial ones.
func (n *Network) adopt(links []netlink.Link) error {
	n.attachments.clear()
	for _, l := range links {
		name := l.Attrs().Name
		id, e, ok := parseAlias(l.Attrs().Alias)
		if !ok {
			if err := n.deleteLink(name); err != nil {
				return err
			}
			continue
		}
		e.link = name
		n.attachments.add(id, e)
	}
	return nil
}

// deleteLink deletes a device of the host. A missing device is not an error.
func (n *Network) deleteLink(name string) error {
	l, err := n.nl.LinkByName(name)
	if err == nil {
		err = n.nl.LinkDel(l)
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("delete device %s: %w", name, err)
	}
	return nil
}

func (n *Network) linkGone(name string) (bool, error) {
	_, err := n.nl.LinkByName(name)
	if err != nil && !isGone(err) {
		return false, fmt.Errorf("find device %s: %w", name, err)
	}
	return err != nil, nil
}

func isGone(err error) bool {
	_, notFound := errors.AsType[netlink.LinkNotFoundError](err)
	return notFound || errors.Is(err, unix.ENODEV)
}

func (n *Network) lock(id hangar.MachineID) (unlock func()) {
	l := &n.locks[maphash.String(n.seed, string(id))%uint64(len(n.locks))]
	l.Lock()
	return l.Unlock
}

func (n *Network) netnsPrefix() string { return "hangar-" + n.instance + "-" }

func (n *Network) netnsPath(id hangar.MachineID) string {
	return filepath.Join(n.runDir, n.netnsPrefix()+string(id))
}

// dump repeats a listing that the kernel interrupted because something changed.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for range 10 {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}

// lockDir takes the lock of a directory.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
