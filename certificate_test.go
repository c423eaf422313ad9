package hangar_test

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
)

func TestParseHostname(t *testing.T) {
	for text, want := range map[string]hangar.Hostname{
		"www.example.com":                        "www.example.com",
		"WWW.Example.COM.":                       "www.example.com",
		"example.com":                            "example.com",
		"*.example.com":                          "*.example.com",
		"*.EXAMPLE.com.":                         "*.example.com",
		"bücher.example":                         "xn--bcher-kva.example",
		"Bücher.example":                         "xn--bcher-kva.example",
		"1.example.com":                          "1.example.com",
		"a--b.example.com":                       "a--b.example.com",
		"xn--bcher-kva.de":                       "xn--bcher-kva.de",
		strings.Repeat("a", 63) + ".example.com": hangar.Hostname(strings.Repeat("a", 63) + ".example.com"),
	} {
		if got, err := hangar.ParseHostname(text); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ".", "com", "com.", "*", "*.", "*.com", "**.example.com", "www.*.example.com", "*.*.example.com", "a*.example.com", "*example.com",
		"127.0.0.1", "1.2.3", "::1", "[::1]", "2001:db8::1", "fe80::1%eth0", "example.com:443", "https://example.com", "example.com/x", "a b.com",
		"a..com", ".example.com", "-a.com", "a-.com", "a_b.com", "example.com..", "a\x00.com", "a\n.com", "xn--\xff.com", "xn--a.com", "example.123",
		strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 127) + "com", strings.Repeat("a", 4096),
	} {
		if got, err := hangar.ParseHostname(text); hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), "invalid hostname: ") {
			t.Errorf("%.40q is %q, %v; want an error", text, got, err)
		}
	}
}

func FuzzParseHostname(f *testing.F) {
	for _, text := range []string{"www.example.com", "*.example.com", "bücher.example", "1.2.3.4", "a..b", "xn--bcher-kva.de."} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := hangar.ParseHostname(text)
		if err != nil {
			return
		}
		if again, err := hangar.ParseHostname(string(name)); err != nil || again != name {
			t.Errorf("%q is %q, which is %q, %v", text, name, again, err)
		}
		if strings.ContainsFunc(strings.TrimPrefix(string(name), "*."), func(c rune) bool {
			return c != '.' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
		}) || len(name) > 253 || !strings.Contains(string(name), ".") {
			t.Errorf("%q is %q", text, name)
		}
	})
}

func TestHostname(t *testing.T) {
	for name, want := range map[hangar.Hostname][2]hangar.Hostname{
		"www.example.com": {"example.com", "*.example.com"},
		"*.example.com":   {"example.com", "*.example.com"},
		"com":             {"", "*."},
	} {
		if got := [2]hangar.Hostname{name.Parent(), name.Covering()}; got != want {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
	}
	if !hangar.Hostname("a.b.c").Below("c") || hangar.Hostname("c").Below("c") || hangar.Hostname("abc").Below("c") {
		t.Error("Below is wrong")
	}
}

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
		if leaf, err := good.Check(name, time.Now()); err != nil || leaf == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	withParameters := good
	withParameters.PrivateKey = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + good.PrivateKey
	if _, err := withParameters.Check("example.com", time.Now()); err != nil {
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
	if _, err := ca.Check("example.com", time.Now()); err != nil {
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
		_, err := in.Check("example.com", time.Now())
		if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.HasPrefix(err.Error(), "invalid "+in.field+": ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := good.Check("a.b.example.com", time.Now()); err == nil {
		t.Error("a wildcard stands for two labels")
	}
}

func FuzzCertificateUpload(f *testing.F) {
	good := uploadFor(f, []string{"example.com"}, nil)
	f.Add(good.Fullchain, good.PrivateKey)
	f.Add("x", good.PrivateKey)
	f.Add(good.Fullchain+good.Fullchain, good.PrivateKey+"x")
	f.Fuzz(func(t *testing.T, chain, key string) {
		leaf, err := hangar.CertificateUpload{Fullchain: chain, PrivateKey: key}.Check("example.com", time.Now())
		if err == nil && leaf.VerifyHostname("example.com") != nil {
			t.Error("one of another name was taken")
		}
		if err != nil && hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%v", err)
		}
	})
}
