package mesh_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hangar-platform/hangar"
)

const (
	// patience is how long what must arrive may take; what must not is waited for shortly.
	patience = 3 * time.Minute
	shortly  = 300 * time.Millisecond
)

type syscallConn = syscall.RawConn

// server is a host as the tests see it.
type server struct {
	hangar.Host
	t      testing.TB
	dir    string
	number int
	client *rpc.Client
	child  *exec.Cmd
	uplink netlink.Link // the end of its cable
}

// cluster is some hosts, joined by a bridge.
type cluster struct {
	t     testing.TB
	hosts []*server
	World
}

const ids = "0a7b7df0 5eedbed5 c0ffee00"

// newCluster starts hosts. Nothing is on them yet.
func newCluster(tb testing.TB, count int) *cluster {
	tb.Helper()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "between"}}
	must(netlink.LinkAdd(bridge))
	tb.Cleanup(func() { must(netlink.LinkDel(bridge)) })
	must(netlink.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}))
	must(netlink.LinkSetUp(bridge))
	c := &cluster{t: tb}
	for i := range count {
		s := &server{t: tb, number: i, dir: tb.TempDir()}
		s.ID = hangar.HostID(ids[9*i : 9*i+8])
		s.start()
		c.hosts = append(c.hosts, s)
	}
	c.publish()
	return c
}

// start starts the process of a host, and joins it to the others.
func (s *server) start() {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "mesh") // the name of a socket must be short
	must(err)
	s.t.Cleanup(func() { must(os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	must(err)
	defer l.Close()
	s.child = exec.Command("/proc/self/exe", "-test.run=^TestHost$")
	s.child.Env = append(os.Environ(), hostSocket+"="+socket)
	s.child.Stdout, s.child.Stderr = s.t.Output(), s.t.Output()
	s.child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	must(s.child.Start())
	must(l.(*net.UnixListener).SetDeadline(time.Now().Add(patience)))
	conn, err := l.Accept()
	must(err)
	s.client = jsonrpc.NewClient(conn)
	client, child := s.client, s.child
	s.t.Cleanup(func() {
		if client.Close() == nil { // it was not killed before
			if err := child.Wait(); err != nil {
				s.t.Errorf("host %s: %v", s.ID, err)
			}
		}
	})
	between, err := netlink.LinkByName("between")
	must(err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex, attrs.Flags = fmt.Sprintf("to%d-%d", s.number, s.child.Process.Pid), between.Attrs().Index, net.FlagUp
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "uplink", netlink.NsPid(s.child.Process.Pid)
	// As a computer that comes back, and not another with its address, which others would look for at the old one.
	veth.PeerHardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, byte(10 + s.number)}
	must(netlink.LinkAdd(veth))
	s.uplink = veth
	address := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + s.number)}), 24)
	call(s, "Start", Start{ID: s.ID, Dir: s.dir, Address: address}, &s.Host)
	s.awaitUplink(address.Addr())
}

// awaitUplink returns once the bridge passes packets to the host, which it may not for a second after
// its device is there.
func (s *server) awaitUplink(at netip.Addr) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(at, 1).String(), 50*time.Millisecond)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil {
			_ = c.Close()
		}
	}
	s.t.Fatalf("host %s has no way to the others", s.ID)
}

// kill ends a host as a power cut does. The kernel takes its time to remove a namespace, in which it would go on to answer.
func (s *server) kill() {
	must(s.client.Close())
	must(s.child.Process.Kill())
	_ = s.child.Wait()
	if err := netlink.LinkDel(s.uplink); !errors.Is(err, syscall.ENODEV) && !errors.As(err, new(netlink.LinkNotFoundError)) {
		must(err) // or it is gone already
	}
}

func call(s *server, method string, in, out any) {
	s.t.Helper()
	if err := s.client.Call("Host."+method, in, out); err != nil {
		s.t.Fatalf("%s of host %s: %v", method, s.ID, err)
	}
}

// publish sends the cluster state to all hosts.
func (c *cluster) publish() {
	c.t.Helper()
	c.Hosts = nil
	for _, s := range c.hosts {
		c.Hosts = append(c.Hosts, s.Host)
	}
	for _, s := range c.hosts {
		call(s, "Set", c.World, &struct{}{})
	}
}

// machine makes one at a host, and says so to all.
func (c *cluster) machine(at *server, id hangar.NetworkID, number uint64) netip.AddrPort {
	c.t.Helper()
	a := c.attach(at, id, number)
	c.publish()
	return a
}

// attach makes a Machine of which the others have not learned yet.
func (c *cluster) attach(at *server, id hangar.NetworkID, number uint64) netip.AddrPort {
	c.t.Helper()
	var a netip.Addr
	call(at, "Attach", Place{id, number}, &a)
	c.Rows = append(c.Rows, hangar.MachineRow{Network: id, Machine: hangar.Machine{
		ID: hangar.MachineID(fmt.Sprintf("%s%06x", at.ID, number)), Host: at.ID, PrivateIP: a,
	}})
	return netip.AddrPortFrom(a, probePort)
}

// reaches calls from a Machine until it is answered, as from.
func (s *server) reaches(number uint64, to netip.AddrPort, from netip.Addr) {
	s.t.Helper()
	for _, protocol := range []string{"tcp", "udp"} {
		var as netip.Addr
		err := s.client.Call("Host.Probe", Probe{number, protocol, to, 2 * time.Second}, &as)
		for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
			err = s.client.Call("Host.Probe", Probe{number, protocol, to, 2 * time.Second}, &as)
		}
		if err != nil || as != from {
			s.t.Errorf("%s from Machine %d of host %s to %s: it is %s, %v, want %s", protocol, number, s.ID, to, as, err, from)
		}
	}
}

// misses calls from a Machine, and gets no answer.
func (s *server) misses(number uint64, to netip.AddrPort) {
	s.t.Helper()
	for _, protocol := range []string{"tcp", "udp"} {
		var as netip.Addr
		if err := s.client.Call("Host.Probe", Probe{number, protocol, to, shortly}, &as); err == nil {
			s.t.Errorf("%s from Machine %d of host %s to %s is answered", protocol, number, s.ID, to)
		}
	}
}

func newKeys() (private string, public hangar.PeerKey) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	must(err)
	encode := base64.StdEncoding.EncodeToString
	return encode(key.Bytes()), hangar.PeerKey(encode(key.PublicKey().Bytes()))
}
