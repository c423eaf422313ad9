package network

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

// Connections from a Machine's own network to its SSH port reach the host, which knows the Machine.
// Other networks cannot use it, and all other ports remain the Machine's.
func TestCalled(t *testing.T) {
	n := open(t, "called")
	one, two, stranger := attach(t, n, endpointOf(5, 1)), attach(t, n, endpointOf(5, 2)), attach(t, n, endpointOf(6, 3))
	for _, a := range []Attachment{one, stranger} {
		listenKernel(t, a)
	}
	port := listenKernel(t, two)
	l, err := net.Listen("tcp", netip.AddrPortFrom(n.HostAddr6(), hangar.ServicesSSHPort).String())
	if err != nil {
		t.Fatal(err)
	}
	type call struct {
		from netip.Addr
		id   hangar.MachineID
		ok   bool
	}
	calls := make(chan call, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			id, ok := n.Called(c)
			_, _ = c.Write([]byte(c.RemoteAddr().String()))
			_ = c.Close()
			calls <- call{c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), id, ok}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	within(t, one, func() error {
		if from, err := reach(two.IPv6, hangar.MachineSSHPort); err != nil || from != one.IPv6 {
			t.Errorf("the SSH port of a Machine: called from %s, %v", from, err)
		}
		if got := <-calls; got.id != endpointOf(5, 2).ID || !got.ok || got.from != one.IPv6 {
			t.Errorf("the host was called as %+v", got)
		}
		if from, err := reach(two.IPv6, port); err != nil || from != one.IPv6 {
			t.Errorf("another port of the Machine: called from %s, %v", from, err)
		}
		for what, to := range map[string]netip.AddrPort{
			"the SSH port of another network": netip.AddrPortFrom(stranger.IPv6, hangar.MachineSSHPort),
			"that of no Machine":              netip.AddrPortFrom(Address(5, testHost, 9), hangar.MachineSSHPort),
			"the port of the host itself":     netip.AddrPortFrom(n.HostAddr6(), hangar.ServicesSSHPort),
			"that by the services' address":   netip.AddrPortFrom(hangar.ServicesAddress, hangar.ServicesSSHPort),
			"the host's port 22":              netip.AddrPortFrom(n.HostAddr6(), hangar.MachineSSHPort),
		} {
			if _, err := callAt(to); err == nil {
				t.Errorf("%s is reached", what)
			}
		}
		return nil
	})
	within(t, stranger, func() error {
		if _, err := callAt(netip.AddrPortFrom(one.IPv6, hangar.MachineSSHPort)); err == nil {
			t.Error("a stranger reaches the SSH port")
		}
		return nil
	})
	for range len(calls) { // of attempts that had no answer in time
		<-calls
	}
	must(n.Detach(endpointOf(5, 2).ID))
	within(t, one, func() error {
		// The host is called while the kernel has the device, and closes the connection: see below.
		_, _ = callAt(netip.AddrPortFrom(two.IPv6, hangar.MachineSSHPort))
		return nil
	})
	// Connections of the host itself to the port reach the Machine.
	within(t, one, func() error {
		own, err := net.Listen("tcp", netip.AddrPortFrom(one.IPv6, hangar.MachineSSHPort).String())
		if err == nil {
			ownhost.Serve(t, own)
		}
		return err
	})
	if _, err := reach(one.IPv6, hangar.MachineSSHPort); err != nil {
		t.Errorf("the host calls a program of the Machine at its SSH port: %v", err)
	}
	for range len(calls) {
		if got := <-calls; got.ok {
			t.Errorf("the host was called for the Machine %s, which is gone", got.id)
		}
	}
}

func callAt(to netip.AddrPort) (netip.Addr, error) { return call(to.Addr(), to.Port()) }
