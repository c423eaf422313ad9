// Package certs has the certificates with which the edge answers TLS: those that Apps have
// uploaded, those that an ACME server issues, and those of the server's own authority.
//
// Promises. Everything needed is on its disk: certificates are served without the cluster state, also right after a
// start. One edge of a platform orders each certificate from an ACME server, and shares it with the others
// (Options.Shared); orders and renewals need the cluster state. Get reads an immutable map and takes a lock only to
// make a certificate of the server's own authority; it waits for an ACME server at most Options.DemandWait, and only
// for the first handshakes of an App's own name. Get prefers an uploaded certificate of the name, then one that was
// issued for it, then an uploaded one of the wildcard above it. A failed order is repeated after growing pauses, and
// never before the server's rate limit has passed, also across restarts.
//
// Concurrency. Get, Challenge and the methods of hangar.CertificateHost are safe for concurrent
// use at any time after Open. Run owns the goroutines that follow the feed and ask the ACME
// server; all have ended when it returns.
//
// The package does not listen: the edge passes connections of the protocol acme-tls/1 to Get, and
// requests of plain HTTP to Challenge. It does not decide which names an App may have.
package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"go.uber.org/zap"

	"github.com/hangar-platform/hangar"
)

// Keys of log records.
const (
	keyName  = "hostname"
	keyError = "error"
)

// Defaults of Options.
const (
	DefaultDemandWait = 10 * time.Second
	DefaultAtOnce     = 8
)

// maxDemanded bounds the names that wait for their first certificate.
const maxDemanded = 256

// Options configure a Certs. All but Dir are optional.
type Options struct {
	// Dir is where everything is kept. It belongs to one process at a time.
	Dir string
	// Domain is the one below which Apps have names.
	Domain hangar.Hostname
	// Platform are names directly below Domain that are the platform's own. They have no uploaded
	// certificates, and theirs are issued before the first request.
	Platform []hangar.Hostname
	// Feed yields which certificates Apps want. Nil: none.
	Feed hangar.CertificateFeed
	// Shared is what all edges of the platform share about the ACME server. Nil: this edge is the only one.
	Shared hangar.CertificateStore
	// Host is the server of this edge.
	Host hangar.HostID
	// Directory is the URL of the ACME server. Empty: no certificates are ordered.
	Directory string
	// Email is the contact of the ACME account. Empty: none.
	Email string
	// Roots are those by which the ACME server's own certificate is verified. Nil: the
	// system's.
	Roots *x509.CertPool
	// Challenges are the types of RFC 8555 and 8737 that may be used. Empty: http-01 and
	// tls-alpn-01, whichever succeeds.
	Challenges []string
	// Owner returns the organization of the App that is open to the public under its own
	// name, below Domain; false: there is none. Nil: there are none at all.
	Owner func(hangar.Hostname) (hangar.OrgID, bool)
	// DemandWait bounds how long a handshake waits for an ACME server. 0: DefaultDemandWait.
	DemandWait time.Duration
	// AtOnce bounds the orders in flight. 0: DefaultAtOnce.
	AtOnce int
	// RenewalRatio is the part of a certificate's life that is left when it is renewed. 0: a
	// third.
	RenewalRatio float64
	// Pace says how long to wait after failures. Zero: DefaultPace.
	Pace Pace
	// Limits bound the orders of each organization. Zero: DefaultLimits.
	Limits Limits
	Log    *slog.Logger // nil: slog.DiscardHandler
}

// Certs has certificates. Its methods may be called after Open.
type Certs struct {
	options    Options
	log        *slog.Logger
	disk       disk
	challenges challenges
	jobs       *jobs
	attempts   attempts
	budget     *budget
	authority  *authority
	table      atomic.Pointer[table]
	change     sync.Mutex // held while a new table is made
	adopting   sync.Mutex // held while a shared certificate is written to the disk
	// unsaved has the uploaded certificates whose files may differ from the table; nil: the disk has the
	// last set of the feed. Only follow uses it.
	unsaved map[hangar.Hostname]bool

	// issuer orders certificates; nil if Options.Directory is empty.
	issuer *issuer
	shared *shared
	cache  *certmagic.Cache
	magic  *certmagic.Config
}

var _ hangar.CertificateHost = (*Certs)(nil)

// New returns a Certs that Open makes usable.
func New(o Options) *Certs {
	o.DemandWait = cmp.Or(o.DemandWait, DefaultDemandWait)
	o.AtOnce = cmp.Or(o.AtOnce, DefaultAtOnce)
	o.RenewalRatio = cmp.Or(o.RenewalRatio, certmagic.DefaultRenewalWindowRatio)
	o.Pace = cmp.Or(o.Pace, DefaultPace())
	o.Limits = cmp.Or(o.Limits, DefaultLimits())
	if o.Owner == nil {
		o.Owner = func(hangar.Hostname) (hangar.OrgID, bool) { return "", false }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Certs{options: o, log: o.Log, disk: disk{o.Dir}, budget: newBudget(o.Limits)}
	c.jobs = newJobs(o.AtOnce, c.fulfil)
	c.table.Store(emptyTable())
	return c
}

// Open reads the disk, and makes the server's own authority if there is none. An unreadable
// certificate is logged; it is ordered again, or the feed yields it.
func (c *Certs) Open(context.Context) error {
	if err := os.MkdirAll(c.options.Dir, 0o700); err != nil {
		return fmt.Errorf("open certificates: %w", err)
	}
	authority, err := openAuthority(c.options.Dir, time.Now())
	if err != nil {
		return fmt.Errorf("open certificates: %w", err)
	}
	c.authority = authority
	if c.ACME() {
		c.openACME()
	}
	if err := c.restore(); err != nil {
		_ = c.Close()
		return fmt.Errorf("open certificates: %w", err)
	}
	return nil
}

func (c *Certs) openACME() {
	o := &c.options
	storage := newStorage(c.disk.acme())
	c.issuer = newIssuer(o, storage, &c.challenges)
	c.shared = newShared(o.Shared, c.issuer.IssuerKey(), o.Host)
	c.issuer.shared = c.shared
	c.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return c.magic, nil },
		Logger:           zap.NewNop(),
	})
	c.magic = certmagic.New(c.cache, certmagic.Config{
		Storage: storage, Issuers: []certmagic.Issuer{c.issuer}, RenewalWindowRatio: o.RenewalRatio,
		KeySource: certmagic.StandardKeyGenerator{KeyType: certmagic.P256},
		OCSP:      certmagic.OCSPConfig{DisableStapling: true}, DisableARI: true, Logger: zap.NewNop(),
	})
}

// Close releases what Open holds. Run must have returned.
func (c *Certs) Close() error {
	if c.cache != nil {
		c.cache.Stop()
		c.cache = nil
	}
	return nil
}

// Run follows the feed and orders certificates until ctx ends.
func (c *Certs) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if c.options.Feed != nil {
		running.Go(func() { c.follow(ctx) })
	}
	if c.shared.used() {
		running.Go(func() { c.followShared(ctx) })
		running.Go(func() { c.pruneShared(ctx) })
	}
	c.jobs.run(ctx)
	return nil
}

// ACME implements hangar.CertificateHost.
func (c *Certs) ACME() bool { return c.options.Directory != "" }

// Get returns the certificate for a handshake. selfSigned says that the server's own
// authority may answer for any name. It answers *hangar.EdgeError: EdgeNoName,
// EdgeNoCertificate, or EdgeBadCertificate for one that has expired.
func (c *Certs) Get(hello *tls.ClientHelloInfo, selfSigned bool) (*tls.Certificate, error) {
	if isChallenge(hello) {
		return c.challengeCertificate(hello)
	}
	name, ok := serverName(hello.ServerName)
	if !ok {
		if ip, known := localAddress(hello); selfSigned && known {
			return c.authority.certificate(ip.String(), time.Now())
		}
		return nil, &hangar.EdgeError{Code: hangar.EdgeNoName, Message: "The client named no server, so that there is no telling whose certificate it wants"}
	}
	now := time.Now()
	found, expired := c.find(name, now)
	if found != nil {
		return found.pair, nil
	}
	own := c.platform(name)
	if !own && name.Below(c.options.Domain) {
		_, own = c.options.Owner(name)
	}
	if own && c.demandable(name) {
		pair, err := c.demand(hello, name)
		if err == nil || !selfSigned {
			return pair, err
		}
	}
	switch {
	case selfSigned, own && !c.demandable(name):
		return c.authority.certificate(string(name), now)
	case expired != nil:
		return nil, &hangar.EdgeError{
			Code:    hangar.EdgeBadCertificate,
			Message: fmt.Sprintf("The certificate of %s has expired at %s", name, expired.notAfter.UTC().Format(time.RFC3339)),
		}
	default:
		return nil, noCertificate(name, nil)
	}
}

// platform reports whether a name is the platform's own.
func (c *Certs) platform(name hangar.Hostname) bool {
	return slices.Contains(c.options.Platform, name)
}

// find returns the certificate for a name, or the best of those that have expired.
func (c *Certs) find(name hangar.Hostname, now time.Time) (found, expired *entry) {
	t := c.table.Load()
	if c.platform(name) { // an App may have uploaded one while the platform had another domain
		return best(now, t.issued[name])
	}
	return best(now, t.custom[name], t.issued[name], t.custom[name.Covering()])
}

// wantedByPlatform returns the platform's own names for which an ACME server would issue a
// certificate.
func (c *Certs) wantedByPlatform() (wanted []hangar.WantedCertificate) {
	for _, name := range c.options.Platform {
		if c.demandable(name) {
			wanted = append(wanted, hangar.WantedCertificate{Hostname: name})
		}
	}
	return wanted
}

func noCertificate(name hangar.Hostname, cause error) error {
	return &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: fmt.Sprintf("There is no certificate for %s", name), Err: cause}
}

// demandable reports whether an ACME server would issue a certificate for an App's own name.
func (c *Certs) demandable(name hangar.Hostname) bool {
	return c.ACME() && public(c.options.Domain) && name.Parent() == c.options.Domain
}

var errPending = errors.New("the ACME server has not issued it yet")

// demand orders a certificate for an App's own name at once, and waits for it at most
// Options.DemandWait.
func (c *Certs) demand(hello *tls.ClientHelloInfo, name hangar.Hostname) (*tls.Certificate, error) {
	done, err := c.jobs.demand(name, maxDemanded)
	if err == nil {
		err = errPending
		timer := time.NewTimer(c.options.DemandWait)
		defer timer.Stop()
		var gone <-chan struct{}
		if ctx := hello.Context(); ctx != nil {
			gone = ctx.Done()
		}
		select {
		case <-done:
		case <-timer.C:
		case <-gone:
		}
	}
	if found, _ := c.find(name, time.Now()); found != nil { // also if it was issued just before the demand
		return found.pair, nil
	}
	return nil, noCertificate(name, err)
}

// serverName returns the canonical server name of a handshake; false if it is missing or invalid.
func serverName(text string) (hangar.Hostname, bool) {
	text = strings.TrimSuffix(text, ".")
	if text == "" || len(text) > 253 {
		return "", false
	}
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c >= 0x7f || c == '/' || c == '*' || c == '\\' {
			return "", false
		}
	}
	return hangar.Hostname(strings.ToLower(text)), true
}

// localAddress returns the address that a client has connected to.
func localAddress(hello *tls.ClientHelloInfo) (netip.Addr, bool) {
	if hello.Conn == nil || hello.Conn.LocalAddr() == nil {
		return netip.Addr{}, false
	}
	at, err := netip.ParseAddrPort(hello.Conn.LocalAddr().String())
	return at.Addr().Unmap().WithZone(""), err == nil
}

// isChallenge reports whether a client is an ACME server that validates a name.
func isChallenge(hello *tls.ClientHelloInfo) bool {
	return slices.Equal(hello.SupportedProtos, []string{acmez.ACMETLS1Protocol})
}

// localDomains end the domains that no public authority knows.
var localDomains = []string{"localhost", "test", "internal", "local", "example", "invalid", "home.arpa", "lan"}

// public reports whether a public authority may know a domain.
func public(domain hangar.Hostname) bool {
	if _, err := netip.ParseAddr(string(domain)); err == nil || !strings.Contains(string(domain), ".") {
		return false
	}
	return !slices.ContainsFunc(localDomains, func(local string) bool {
		return string(domain) == local || domain.Below(hangar.Hostname(local))
	})
}
