package signon_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	"golang.org/x/oauth2"
)

// chromium is a real browser without a window, with the output of its console.
type chromium struct {
	context.Context //nolint:containedctx // chromedp keeps the browser in it
	t               *testing.T

	mu      sync.Mutex
	console []string
}

// newChromium starts a browser, which ends with the test.
func newChromium(t *testing.T) *chromium {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium: no real browser has tried the pages and their policy (apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(800, 700),
		chromedp.Flag("no-proxy-server", true))
	allocated, end := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...) // it ends in the cleanup
	t.Cleanup(end)
	bounded, stop := context.WithTimeout(allocated, 2*time.Minute)
	t.Cleanup(stop)
	c := &chromium{t: t}
	c.Context, _ = chromedp.NewContext(bounded)
	t.Cleanup(func() {
		if err := chromedp.Cancel(c.Context); err != nil {
			t.Error(err)
		}
	})
	chromedp.ListenTarget(c.Context, func(event any) {
		if entry, ok := event.(*cdplog.EventEntryAdded); ok && entry.Entry.Level == cdplog.LevelError {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.console = append(c.console, entry.Entry.Text+" "+entry.Entry.URL)
		}
	})
	// The first run starts the browser, which ends with the context of that run.
	if err := chromedp.Run(c.Context, cdplog.Enable()); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chromium) do(actions ...chromedp.Action) {
	c.t.Helper()
	bounded, stop := context.WithTimeout(c.Context, time.Minute)
	defer stop()
	if err := chromedp.Run(bounded, actions...); err != nil {
		var at, text string
		_ = chromedp.Run(c.Context, chromedp.Location(&at), chromedp.Text("body", &text))
		c.mu.Lock()
		defer c.mu.Unlock()
		c.t.Fatalf("%v, at %s:\n%s\n%q", err, at, text, c.console)
	}
}

// see stores a picture of the page in the directory that HANGAR_SCREENSHOTS names, if any.
func (c *chromium) see(name string) {
	c.t.Helper()
	dir := os.Getenv("HANGAR_SCREENSHOTS")
	if dir == "" {
		return
	}
	var picture []byte
	c.do(chromedp.CaptureScreenshot(&picture))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// quiet fails the test if the browser has refused something, for example because of a page's policy.
func (c *chromium) quiet() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.console {
		if !strings.Contains(text, "/favicon.ico") {
			c.t.Errorf("the browser says: %s", text)
		}
	}
}

// thirdParty is the page of a provider to which a browser returns.
func thirdParty(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!DOCTYPE html><title>Logs</title><h1 id=landed>Welcome</h1><p id=error>"+r.FormValue("error")+"</p>")
	}))
	t.Cleanup(s.Close)
	return s
}

// TestChromium: a real browser signs in, consents, lands at the third party and signs out. No policy of
// a page prevents it.
func TestChromium(t *testing.T) {
	t.Parallel()
	c := newChromium(t)
	p := newOpenIDProvider(t, openIDUsers{"1": {Username: "bob", FirstName: "Bob", LastName: "Birch", Email: "bob@example.com", EmailVerified: true}})
	w := newOpenIDWorld(t, p)
	w.user(t, "ann", "team")
	w.user(t, "bob", "team")
	site := thirdParty(t)
	w.clients["logs"].RedirectURIs = append(w.clients["logs"].RedirectURIs, site.URL+"/callback")
	provider := w.provider()
	provider.RedirectURL = site.URL + "/callback"

	c.do(chromedp.Navigate(provider.AuthCodeURL("s", oauth2.S256ChallengeOption(oauth2.GenerateVerifier()))), chromedp.WaitVisible("#password"))
	c.see("1-sign-in")
	c.do(chromedp.SendKeys("#email", "ann@example.com"), chromedp.SendKeys("#password", "wrong"), chromedp.Submit("#password"), chromedp.WaitVisible("#alert"))
	c.see("2-wrong-password")
	c.mu.Lock()
	c.console = nil // the answer 403 is an error to the console
	c.mu.Unlock()
	c.do(chromedp.SendKeys("#password", password), chromedp.Submit("#password"), chromedp.WaitVisible(`button[value="allow"]`))
	c.see("3-consent")
	var at string
	c.do(chromedp.Click("#org-"+string(w.team)), chromedp.Click(`button[value="allow"]`), chromedp.WaitVisible("#landed"), chromedp.Location(&at))
	c.see("4-landed")
	if !strings.HasPrefix(at, site.URL+"/callback?") || !strings.Contains(at, "code=") {
		t.Errorf("landed at %s", at)
	}
	c.do(chromedp.Navigate(w.URL()+"/sign-in"), chromedp.WaitVisible("form.who"))
	c.see("5-signed-in")
	c.do(chromedp.Click("form.who button"), chromedp.WaitVisible("#password"))

	// With the OpenID Connect provider, from another site and back.
	c.do(chromedp.Navigate(provider.AuthCodeURL("s")), chromedp.Click("main a", chromedp.ByQuery), chromedp.WaitVisible("#username"))
	c.do(chromedp.SendKeys("#username", "bob"), chromedp.SendKeys(`input[name="password"]`, password), chromedp.Click(`button[type="submit"]`), chromedp.WaitVisible(`button[value="deny"]`))
	c.see("6-by-openid-connect")
	var refused string
	c.do(chromedp.Click(`button[value="deny"]`), chromedp.WaitVisible("#landed"), chromedp.Text("#error", &refused))
	if refused != "access_denied" {
		t.Errorf("denied, and the third party sees %q", refused)
	}
	bob, err := w.admin.User(t.Context(), "bob@example.com")
	if err != nil || bob.LastSignIn.IsZero() {
		t.Errorf("%+v, %v", bob, err)
	}
	c.quiet()
}
