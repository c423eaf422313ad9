// Package authority is the certificate authority of a cluster, and the certificates by which its
// hosts know each other.
//
// Promises. A certificate names one host, by the URI hangar://host/ID, and lasts CertificateLife.
// The Identity of a host renews its own at half of that, in one file that is replaced as a whole. A
// connection that an Identity dials ends at the requested host. One that it accepts comes from a
// host of the cluster or from a client without a certificate, and the caller must tell them apart;
// see Peer. TLS 1.3 is the only version.
//
// Concurrency. Everything is safe for concurrent use.
//
// Every host has the key of the authority, as it has the keys of the encrypted values in the
// cluster state: hosts trust each other wholly. The package does not know which hosts exist: a
// removed one keeps a valid certificate, and servers must refuse it by its id.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/hostcert"
)

// The lives of certificates.
const (
	CertificateLife = 30 * 24 * time.Hour
	authorityLife   = 100 * 365 * 24 * time.Hour
	skew            = time.Hour // a certificate begins earlier, for hosts whose clocks are behind
)

// ServerName is in every certificate of a host, for clients that check a name and cannot check
// which host it is. No DNS has it.
const ServerName = "host.hangar.internal"

// The types of PEM blocks.
const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY"
	blockRequest     = "CERTIFICATE REQUEST"
)

// Fingerprint is the SHA-256 of the certificate of an authority, in lowercase hexadecimal.
type Fingerprint string

// FingerprintOf is the fingerprint of a certificate in DER.
func FingerprintOf(der []byte) Fingerprint {
	sum := sha256.Sum256(der)
	return Fingerprint(hex.EncodeToString(sum[:]))
}

// Authority signs the certificates of the hosts of one cluster.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an Authority with an ECDSA key on P-256.
func New(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "hangar cluster"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority of the cluster: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert, key}, err
}

// Parse returns the Authority that has a certificate and a private key, both in PEM.
func Parse(certificate, key []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("read the authority of the cluster: %w", err)
	}
	private, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("read the authority of the cluster: it is no authority with an ECDSA key")
	}
	return &Authority{pair.Leaf, private}, nil
}

// Certificate is the authority's certificate in PEM.
func (a *Authority) Certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: a.cert.Raw})
}

// Key is the private key of the authority in PEM.
func (a *Authority) Key() ([]byte, error) { return encodeKey(a.key) }

// Fingerprint is the fingerprint of the authority's certificate.
func (a *Authority) Fingerprint() Fingerprint { return FingerprintOf(a.cert.Raw) }

// Roots holds the authority alone.
func (a *Authority) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Sign returns a certificate for a host and the key of a request that ParseRequest has read: the
// certificate and that of the authority, in PEM. The rest of the request is ignored.
func (a *Authority) Sign(request *x509.CertificateRequest, host hangar.HostID, now time.Time) ([]byte, error) {
	leaf, err := a.sign(request.PublicKey, host, now)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: leaf}), a.Certificate()...), nil
}

func (a *Authority) sign(public any, host hangar.HostID, now time.Time) ([]byte, error) {
	if _, err := hangar.ParseHostID(string(host)); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: string(host)},
		URIs: []*url.URL{hostcert.URI(host)}, DNSNames: []string{ServerName},
		NotBefore: now.Add(-skew), NotAfter: now.Add(CertificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of host %s: %w", host, err)
	}
	return der, nil
}

// serial is 127 random bits (RFC 5280, 4.1.2.2).
func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der}), nil
}

// FromChain returns the Authority whose certificate is the last of a chain that Sign has returned. It
// must have a fingerprint.
func FromChain(chain, key []byte, pinned Fingerprint) (*Authority, error) {
	var last *pem.Block
	for rest := chain; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		last = block
	}
	if last == nil {
		return nil, errors.New("no certificate in PEM")
	}
	if FingerprintOf(last.Bytes) != pinned {
		return nil, errors.New("the authority is not that of the cluster that the token is for")
	}
	return Parse(pem.EncodeToMemory(last), key)
}
