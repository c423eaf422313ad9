package authority_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/internal/hostcert"
)

const (
	hostA hangar.HostID = "0000aaaa"
	hostB hangar.HostID = "0000bbbb"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// found makes the first host of a cluster.
func found(t *testing.T, host hangar.HostID) (*authority.Identity, string) {
	t.Helper()
	dir := t.TempDir()
	if err := authority.Found(dir, host, time.Now()); err != nil {
		t.Fatal(err)
	}
	i, err := authority.Open(dir, host, quiet(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return i, dir
}

// joined makes another host of the cluster of a.
func joined(t *testing.T, a *authority.Authority, host hangar.HostID) *authority.Identity {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "join.key")
	request, err := authority.OpenRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	again, err := authority.OpenRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := again.PEM()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := authority.ParseRequest(text)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Sign(parsed, host, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := request.Pair(chain) // of the key that was read again
	if err != nil {
		t.Fatal(err)
	}
	secret, err := a.Key()
	if err != nil {
		t.Fatal(err)
	}
	same, err := authority.FromChain(chain, secret, a.Fingerprint())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authority.FromChain(chain, secret, authority.Fingerprint(strings.Repeat("0", 64))); err == nil {
		t.Error("an authority with another fingerprint was taken")
	}
	if err := authority.Store(dir, pair, same); err != nil {
		t.Fatal(err)
	}
	if err := request.Done(); err != nil {
		t.Fatal(err)
	}
	i, err := authority.Open(dir, host, quiet(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// shake makes a connection, and returns whom the server sees at its other end.
func shake(t *testing.T, server, client *tls.Config) (hangar.HostID, bool, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type seen struct {
		host hangar.HostID
		ok   bool
		err  error
	}
	taken := make(chan seen, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			taken <- seen{err: err}
			return
		}
		defer conn.Close()
		secured := tls.Server(conn, server)
		err = secured.HandshakeContext(t.Context())
		state := secured.ConnectionState()
		host, ok := hostcert.Peer(&state)
		taken <- seen{host, ok, err}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = tls.Client(conn, client).HandshakeContext(t.Context())
	if err != nil {
		_ = conn.Close()
	}
	s := <-taken
	return s.host, s.ok, errors.Join(err, s.err)
}

// TestConnections: both ends are who they are to be, or there is no connection.
func TestConnections(t *testing.T) {
	a, _ := found(t, hostA)
	b := joined(t, a.Authority(), hostB)
	stranger, _ := found(t, hostB)
	own := a.Authority().Fingerprint()
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		host           hangar.HostID
		works          bool
	}{
		{"the host that was asked for", a.ServerConfig(), b.ClientConfig(hostA), hostB, true},
		{"any host", b.ServerConfig(), a.ClientConfig(""), hostA, true},
		{"another host than was asked for", a.ServerConfig(), b.ClientConfig(hostB), "", false},
		{"a server of another cluster", stranger.ServerConfig(), a.ClientConfig(""), "", false},
		{"a client of another cluster", a.ServerConfig(), stranger.ClientConfig(""), "", false},
		{"one who knows the fingerprint", a.ServerConfig(), authority.PinnedConfig(own, time.Now), "", true},
		{"another fingerprint", stranger.ServerConfig(), authority.PinnedConfig(own, time.Now), "", false},
		{"TLS 1.2", a.ServerConfig(), func() *tls.Config {
			old := b.ClientConfig(hostA)
			old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return old
		}(), "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			host, ok, err := shake(t, c.server, c.client)
			if (err == nil) != c.works {
				t.Fatalf("error %v, want that it works: %t", err, c.works)
			}
			if c.works && (host != c.host || ok != (c.host != "")) {
				t.Errorf("the server sees %q, %t; want %q", host, ok, c.host)
			}
		})
	}
}

// TestRenewal: a certificate is renewed at half of its life, while the host runs and when it
// starts, with another key.
func TestRenewal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		if err := authority.Found(dir, hostA, time.Now()); err != nil {
			t.Fatal(err)
		}
		i, err := authority.Open(dir, hostA, quiet(), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		file, _, _ := i.Files()
		read := func() string {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return string(raw)
		}
		first := read()
		ended := make(chan error, 1)
		ctx := t.Context()
		go func() { ended <- i.Run(ctx) }()
		time.Sleep(authority.CertificateLife/2 - time.Minute)
		synctest.Wait()
		if read() != first {
			t.Error("renewed before half of its life")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		second := read()
		if second == first || strings.Split(second, "\n")[1] == strings.Split(first, "\n")[1] {
			t.Error("neither the certificate nor its key was renewed")
		}
		t.Cleanup(func() {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		later := func() time.Time { return time.Now().Add(authority.CertificateLife) }
		if _, err := authority.Open(dir, hostA, quiet(), later); err != nil || read() == second {
			t.Errorf("a host that was away for long: %v", err)
		}
	})
}

// TestRenewalWhenTheClockIsSet: a certificate that was made while the clock was ahead is replaced, and one whose time
// passes because the clock is set is renewed within an hour.
func TestRenewalWhenTheClockIsSet(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		if err := authority.Found(dir, hostA, time.Now()); err != nil {
			t.Fatal(err)
		}
		var ahead atomic.Int64 // nanoseconds
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		ahead.Store(int64(authority.CertificateLife))
		i, err := authority.Open(dir, hostA, quiet(), now)
		if err != nil {
			t.Fatal(err)
		}
		begins := func() time.Time {
			pair, err := i.ServerConfig().GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			return pair.Leaf.NotBefore
		}
		if !begins().After(time.Now()) {
			t.Fatal("the certificate was not renewed while the clock was ahead")
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- i.Run(ctx) }()
		for _, offset := range []time.Duration{0, authority.CertificateLife, 0} {
			ahead.Store(int64(offset))
			time.Sleep(time.Hour + time.Second)
			synctest.Wait()
			if age := now().Sub(begins()); age < 0 || age > 3*time.Hour {
				t.Errorf("with the clock %s ahead, the certificate is %s old", offset, age)
			}
		}
		end()
		<-ended
	})
}

// TestIdentityOfAnotherHost: a copy of a data directory's certificate is no identity of another.
func TestIdentityOfAnotherHost(t *testing.T) {
	_, dir := found(t, hostA)
	if _, err := authority.Open(dir, hostB, quiet(), time.Now); err == nil {
		t.Error("the identity of one host opened as that of another")
	}
}

func TestTokens(t *testing.T) {
	a, _ := found(t, hostA)
	token := authority.NewToken(a.Authority().Fingerprint())
	parsed, err := authority.ParseToken(token.String())
	if err != nil || parsed != token {
		t.Fatalf("%+v, %v", parsed, err)
	}
	for _, text := range []string{"", "hgj_", token.String() + "0", strings.ToUpper(token.String()), "x" + token.String(), token.String() + "\n"} {
		if _, err := authority.ParseToken(text); err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("ParseToken(%q): %v", text, err)
		}
	}
}

func TestRequestsWithoutTheKeyAreRefused(t *testing.T) {
	request, err := authority.OpenRequest(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := request.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "x", strings.Replace(string(text), "M", "N", 5)} {
		if _, err := authority.ParseRequest([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
