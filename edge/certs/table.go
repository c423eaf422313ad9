package certs

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// entry is a certificate that can be served. It never changes, except for unkept.
type entry struct {
	pair      *tls.Certificate
	notBefore time.Time
	notAfter  time.Time
	sum       [sha256.Size]byte                 // of the certificate and its key
	unkept    atomic.Pointer[sharedCertificate] // the same one, until it is on the disk; nil: it is
}

// errUnusable marks what is no certificate with its key.
var errUnusable = errors.New("parse certificate")

// newEntry parses a chain and its key, in PEM, or returns errUnusable.
func newEntry(chain, key []byte) (*entry, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnusable, err)
	}
	return &entry{pair: &pair, notBefore: pair.Leaf.NotBefore, notAfter: pair.Leaf.NotAfter, sum: sumOf(chain, key)}, nil
}

func sumOf(chain, key []byte) [sha256.Size]byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d\n", len(chain)) // a hash never fails
	_, _ = h.Write(chain)
	_, _ = h.Write(key)
	return [sha256.Size]byte(h.Sum(nil))
}

func (e *entry) valid(now time.Time) bool { return now.Before(e.notAfter) }

// renewAt returns when the part ratio of the certificate's life is left.
func (e *entry) renewAt(ratio float64) time.Time {
	life := e.notAfter.Sub(e.notBefore)
	return e.notAfter.Add(-time.Duration(float64(life) * ratio))
}

// view returns the certificate as the API shows it.
func (e *entry) view(kind hangar.CertificateKind, now time.Time) hangar.IssuedCertificate {
	v := hangar.IssuedCertificate{
		Kind: kind, Status: hangar.CertificateActive, KeyType: "rsa", Issuer: e.pair.Leaf.Issuer.CommonName,
		CreatedAt: e.notBefore.UTC(), ExpiresAt: e.notAfter.UTC(),
	}
	if _, ok := e.pair.Leaf.PublicKey.(*ecdsa.PublicKey); ok {
		v.KeyType = "ecdsa"
	}
	if !e.valid(now) {
		v.Status = hangar.CertificateExpired
	}
	return v
}

// table is what handshakes read. It never changes.
type table struct {
	custom map[hangar.Hostname]*entry       // uploaded ones, by name or wildcard
	issued map[hangar.Hostname]*entry       // issued ones
	wanted map[hangar.Hostname]hangar.OrgID // owners of the names that need an issued certificate; zero for the platform's own
}

func emptyTable() *table {
	return &table{custom: map[hangar.Hostname]*entry{}, issued: map[hangar.Hostname]*entry{}, wanted: map[hangar.Hostname]hangar.OrgID{}}
}

// best returns the first valid certificate; without one, expired is the first candidate.
func best(now time.Time, candidates ...*entry) (found, expired *entry) {
	for _, e := range candidates {
		if e == nil {
			continue
		}
		if e.valid(now) {
			return e, nil
		}
		if expired == nil {
			expired = e
		}
	}
	return nil, expired
}

// withIssued returns a copy of the table with a certificate of a name, or without if e is nil.
func (t *table) withIssued(name hangar.Hostname, e *entry) *table {
	next := *t
	next.issued = maps.Clone(t.issued)
	if e == nil {
		delete(next.issued, name)
	} else {
		next.issued[name] = e
	}
	return &next
}
