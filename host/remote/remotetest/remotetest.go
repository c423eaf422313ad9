// Package remotetest makes certificates and transports of hosts for tests that connect them.
package remotetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/hostcert"
)

// Patience is how long hosts of a test that is not about silent ones wait for each other.
const Patience = time.Minute

// Patient has a remote.Transport wait for a host on a machine that is busy with other tests.
func Patient(t *http.Transport) *http.Transport {
	t.DialContext, t.TLSHandshakeTimeout = nil, Patience
	t.HTTP2.SendPingTimeout, t.HTTP2.PingTimeout, t.HTTP2.WriteByteTimeout = Patience, Patience, 2*Patience
	return t
}

// Authority signs the certificates of the hosts of one cluster.
type Authority struct {
	tb    testing.TB
	key   *ecdsa.PrivateKey
	cert  *x509.Certificate
	roots *x509.CertPool
}

// NewAuthority makes an authority.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, roots: x509.NewCertPool()}
	a.key = newKey(tb)
	template := certificate("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.cert = sign(tb, template, template, a.key, a.key)
	a.roots.AddCert(a.cert)
	return a
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func sign(tb testing.TB, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	tb.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		tb.Fatal(err)
	}
	return cert
}

// Certificate makes a certificate with some URIs, such as that of a host; see URI.
func (a *Authority) Certificate(uris ...string) tls.Certificate {
	a.tb.Helper()
	template := certificate("host")
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, uri := range uris {
		u, err := url.Parse(uri)
		if err != nil {
			a.tb.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	key := newKey(a.tb)
	cert := sign(a.tb, template, a.cert, key, a.key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// URI names a host in its certificate.
func URI(id hangar.HostID) string { return hostcert.URI(id).String() }

// Server is the TLS of a listener that hosts of the cluster may call.
func (a *Authority) Server(own tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{own}, ClientCAs: a.roots, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
	}
}

// Client is the TLS of calls to one host.
func (a *Authority) Client(own tls.Certificate, peer hangar.HostID) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // a host is known by its URI, not by a name; see below
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: a.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
				return err
			}
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != URI(peer) {
				return fmt.Errorf("the certificate is not that of host %s", peer)
			}
			return nil
		},
	}
}
