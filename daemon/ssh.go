package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/sshca"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/sshd"
	"github.com/hangar-platform/hangar/internal/durable"
)

// sshSecretFile has the secret from which the SSH host keys of this server's Machines derive.
const sshSecretFile = "ssh-secret"

// signIns lets users of SSH into Machines.
type signIns struct {
	server   *sshd.Server
	listener net.Listener // nil: there are no private networks
	network  interface {
		Called(conn net.Conn) (hangar.MachineID, bool)
	}
}

// openSSH opens the server behind the SSH port of Machines.
func (d *opening) openSSH(ctx context.Context, s *server, c *cluster, m *machines) (*signIns, error) {
	secret, err := sshSecret(filepath.Join(d.cfg.Dir, sshSecretFile))
	if err != nil {
		return nil, fmt.Errorf("the secret of SSH host keys: %w", err)
	}
	in := &signIns{server: sshd.New(sshd.Options{
		Machines: m.agent, Trust: sshca.NewTrust(c.mirror, c.sealed), Secret: secret, Limits: sshd.DefaultLimits(), Log: d.log, Now: time.Now,
	})}
	if err := in.server.Open(ctx); err != nil {
		return nil, err
	}
	d.opened.add(in.server.Close)
	if s.network == nil {
		return in, nil
	}
	in.network = s.network
	addr := netip.AddrPortFrom(s.network.HostAddr6(), hangar.ServicesSSHPort)
	in.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp6", addr.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		d.log.Warn("another program listens on the port of SSH inside private networks: Machines take no SSH connections from there", "address", addr)
		return in, nil
	}
	if err != nil {
		return nil, err
	}
	d.opened.add(func() error { _ = in.listener.Close(); return nil }) // once served, it is closed already
	return in, nil
}

// run serves connections from private networks until ctx ends.
func (in *signIns) run(ctx context.Context) error {
	if in.listener == nil {
		return nil
	}
	return in.server.Serve(ctx, in.listener, in.network.Called)
}

// sshSecret reads the secret in a file, or makes the file.
func sshSecret(name string) ([]byte, error) {
	secret, err := os.ReadFile(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	secret = make([]byte, sshd.SecretSize)
	_, _ = rand.Read(secret) // never fails: crypto/rand.Read aborts the program instead
	return secret, durable.WriteFile(name, secret, 0o600)
}

// agent is the host's agent, with SSH into its Machines.
type agent struct {
	*host.Agent

	ssh *sshd.Server
}

// DialMachine implements hangar.MachineDialer. At hangar.MachineSSHPort, a program of the Machine takes
// precedence over the host's server.
func (a agent) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	conn, err := a.Agent.DialMachine(ctx, ref, port)
	if port != hangar.MachineSSHPort || hangar.ReasonOf(err) != hangar.ReasonConnectionRefused {
		return conn, err
	}
	near, far, err := connectedPair()
	if err != nil {
		return nil, err
	}
	a.ssh.ServeConn(far, ref.ID)
	return near, nil
}

// connectedPair returns both ends of a connection within this process.
func connectedPair() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "ssh")
		conn, failed := net.FileConn(f) // it duplicates the descriptor
		err = errors.Join(err, failed, f.Close())
		ends[i] = conn
	}
	if err != nil {
		for _, end := range ends {
			if end != nil {
				_ = end.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}
