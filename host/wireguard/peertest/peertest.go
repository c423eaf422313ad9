// Package peertest is an outside computer for tests: a WireGuard peer in a network namespace of its
// own, made from a configuration for wg-quick(8).
//
// The namespace has the tunnel and nothing else; only WireGuard's own packets travel in
// the namespace of the test, as those of a computer elsewhere travel on the internet.
// All of it goes with the test.
package peertest

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// Config is what is in a configuration of wg-quick(8).
type Config struct {
	PrivateKey, PublicKey string // in base64
	Address, AllowedIPs   netip.Prefix
	DNS                   netip.Addr
	Endpoint              netip.AddrPort
	MTU, Keepalive        int
}

// Parse reads a configuration and refuses what it does not know.
func Parse(text string) (c Config, err error) {
	section := ""
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() && err == nil {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		field, value, _ := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		switch section + strings.TrimSpace(field) {
		case "[Interface]PrivateKey":
			c.PrivateKey = value
		case "[Interface]Address":
			c.Address, err = netip.ParsePrefix(value)
		case "[Interface]DNS":
			c.DNS, err = netip.ParseAddr(value)
		case "[Interface]MTU":
			c.MTU, err = strconv.Atoi(value)
		case "[Peer]PublicKey":
			c.PublicKey = value
		case "[Peer]AllowedIPs":
			c.AllowedIPs, err = netip.ParsePrefix(value)
		case "[Peer]Endpoint":
			c.Endpoint, err = netip.ParseAddrPort(value)
		case "[Peer]PersistentKeepalive":
			c.Keepalive, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("unknown line %q", line)
		}
	}
	return c, err
}

// Peer is a computer that has its tunnel up.
type Peer struct {
	Config
	ns *os.File
}

// Start brings the tunnel of a configuration up until the test ends.
func Start(tb testing.TB, c Config) *Peer {
	tb.Helper()
	p := &Peer{Config: c}
	var wire tun.Device
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		if p.ns, err = os.Open(threadNetNS); err != nil {
			return err
		}
		wire, err = tun.CreateTUN("wg0", c.MTU)
		return err
	})
	if p.ns != nil {
		tb.Cleanup(func() { _ = p.ns.Close() })
	}
	if err != nil {
		tb.Fatalf("make a peer: %v", err)
	}
	d := device.NewDevice(wire, conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	tb.Cleanup(d.Close)
	if err := d.IpcSet(c.uapi(tb)); err != nil {
		tb.Fatalf("configure the peer: %v", err)
	}
	// Before the device is up, so that the sockets are of the test's namespace.
	if err := d.Up(); err != nil {
		tb.Fatalf("start the peer: %v", err)
	}
	if err := p.Inside(c.enable); err != nil {
		tb.Fatalf("enable the peer: %v", err)
	}
	return p
}

func (c Config) uapi(tb testing.TB) string {
	tb.Helper()
	key := func(text string) string {
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(raw) != 32 {
			tb.Fatalf("%q is not a key", text)
		}
		return hex.EncodeToString(raw)
	}
	return fmt.Sprintf("private_key=%s\npublic_key=%s\nendpoint=%s\nallowed_ip=%s\npersistent_keepalive_interval=%d\n",
		key(c.PrivateKey), key(c.PublicKey), c.Endpoint, c.AllowedIPs, c.Keepalive)
}

// enable gives the namespace what wg-quick gives a computer.
func (c Config) enable() error {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	for _, name := range []string{"lo", "wg0"} {
		l, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		if err := nl.LinkSetUp(l); err != nil {
			return err
		}
		if name == "lo" {
			continue
		}
		if err := nl.AddrReplace(l, &netlink.Addr{IPNet: ipNet(c.Address), Flags: unix.IFA_F_NODAD}); err != nil {
			return err
		}
		if err := nl.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(c.AllowedIPs)}); err != nil {
			return err
		}
	}
	return nil
}

// Add gives the peer a further address that it may or may not use, or a route through the tunnel
// to more than its config has.
func (p *Peer) Add(addr netip.Addr, route netip.Prefix) error {
	return p.Inside(func() error {
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer nl.Close()
		l, err := nl.LinkByName("wg0")
		if err != nil {
			return err
		}
		if addr.IsValid() {
			if err := nl.AddrReplace(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, addr.BitLen())), Flags: unix.IFA_F_NODAD}); err != nil {
				return err
			}
		}
		if route.IsValid() {
			return nl.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(route)})
		}
		return nil
	})
}

// Inside runs f on a thread that is in the peer's namespace: sockets that it makes are
// the peer's.
func (p *Peer) Inside(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(p.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// DialContext connects from the peer to an address, without a name.
func (p *Peer) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	failed := p.Inside(func() error {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, failed
}

// From connects from one of the peer's own addresses.
func (p *Peer) From(ctx context.Context, source netip.Addr, network, address string) (c net.Conn, err error) {
	failed := p.Inside(func() error {
		c, err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: source.AsSlice()}}).DialContext(ctx, network, address)
		return err
	})
	return c, failed
}

// Resolver asks the name server of the configuration.
func (p *Peer) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return p.DialContext(ctx, network, netip.AddrPortFrom(p.DNS, 53).String())
	}}
}

// Reaches reports whether the peer gets a connection to an address within a time.
func (p *Peer) Reaches(ctx context.Context, address string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	c, err := p.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// threadNetNS is the namespace of the calling thread.
const threadNetNS = "/proc/thread-self/ns/net"

// onThread runs f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread is in another namespace
		done <- f()
	}()
	return <-done
}
