package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

const (
	askTimeout  = 30 * time.Second // for one request to the ACME server
	pollTimeout = 2 * time.Minute  // for a validation or an issuance by it
)

// issuer orders certificates from an ACME server. Unlike certmagic's issuer it does not listen: the
// edge answers the challenges.
type issuer struct {
	directory string
	email     string
	storage   *storage
	shared    *shared
	client    *http.Client
	solvers   map[string]acmez.Solver
	log       *slog.Logger

	mu      sync.Mutex // held while an account is made; guards what follows
	account *acme.Account
}

var _ certmagic.Issuer = (*issuer)(nil)

func newIssuer(o *Options, s *storage, ch *challenges) *issuer {
	solvers := map[string]acmez.Solver{acme.ChallengeTypeHTTP01: httpSolver{ch}, acme.ChallengeTypeTLSALPN01: tlsSolver{ch}}
	for kind := range solvers {
		if len(o.Challenges) > 0 && !slices.Contains(o.Challenges, kind) {
			delete(solvers, kind)
		}
	}
	// The operator names the ACME server, which may be within a private network, and the proxy by
	// which servers there reach the internet, in the environment of the daemon. Tenants have no
	// influence on either.
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: askTimeout}).DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: askTimeout, ForceAttemptHTTP2: true, IdleConnTimeout: askTimeout,
	}
	return &issuer{
		directory: o.Directory, email: o.Email, storage: s, solvers: solvers, log: o.Log,
		client: &http.Client{Transport: retryAfter{transport}, Timeout: askTimeout},
	}
}

// IssuerKey implements certmagic.Issuer. Each ACME server has a key of its own, so that the storage
// separates their certificates.
func (i *issuer) IssuerKey() string {
	u, err := url.Parse(i.directory)
	if err != nil || u.Host == "" {
		return "acme"
	}
	return strings.Trim(u.Host+strings.ReplaceAll(u.Path, "/", "-"), "-")
}

// renewedKey is the key of a context that holds the certificate to be replaced.
type renewedKey struct{}

// Issue implements certmagic.Issuer.
func (i *issuer) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	client := &acmez.Client{
		Client: &acme.Client{
			Directory: i.directory, HTTPClient: i.client, PollTimeout: pollTimeout, UserAgent: "hangar",
			Logger: slog.New(slog.DiscardHandler), // what matters is in the errors
		},
		ChallengeSolvers: i.solvers,
	}
	account, err := i.register(ctx, client, nil)
	if err != nil {
		return nil, err
	}
	chains, err := i.obtain(ctx, client, *account, csr)
	if problem, ok := errors.AsType[acme.Problem](err); ok && problem.Type == acme.ProblemTypeAccountDoesNotExist {
		// The server has lost its accounts, or another server has the same URL now.
		if account, err = i.register(ctx, client, account); err != nil {
			return nil, err
		}
		chains, err = i.obtain(ctx, client, *account, csr)
	}
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: chains[0].ChainPEM, Metadata: chains[0]}, nil
}

func (i *issuer) obtain(ctx context.Context, client *acmez.Client, account acme.Account, csr *x509.CertificateRequest) ([]acme.Certificate, error) {
	order, err := acmez.OrderParametersFromCSR(account, csr)
	if err != nil {
		return nil, err
	}
	order.Replaces, _ = ctx.Value(renewedKey{}).(*x509.Certificate)
	chains, err := client.ObtainCertificate(ctx, order)
	if err == nil && len(chains) == 0 {
		err = errors.New("the ACME server has issued no certificate")
	}
	return chains, err
}

// storedAccount is the stored form of an account.
type storedAccount struct {
	acme.Account
	Key string `json:"private_key"` // PEM
}

func (i *issuer) accountKey() string { return path.Join("acme", i.IssuerKey(), "account.json") }

// register returns the account of this server, and makes one if there is none other than lost.
func (i *issuer) register(ctx context.Context, client *acmez.Client, lost *acme.Account) (*acme.Account, error) {
	account, unread, err := i.registerOnce(ctx, client, lost)
	if unread != nil {
		i.log.WarnContext(ctx, "ACME account cannot be read, another one is made", keyError, unread)
	}
	return account, err
}

// registerOnce is register without the log line. unread is why the account on the disk could not be
// read.
func (i *issuer) registerOnce(ctx context.Context, client *acmez.Client, lost *acme.Account) (registered *acme.Account, unread, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if lost != nil && i.account == lost {
		i.account = nil
	} else if i.account == nil {
		if i.account, unread = i.readAccount(ctx); errors.Is(unread, fs.ErrNotExist) {
			unread = nil
		}
		if i.shared.used() { // the account that all edges share precedes one of this edge's own
			i.account, err = i.shareAccount(ctx, client, i.account, nil)
			return i.account, unread, err
		}
	}
	if i.account != nil {
		return i.account, unread, nil
	}
	if i.shared.used() {
		registered, err = i.shareAccount(ctx, client, nil, lost)
	} else {
		registered, err = i.newAccount(ctx, client)
	}
	i.account = registered
	return registered, unread, err
}

// shareAccount returns the account that all edges share. If there is none other than lost, it shares own, or a new
// account if own is nil.
func (i *issuer) shareAccount(ctx context.Context, client *acmez.Client, own, lost *acme.Account) (*acme.Account, error) {
	key := path.Join(i.shared.root, "account")
	lock, err := i.shared.store.LockShared(ctx, key)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	ctx = lock.Context()
	var stored storedAccount
	there, err := i.shared.load(ctx, key, &stored)
	if err != nil {
		return nil, err
	}
	if there {
		if stored.PrivateKey, err = certmagic.PEMDecodePrivateKey([]byte(stored.Key)); err != nil {
			return nil, err
		}
		if lost == nil || stored.Location != lost.Location {
			return &stored.Account, i.keepAccount(ctx, &stored)
		}
	}
	if own == nil {
		if own, err = i.newAccount(ctx, client); err != nil {
			return nil, err
		}
	}
	keyPEM, err := certmagic.PEMEncodePrivateKey(own.PrivateKey)
	if err != nil {
		return nil, err
	}
	return own, i.shared.give(lock, key, storedAccount{Account: *own, Key: string(keyPEM)})
}

// newAccount makes an account and stores it.
func (i *issuer) newAccount(ctx context.Context, client *acmez.Client) (*acme.Account, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request := acme.Account{TermsOfServiceAgreed: true, PrivateKey: key}
	if i.email != "" {
		request.Contact = []string{"mailto:" + i.email}
	}
	account, err := client.NewAccount(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("register at the ACME server: %w", err)
	}
	if err := i.writeAccount(ctx, account, key); err != nil {
		return nil, fmt.Errorf("keep the ACME account: %w", err)
	}
	return &account, nil
}

func (i *issuer) readAccount(ctx context.Context) (*acme.Account, error) {
	b, err := i.storage.Load(ctx, i.accountKey())
	if err != nil {
		return nil, err
	}
	var stored storedAccount
	if err := json.Unmarshal(b, &stored); err != nil {
		return nil, err
	}
	if stored.PrivateKey, err = certmagic.PEMDecodePrivateKey([]byte(stored.Key)); err != nil {
		return nil, err
	}
	return &stored.Account, nil
}

func (i *issuer) writeAccount(ctx context.Context, account acme.Account, key *ecdsa.PrivateKey) error {
	keyPEM, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		return err
	}
	return i.keepAccount(ctx, &storedAccount{Account: account, Key: string(keyPEM)})
}

func (i *issuer) keepAccount(ctx context.Context, stored *storedAccount) error {
	b, err := json.Marshal(stored) //nolint:gosec // for a file that root alone reads
	if err != nil {
		return err
	}
	return i.storage.Store(ctx, i.accountKey(), b)
}

// retryAtKey is the key of a context that holds a *time.Time for the time in a Retry-After header,
// which the library does not return.
type retryAtKey struct{}

// retryAfter records the Retry-After header of refusals.
type retryAfter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t retryAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return resp, err
	}
	if until, ok := r.Context().Value(retryAtKey{}).(*time.Time); ok {
		if at, ok := parseRetryAfter(resp.Header.Get("Retry-After"), time.Now()); ok {
			*until = at
		}
	}
	return resp, nil
}

// parseRetryAfter reads the header of RFC 9110, section 10.2.3.
func parseRetryAfter(text string, now time.Time) (time.Time, bool) {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return now.Add(time.Duration(seconds) * time.Second), true
	}
	at, err := http.ParseTime(text)
	return at, err == nil
}
