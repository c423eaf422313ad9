package binary_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	third "github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/test/daemon"
)

// verifier is a third party that is not ours. It knows nothing but the address of the
// issuer, and fetches the rest.
type verifier func(t *testing.T, issuer, audience, token string) (hangar.IdentityClaims, error)

// verifiers are all of them, each with what it says of a bad token.
func verifiers(t *testing.T) map[string]verifier {
	t.Helper()
	return map[string]verifier{"go-oidc": goOIDC, "PyJWT": pyJWT(t)}
}

func goOIDC(t *testing.T, issuer, audience, token string) (claims hangar.IdentityClaims, err error) {
	t.Helper()
	return verifyBy(t.Context(), issuer, audience, token)
}

// verifyBy is goOIDC with the HTTP client that third.ClientContext has put into ctx.
func verifyBy(ctx context.Context, issuer, audience, token string) (claims hangar.IdentityClaims, err error) {
	provider, err := third.NewProvider(ctx, issuer)
	if err != nil {
		return claims, err
	}
	verified, err := provider.Verifier(&third.Config{ClientID: audience}).Verify(ctx, token)
	if err != nil {
		return claims, err
	}
	return claims, verified.Claims(&claims)
}

// python is Debian's, for which the packages are.
const python = "/usr/bin/python3"

// pyJWT starts a program that verifies.
func pyJWT(t *testing.T) verifier {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import jwt, cryptography").CombinedOutput(); err != nil {
		t.Fatalf("needs PyJWT, as in Debian's packages python3-jwt and python3-cryptography: %v\n%s", err, out)
	}
	script := filepath.Join("testdata", "verify.py")
	if _, err := os.Stat(script); err != nil { // so that go test knows that the result depends on it
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, script)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	return func(t *testing.T, issuer, audience, token string) (hangar.IdentityClaims, error) {
		t.Helper()
		question := map[string]string{"issuer": issuer, "audience": audience, "token": token}
		if err := json.NewEncoder(in).Encode(question); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatalf("%v\n%s", err, complaints.String())
		}
		var answer struct {
			Claims hangar.IdentityClaims `json:"claims"`
			Error  string                `json:"error"`
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if answer.Error != "" {
			return answer.Claims, errors.New(answer.Error)
		}
		return answer.Claims, nil
	}
}

// TestTokensOfMachinesVerify asks a daemon for tokens of a Machine, and third parties
// for what they think of them, also after the key was replaced and the daemon killed.
func TestTokensOfMachinesVerify(t *testing.T) {
	// The issuer is at another address than the API, as docs/identity.md has it.
	var target atomic.Pointer[url.URL]
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target.Load()) }})
	t.Cleanup(proxy.Close)
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: []string{"--oidc-url", proxy.URL + "/"}})
	at, err := url.Parse(d.URL() + "/oidc")
	if err != nil {
		t.Fatal(err)
	}
	target.Store(at)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	image := d.Push(daemon.Busybox(t, "sh"), "busybox:1", "--cmd", "sleep", "--cmd", "100000")
	d.Run("apps", "create", "shop")
	c := d.Client()
	m, err := c.CreateMachine(ctx, "shop", hangar.MachineCreate{Name: "web-1", Config: hangar.MachineConfig{Image: image}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(ctx, m.Ref(), hangar.MachineWait{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	all := verifiers(t)
	issuer := proxy.URL + "/personal"
	var issued []string
	check := func(when string) {
		t.Helper()
		in := hangar.IdentityTokenRequest{Audience: "sts.example.com", AWSPrincipalTags: true}
		token, err := c.IssueIdentityToken(ctx, m.Ref(), in)
		if err != nil {
			t.Fatal(err)
		}
		issued = append(issued, token)
		for name, verify := range all {
			for i, token := range issued {
				claims, err := verify(t, issuer, "sts.example.com", token)
				if err != nil || claims.Subject != "personal:shop:web-1" || claims.MachineID != m.ID || claims.AWSTags == nil {
					t.Errorf("%s: %s says of token %d: %+v, %v", when, name, i, claims, err)
				}
			}
		}
	}
	check("at first")
	d.Run("oidc", "rotate")
	check("with the next key")
	d.Kill()
	d.Up()
	check("after a kill")
	d.Run("secrets", "rotate-key")
	check("after the encryption key was replaced")
	if out := d.Run("oidc", "rotate"); !strings.Contains(out, "next") {
		t.Errorf("rotated again: %s", out)
	}
	check("with a key that has to wait")
}

// issuing is a control plane that issues tokens, behind the API, with a clock of its
// own.
type issuing struct {
	*oidc.Issuer
	*httptest.Server

	private []*rsa.PrivateKey // the keys that it made

	mu  sync.Mutex // guards what follows
	ago time.Duration
}

func newIssuing(t *testing.T) *issuing {
	t.Helper()
	i := &issuing{Server: httptest.NewUnstartedServer(nil)}
	keys, err := keyset.Create(filepath.Join(t.TempDir(), keyset.File))
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	store := control.NewMirror(state.NewMemory(), quiet)
	if err := store.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	i.Issuer = oidc.New(oidc.Config{
		Store: store, Vault: vault.New(store, keys, quiet), Now: i.now,
		Issuer: "http://" + i.Listener.Addr().String() + "/oidc", Audience: "https://platform.example",
		NewKey: func() (*rsa.PrivateKey, error) {
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			i.private = append(i.private, key)
			return key, err
		},
	})
	if err := i.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	tokens := auth.New(auth.Config{Store: store, Dir: t.TempDir()})
	if err := tokens.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := control.New(control.Config{Store: store, Tokens: tokens, Issuer: i.Issuer, Agents: noHosts{}, Keys: keys, Region: "loc", Log: quiet})
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := hangar.WithPrincipal(t.Context(), hangar.Principal{Admin: true})
	if _, err := c.Orgs().CreateOrg(admin, hangar.OrgCreate{Slug: "acme"}); err != nil {
		t.Fatal(err)
	}
	i.Config = api.Server(api.New(api.Config{Issuer: c.Issuer(), Auth: tokens, Region: "loc", Log: quiet}))
	i.Start()
	t.Cleanup(i.Close)
	return i
}

// noHosts implements hangar.Agents.
type noHosts struct{}

func (noHosts) Agent(hangar.HostID) (hangar.Agent, error) {
	return nil, hangar.Errorf(hangar.CodeNotFound, "", "unknown host")
}

func (noHosts) Hosts() []hangar.Host { return nil }
func (noHosts) Known() []hangar.Host { return nil }

func (i *issuing) now() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Add(-i.ago)
}

// goBack makes it some time ago.
func (i *issuing) goBack(d time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ago = d
}

func (i *issuing) issuer(org hangar.OrgSlug) string { return i.URL + "/oidc/" + string(org) }

// token returns a token of a Machine of an organization.
func (i *issuing) token(t *testing.T, org hangar.OrgSlug) string {
	t.Helper()
	claims := hangar.IdentityClaims{OrgName: org, Subject: string(org) + ":shop:web-1"}
	token, err := i.Issue(t.Context(), claims, hangar.IdentityTokenRequest{Audience: "sts.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// forge signs claims that expire in an hour with any key under any id.
func (i *issuing) forge(t *testing.T, private *rsa.PrivateKey, kid string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: private, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(-time.Minute).Unix()
	token, err := jwt.Signed(signer).Claims(hangar.IdentityClaims{
		Issuer: i.issuer("acme"), Audience: "sts.example.com", Subject: "acme:shop:web-1", ID: "forged", IssuedAt: now, NotBefore: now, Expiry: now + 3600,
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// keyID is the key that a token names.
func keyID(t *testing.T, token string) string {
	t.Helper()
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Headers[0].KeyID
}

// TestThirdPartiesRefuse what is not what it says.
func TestThirdPartiesRefuse(t *testing.T) {
	i := newIssuing(t)
	good := i.token(t, "acme")
	parts := strings.Split(good, ".")
	replaced := func(part int, from, to string) string {
		raw, err := base64.RawURLEncoding.DecodeString(parts[part])
		if err != nil {
			t.Fatal(err)
		}
		changed := slices.Clone(parts)
		changed[part] = base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), from, to, 1)))
		if changed[part] == parts[part] {
			t.Fatalf("%s is not in %s", from, raw)
		}
		return strings.Join(changed, ".")
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	signature[0] ^= 1
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i.goBack(hangar.IdentityTokenLifetime + time.Second)
	expired := i.token(t, "acme")
	i.goBack(0)
	unsigned := replaced(0, `"RS256"`, `"none"`)
	unsigned = unsigned[:strings.LastIndex(unsigned, ".")+1]
	forged := i.forge(t, i.private[0], keyID(t, good))
	for name, verify := range verifiers(t) {
		accepts := func(what, token string) {
			t.Helper()
			if claims, err := verify(t, i.issuer("acme"), "sts.example.com", token); err != nil || claims.Subject != "acme:shop:web-1" {
				t.Errorf("%s refuses %s: %+v, %v", name, what, claims, err)
			}
		}
		refuses := func(what, org, audience, token, because string) {
			t.Helper()
			claims, err := verify(t, i.issuer(hangar.OrgSlug(org)), audience, token)
			if err == nil {
				t.Errorf("%s accepts %s: %+v", name, what, claims)
			} else if text := strings.ToLower(err.Error()); !slices.ContainsFunc(strings.Split(because, "|"), func(s string) bool { return strings.Contains(text, s) }) {
				t.Errorf("%s refuses %s because of %q, want %s", name, what, err, because)
			}
		}
		const aud = "sts.example.com"
		accepts("a good token", good)
		accepts("a token that the test made with the key", forged)
		refuses("another subject", "acme", aud, replaced(1, "web-1", "web-2"), "signature")
		refuses("another signature", "acme", aud, strings.Join([]string{parts[0], parts[1], base64.RawURLEncoding.EncodeToString(signature)}, "."), "signature")
		refuses("no signature", "acme", aud, unsigned, "algorithm|alg value|malformed")
		refuses("another algorithm", "acme", aud, replaced(0, `"RS256"`, `"HS256"`), "algorithm|hmac|expected")
		refuses("a stranger's key", "acme", aud, i.forge(t, stranger, keyID(t, good)), "signature")
		refuses("an unknown key", "acme", aud, i.forge(t, stranger, "unknown"), "signature|signing key")
		refuses("an expired token", "acme", aud, expired, "expired")
		refuses("another audience", "acme", "vault.example.com", good, "audience")
		refuses("the token of another organization", "personal", aud, good, "issuer|issued by")
	}
}

// TestThirdPartiesForgetKeys: a key that was replaced is accepted for as long as what it
// has signed is valid, and no longer.
func TestThirdPartiesForgetKeys(t *testing.T) {
	i := newIssuing(t)
	all := verifiers(t)
	old := i.private[0]
	first := i.token(t, "acme")
	kid := keyID(t, first)
	if _, err := i.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := i.token(t, "acme")
	if keyID(t, second) == kid {
		t.Fatal("the key was not replaced")
	}
	expect := func(when, token string, accepted bool) {
		t.Helper()
		for name, verify := range all {
			if _, err := verify(t, i.issuer("acme"), "sts.example.com", token); (err == nil) != accepted {
				t.Errorf("%s: %s accepts it: %t, %v", when, name, err == nil, err)
			}
		}
	}
	expect("a token of the key before", first, true)
	expect("a token of the new key", second, true)
	linger := oidc.DefaultPolicy().Linger
	i.goBack(-hangar.IdentityTokenLifetime - linger + time.Minute)
	expect("a key that is to go in a minute", i.forge(t, old, kid), true)
	i.goBack(-hangar.IdentityTokenLifetime - linger - time.Second)
	expect("a key that is gone", i.forge(t, old, kid), false)
	expect("the new key", second, true)
	keys, err := i.Keys(t.Context())
	if err != nil || len(keys) != 2 || slices.ContainsFunc(keys, func(k hangar.SigningKey) bool { return k.ID == kid }) {
		t.Errorf("keys are %+v, %v", keys, err)
	}
}

// TestKillDaemonWhileReplacingSigningKeys kills the daemon at random moments while
// its key is replaced: tokens that were issued before stay good.
func TestKillDaemonWhileReplacingSigningKeys(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	edge, err := freeport.Address(t.Context()) // the same over restarts, as it is part of the issuer
	if err != nil {
		t.Fatal(err)
	}
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: []string{"--https", edge}})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	image := d.Push(daemon.Busybox(t, "sh"), "busybox:1", "--cmd", "sleep", "--cmd", "100000")
	d.Run("apps", "create", "shop")
	c := d.Client()
	m, err := c.CreateMachine(ctx, "shop", hangar.MachineCreate{Config: hangar.MachineConfig{Image: image}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(ctx, m.Ref(), hangar.MachineWait{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(edge)
	if err != nil {
		t.Fatal(err)
	}
	issuer := "https://oidc.hangar.localhost:" + port + "/personal"
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority(d))
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, edge)
		},
	}
	verifying := third.ClientContext(ctx, &http.Client{Transport: transport})
	var issued []string
	for round := range rounds {
		token, err := c.IssueIdentityToken(ctx, m.Ref(), hangar.IdentityTokenRequest{Audience: "sts.example.com"})
		if err != nil {
			t.Fatal(err)
		}
		issued = append(issued, token)
		rotated := make(chan error, 1)
		go func() {
			_, err := c.RotateSigningKey(ctx)
			rotated <- err
		}()
		time.Sleep(time.Duration(mathrand.IntN(300)) * time.Millisecond) // the moment is the input of this test
		d.Kill()
		<-rotated
		d.Up()
		for i, token := range issued {
			if _, err := verifyBy(verifying, issuer, "sts.example.com", token); err != nil {
				t.Errorf("round %d: token %d: %v", round, i, err)
			}
		}
		keys, err := c.SigningKeys(ctx)
		if err != nil || len(keys) < 2 || len(keys) > 3 || keys[len(keys)-1].State != hangar.SigningKeyNext {
			t.Errorf("round %d: keys are %+v, %v", round, keys, err)
		}
	}
}
