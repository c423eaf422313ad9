package join_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/cluster/join"
	"github.com/hangar-platform/hangar/cluster/listener"
	"github.com/hangar-platform/hangar/internal/hostcert"
)

const (
	first  hangar.HostID = "00000011"
	second hangar.HostID = "00000002"
	domain               = "apps.test"
)

// registrar admits hosts with one token.
type registrar struct {
	token    authority.Token
	err      error
	admitted []hangar.HostApplicant
}

func (r *registrar) AdmitHost(_ context.Context, a hangar.HostApplicant) error {
	if string(a.Digest) != string(r.token.Digest()) {
		return hangar.Errorf(hangar.CodeUnauthenticated, "", "the token is not valid")
	}
	r.admitted = append(r.admitted, a)
	return r.err
}

// host is one that others join by.
type host struct {
	identity  *authority.Identity
	door      *listener.Listener
	registrar *registrar
	url       string
}

func newHost(t *testing.T) *host {
	t.Helper()
	log, dir := slog.New(slog.DiscardHandler), t.TempDir()
	if err := authority.Found(dir, first, time.Now()); err != nil {
		t.Fatal(err)
	}
	identity, err := authority.Open(dir, first, log, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{identity: identity, door: listener.New(identity, nil, log), registrar: &registrar{token: authority.NewToken(identity.Authority().Fingerprint())}}
	h.door.HandleOpen(join.Path, join.NewHandler(join.Config{
		Identity: identity, Registrar: h.registrar, Keyset: func() ([]byte, error) { return []byte("keys"), nil },
		Endpoints: func() []string { return []string{"https://10.0.0.1:4281"} }, Members: 5, Domain: domain, Log: log, Now: time.Now,
	}))
	h.door.Handle("/whoami", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, _ := hostcert.Peer(r.TLS)
		_, _ = io.WriteString(w, string(peer))
	}))
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.url = "https://" + inner.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- h.door.Serve(ctx, inner) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return h
}

func application(t *testing.T, dir string) (join.Application, *authority.Request) {
	t.Helper()
	request, err := authority.OpenRequest(filepath.Join(dir, "join.key"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := request.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return join.Application{Host: second, Name: "two", Address: "10.0.0.2:4281", Request: string(text), Domain: domain}, request
}

// TestJoin: a server with a token gets a certificate that hosts take, and what it needs beside it.
func TestJoin(t *testing.T) {
	h, dir := newHost(t), t.TempDir()
	in, request := application(t, dir)
	grant, a, err := join.Apply(t.Context(), h.url, h.registrar.token, in, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if string(grant.Keyset) != "keys" || len(grant.Endpoints) != 1 || grant.Members != 5 {
		t.Errorf("granted %+v", grant)
	}
	if got := h.registrar.admitted; len(got) != 1 || got[0].Host != second || got[0].Address != in.Address || got[0].Name != "two" || len(got[0].Key) != 32 {
		t.Errorf("admitted %+v", got)
	}
	pair, err := request.Pair([]byte(grant.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.Store(dir, pair, a); err != nil {
		t.Fatal(err)
	}
	identity, err := authority.Open(dir, second, slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	call := func(transport *http.Transport) (int, string) {
		t.Helper()
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport}).Get(h.url + "/whoami")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if status, body := call(&http.Transport{TLSClientConfig: identity.ClientConfig(first), ForceAttemptHTTP2: true}); status != http.StatusOK || body != string(second) {
		t.Errorf("the new host is answered %d %q", status, body)
	}
	pinned := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: authority.PinnedConfig(h.registrar.token.Authority, time.Now)}
	if status, _ := call(pinned); status != http.StatusForbidden {
		t.Errorf("a client without a certificate is answered %d", status)
	}
	h.door.SetKnown(func(context.Context, hangar.HostID) bool { return false })
	if status, _ := call(&http.Transport{TLSClientConfig: identity.ClientConfig(first), ForceAttemptHTTP2: true}); status != http.StatusForbidden {
		t.Errorf("a host that was removed is answered %d", status)
	}
}

// TestRefusals: what can be said is said; a host of another cluster never sees the token.
func TestRefusals(t *testing.T) {
	h, other := newHost(t), newHost(t)
	bad := func(change func(*join.Application)) join.Application {
		in, _ := application(t, t.TempDir())
		change(&in)
		return in
	}
	same := func(*join.Application) {}
	for _, c := range []struct {
		name, at string
		token    authority.Token
		in       join.Application
		says     string
		refused  bool
	}{
		{"another token", h.url, authority.NewToken(h.identity.Authority().Fingerprint()), bad(same), "not valid", true},
		{"another domain", h.url, h.registrar.token, bad(func(a *join.Application) { a.Domain = "x.test" }), "--domain " + domain, true},
		{"no address", h.url, h.registrar.token, bad(func(a *join.Application) { a.Address = "0.0.0.0:4281" }), "address", true},
		{"no host", h.url, h.registrar.token, bad(func(a *join.Application) { a.Host = "../../x" }), "invalid host", true},
		{"no request", h.url, h.registrar.token, bad(func(a *join.Application) { a.Request = "x" }), "certificate", true},
		{"another cluster", other.url, h.registrar.token, bad(same), "not of the cluster", true},
		{"plain HTTP", strings.Replace(h.url, "https", "http", 1), h.registrar.token, bad(same), "must be like", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := join.Apply(t.Context(), c.at, c.token, c.in, time.Now)
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, join.ErrRefused) != c.refused || strings.Contains(err.Error(), c.token.Secret) {
				t.Errorf("%v; want one that says %q", err, c.says)
			}
		})
	}
	if len(h.registrar.admitted)+len(other.registrar.admitted) != 0 {
		t.Error("a server was admitted")
	}
	h.registrar.err = errors.New("the disk of 10.0.0.9 is full")
	if _, _, err := join.Apply(t.Context(), h.url, h.registrar.token, bad(same), time.Now); err == nil || strings.Contains(err.Error(), "10.0.0.9") {
		t.Errorf("%v: says too much, or nothing", err)
	}
}

// TestAttemptsAreBounded: guessing is slowed down, also with tokens that look right.
func TestAttemptsAreBounded(t *testing.T) {
	h := newHost(t)
	in, _ := application(t, t.TempDir())
	for range 20 {
		_, _, err := join.Apply(t.Context(), h.url, authority.NewToken(h.registrar.token.Authority), in, time.Now)
		if strings.Contains(err.Error(), "too many attempts") {
			if errors.Is(err, join.ErrRefused) {
				t.Error("a server that waits is not to give up")
			}
			return
		}
	}
	t.Error("20 attempts were not too many")
}
