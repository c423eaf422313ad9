package binary_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/test/daemon"
)

// elsewhere is another computer: a network namespace on a link of its own, with names and a
// certificate authority that it trusts. It goes with the test.
type elsewhere struct {
	ns    *os.File
	host  netip.Addr // of this server, as the computer sees it
	addr  netip.Addr // of the computer
	dir   string
	roots *x509.CertPool
}

// newElsewhere makes a computer that knows some names as this server's.
func newElsewhere(t *testing.T, names ...string) *elsewhere {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	e := &elsewhere{host: netip.AddrFrom4([4]byte{198, 18, byte(rand.UintN(256)), byte(4*rand.UintN(64) + 1)}), dir: t.TempDir()}
	e.addr = e.host.Next()
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			e.ns, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.ns.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("els%08x", rand.Uint32())
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(e.ns.Fd())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(veth))
	t.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil && !errors.Is(err, unix.ENODEV) {
			t.Error(err)
		}
	})
	up := func(link netlink.Link, a netip.Addr) error {
		to := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(30, 32)}}
		return errors.Join(netlink.LinkSetUp(link), netlink.AddrAdd(link, to))
	}
	must(up(veth, e.host))
	must(e.within(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return up(link, e.addr)
	}))
	hosts := "127.0.0.1 localhost\n"
	for _, name := range names {
		hosts += e.host.String() + " " + name + "\n"
	}
	must(os.WriteFile(filepath.Join(e.dir, "hosts"), []byte(hosts), 0o644))
	return e
}

// reach lets the computer reach an address of the server that is not on its link.
func (e *elsewhere) reach(t *testing.T, a netip.Addr) {
	t.Helper()
	if err := e.within(func() error {
		to := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
		return netlink.RouteAdd(&netlink.Route{Dst: to, Gw: e.host.AsSlice()})
	}); err != nil {
		t.Fatal(err)
	}
}

// within runs f on a thread that is in the namespace. Sockets that f opens stay there.
func (e *elsewhere) within(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(int(e.ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// trust makes the computer trust this authority only.
func (e *elsewhere) trust(t *testing.T, pem []byte) {
	t.Helper()
	e.roots = x509.NewCertPool()
	if !e.roots.AppendCertsFromPEM(pem) {
		t.Fatalf("no certificate: %s", pem)
	}
	if err := os.WriteFile(e.ca(), pem, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (e *elsewhere) ca() string { return filepath.Join(e.dir, "ca.pem") }

// run runs a program on the computer, and returns what it prints.
func (e *elsewhere) run(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const script = `mount --bind "$HOSTS" /etc/hosts && exec "$@"`
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", script, "sh", program}, args...)...)
	cmd.Env = append(os.Environ(), "HOSTS="+filepath.Join(e.dir, "hosts"), "SSL_CERT_FILE="+e.ca(), "CURL_CA_BUNDLE="+e.ca(), "HOME="+e.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := e.within(cmd.Run)
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s%s", program, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), err
}

// client is one of HTTP/1.1, or of HTTP/2 where that is offered.
func (e *elsewhere) client(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: e.roots}, ForceAttemptHTTP2: h2, MaxIdleConnsPerHost: 16,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return conn, e.within(func() error {
				conn, err = (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, network, net.JoinHostPort(e.host.String(), port))
				return err
			})
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// onItsLink are arguments of a daemon whose edge is on the computer's link, with the ports that
// addresses need not name.
func (e *elsewhere) onItsLink(domain string) []string {
	at := func(port string) string { return net.JoinHostPort(e.host.String(), port) }
	return []string{"--domain", domain, "--http", at("80"), "--https", at("443")}
}

// authority is what `hangar certs ca` prints.
func authority(d *daemon.Daemon) []byte { return []byte(d.Run("certs", "ca")) }
