package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/acmetest"
	"github.com/hangar-platform/hangar/internal/durable"
)

// secureConfig is what a Machine is like that the edges serve by TLS.
const secureConfig = `{"image":%q,"guest":{"cpus":1,"memory_mb":256},
	"services":[{"protocol":"tcp","internal_port":8080,"autostop":"off","ports":[{"port":443,"handlers":["tls","http"]}]}]}`

// authority is an ACME server, behind a proxy that the servers of a cluster reach.
type authority struct {
	c *cluster

	mu       sync.Mutex // guards what follows
	orders   []*server  // that have placed them
	resolved func(name string) netip.Addr
}

// startAuthority starts an ACME server that the servers, once they are started, use.
func startAuthority(c *cluster) *authority {
	c.Helper()
	a := &authority{c: c}
	a.validate(func(string) netip.Addr { return netip.Addr{} })
	pebble := acmetest.Start(c, acmetest.Options{HTTPPort: 80, TLSPort: 443, Life: time.Hour, Resolve: func(name string) netip.Addr {
		a.mu.Lock()
		resolve := a.resolved
		a.mu.Unlock()
		return resolve(name)
	}})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pebble.Own, MinVersion: tls.VersionTLS12}}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: pebble.Address})
			r.Out.Host = r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Path == "/order-plz" && r.StatusCode == http.StatusCreated {
				a.placed(r.Request.RemoteAddr)
			}
			return nil
		},
	}
	// Any address, because that of the bridge is there only once the servers are.
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		c.Fatal(err)
	}
	bridge := c.net + ".1"
	chain, key := acmetest.SelfSigned(c, bridge, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		c.Fatal(err)
	}
	root := filepath.Join(c.TempDir(), "root.pem")
	if err := durable.WriteFile(root, chain, 0o600); err != nil {
		c.Fatal(err)
	}
	server := &http.Server{
		Handler: proxy, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.ServeTLS(l, "", "")
	}()
	c.Cleanup(func() {
		_ = server.Close()
		transport.CloseIdleConnections()
		<-ended
	})
	c.flags = fmt.Sprintf("--acme https://%s:%d/dir --acme-root %s --trust-hostnames", bridge, l.Addr().(*net.TCPAddr).Port, root)
	return a
}

// validate sets at which address names are validated.
func (a *authority) validate(at func(name string) netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resolved = at
}

// placed notes which server has placed an order.
func (a *authority) placed(by string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	host, _, _ := net.SplitHostPort(by)
	for _, s := range a.c.servers {
		if s.address() == host {
			a.orders = append(a.orders, s)
			return
		}
	}
	a.c.Errorf("an order is placed by %s", by)
}

// placedBy returns the servers that have placed orders, in order.
func (a *authority) placedBy() []*server {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.orders)
}

// served returns the certificate with which a server serves a name.
func (s *server) served(ctx context.Context, name hangar.Hostname) (*x509.Certificate, error) {
	dialer := tls.Dialer{Config: &tls.Config{ServerName: string(name), InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(ctx, "tcp", s.address()+":443")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	got := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	if err := got.VerifyHostname(string(name)); err != nil {
		return nil, err
	}
	return got, nil
}

// awaitServed returns when some servers serve a name with one certificate.
func (c *cluster) awaitServed(name hangar.Hostname, by ...*server) {
	c.Helper()
	c.await("one certificate of "+string(name), func() error {
		var first *x509.Certificate
		for _, s := range by {
			got, err := s.served(c.Context(), name)
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
			if first != nil && !first.Equal(got) {
				return errors.New("there are two")
			}
			first = got
		}
		return nil
	})
}

// TestCertificates: a hostname has one order, which the ACME server validates at a server that has not placed it,
// and one certificate at all servers. When the one that has placed it is killed meanwhile, another finishes.
func TestCertificates(t *testing.T) {
	c := newCluster(t)
	a := startAuthority(c)
	c.up(3)
	c.servers[0].createApp("secure", hangar.OrgPersonal)
	if _, err := c.servers[0].client().CreateMachine(t.Context(), "secure", hangar.MachineCreate{Config: parse(t, secureConfig, c.pushWeb(hangar.OrgPersonal))}); err != nil {
		t.Fatal(err)
	}
	a.validate(func(string) netip.Addr {
		orders := a.placedBy()
		return netip.MustParseAddr(c.others(orders[len(orders)-1])[0].address())
	})
	for i, s := range c.servers {
		name := hangar.Hostname(fmt.Sprintf("n%d.example.org", i))
		if _, err := s.client().RequestCertificate(t.Context(), "secure", name); err != nil {
			t.Fatal(err)
		}
		c.awaitServed(name, c.servers...)
	}
	if orders := a.placedBy(); len(orders) != len(c.servers) {
		t.Errorf("%d hostnames were ordered by %s", len(c.servers), names(orders...))
	}

	const last hangar.Hostname = "last.example.org"
	before := len(a.placedBy())
	var dead *server
	kill := sync.OnceFunc(func() {
		dead = a.placedBy()[before]
		dead.kill()
	})
	a.validate(func(string) netip.Addr {
		kill()
		return netip.MustParseAddr(c.others(dead)[0].address())
	})
	if _, err := c.servers[1].client().RequestCertificate(t.Context(), "secure", last); err != nil {
		t.Fatal(err)
	}
	c.await("another server orders", func() error {
		if n := len(a.placedBy()) - before; n < 2 {
			return fmt.Errorf("%d orders", n)
		}
		return nil
	})
	c.awaitServed(last, c.others(dead)...)
	c.startAll(dead)
	c.awaitAlive(c.servers...)
	c.awaitServed(last, c.servers...)
	if orders := a.placedBy()[before:]; len(orders) != 2 || orders[0] == orders[1] {
		t.Errorf("the last hostname was ordered by %s, want one server that was killed and another", names(orders...))
	}
}
