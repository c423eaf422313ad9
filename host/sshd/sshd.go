// Package sshd signs users in to the Machines of a host with OpenSSH, without help from their
// images.
//
// It is the server behind MachineSSHPort of the private addresses of Machines. It runs on the
// host and costs a Machine nothing: a shell, a command, SFTP and forwarded connections are
// processes that are executed in the Machine, as the user who has signed in. So a forwarded
// connection reaches what the Machine reaches, and nothing of the host.
//
// Promises. A user is let in only by a certificate: of the authority of the Machine's organization,
// for the requested user name, or for that name in this App, within its time, and from the address
// that it is for. What the certificate does not permit (a terminal, forwarding) is refused.
// Passwords, keys without a certificate, agent and X11 forwarding and ports that listen in the
// Machine for the client are not offered. Each Machine has a host key of its own, which derives
// from one secret of the host and is the same after restarts.
//
// Resources of clients are bounded by organization, and no organization can take all of them; see
// Limits.
//
// Concurrency. One goroutine per connection and a few per channel, all of which end with Run's context, or
// when their connection does.
//
// The network has decided before which Machines a caller may reach: see network.Network.
package sshd

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// SecretSize is the size of Options.Secret, in bytes.
const SecretSize = 32

// Limits bound the resources of clients on the host. A pair is for one organization, and for all
// together.
type Limits struct {
	SigningIn  [2]int         // connections whose user is not known yet
	Clients    [2]int         // connections
	Channels   [2]int         // sessions and forwarded connections, each of which buffers up to 2 MiB
	OneChannel int            // the same of one connection
	Handshakes ratelimit.Pace // of one organization
	Login      time.Duration  // in which a user has to sign in
}

// DefaultLimits are those of a host.
func DefaultLimits() Limits {
	return Limits{
		SigningIn: [2]int{32, 256}, Clients: [2]int{128, 1024}, Channels: [2]int{64, 512}, OneChannel: 32,
		Handshakes: ratelimit.Pace{PerSecond: 20, Burst: 200}, Login: 20 * time.Second,
	}
}

// Options are the dependencies of a Server. All are required.
type Options struct {
	Machines hangar.SSHHost
	Trust    hangar.SSHTrust
	Secret   []byte // from which the host keys of Machines derive, SecretSize bytes
	Limits   Limits
	Log      *slog.Logger
	Now      func() time.Time
}

// Server signs users in. Make it with New.
type Server struct {
	o         Options
	signingIn *connlimit.Count[hangar.OrgID]
	clients   *connlimit.Count[hangar.OrgID]
	channels  *connlimit.Count[hangar.OrgID]
	paces     *ratelimit.Limiter[hangar.OrgID]

	work *background.Group // set by Open
}

// organizations is how many organizations' handshakes are remembered.
const organizations = 4096

// New returns a Server that serves nothing yet.
func New(o Options) *Server {
	return &Server{
		o:         o,
		signingIn: connlimit.NewCount[hangar.OrgID](o.Limits.SigningIn[0], o.Limits.SigningIn[1]),
		clients:   connlimit.NewCount[hangar.OrgID](o.Limits.Clients[0], o.Limits.Clients[1]),
		channels:  connlimit.NewCount[hangar.OrgID](o.Limits.Channels[0], o.Limits.Channels[1]),
		paces:     ratelimit.New[hangar.OrgID](organizations, o.Limits.Handshakes.Refill(), o.Now),
	}
}

// Open lets connections be served until Close.
func (s *Server) Open(ctx context.Context) error {
	if len(s.o.Secret) != SecretSize {
		return errors.New("the secret of SSH host keys has the wrong size")
	}
	s.work = background.New(ctx)
	return nil
}

// Close ends all connections and returns when they have ended. It may be repeated.
func (s *Server) Close() error {
	if s.work != nil {
		s.work.Stop()
		s.work.Wait()
	}
	return nil
}

// acceptPause is the time between attempts to accept a connection while descriptors or memory are missing.
const acceptPause = time.Second

// Serve accepts connections until ctx ends. called returns the Machine of a connection.
func (s *Server) Serve(ctx context.Context, l net.Listener, called func(net.Conn) (hangar.MachineID, bool)) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case pause.Helps(err):
			s.o.Log.WarnContext(ctx, "a connection for SSH cannot be accepted", slog.Any("error", err))
			_ = pause.For(ctx, acceptPause)
			continue
		case err != nil:
			return err
		}
		id, ok := called(conn)
		if !ok {
			_ = conn.Close()
			continue
		}
		s.ServeConn(conn, id)
	}
}

// ServeConn serves one connection to a Machine, and returns at once.
func (s *Server) ServeConn(conn net.Conn, id hangar.MachineID) {
	ref, org, err := s.o.Machines.SSHMachine(id)
	if err != nil {
		_ = conn.Close() // as it would be if the Machine were asked
		return
	}
	if s.paces.Take(org, s.o.Limits.Handshakes) > 0 || !s.clients.Take(org) {
		_ = conn.Close()
		return
	}
	c := &client{server: s, machine: ref, org: org, log: s.o.Log.With(slog.String("machine", string(id)), slog.String("from", conn.RemoteAddr().String()))}
	if !s.work.Go(func() {
		defer s.clients.Leave(org)
		c.serve(s.work.Context, conn)
	}) {
		s.clients.Leave(org)
		_ = conn.Close()
	}
}

// hostKey is the key of a Machine, by which clients know it again.
func (s *Server) hostKey(id hangar.MachineID) (ssh.Signer, error) {
	mac := hmac.New(sha256.New, s.o.Secret)
	_, _ = mac.Write([]byte("ssh-ed25519 " + string(id)))
	return ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(mac.Sum(nil)))
}

// client is a connection.
type client struct {
	server  *Server
	machine hangar.MachineRef
	org     hangar.OrgID
	log     *slog.Logger
	from    net.Conn
	user    hangar.SSHUser // set when it has signed in
	permits map[string]string

	mu   sync.Mutex
	open int // channels; guarded by mu
}

// serve speaks SSH on a connection until it ends.
func (c *client) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c.from = conn
	signed, channels, requests, err := c.signIn(ctx, conn)
	if err != nil {
		c.log.DebugContext(ctx, "SSH connection without a sign-in", slog.Any("error", err))
		return
	}
	defer signed.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	running.Go(func() { ssh.DiscardRequests(requests) })
	for channel := range channels {
		if !c.take() {
			_ = channel.Reject(ssh.ResourceShortage, "too many channels")
			continue
		}
		running.Go(func() {
			defer c.leave()
			c.channel(ctx, channel)
		})
	}
}

// take counts a channel, unless that is too many.
func (c *client) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.server.o.Limits.OneChannel || !c.server.channels.Take(c.org) {
		return false
	}
	c.open++
	return true
}

func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.server.channels.Leave(c.org)
}

func (c *client) channel(ctx context.Context, channel ssh.NewChannel) {
	switch channel.ChannelType() {
	case "session":
		c.session(ctx, channel)
	case "direct-tcpip":
		c.forwardTCP(ctx, channel)
	case "direct-streamlocal@openssh.com":
		c.forwardUnix(ctx, channel)
	default:
		_ = channel.Reject(ssh.UnknownChannelType, "not offered: "+channel.ChannelType())
	}
}
