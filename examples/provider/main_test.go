package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/hangar-platform/hangar/provider"
	"github.com/hangar-platform/hangar/provider/check"
)

// world is the example, and a platform that knows one user.
type world struct {
	*testing.T
	config
	store    *store
	front    *httptest.Server
	shelves  *httptest.Server
	platform *httptest.Server
	hooks    *check.Receiver
	org      string // whose member the user is, as an admin
	asked    url.Values
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := openStore(filepath.Join(t.TempDir(), "shelves.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	w := &world{T: t, store: s, front: httptest.NewUnstartedServer(nil), shelves: httptest.NewUnstartedServer(nil), org: "org-1"}
	platform := http.NewServeMux()
	w.platform = httptest.NewServer(platform)
	t.Cleanup(w.platform.Close)
	w.config = config{
		baseURL: "http://" + w.front.Listener.Addr().String(), requestSecrets: []string{"request secret"}, webhookURL: w.platform.URL + "/hooks/extensions/shelf",
		webhookSecret: "webhook secret", authURL: w.platform.URL, clientID: "shelf", clientSecret: "client secret",
	}
	if w.hooks, err = check.NewReceiver(w.platform.URL, w.webhookSecret); err != nil {
		t.Fatal(err)
	}
	platform.Handle("POST /hooks/", w.hooks)
	platform.HandleFunc("GET /oauth/authorize", w.authorize)
	platform.HandleFunc("POST /oauth/token", w.token)
	platform.HandleFunc("GET /oauth/token/info", w.info)
	log := slog.New(slog.DiscardHandler)
	front, shelves, err := newServer(w.config, s, log)
	if err != nil {
		t.Fatal(err)
	}
	w.front.Config.Handler, w.shelves.Config.Handler, w.shelves.Config.ConnContext = front, shelves, withAddress
	w.front.Start()
	t.Cleanup(w.front.Close)
	w.shelves.Listener = &proxyproto.Listener{Listener: w.shelves.Listener}
	w.shelves.Start()
	t.Cleanup(w.shelves.Close)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); newSender(w.config, s, log).run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// authorize lets the user in without a question.
func (w *world) authorize(out http.ResponseWriter, r *http.Request) {
	w.asked = r.URL.Query()
	to := url.Values{"code": {"code-1"}, "state": {w.asked.Get("state")}}
	http.Redirect(out, r, w.asked.Get("redirect_uri")+"?"+to.Encode(), http.StatusFound)
}

func (w *world) token(out http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("code") != "code-1" || r.PostFormValue("client_secret") != w.clientSecret || r.PostFormValue("code_verifier") == "" {
		http.Error(out, "no", http.StatusBadRequest)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(out, `{"access_token":"fo1_x","token_type":"Bearer","expires_in":7200,"scope":"read","created_at":1}`)
}

func (w *world) info(out http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer fo1_x" {
		out.WriteHeader(http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(out).Encode(map[string]any{"user_id": "u", "user_name": "Ann", "organizations": []any{map[string]string{"id": w.org, "role": "admin"}}})
}

// provision makes an extension as the platform does.
func (w *world) provision(id, org string, at netip.Addr) (made provider.Provisioned) {
	w.Helper()
	raw, err := json.Marshal(provider.Provision{
		Name: id, ID: id, OrganizationID: org, OrganizationName: org, UserID: "u", UserEmail: "u@customer.example.com", UserRole: provider.RoleAdmin, IPAddress: at,
	})
	if err != nil {
		w.Fatal(err)
	}
	r, err := http.NewRequestWithContext(w.Context(), http.MethodPost, w.baseURL+"/extensions", bytes.NewReader(raw))
	if err != nil {
		w.Fatal(err)
	}
	if err := (provider.Signer{Secret: w.requestSecrets[0]}).Sign(r); err != nil {
		w.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&made); err != nil || res.StatusCode != http.StatusCreated {
		w.Fatalf("answered %d, %v", res.StatusCode, err)
	}
	return made
}

// TestProtocol: the example passes every check of the protocol.
func TestProtocol(t *testing.T) {
	w := newWorld(t)
	err := check.Run(t.Context(), check.Config{BaseURL: w.baseURL, Secret: w.requestSecrets[0], AuthorizeURL: w.authURL + "/oauth/authorize"}, func(r check.Result) {
		if r.Outcome != check.Kept && r.Rule != "webhooks are signed and whole" { // only actions of customers send webhooks
			t.Errorf("%s: %s, %s", r.Rule, r.Outcome, r.Detail)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// browse opens a page, and returns its text.
func browse(t *testing.T, c *http.Client, method, to string, form url.Values) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, to, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := c.Do(r)
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

// TestSingleSignOn: a link of the platform leads to the page of the extension, through the platform's
// authorization server, and the platform gets a webhook for a change on that page.
func TestSingleSignOn(t *testing.T) {
	w := newWorld(t)
	made := w.provision("ext-1", "org-1", netip.Addr{})
	other := w.provision("ext-2", "org-2", netip.Addr{})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	open := func(id string) (int, string) {
		at, err := url.Parse(w.baseURL + "/extensions/" + id + "/sso")
		if err != nil {
			t.Fatal(err)
		}
		link, err := provider.Signer{Secret: w.requestSecrets[0]}.SignLink(at)
		if err != nil {
			t.Fatal(err)
		}
		return browse(t, browser, http.MethodGet, link.String(), nil)
	}
	if status, text := browse(t, browser, http.MethodGet, w.baseURL+"/dashboard/"+made.ID, nil); status != http.StatusNotFound {
		t.Errorf("without a session the page is %d %s", status, text)
	}
	status, text := open(made.ID)
	if status != http.StatusOK || !strings.Contains(text, "Signed in as Ann, admin.") {
		t.Fatalf("the page is %d %s", status, text)
	}
	if w.asked.Get("organization_id") != "org-1" || w.asked.Get("scope") != "read" || w.asked.Get("code_challenge_method") != "S256" {
		t.Errorf("the platform was asked %v", w.asked)
	}
	if status, text := open(other.ID); status != http.StatusNotFound {
		t.Errorf("the page of another organization is %d %s", status, text)
	}
	if status, _ := browse(t, browser, http.MethodGet, w.baseURL+"/callback?code=code-1&state=forged", nil); status != http.StatusBadRequest {
		t.Errorf("a sign-in that was not begun is answered %d", status)
	}
	form := url.Values{"do": {"change"}, "plan": {"large"}}
	page := w.baseURL + "/dashboard/" + made.ID
	open(made.ID)
	_, text = browse(t, browser, http.MethodGet, page, nil)
	if status, _ := browse(t, browser, http.MethodPost, page, form); status != http.StatusForbidden {
		t.Errorf("a form of another site is answered %d", status)
	}
	form.Set("form", regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text)[1])
	if status, text := browse(t, browser, http.MethodPost, page, form); status != http.StatusOK || !strings.Contains(text, "Plan large") {
		t.Fatalf("the change is answered %d %s", status, text)
	}
	e := w.event()
	if e.Action != provider.ResourceUpdated || e.Resource.ID != made.ID || e.Resource.Plan != "large" {
		t.Errorf("the platform is told %+v", e)
	}
	form.Set("do", "delete")
	browse(t, browser, http.MethodPost, page, form)
	if e := w.event(); e.Action != provider.ResourceDeleted || e.Resource.ID != made.ID {
		t.Errorf("the platform is told %+v", e)
	}
}

// event waits for the next webhook.
func (w *world) event() provider.Event {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	e, err := w.hooks.Next(ctx)
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// ask uses a shelf through a connection like one of the platform's edge, to an address in the customer's network.
func (w *world) ask(at netip.Addr, method, key, token, value string) (status int, text string) {
	w.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", w.shelves.Listener.Addr().String())
		if err != nil {
			return nil, err
		}
		_, err = (&proxyproto.Header{
			Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.TCPv6,
			SourceAddr: &net.TCPAddr{IP: net.ParseIP("fdaa::99"), Port: 4000}, DestinationAddr: &net.TCPAddr{IP: at.AsSlice(), Port: 80},
		}).WriteTo(c)
		return c, err
	}}
	r, err := http.NewRequestWithContext(w.Context(), method, "http://"+netip.AddrPortFrom(at, 80).String()+"/"+key, strings.NewReader(value))
	if err != nil {
		w.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := transport.RoundTrip(r)
	if err != nil {
		w.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// TestShelf: values belong to the extension whose address and token a request uses, and are deleted with it.
func TestShelf(t *testing.T) {
	w := newWorld(t)
	mine, theirs := netip.MustParseAddr("fdaa::1"), netip.MustParseAddr("fdaa::2")
	made, other := w.provision("ext-1", "org-1", mine), w.provision("ext-2", "org-2", theirs)
	token := made.Config["SHELF_TOKEN"]
	if status, text := w.ask(mine, http.MethodPut, "color", token, "blue"); status != http.StatusNoContent {
		t.Fatalf("PUT is answered %d %s", status, text)
	}
	for name, c := range map[string]struct {
		at    netip.Addr
		token string
		want  int
	}{
		"its own":                     {mine, token, http.StatusOK},
		"another's address":           {theirs, token, http.StatusNotFound},
		"another's token":             {theirs, other.Config["SHELF_TOKEN"], http.StatusNotFound},
		"another's token, my address": {mine, other.Config["SHELF_TOKEN"], http.StatusNotFound},
		"no token":                    {mine, "", http.StatusBadRequest},
	} {
		if status, text := w.ask(c.at, http.MethodGet, "color", c.token, ""); status != c.want || status == http.StatusOK && text != "blue" {
			t.Errorf("%s: answered %d %s, want %d", name, status, text, c.want)
		}
	}
	if err := w.store.remove(made.ID, ""); err != nil {
		t.Fatal(err)
	}
	if status, _ := w.ask(mine, http.MethodGet, "color", token, ""); status != http.StatusNotFound {
		t.Errorf("after the extension is deleted its value is answered %d", status)
	}
}

// TestEventsAreBounded: a bounded number of events is remembered, the newest of them.
func TestEventsAreBounded(t *testing.T) {
	w := newWorld(t)
	id := func(i int) string {
		return "s " + string(rune('a'+i/26/26)) + string(rune('a'+i/26%26)) + string(rune('a'+i%26))
	}
	for i := range maxEvents + 20 {
		if fresh, err := w.store.remember(id(i)); err != nil || !fresh {
			t.Fatalf("event %d: %v, %v", i, fresh, err)
		}
	}
	if fresh, err := w.store.remember(id(maxEvents + 19)); err != nil || fresh {
		t.Errorf("the newest was forgotten: %v", err)
	}
	if fresh, err := w.store.remember(id(0)); err != nil || !fresh {
		t.Errorf("the oldest is still remembered: %v", err)
	}
}
