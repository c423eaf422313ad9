package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar"
)

// serverVersion is what clients see first (RFC 4253, section 4.2).
const serverVersion = "SSH-2.0-hangar"

// The permissions of a certificate (OpenSSH, PROTOCOL.certkeys).
const (
	permitTerminal   = "permit-pty"
	permitForwarding = "permit-port-forwarding"
)

var errRefused = errors.New("the certificate does not let its holder in")

// signIn lets a user in, or fails within the time for it.
func (c *client) signIn(ctx context.Context, conn net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	if !c.server.signingIn.Take(c.org) {
		return nil, nil, nil, errors.New("too many of the organization are signing in")
	}
	defer c.server.signingIn.Leave(c.org)
	key, err := c.server.hostKey(c.machine.ID)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(c.server.o.Limits.Login)); err != nil {
		return nil, nil, nil, err
	}
	config := &ssh.ServerConfig{
		ServerVersion: serverVersion,
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			return c.admit(ctx, meta, key)
		},
	}
	config.AddHostKey(key)
	signed, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return nil, nil, nil, err
	}
	if c.user, err = c.server.o.Machines.SSHUser(c.machine, signed.User()); err != nil {
		return nil, nil, nil, errors.Join(err, signed.Close())
	}
	c.permits = signed.Permissions.Extensions
	c.log.InfoContext(ctx, "signed in to a machine by SSH", slog.String("user", signed.User()), slog.String("app", string(c.machine.App)),
		slog.String("certificate", signed.Permissions.ExtraData[certificateOf{}].(string)))
	return signed, channels, requests, conn.SetDeadline(time.Time{})
}

// certificateOf is the key under which permissions say whose certificate they are of.
type certificateOf struct{}

// admit decides whether a key lets its holder in as a user.
func (c *client) admit(ctx context.Context, meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	certificate, ok := key.(*ssh.Certificate)
	if !ok {
		return nil, errors.New("a key without a certificate")
	}
	// One without principals is for all users, of whom this platform issues none.
	if len(certificate.ValidPrincipals) == 0 {
		return nil, fmt.Errorf("%w: it is for no user", errRefused)
	}
	authorities, err := c.server.o.Trust.TrustedSSHAuthorities(ctx, c.org)
	if err != nil {
		return nil, err
	}
	checker := ssh.CertChecker{
		Clock: c.server.o.Now, IsUserAuthority: func(signer ssh.PublicKey) bool { return trusted(authorities, signer) },
	}
	var reasons error
	for _, principal := range []string{meta.User(), meta.User() + "@" + string(c.machine.App)} {
		permissions, err := checker.Authenticate(as{meta, principal}, key)
		if err != nil {
			reasons = errors.Join(reasons, err)
			continue
		}
		// The user is looked up before the client proves that it has the key, so that both fail alike.
		if _, err := c.server.o.Machines.SSHUser(c.machine, meta.User()); err != nil {
			return nil, err
		}
		permitted := *permissions
		permitted.ExtraData = map[any]any{certificateOf{}: fmt.Sprintf("%s serial %d", certificate.KeyId, certificate.Serial)}
		return &permitted, nil
	}
	return nil, &ssh.BannerError{
		Err:     fmt.Errorf("%w: %w", errRefused, reasons),
		Message: fmt.Sprintf("This certificate does not let %.32q into Machines of %s.\r\n", meta.User(), c.machine.App),
	}
}

// as is a connection whose user has the name of a principal.
type as struct {
	ssh.ConnMetadata

	principal string
}

// User implements ssh.ConnMetadata.
func (a as) User() string { return a.principal }

// trusted reports whether a key is one of the authorities.
func trusted(authorities []hangar.SSHAuthority, signer ssh.PublicKey) bool {
	for _, a := range authorities {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(a.PublicKey))
		if err == nil && bytes.Equal(key.Marshal(), signer.Marshal()) {
			return true
		}
	}
	return false
}
