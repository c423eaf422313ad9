package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/etcdtest"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/lease/etcd"
	"github.com/hangar-platform/hangar/replica/lease/leasetest"
)

// open returns a function that opens clients of an etcd.
func open(t *testing.T, c etcd.Config) leasetest.Open {
	t.Helper()
	return func(l *leasetest.Link) lease.Store {
		c.Prefix = "/test"
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return l.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", address) })
		}
		s, err := etcd.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
}

func stores(open func(*testing.T) leasetest.Open) func(*testing.T) func() lease.Store {
	return func(t *testing.T) func() lease.Store {
		o := open(t)
		return func() lease.Store { return o(&leasetest.Link{}) }
	}
}

func plain(t *testing.T) leasetest.Open {
	return open(t, etcd.Config{Endpoints: []string{etcdtest.Start(t)}})
}

// TestStore is the conformance of the store.
func TestStore(t *testing.T) { leasetest.Run(t, stores(plain)) }

// TestElections has nodes elect their primary by it.
func TestElections(t *testing.T) { leasetest.Elections(t, plain) }

// guarded starts an etcd that requires certificates and a user's password.
func guarded(t *testing.T) (etcdtest.Guarded, *tls.Config) {
	t.Helper()
	g := etcdtest.StartGuarded(t, "nodes", "correct horse")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(g.CA)
	pair, err := tls.X509KeyPair(g.Cert, g.Key)
	if err != nil {
		t.Fatal(err)
	}
	return g, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// TestGuarded is the conformance with TLS in both directions and a password.
func TestGuarded(t *testing.T) {
	leasetest.Run(t, stores(func(t *testing.T) leasetest.Open {
		g, client := guarded(t)
		return open(t, etcd.Config{Endpoints: []string{g.Endpoint}, TLS: client, Username: "nodes", Password: "correct horse"})
	}))
}

// TestRefused: wrong credentials and clusters are refused, and the error names the refusing side.
func TestRefused(t *testing.T) {
	g, client := guarded(t)
	stranger := client.Clone()
	stranger.Certificates = nil
	for name, test := range map[string]struct {
		c    etcd.Config
		want string
	}{
		"wrong password":     {etcd.Config{TLS: client, Username: "nodes", Password: "wrong"}, "authentication failed"},
		"no user":            {etcd.Config{TLS: client}, "permission denied"},
		"no certificate":     {etcd.Config{TLS: stranger, Username: "nodes", Password: "correct horse"}, "certificate"},
		"unknown authority":  {etcd.Config{Username: "nodes", Password: "correct horse"}, "certificate"},
		"no TLS":             {etcd.Config{Endpoints: []string{strings.Replace(g.Endpoint, "https", "http", 1)}}, ""},
		"another's prefix":   {etcd.Config{TLS: client, Username: "nodes", Password: "correct horse", Prefix: "/others"}, "permission denied"},
		"nothing at the end": {etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}}, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.c.Endpoints == nil {
				test.c.Endpoints = []string{g.Endpoint}
			}
			if test.c.Prefix == "" {
				test.c.Prefix = "/test"
			}
			s, err := etcd.New(test.c)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_, err = s.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestTokenIsLost: after etcd has lost its tokens, as in a restart, the store requests another.
func TestTokenIsLost(t *testing.T) {
	g, client := guarded(t)
	s := open(t, etcd.Config{Endpoints: []string{g.Endpoint}, TLS: client, Username: "nodes", Password: "correct horse"})(&leasetest.Link{})
	if _, _, err := s.Open(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	g.Forget()
	if _, err := s.Read(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEndpoints moves to the next endpoint when one is down.
func TestEndpoints(t *testing.T) {
	s := open(t, etcd.Config{Endpoints: []string{"http://127.0.0.1:1", etcdtest.Start(t)}})(&leasetest.Link{})
	if _, err := s.Read(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := etcd.New(etcd.Config{}); err == nil {
		t.Error("no endpoint is no error")
	}
}
