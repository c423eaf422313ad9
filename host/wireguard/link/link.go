// Package link is a WireGuard device of this process: a TUN device with WireGuard behind it, its
// key, and what it has seen of its peers.
//
// The kernel takes the device and its routes away when the process ends, however it ends. A Link is
// safe for concurrent use. Its owner decides on the peers and their rights.
package link

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/hangar-platform/hangar"
)

// Link is a device that is up, with WireGuard behind it.
type Link struct {
	name      string
	index     int
	device    engine
	Port      uint16 // UDP
	PublicKey hangar.PeerKey
}

// MTU of the device, in bytes: the payload of a WireGuard packet over IPv6 on an Ethernet.
const MTU = 1420

// engine is what a link needs of a *device.Device.
type engine interface {
	IpcSet(config string) error
	IpcGet() (string, error)
	Up() error
	Wait() chan struct{}
	Close()
}

// Open makes the device and listens at a port, or at a free one if that is 0.
func Open(name string, key PrivateKey, port uint16, log *slog.Logger) (_ *Link, err error) {
	wire, err := tun.CreateTUN(name, MTU)
	if err != nil {
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	// Its messages are about packets, which any sender can cause.
	l := &Link{name: name, PublicKey: key.Public(), device: device.NewDevice(wire, conn.NewDefaultBind(), &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf: func(format string, args ...any) {
			log.Debug("WireGuard", slog.String("said", fmt.Sprintf(format, args...)))
		},
	})}
	defer func() {
		if err != nil {
			l.device.Close()
		}
	}()
	if err := l.device.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n", hex.EncodeToString(key[:]), port)); err != nil {
		return nil, fmt.Errorf("configure device %s: %w", name, err)
	}
	if err := l.device.Up(); err != nil {
		return nil, fmt.Errorf("listen at UDP port %d: %w", port, err)
	}
	if err := l.read(func(field, value string) {
		if n, err := strconv.ParseUint(value, 10, 16); field == "listen_port" && err == nil {
			l.Port = uint16(n)
		}
	}); err != nil {
		return nil, err
	}
	if port != 0 && l.Port != port {
		// wireguard-go calls Up itself when the device reports that it is up, which may come before the call
		// above. If the port is in use, that first Up fails and leaves port 0 to the second.
		return nil, fmt.Errorf("listen at UDP port %d: %w", port, unix.EADDRINUSE)
	}
	return l, l.enable()
}

// InUse reports whether the error of Open says that another program has the port.
func InUse(err error) bool { return errors.Is(err, unix.EADDRINUSE) }

// enable brings the device up for IPv6, with no address of its own.
func (l *Link) enable() error {
	found, err := netlink.LinkByName(l.name)
	if err != nil {
		return fmt.Errorf("find device %s: %w", l.name, err)
	}
	l.index = found.Attrs().Index
	for _, set := range [][2]string{{"disable_ipv6", "0"}, {"addr_gen_mode", "1"}, {"accept_ra", "0"}} {
		path := filepath.Join("/proc/sys/net/ipv6/conf", l.name, set[0])
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == set[1] {
			continue
		}
		if err := os.WriteFile(path, []byte(set[1]), 0); err != nil {
			return fmt.Errorf("set %s: %w", path, err)
		}
	}
	if err := netlink.LinkSetUp(found); err != nil {
		return fmt.Errorf("enable device %s: %w", l.name, err)
	}
	return nil
}

// Gone is closed when the device has failed or was deleted.
func (l *Link) Gone() <-chan struct{} { return l.device.Wait() }

// Close takes the device away, with its routes.
func (l *Link) Close() { l.device.Close() }

// Admit lets a peer in, and calls it where it was last, if that is known.
func (l *Link) Admit(key hangar.PeerKey, prefix netip.Prefix, source netip.Addr, endpoint netip.AddrPort) error {
	raw := key.Bytes()
	config := fmt.Sprintf("public_key=%s\nreplace_allowed_ips=true\nallowed_ip=%s\n", hex.EncodeToString(raw[:]), prefix.Masked())
	if endpoint.IsValid() {
		// A keepalive is what makes it call; a peer behind a filter calls itself.
		config += fmt.Sprintf("endpoint=%s\npersistent_keepalive_interval=%d\n", endpoint, recallSeconds)
	}
	if err := l.device.IpcSet(config); err != nil {
		return fmt.Errorf("let in: %w", err)
	}
	if endpoint.IsValid() {
		if err := l.device.IpcSet(fmt.Sprintf("public_key=%s\nupdate_only=true\npersistent_keepalive_interval=0\n", hex.EncodeToString(raw[:]))); err != nil {
			return errors.Join(fmt.Errorf("call: %w", err), l.forget(key))
		}
	}
	if err := l.addRoute(prefix, source); err != nil {
		return errors.Join(err, l.forget(key))
	}
	return nil
}

func (l *Link) addRoute(prefix netip.Prefix, source netip.Addr) error {
	if err := netlink.RouteReplace(l.route(prefix, source)); err != nil {
		return fmt.Errorf("route %s to %s: %w", prefix, l.name, err)
	}
	return nil
}

// recallSeconds is set for a moment only: to turn it on sends a packet at once.
const recallSeconds = 15

// Expel cuts a peer off.
func (l *Link) Expel(key hangar.PeerKey, prefix netip.Prefix) error {
	if err := l.forget(key); err != nil {
		return err
	}
	return l.removeRoute(prefix)
}

func (l *Link) removeRoute(prefix netip.Prefix) error {
	if err := netlink.RouteDel(l.route(prefix, netip.Addr{})); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("unroute %s: %w", prefix, err)
	}
	return nil
}

// forget ends the session of a key and takes no more packets of it.
func (l *Link) forget(key hangar.PeerKey) error {
	raw := key.Bytes()
	if err := l.device.IpcSet(fmt.Sprintf("public_key=%s\nremove=true\n", hex.EncodeToString(raw[:]))); err != nil {
		return fmt.Errorf("cut off: %w", err)
	}
	return nil
}

func (l *Link) route(prefix netip.Prefix, source netip.Addr) *netlink.Route {
	prefix = prefix.Masked()
	r := &netlink.Route{
		LinkIndex: l.index,
		Dst:       &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
	}
	if source.IsValid() {
		r.Src = source.AsSlice()
	}
	return r
}

// Seen is what a device knows of a peer.
type Seen struct {
	hangar.PeerTraffic
	Endpoint netip.AddrPort // invalid: unknown
}

// Seen returns what the device knows of its peers.
func (l *Link) Seen() (map[hangar.PeerKey]Seen, error) {
	all := map[hangar.PeerKey]Seen{}
	var key hangar.PeerKey
	var nanoseconds int64
	err := l.read(func(field, value string) {
		s := all[key]
		number, _ := strconv.ParseUint(value, 10, 64)
		switch field {
		case "public_key":
			raw, err := hex.DecodeString(value)
			if err != nil {
				return
			}
			key = hangar.PeerKey(base64.StdEncoding.EncodeToString(raw))
			s = Seen{}
		case "endpoint":
			s.Endpoint, _ = netip.ParseAddrPort(value)
		case "rx_bytes":
			s.Received = number
		case "tx_bytes":
			s.Sent = number
		case "last_handshake_time_sec":
			nanoseconds = int64(number) * int64(time.Second)
			return
		case "last_handshake_time_nsec":
			if nanoseconds += int64(number); nanoseconds != 0 {
				s.Handshake = time.Unix(0, nanoseconds).UTC()
			}
		default:
			return
		}
		if key != "" {
			all[key] = s
		}
	})
	return all, err
}

// read yields the fields of the device's configuration, in the order of WireGuard's
// cross-platform interface: what follows a public_key is about that peer.
func (l *Link) read(yield func(field, value string)) error {
	config, err := l.device.IpcGet()
	if err != nil {
		return fmt.Errorf("read device %s: %w", l.name, err)
	}
	lines := bufio.NewScanner(strings.NewReader(config))
	for lines.Scan() {
		if field, value, ok := strings.Cut(lines.Text(), "="); ok {
			yield(field, value)
		}
	}
	return lines.Err()
}
