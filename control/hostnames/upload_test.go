package hostnames_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/hostnames"
)

// uploadFor makes a certificate with its key in a form.
func uploadFor(tb testing.TB, names []string, change func(*x509.Certificate)) hangar.CertificateUpload {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return hangar.CertificateUpload{
		Fullchain:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		PrivateKey: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})),
	}
}

func TestCertificateUpload(t *testing.T) {
	good := uploadFor(t, []string{"example.com", "*.example.com"}, nil)
	for _, name := range []hangar.Hostname{"example.com", "www.example.com", "*.example.com"} {
		if leaf, err := hostnames.CheckUpload(good, name, time.Now()); err != nil || leaf == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	withParameters := good
	withParameters.PrivateKey = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + good.PrivateKey
	if _, err := hostnames.CheckUpload(withParameters, "example.com", time.Now()); err != nil {
		t.Errorf("as openssl writes a key: %v", err)
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"example.com"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, small.Public(), small)
	if err != nil {
		t.Fatal(err)
	}
	weak := hangar.CertificateUpload{
		Fullchain:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		PrivateKey: string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(small)})),
	}
	encrypted := good
	encrypted.PrivateKey = string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}))
	ca := uploadFor(t, []string{"example.com"}, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true })
	if _, err := hostnames.CheckUpload(ca, "example.com", time.Now()); err != nil {
		t.Errorf("signed by itself, as openssl does it: %v", err)
	}
	for what, in := range map[string]struct {
		field string
		hangar.CertificateUpload
	}{
		"a weak key":       {"fullchain", weak},
		"an encrypted key": {"private_key", encrypted},
		"another name":     {"fullchain", uploadFor(t, []string{"example.org"}, nil)},
		"nothing":          {"fullchain", hangar.CertificateUpload{}},
	} {
		_, err := hostnames.CheckUpload(in.CertificateUpload, "example.com", time.Now())
		if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.HasPrefix(err.Error(), "invalid "+in.field+": ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := hostnames.CheckUpload(good, "a.b.example.com", time.Now()); err == nil {
		t.Error("a wildcard stands for two labels")
	}
}

func FuzzCertificateUpload(f *testing.F) {
	good := uploadFor(f, []string{"example.com"}, nil)
	f.Add(good.Fullchain, good.PrivateKey)
	f.Add("x", good.PrivateKey)
	f.Add(good.Fullchain+good.Fullchain, good.PrivateKey+"x")
	f.Fuzz(func(t *testing.T, chain, key string) {
		leaf, err := hostnames.CheckUpload(hangar.CertificateUpload{Fullchain: chain, PrivateKey: key}, "example.com", time.Now())
		if err == nil && leaf.VerifyHostname("example.com") != nil {
			t.Error("one of another name was taken")
		}
		if err != nil && hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%v", err)
		}
	})
}
