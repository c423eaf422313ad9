package hostcert_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/hostcert"
)

const host hangar.HostID = "4f1c09ae"

func TestHostOf(t *testing.T) {
	if uri := hostcert.URI(host).String(); uri != "hangar://host/4f1c09ae" {
		t.Error(uri)
	}
	for _, c := range []struct {
		uris []string
		want hangar.HostID
	}{
		{[]string{"hangar://host/4f1c09ae"}, host},
		{nil, ""},
		{[]string{"hangar://host/4f1c09ae", "hangar://host/4f1c09af"}, ""},
		{[]string{"hangar://host/"}, ""},
		{[]string{"hangar://host"}, ""},
		{[]string{"hangar://host/4f1c09ae/"}, ""},
		{[]string{"hangar://host/4f1c09ae?x"}, ""},
		{[]string{"hangar://host/4f1c09ae#x"}, ""},
		{[]string{"hangar://host/4f1c09a%65"}, ""},
		{[]string{"hangar://user@host/4f1c09ae"}, ""},
		{[]string{"hangar://host:1/4f1c09ae"}, ""},
		{[]string{"https://host/4f1c09ae"}, ""},
		{[]string{"hangar://org/4f1c09ae"}, ""},
		{[]string{"hangar://host/00000000"}, ""},
	} {
		cert := &x509.Certificate{}
		for _, text := range c.uris {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			cert.URIs = append(cert.URIs, u)
		}
		got, err := hostcert.HostOf(cert)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v names %q, %v", c.uris, got, err)
		}
		peer, ok := hostcert.Peer(&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}})
		if peer != c.want || ok != (c.want != "") {
			t.Errorf("%v: peer %q, %t", c.uris, peer, ok)
		}
	}
}

// TestUnverified: without a verified certificate there is no peer.
func TestUnverified(t *testing.T) {
	cert := &x509.Certificate{URIs: []*url.URL{hostcert.URI(host)}}
	for name, conn := range map[string]*tls.ConnectionState{
		"no TLS": nil, "no certificate": {}, "not verified": {PeerCertificates: []*x509.Certificate{cert}}, "no chain": {VerifiedChains: [][]*x509.Certificate{{}}},
	} {
		if peer, ok := hostcert.Peer(conn); ok || peer != "" {
			t.Errorf("%s: %q", name, peer)
		}
	}
}
