package signon_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"golang.org/x/oauth2"

	"github.com/hangar-platform/hangar"
)

// edit returns an authorization request with parameters replaced. The value "-" removes one, and the
// name "&" appends a value as it is.
func edit(changes ...string) string {
	q := url.Values{"client_id": {"logs"}, "redirect_uri": {redirectURI}, "response_type": {"code"}, "scope": {"read"}, "state": {"s"}}
	raw := ""
	for i := 0; i+1 < len(changes); i += 2 {
		switch name, value := changes[i], changes[i+1]; {
		case name == "&":
			raw += "&" + value
		case value == "-":
			q.Del(name)
		default:
			q.Set(name, value)
		}
	}
	return "/oauth/authorize?" + q.Encode() + raw
}

const challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM" // RFC 7636, appendix B

// TestMisusedAuthorizationRequests: until client and redirect URI are right, the browser is not
// redirected; other errors go to the client, with its state.
func TestMisusedAuthorizationRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user(t, "ann")
	stranger := w.browser(t)
	user := w.browser(t)
	if p := user.signIn(t, user.get(t, "/sign-in"), "ann"); p.status != http.StatusOK || !strings.Contains(p.body, "You are signed in") {
		t.Fatalf("signed in: %d %s", p.status, p.body)
	}
	cli := func(changes ...string) string {
		return edit(append([]string{
			"client_id", "hangar-cli", "redirect_uri", "http://127.0.0.1:4321/", "scope", "-", "code_challenge", challenge, "code_challenge_method", "S256",
		}, changes...)...)
	}
	tests := []struct {
		name, path, want string // want is the error that the client receives; empty: a page
	}{
		{"no client", edit("client_id", "-"), ""},
		{"an unknown client", edit("client_id", "nobody"), ""},
		{"two clients", edit("&", "client_id=errors"), ""},
		{"no redirect URI", edit("redirect_uri", "-"), ""},
		{"two redirect URIs", edit("&", "redirect_uri=https%3A%2F%2Fevil.example"), ""},
		{"that of another client", edit("redirect_uri", "https://errors.example.com/callback"), ""},
		{"another site", edit("redirect_uri", "https://evil.example/callback?keep=1"), ""},
		{"a longer path", edit("redirect_uri", "https://provider.example.com/callback/x?keep=1"), ""},
		{"a path that leads back", edit("redirect_uri", "https://provider.example.com/x/../callback?keep=1"), ""},
		{"without its query", edit("redirect_uri", "https://provider.example.com/callback"), ""},
		{"a longer query", edit("redirect_uri", redirectURI+"&x=1"), ""},
		{"a name before an at sign", edit("redirect_uri", "https://provider.example.com@evil.example/callback?keep=1"), ""},
		{"a longer name", edit("redirect_uri", "https://provider.example.com.evil.example/callback?keep=1"), ""},
		{"other case", edit("redirect_uri", "https://PROVIDER.example.com/callback?keep=1"), ""},
		{"a port", edit("redirect_uri", "https://provider.example.com:443/callback?keep=1"), ""},
		{"without TLS", edit("redirect_uri", "http://provider.example.com/callback?keep=1"), ""},
		{"a fragment", edit("redirect_uri", redirectURI+"#x"), ""},
		{"escapes", edit("redirect_uri", "https://provider.example.com/%63allback?keep=1"), ""},
		{"without a scheme", edit("redirect_uri", "//evil.example/callback"), ""},
		{"a script", edit("redirect_uri", "javascript:alert(1)"), ""},
		{"a header", edit("redirect_uri", redirectURI+"\r\nSet-Cookie: a=b"), ""},
		{"a backslash", edit("redirect_uri", `https://provider.example.com\@evil.example/`), ""},
		{"broken escapes", edit("&", "x=%zz"), ""},
		{"semicolons", edit("&", "x=1;y=2"), ""},
		{"no UTF-8", edit("&", "x=%ff"), ""},
		{"a zero byte", edit("state", "a\x00b"), ""},
		{"a state that is too long", edit("state", strings.Repeat("s", 3000)), ""},
		{"too much", edit("&", strings.Repeat("x=1&", 3000)), ""},
		{"no response type", edit("response_type", "-"), "invalid_request"},
		{"an implicit grant", edit("response_type", "token"), "unsupported_response_type"},
		{"a hybrid", edit("response_type", "code token"), "unsupported_response_type"},
		{"a response as fragment", edit("response_mode", "fragment"), "invalid_request"},
		{"another scope", edit("scope", "write"), "invalid_scope"},
		{"more scopes", edit("scope", "read write"), "invalid_scope"},
		{"the scope of the command line", edit("scope", "sign-in"), "invalid_scope"},
		{"two scopes", edit("&", "scope=read"), "invalid_request"},
		{"two of what is not known", edit("&", "x=1&x=2"), "invalid_request"},
		{"a request object", edit("request", "e30."), "request_not_supported"},
		{"a request elsewhere", edit("request_uri", "https://evil.example"), "request_uri_not_supported"},
		{"a plain challenge", edit("code_challenge", challenge, "code_challenge_method", "plain"), "invalid_request"},
		{"a challenge without a method", edit("code_challenge", challenge), "invalid_request"},
		{"a method without a challenge", edit("code_challenge_method", "S256"), "invalid_request"},
		{"a short challenge", edit("code_challenge", "short", "code_challenge_method", "S256"), "invalid_request"},
		{"a challenge with other characters", edit("code_challenge", strings.Repeat("=", 43), "code_challenge_method", "S256"), "invalid_request"},
		{"the command line without a challenge", cli("code_challenge", "-", "code_challenge_method", "-"), "invalid_request"},
		{"the command line with another scope", cli("scope", "read"), "invalid_scope"},
		{"the command line elsewhere", cli("redirect_uri", "https://evil.example/"), ""},
		{"the command line at a name", cli("redirect_uri", "http://localhost:4321/"), ""},
		{"the command line at another address", cli("redirect_uri", "http://127.0.0.2:4321/"), ""},
		{"the command line at another path", cli("redirect_uri", "http://127.0.0.1:4321/x"), ""},
		{"the command line with a name before an at sign", cli("redirect_uri", "http://127.0.0.1:1@evil.example:2/"), ""},
	}
	for _, test := range tests {
		for who, b := range map[string]*browser{"a stranger": stranger, "a user": user} {
			p := b.get(t, test.path)
			checkHeaders(t, test.name, p)
			if test.want == "" {
				if p.away != nil || p.status != http.StatusBadRequest || strings.Contains(p.body, "<form") || strings.Contains(p.body, "evil") {
					t.Errorf("%s, %s: %d, sent to %v: %s", who, test.name, p.status, p.away, p.body)
				}
				continue
			}
			if p.away == nil || p.away.Query().Get("error") != test.want || p.away.Query().Get("state") != "s" || p.away.Query().Get("iss") == "" || p.away.Query().Has("code") {
				t.Errorf("%s, %s: %d, sent to %v, want %s", who, test.name, p.status, p.away, test.want)
			}
		}
	}
	for name, path := range map[string]string{"an organization of others": edit("organization_id", string(w.team)), "no organization": edit("organization_id", "none")} {
		if p := user.get(t, path); p.away == nil || p.away.Query().Get("error") != "access_denied" {
			t.Errorf("%s: %d %v", name, p.status, p.away)
		}
	}
	if p := user.get(t, edit("&", "state=t")); p.away == nil || p.away.Query().Has("state") {
		t.Errorf("two states: %v", p.away)
	}
}

// checkHeaders: no page is cached, framed or loads anything.
func checkHeaders(t *testing.T, name string, p page) {
	t.Helper()
	policy := p.header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'", "style-src 'sha256-"} {
		if !strings.Contains(policy, part) {
			t.Errorf("%s: the policy is %q, without %s", name, policy, part)
		}
	}
	for header, want := range map[string]string{
		"X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		if got := p.header.Get(header); got != want {
			t.Errorf("%s: %s is %q", name, header, got)
		}
	}
}

// call is a request of a client.
type call struct {
	method, path string
	form         string
	basic        [2]string
	media        string
	bearer       string
}

func (w *world) call(t *testing.T, c call) (status int, code, body string) {
	t.Helper()
	if c.method == "" {
		c.method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), c.method, w.URL()+c.path, strings.NewReader(c.form))
	if err != nil {
		t.Fatal(err)
	}
	if c.media == "" {
		c.media = "application/x-www-form-urlencoded"
	}
	r.Header.Set("Content-Type", c.media)
	if c.basic[0] != "" {
		r.SetBasicAuth(c.basic[0], c.basic[1])
	}
	if c.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var known struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(raw, &known) // not all answers are JSON
	if res.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s %s: %q is kept", c.method, c.path, res.Header.Get("Cache-Control"))
	}
	return res.StatusCode, known.Error, string(raw)
}

// encoded is a form of alternating names and values.
func encoded(pairs ...string) string {
	f := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		f.Add(pairs[i], pairs[i+1])
	}
	return f.Encode()
}

const (
	logs  = "client_id=logs&client_secret=logs+secret&"
	other = "client_id=errors&client_secret=errors+secret&"
)

// exchange is the form of an exchange, with changes applied.
func exchange(code string, more ...string) string {
	pairs := append([]string{"grant_type", "authorization_code", "code", code}, more...)
	if len(more) == 0 || more[0] != "redirect_uri" {
		pairs = append(pairs, "redirect_uri", redirectURI)
	}
	return encoded(pairs...)
}

// consented is a browser whose user has granted the provider access to acme.
func (w *world) consented(t *testing.T, name string) *browser {
	t.Helper()
	b := w.browser(t)
	if p := b.allow(t, b.signIn(t, b.get(t, edit("organization_id", string(w.acme))), name), w.acme); p.away == nil {
		t.Fatalf("no consent: %d %s", p.status, p.body)
	}
	return b
}

// code is another code for the provider, without a question to the user.
func (b *browser) code(t *testing.T, changes ...string) string {
	t.Helper()
	p := b.get(t, edit(append([]string{"organization_id", string(b.acme)}, changes...)...))
	if p.away == nil || p.away.Query().Get("code") == "" {
		t.Fatalf("no code: %d %v %s", p.status, p.away, p.body)
	}
	return p.away.Query().Get("code")
}

// grant is another grant for the provider.
func (b *browser) grant(t *testing.T) *oauth2.Token {
	t.Helper()
	token, err := b.provider().Exchange(t.Context(), b.code(t))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestMisusedExchanges: an exchange that is not exactly right gets no token.
func TestMisusedExchanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user(t, "ann")
	b := w.consented(t, "ann")
	code := b.code(t)
	tests := []struct {
		name   string
		call   call
		status int
		want   string
	}{
		{"a GET", call{method: http.MethodGet, path: "/oauth/token?" + logs + exchange(code)}, http.StatusMethodNotAllowed, ""},
		{"a secret in the query", call{path: "/oauth/token?client_secret=logs+secret", form: "client_id=logs&" + exchange(code)}, 400, "invalid_request"},
		{"no client", call{form: exchange(code)}, 401, "invalid_client"},
		{"no secret", call{form: "client_id=logs&" + exchange(code)}, 401, "invalid_client"},
		{"an empty secret", call{form: "client_id=logs&client_secret=&" + exchange(code)}, 401, "invalid_client"},
		{"another secret", call{form: "client_id=logs&client_secret=x&" + exchange(code)}, 401, "invalid_client"},
		{"the secret of another client", call{form: "client_id=logs&client_secret=errors+secret&" + exchange(code)}, 401, "invalid_client"},
		{"an unknown client", call{form: "client_id=x&client_secret=x&" + exchange(code)}, 401, "invalid_client"},
		{"another secret by Basic", call{basic: [2]string{"logs", "x"}, form: exchange(code)}, 401, "invalid_client"},
		{"a broken escape by Basic", call{basic: [2]string{"logs", "%zz"}, form: exchange(code)}, 401, "invalid_client"},
		{"a bearer as client", call{bearer: w.Token(), form: exchange(code)}, 401, "invalid_client"},
		{"both ways", call{basic: [2]string{"logs", "logs+secret"}, form: logs + exchange(code)}, 400, "invalid_request"},
		{"two names", call{basic: [2]string{"logs", "logs+secret"}, form: "client_id=errors&" + exchange(code)}, 400, "invalid_request"},
		{"JSON", call{media: "application/json", form: `{"grant_type":"authorization_code"}`}, 400, "invalid_request"},
		{"two codes", call{form: logs + exchange(code) + "&code=x"}, 400, "invalid_request"},
		{"two clients", call{form: logs + exchange(code) + "&client_id=errors"}, 400, "invalid_request"},
		{"a long code", call{form: logs + exchange(strings.Repeat("c", 3000))}, 400, "invalid_request"},
		{"a long body", call{form: logs + exchange(code) + strings.Repeat("&x=1", 10_000)}, 400, "invalid_request"},
		{"no grant type", call{form: logs + "code=" + code}, 400, "invalid_request"},
		{"a password", call{form: logs + "grant_type=password&username=ann%40example.com&password=x"}, 400, "unsupported_grant_type"},
		{"the client itself", call{form: logs + "grant_type=client_credentials"}, 400, "unsupported_grant_type"},
		{"no code", call{form: logs + "grant_type=authorization_code&redirect_uri=x"}, 400, "invalid_request"},
		{"no redirect URI", call{form: logs + "grant_type=authorization_code&code=" + code}, 400, "invalid_request"},
		{"no refresh token", call{form: logs + "grant_type=refresh_token"}, 400, "invalid_request"},
		{"an unknown code", call{form: logs + exchange("fc1_abcdefghijklmnop_abcdefghijkl_x")}, 400, "invalid_grant"},
		{"no code at all", call{form: logs + exchange("x")}, 400, "invalid_grant"},
		{"a code that is a path", call{form: logs + exchange("fc1_../../users_x_y")}, 400, "invalid_grant"},
		{"a code with another secret", call{form: logs + exchange(code[:len(code)-4]+"AAAA")}, 400, "invalid_grant"},
		{"a code of another client", call{form: other + exchange(code)}, 400, "invalid_grant"},
		{"a refresh token that is none", call{form: logs + "grant_type=refresh_token&refresh_token=fr1_x_y"}, 400, "invalid_grant"},
		{"a code as refresh token", call{form: logs + "grant_type=refresh_token&refresh_token=" + code}, 400, "invalid_grant"},
		{"the code of another as the command line", call{form: "client_id=hangar-cli&" + exchange(code)}, 400, "invalid_grant"},
		{"the command line with a secret", call{form: "client_id=hangar-cli&client_secret=x&" + exchange(code)}, 401, "invalid_client"},
	}
	for _, test := range tests {
		if test.call.path == "" {
			test.call.path = "/oauth/token"
		}
		if status, code, body := w.call(t, test.call); status != test.status || code != test.want {
			t.Errorf("%s: %d %s, want %d %s", test.name, status, body, test.status, test.want)
		}
	}
	// None of that has used the code up. A rotated secret still counts, and so does Basic.
	if status, _, body := w.call(t, call{path: "/oauth/token", basic: [2]string{"logs", "logs+old%3Asecret"}, form: exchange(code)}); status != http.StatusOK {
		t.Errorf("the code: %d %s", status, body)
	}

	verifier := "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	pkce := []string{"code_challenge", challenge, "code_challenge_method", "S256"}
	used := map[string]struct {
		code string
		form []string
	}{
		"another redirect URI":            {b.code(t), []string{"redirect_uri", "https://provider.example.com/other"}},
		"a verifier without a challenge":  {b.code(t), []string{"code_verifier", verifier}},
		"a challenge without a verifier":  {b.code(t, pkce...), nil},
		"a challenge of another verifier": {b.code(t, pkce...), []string{"code_verifier", verifier + "x"}},
		"the challenge as verifier":       {b.code(t, pkce...), []string{"code_verifier", challenge}},
	}
	for name, test := range used {
		if _, code, body := w.call(t, call{path: "/oauth/token", form: logs + exchange(test.code, test.form...)}); code != "invalid_grant" {
			t.Errorf("%s: %s", name, body)
		}
		if _, code, body := w.call(t, call{path: "/oauth/token", form: logs + exchange(test.code, "code_verifier", verifier)}); code != "invalid_grant" {
			t.Errorf("%s, and then the right one: %s", name, body)
		}
	}
}

// TestReuseEndsTheGrant: a code or a refresh token works once. A second use ends everything that it has
// granted.
func TestReuseEndsTheGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user(t, "ann")
	b := w.consented(t, "ann")
	dead := func(name string, token *oauth2.Token) {
		t.Helper()
		if status, body := w.info(t, token.AccessToken); status != http.StatusUnauthorized {
			t.Errorf("%s: the access token is answered %d %s", name, status, body)
		}
		if _, code, body := w.call(t, call{path: "/oauth/token", form: logs + "grant_type=refresh_token&refresh_token=" + token.RefreshToken}); code != "invalid_grant" {
			t.Errorf("%s: the refresh token is answered %s", name, body)
		}
	}
	alive := func(name string, token *oauth2.Token) {
		t.Helper()
		if status, body := w.info(t, token.AccessToken); status != http.StatusOK {
			t.Errorf("%s: the access token is answered %d %s", name, status, body)
		}
	}
	bystander := b.grant(t)

	code := b.code(t)
	token, err := w.provider().Exchange(t.Context(), code)
	if err != nil {
		t.Fatal(err)
	}
	if _, reason, _ := w.call(t, call{path: "/oauth/token", form: other + exchange(code)}); reason != "invalid_grant" {
		t.Errorf("another client with a used code: %s", reason)
	}
	alive("after another client has tried the code", token)
	refreshed, err := w.provider().TokenSource(t.Context(), &oauth2.Token{RefreshToken: token.RefreshToken}).Token()
	if err != nil {
		t.Fatal(err)
	}
	if _, reason, _ := w.call(t, call{path: "/oauth/token", form: logs + exchange(code)}); reason != "invalid_grant" {
		t.Errorf("a code again: %s", reason)
	}
	dead("after the code was used again", refreshed)

	token = b.grant(t)
	refresh := func(text, client string) string {
		_, reason, _ := w.call(t, call{path: "/oauth/token", form: client + encoded("grant_type", "refresh_token", "refresh_token", text)})
		return reason
	}
	if reason := refresh(token.RefreshToken, other); reason != "invalid_grant" {
		t.Errorf("the refresh token of another client: %s", reason)
	}
	if _, reason, _ := w.call(t, call{path: "/oauth/token", form: logs + encoded("grant_type", "refresh_token", "refresh_token", token.RefreshToken, "scope", "read write")}); reason != "invalid_scope" {
		t.Errorf("a refresh for more: %s", reason)
	}
	guess := token.RefreshToken[:len("fr1_abcdefghijkl_")] + strings.Repeat("A", 64)
	if reason := refresh(guess, logs); reason != "invalid_grant" {
		t.Errorf("a guess: %s", reason)
	}
	alive("after guesses", token)
	refreshed, err = w.provider().TokenSource(t.Context(), &oauth2.Token{RefreshToken: token.RefreshToken}).Token()
	if err != nil {
		t.Fatal(err)
	}
	if reason := refresh(token.RefreshToken, logs); reason != "invalid_grant" {
		t.Errorf("a refresh token again: %s", reason)
	}
	dead("after the refresh token was used again", refreshed)

	revoke := func(form string) (int, string) {
		status, reason, _ := w.call(t, call{path: "/oauth/revoke", form: form})
		return status, reason
	}
	for _, of := range []func(*oauth2.Token) string{func(t *oauth2.Token) string { return t.AccessToken }, func(t *oauth2.Token) string { return t.RefreshToken }} {
		token = b.grant(t)
		if status, reason := revoke(other + encoded("token", of(token))); status != 400 || reason != "unauthorized_client" {
			t.Errorf("revoked by another client: %d %s", status, reason)
		}
		if status, reason := revoke("client_id=logs&client_secret=x&" + encoded("token", of(token))); status != 401 || reason != "invalid_client" {
			t.Errorf("revoked without a valid secret: %d %s", status, reason)
		}
		alive("after others have revoked it", token)
		if status, _ := revoke(logs + encoded("token", of(token), "token_type_hint", "what")); status != http.StatusOK {
			t.Errorf("revoked: %d", status)
		}
		dead("revoked", token)
	}
	for name, form := range map[string]string{"unknown": "token=x", "of the API": encoded("token", w.Token()), "a path": "token=fo1_..%2F..%2F_x"} {
		if status, _ := revoke(logs + form); status != http.StatusOK {
			t.Errorf("revoked %s: %d", name, status)
		}
	}
	if status, reason := revoke(logs); status != 400 || reason != "invalid_request" {
		t.Errorf("revoked nothing: %d %s", status, reason)
	}
	if _, err := w.admin.Orgs(t.Context()); err != nil {
		t.Errorf("the token of the API: %v", err)
	}
	alive("the grant beside all of these", bystander)
}

// TestOnlyOneExchange: of simultaneous exchanges of one code, one gets a token.
func TestOnlyOneExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user(t, "ann")
	b := w.consented(t, "ann")
	for range 5 {
		code, refresh := b.code(t), b.grant(t).RefreshToken
		for name, form := range map[string]string{"code": exchange(code), "refresh": encoded("grant_type", "refresh_token", "refresh_token", refresh)} {
			var mu sync.Mutex
			var all sync.WaitGroup
			tokens := 0
			for range 8 {
				all.Go(func() {
					if status, _, _ := w.call(t, call{path: "/oauth/token", form: logs + form}); status == http.StatusOK {
						mu.Lock()
						defer mu.Unlock()
						tokens++
					}
				})
			}
			all.Wait()
			if tokens != 1 {
				t.Errorf("%s: %d have a token", name, tokens)
			}
		}
	}
}

// TestTokensOfOtherKinds: no kind of token works as another kind.
func TestTokensOfOtherKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user(t, "ann")
	b := w.consented(t, "ann")
	token, code := b.grant(t), b.code(t)
	login, err := w.admin.SignIn(t.Context(), hangar.SignIn{Email: "ann@example.com", Password: hangar.NewSensitive(password)})
	if err != nil {
		t.Fatal(err)
	}
	session := b.cookie(t, "hangar-session").Value
	for name, text := range map[string]string{
		"of the API": w.Token(), "of signing in": login.Text, "of the session": session, "to refresh": token.RefreshToken, "a code": code,
		"two": token.AccessToken + "," + token.AccessToken, "more than one": token.AccessToken + "x", "nothing": "",
	} {
		if status, body := w.info(t, text); status != http.StatusUnauthorized || !strings.Contains(body, "invalid_token") {
			t.Errorf("info of a token %s: %d %s", name, status, body)
		}
	}
	if status, reason, _ := w.call(t, call{method: http.MethodGet, path: "/oauth/token/info?access_token=" + token.AccessToken}); status != 400 || reason != "invalid_request" {
		t.Errorf("a token in the query: %d %s", status, reason)
	}
	for name, text := range map[string]string{"of the session": session, "to refresh": token.RefreshToken, "a code": code} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+"/v1/users/current", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+text)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("the API takes a token %s: %d", name, res.StatusCode)
		}
	}
	for name, text := range map[string]string{"of the API": w.Token(), "of signing in": login.Text, "of access": token.AccessToken, "to refresh": token.RefreshToken} {
		thief := w.browser(t)
		thief.setCookie(t, "hangar-session", text)
		if p := thief.get(t, "/sign-in"); strings.Contains(p.body, "You are signed in") {
			t.Errorf("a token %s is a session", name)
		}
	}
}
