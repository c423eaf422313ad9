package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// Guarded is an etcd that requires a certificate and a user's password.
type Guarded struct {
	Endpoint string // "https://127.0.0.1:PORT"
	// CA signs the certificates that the etcd presents and accepts. Cert and Key are a client's. All
	// are PEM.
	CA, Cert, Key []byte
	// Forget invalidates the tokens that users have received.
	Forget func()
}

// StartGuarded is Start for an etcd with TLS in both directions. Its user may read and write below
// /test/.
func StartGuarded(tb testing.TB, user, password string) Guarded {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	var g Guarded
	g.CA, g.Cert, g.Key = authority(tb)
	dir := tb.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		must(os.WriteFile(path, content, 0o600))
		return path
	}
	c := config(tb, "https")
	c.ClientTLSInfo = transport.TLSInfo{
		CertFile: file("cert", g.Cert), KeyFile: file("key", g.Key), TrustedCAFile: file("ca", g.CA), ClientCertAuth: true,
	}
	e := start(tb, c)
	g.Endpoint = "https://" + e.Clients[0].Addr().String()
	client := v3client.New(e.Server)
	for _, u := range []struct{ name, password string }{{"root", "root"}, {user, password}} {
		_, err := client.UserAdd(tb.Context(), u.name, u.password)
		must(err)
		_, err = client.RoleAdd(tb.Context(), u.name)
		must(err)
		_, err = client.UserGrantRole(tb.Context(), u.name, u.name)
		must(err)
	}
	_, err := client.RoleGrantPermission(tb.Context(), user, "/test/", clientv3.GetPrefixRangeEnd("/test/"), clientv3.PermissionType(clientv3.PermReadWrite))
	must(err)
	_, err = client.AuthEnable(tb.Context())
	must(err)
	g.Forget = func() {
		e.Server.AuthStore().AuthDisable()
		must(e.Server.AuthStore().AuthEnable())
	}
	return g
}

// start starts an etcd until the test ends.
func start(tb testing.TB, c *embed.Config) *embed.Etcd {
	tb.Helper()
	e, err := embed.StartEtcd(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return e
}

// authority makes a certificate authority, and a certificate from it for 127.0.0.1 and for clients.
func authority(tb testing.TB) (ca, cert, key []byte) {
	tb.Helper()
	sign := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey, public *ecdsa.PublicKey) (*x509.Certificate, []byte) {
		template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
		if err != nil {
			tb.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			tb.Fatal(err)
		}
		return made, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	generate := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			tb.Fatal(err)
		}
		return k
	}
	root, own := generate(), generate()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	parent, ca := sign(template, template, root, &root.PublicKey)
	_, cert = sign(&x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, parent, root, &own.PublicKey)
	der, err := x509.MarshalECPrivateKey(own)
	if err != nil {
		tb.Fatal(err)
	}
	return ca, cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
