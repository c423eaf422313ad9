package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/hangar-platform/hangar/internal/durable"
)

// The files of the server's own authority, in Options.Dir.
const (
	AuthorityFile    = "ca.pem"     // its certificate, for users to trust
	authorityKeyFile = "ca.key.pem" // the certificate and its key, for this package alone
)

const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	authorityLeast = 365 * 24 * time.Hour // remaining life below which a start replaces the authority
	leafLife       = 7 * 24 * time.Hour
	leafLeast      = 24 * time.Hour // remaining life below which a certificate is made again
	backdate       = time.Hour      // of certificates, for clients whose clock is behind
	shards         = 16
	leavesPerShard = 256
)

// authority issues a certificate for any name and keeps the most recently used ones.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	leaf *ecdsa.PrivateKey // of every certificate that this process issues
	seed maphash.Seed
	kept [shards]*lru.Cache[string, *entry]
}

// openAuthority reads the authority of a directory, or makes one.
func openAuthority(dir string, now time.Time) (*authority, error) {
	cert, key, err := readAuthority(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.After(cert.NotAfter.Add(-authorityLeast)) {
		cert, key, err = makeAuthority(dir, now)
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	shown := filepath.Join(dir, AuthorityFile)
	certPEM := pemOf("CERTIFICATE", cert.Raw)
	if there, err := os.ReadFile(shown); err != nil || !bytes.Equal(there, certPEM) {
		if err := durable.WriteFile(shown, certPEM, 0o644); err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{cert: cert, key: key, leaf: leafKey, seed: maphash.MakeSeed()}
	for i := range a.kept {
		if a.kept[i], err = lru.New[string, *entry](leavesPerShard); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func readAuthority(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	both, err := os.ReadFile(filepath.Join(dir, authorityKeyFile))
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(both, both)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", authorityKeyFile, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("%s: not an ECDSA key", authorityKeyFile)
	}
	return pair.Leaf, key, nil
}

// makeAuthority writes the key and its certificate to one file, so that they always match.
func makeAuthority(dir string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"hangar"}, CommonName: "hangar local CA " + hex.EncodeToString(serial.Bytes()[:3])},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	both := append(pemOf("PRIVATE KEY", keyDER), pemOf("CERTIFICATE", der)...)
	return cert, key, durable.WriteFile(filepath.Join(dir, authorityKeyFile), both, 0o600)
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and always of 16 bytes
	return new(big.Int).SetBytes(b[:]), nil
}

// certificate returns one for a name or an address.
func (a *authority) certificate(name string, now time.Time) (*tls.Certificate, error) {
	kept := a.kept[maphash.String(a.seed, name)%shards]
	if e, ok := kept.Get(name); ok && now.Before(e.notAfter.Add(-leafLeast)) {
		return e.pair, nil
	}
	e, err := a.issue(name, now)
	if err != nil {
		return nil, err
	}
	kept.Add(name, e)
	return e.pair, nil
}

func (a *authority) issue(name string, now time.Time) (*entry, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: now.Add(-backdate), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leaf.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %.100q: %w", name, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pair := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leaf, Leaf: parsed}
	return &entry{pair: pair, notBefore: parsed.NotBefore, notAfter: parsed.NotAfter}, nil
}
