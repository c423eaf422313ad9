package authority

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/hostcert"
	"github.com/hangar-platform/hangar/internal/pause"
)

// The files of an Identity in its directory.
const (
	authorityFile = "authority.pem" // the certificate of the authority
	keyFile       = "authority.key"
	hostFile      = "host.pem" // the key of this host, its certificate and that of the authority
)

// renewRetry is when a renewal that has failed is tried again, and recheck the most that passes between two looks at
// the clock, which may be set.
const (
	renewRetry = time.Hour
	recheck    = time.Hour
)

// Identity is how a host proves which one it is. Run renews it.
type Identity struct {
	dir       string
	host      hangar.HostID
	authority *Authority
	log       *slog.Logger
	now       func() time.Time
	pair      atomic.Pointer[tls.Certificate]
}

// Found makes an authority, and the Identity of the first host of its cluster in a directory. It
// continues with the authority of an interrupted start.
func Found(dir string, host hangar.HostID, now time.Time) error {
	a, err := readAuthority(dir)
	if os.IsNotExist(err) {
		if a, err = New(now); err == nil {
			err = a.save(dir)
		}
	}
	if err != nil {
		return err
	}
	pair, err := a.issue(host, now)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, hostFile), pair, 0o600)
}

// Store keeps an Identity in a directory: the pair that Request.Pair has returned and the authority.
func Store(dir string, pair []byte, a *Authority) error {
	if err := a.save(dir); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, hostFile), pair, 0o600)
}

// save writes the key first: an authority exists once its certificate does.
func (a *Authority) save(dir string) error {
	key, err := a.Key()
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, keyFile), key, 0o600); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, authorityFile), a.Certificate(), 0o600)
}

func readAuthority(dir string) (*Authority, error) {
	cert, err := os.ReadFile(filepath.Join(dir, authorityFile))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, err
	}
	return Parse(cert, key)
}

// issue makes a key for a host, and its certificate: what is in hostFile.
func (a *Authority) issue(host hangar.HostID, now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := a.sign(key.Public(), host, now)
	if err != nil {
		return nil, err
	}
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	leaf := pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der})
	return bytes.Join([][]byte{text, leaf, a.Certificate()}, nil), nil
}

// Open reads the Identity in a directory, which must be that of host. A certificate that is due is
// renewed.
func Open(dir string, host hangar.HostID, log *slog.Logger, now func() time.Time) (*Identity, error) {
	a, err := readAuthority(dir)
	if err != nil {
		return nil, fmt.Errorf("open the authority of the cluster: %w", err)
	}
	i := &Identity{dir: dir, host: host, authority: a, log: log, now: now}
	if err := i.load(); err != nil {
		return nil, fmt.Errorf("open the certificate of this host: %w", err)
	}
	if i.due() <= 0 {
		return i, i.renew()
	}
	return i, nil
}

func (i *Identity) load() error {
	path := filepath.Join(i.dir, hostFile)
	pair, err := tls.LoadX509KeyPair(path, path)
	if err != nil {
		return err
	}
	if named, err := hostcert.HostOf(pair.Leaf); err != nil || named != i.host {
		return fmt.Errorf("%s is of host %q, and this is host %q", path, named, i.host)
	}
	i.pair.Store(&pair)
	return nil
}

// Host is the host of the Identity.
func (i *Identity) Host() hangar.HostID { return i.host }

// Authority is the authority of the cluster.
func (i *Identity) Authority() *Authority { return i.authority }

// Files are where the certificate of the host, its key and the certificate of the authority are,
// in PEM, for programs that read them themselves. The first two are one file, so that both change
// at once.
func (i *Identity) Files() (certificate, key, authority string) {
	host := filepath.Join(i.dir, hostFile)
	return host, host, filepath.Join(i.dir, authorityFile)
}

// due is in how long the certificate has to be renewed.
func (i *Identity) due() time.Duration {
	leaf := i.pair.Load().Leaf
	begin, now := leaf.NotBefore.Add(skew), i.now()
	if begin.After(now.Add(skew)) { // the clock was ahead, and other hosts do not take the certificate yet
		return 0
	}
	return begin.Add(leaf.NotAfter.Sub(begin) / 2).Sub(now)
}

// renew replaces the certificate and its key.
func (i *Identity) renew() error {
	pair, err := i.authority.issue(i.host, i.now())
	if err == nil {
		err = durable.WriteFile(filepath.Join(i.dir, hostFile), pair, 0o600)
	}
	if err == nil {
		err = i.load()
	}
	if err != nil {
		return fmt.Errorf("renew the certificate of this host: %w", err)
	}
	return nil
}

// Run renews the certificate until ctx ends. Open connections keep the one before.
func (i *Identity) Run(ctx context.Context) error {
	for {
		wait := max(i.due(), 0)
		if wait == 0 {
			if err := i.renew(); err != nil {
				i.log.Error("the certificate of this host is renewed later", "error", err)
				wait = renewRetry
			}
		}
		if err := pause.For(ctx, min(wait, recheck)); err != nil {
			return err
		}
	}
}

// ServerConfig takes connections of hosts, and of clients without a certificate: see hostcert.Peer.
func (i *Identity) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.pair.Load(), nil },
		ClientAuth:     tls.VerifyClientCertIfGiven, ClientCAs: i.authority.Roots(), Time: i.now,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			_, err := hostcert.HostOf(state.PeerCertificates[0])
			return err
		},
	}
}

// ClientConfig makes connections to a host of the cluster, or to any if host is empty. The name or
// address of the connection does not matter.
func (i *Identity) ClientConfig(host hangar.HostID) *tls.Config {
	roots := i.authority.Roots()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.pair.Load(), nil },
		// Who the server is, verify says: its name is none of a DNS.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(state tls.ConnectionState) error {
			named, err := verify(state.PeerCertificates[0], roots, i.now())
			if err == nil && host != "" && named != host {
				err = fmt.Errorf("the server is host %s, and not %s", named, host)
			}
			return err
		},
	}
}

// verify returns the host that a server's certificate names, which one of roots has signed.
func verify(leaf *x509.Certificate, roots *x509.CertPool, now time.Time) (hangar.HostID, error) {
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: ServerName, Roots: roots, CurrentTime: now}); err != nil {
		return "", err
	}
	return hostcert.HostOf(leaf)
}

// ErrStranger says that a server does not have a certificate of the authority that it must have.
var ErrStranger = errors.New("the server is not of the cluster that the token is for")

// PinnedConfig makes connections to a host whose certificate an authority has signed that is known
// by its fingerprint alone; with any other they end with ErrStranger. The client shows no certificate.
func PinnedConfig(pinned Fingerprint, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		// The chain is verified below: the authority comes with it.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(state tls.ConnectionState) error {
			roots := x509.NewCertPool()
			for _, cert := range state.PeerCertificates[1:] {
				if FingerprintOf(cert.Raw) == pinned {
					roots.AddCert(cert)
				}
			}
			if _, err := verify(state.PeerCertificates[0], roots, now()); err != nil {
				return fmt.Errorf("%w: %w", ErrStranger, err)
			}
			return nil
		},
	}
}
