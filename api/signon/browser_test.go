package signon_test

import (
	"context"
	"crypto/sha256"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/oauth2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/platform"
)

const (
	password    = "correct horse battery staple"
	redirectURI = "https://provider.example.com/callback?keep=1"
)

// clients are third parties in memory.
type clients map[hangar.OAuthClientID]*hangar.OAuthClient

func (c clients) OAuthClient(_ context.Context, id hangar.OAuthClientID) (*hangar.OAuthClient, error) {
	if found, ok := c[id]; ok {
		return found, nil
	}
	return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonInvalidClient, "no such client")
}

func digestsOf(secrets ...string) (list [][]byte) {
	for _, s := range secrets {
		sum := sha256.Sum256([]byte(s))
		list = append(list, sum[:])
	}
	return list
}

func newClients() clients {
	return clients{
		"logs": {
			ID: "logs", Name: "logs", DisplayName: "Logs & <More>", Secrets: digestsOf("logs old:secret", "logs secret"),
			RedirectURIs: []string{redirectURI, "https://provider.example.com/other"},
		},
		"errors": {ID: "errors", Name: "errors", Secrets: digestsOf("errors secret"), RedirectURIs: []string{"https://errors.example.com/callback"}},
	}
}

// world is a platform with users and third parties.
type world struct {
	*platform.Platform
	clients    clients
	admin      *client.Client
	acme, team hangar.OrgID
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return startWorld(t, platform.Options{})
}

func startWorld(t *testing.T, o platform.Options) *world {
	t.Helper()
	w := &world{clients: newClients()}
	o.OAuthClients = w.clients
	w.Platform = platform.Start(t, o)
	w.admin = w.Client()
	for slug, id := range map[hangar.OrgSlug]*hangar.OrgID{"acme": &w.acme, "team": &w.team} {
		org, err := w.admin.CreateOrg(t.Context(), hangar.OrgCreate{Slug: slug, Name: string(slug)})
		if err != nil {
			t.Fatal(err)
		}
		*id = org.ID
	}
	return w
}

// user makes NAME@example.com, a member of acme and of others.
func (w *world) user(t *testing.T, name string, orgs ...hangar.OrgSlug) *hangar.User {
	t.Helper()
	made, err := w.admin.InviteUser(t.Context(), hangar.UserInvite{Email: name + "@example.com", Org: "acme", Role: hangar.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	user, err := w.admin.UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(made.Code), Name: name, Password: hangar.NewSensitive(password)})
	if err != nil {
		t.Fatal(err)
	}
	for _, org := range orgs {
		if _, err := w.admin.SetMember(t.Context(), org, hangar.UserRef(user.ID), hangar.RoleAdmin); err != nil {
			t.Fatal(err)
		}
	}
	return user
}

// browser keeps cookies, follows redirects within the platform, and stops at those that leave it.
type browser struct {
	*world
	http *http.Client
}

// page is what a browser shows, or the address that it was sent to.
type page struct {
	status int
	header http.Header
	body   string
	away   *url.URL // nil: it shows a page of the platform
}

func (w *world) browser(t *testing.T) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{w, &http.Client{Jar: jar, Transport: transport, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Host != w.Addr() {
			return http.ErrUseLastResponse
		}
		return nil
	}}}
}

func (b *browser) do(t *testing.T, r *http.Request) page {
	t.Helper()
	res, err := b.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	p := page{status: res.StatusCode, header: res.Header, body: string(body)}
	if to := res.Header.Get("Location"); to != "" {
		if p.away, err = url.Parse(to); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (b *browser) get(t *testing.T, path string) page {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.at(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b.do(t, r)
}

func (b *browser) at(path string) string {
	if strings.HasPrefix(path, "/") {
		return b.URL() + path
	}
	return path
}

func (b *browser) post(t *testing.T, path string, form url.Values, headers ...string) page {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.at(path), strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return b.do(t, r)
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// form are the hidden fields of the first form of a page.
func (p page) form() url.Values {
	first, _, _ := strings.Cut(p.body, "</form>")
	f := url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(first, -1) {
		f.Set(m[1], html.UnescapeString(m[2]))
	}
	return f
}

// signIn submits the form of a page and returns the next page.
func (b *browser) signIn(t *testing.T, p page, name string) page {
	t.Helper()
	f := p.form()
	f.Set("email", name+"@example.com")
	f.Set("password", password)
	return b.post(t, "/sign-in", f)
}

// allow grants a client access to an organization.
func (b *browser) allow(t *testing.T, p page, org hangar.OrgID) page {
	t.Helper()
	f := p.form()
	f.Set("organization", string(org))
	f.Set("decision", "allow")
	return b.post(t, "/oauth/authorize", f)
}

// provider is a third party that uses the client of golang.org/x/oauth2.
func (w *world) provider() *oauth2.Config {
	return &oauth2.Config{
		ClientID: "logs", ClientSecret: "logs secret", RedirectURL: redirectURI, Scopes: []string{"read"},
		Endpoint: oauth2.Endpoint{AuthURL: w.URL() + "/oauth/authorize", TokenURL: w.URL() + "/oauth/token", AuthStyle: oauth2.AuthStyleInParams},
	}
}
