package listen

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/keeper"
	"github.com/hangar-platform/hangar/internal/pause"
)

// keepAlive is after how long a silence of a client the kernel probes the connection.
const keepAlive = 30 * time.Second

// socket is one that connections come from.
type socket struct {
	*net.TCPListener
	name  string // by which the keeper knows it
	local netip.AddrPort
	port  int  // the public port, which may differ from the socket's; 0: the same
	own   bool // it has an address of one App
}

// listen opens a socket, or takes it back from the keeper, and leaves it there. If that fails it may be
// called again.
func (l *Listeners) listen(ctx context.Context, name, address string, port int) (*socket, error) {
	s := &socket{name: name, port: port}
	if f := l.inherited.sockets[name]; f != nil {
		inner, err := net.FileListener(f) // a copy
		if err != nil {
			return nil, err
		}
		s.TCPListener = inner.(*net.TCPListener) //nolint:forcetypeassert // no other has such a name
		l.inherited.taken(name)
	} else {
		config := net.ListenConfig{Control: bindAhead, KeepAlive: keepAlive}
		config.SetMultipathTCP(false) // whose connections could not be spliced
		inner, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		s.TCPListener = inner.(*net.TCPListener) //nolint:forcetypeassert // documented
	}
	s.local = unmapped(s.Addr())
	if l.o.Keeper != nil {
		l.o.Keeper.HoldSocket(name, s)
	}
	return s, nil
}

// inheritedPatience is for how long the keeper may take to release a socket.
const inheritedPatience = 20 * time.Second

// listenFixed opens a socket, or takes it back. If sockets of a daemon with other addresses are in
// the way, all of those are given up.
func (l *Listeners) listenFixed(ctx context.Context, name, address string, port int) (*socket, error) {
	s, err := l.listen(ctx, name, address, port)
	if !errors.Is(err, unix.EADDRINUSE) || len(l.inherited.sockets) == 0 {
		return s, err
	}
	l.inherited.renounce(func(string) bool { return true })
	for deadline := time.Now().Add(inheritedPatience); time.Now().Before(deadline); {
		if s, err = l.listen(ctx, name, address, port); !errors.Is(err, unix.EADDRINUSE) || pause.For(ctx, attemptPause) != nil {
			return s, err
		}
	}
	return s, err
}

// listenUDP opens a socket for datagrams, or takes it back from the keeper, and leaves it
// there.
func (l *Listeners) listenUDP(ctx context.Context, name, address string) (*net.UDPConn, error) {
	var conn *net.UDPConn
	if f := l.inherited.sockets[name]; f != nil {
		inner, err := net.FilePacketConn(f) // a copy
		if err != nil {
			return nil, err
		}
		conn = inner.(*net.UDPConn) //nolint:forcetypeassert // no other has such a name
		l.inherited.taken(name)
	} else {
		inner, err := (&net.ListenConfig{Control: bindAhead}).ListenPacket(ctx, "udp", address)
		if err != nil {
			return nil, err
		}
		conn = inner.(*net.UDPConn) //nolint:forcetypeassert // documented
	}
	if l.o.Keeper != nil {
		l.o.Keeper.HoldSocket(name, conn)
	}
	return conn, nil
}

// drop makes the keeper forget a socket.
func (l *Listeners) drop(name string) {
	if l.o.Keeper != nil {
		l.o.Keeper.Drop(name)
	}
}

// bindAhead lets a socket have an address that the server gets later.
func bindAhead(network, _ string, raw syscall.RawConn) error {
	var err error
	controlErr := raw.Control(func(fd uintptr) {
		if network == "tcp6" || network == "udp6" {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
			return
		}
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
	})
	return errors.Join(controlErr, err)
}

// unmapped is the address and port of a TCP or UDP address.
func unmapped(a net.Addr) netip.AddrPort {
	p, ok := a.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.AddrPort{}
	}
	addr := p.AddrPort()
	return netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port())
}

// hostOf is the host in an address; empty: every address of the server.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return host
}

// inheritance is the sockets of an earlier process.
type inheritance struct {
	keeper  *keeper.Client
	sockets map[string]*os.File
}

func (i *inheritance) take(k *keeper.Client) {
	if k != nil {
		i.keeper, i.sockets = k, k.TakeSockets()
	}
}

// taken closes a socket of which a listener has a copy.
func (i *inheritance) taken(name string) {
	_ = i.sockets[name].Close()
	delete(i.sockets, name)
}

// renounce closes the inherited sockets with certain names that no listener has taken.
func (i *inheritance) renounce(which func(name string) bool) {
	for name, f := range i.sockets {
		if which(name) {
			_ = f.Close()
			i.keeper.Drop(name)
			delete(i.sockets, name)
		}
	}
}

// close leaves the rest with the keeper.
func (i *inheritance) close() {
	for _, f := range i.sockets {
		_ = f.Close()
	}
	i.sockets = nil
}
