package main

import (
	"bufio"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/test/platform"
)

const browserPassword = "correct horse battery staple"

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// surf opens a page as ann, signs in, and allows or denies the login.
func surf(t *testing.T, page, decision string) (shown string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	read := func(res *http.Response, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	at, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	shown = read(browser.Get(page))
	for _, step := range []struct {
		path string
		form url.Values
	}{
		{"/sign-in", url.Values{"email": {"ann@example.com"}, "password": {browserPassword}}},
		{"/oauth/authorize", url.Values{"decision": {decision}}},
	} {
		first, _, _ := strings.Cut(shown, "</form>")
		for _, m := range hiddenField.FindAllStringSubmatch(first, -1) {
			step.form.Set(m[1], html.UnescapeString(m[2]))
		}
		shown = read(browser.PostForm(at.Scheme+"://"+at.Host+step.path, step.form))
	}
	return shown
}

// login runs `hangar login` until it opens a page. It returns the page's URL and a function that waits for the command.
func (l *laptop) login(t *testing.T, args ...string) (page string, end func() (int, string)) {
	t.Helper()
	errors, stderr := io.Pipe()
	var out strings.Builder
	c := cli.New(cli.Streams{Stdin: strings.NewReader(""), Stdout: &out, Stderr: stderr}, func(name string) string {
		return map[string]string{"HOME": l.home, "HANGAR_CONFIG": "/dev/null"}[name]
	})
	c.Keyring = l.keys
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), c, args)
		stderr.Close()
	}()
	lines := bufio.NewScanner(errors)
	for lines.Scan() {
		if page = strings.TrimSpace(lines.Text()); strings.HasPrefix(page, "http") {
			break
		}
	}
	return page, func() (int, string) {
		said := ""
		for lines.Scan() {
			said += lines.Text() + "\n"
		}
		return <-code, out.String() + said
	}
}

// TestLoginByBrowser: the token belongs to the sign-in, and logout revokes it.
func TestLoginByBrowser(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{})
	admin := p.Client()
	made, err := admin.InviteUser(t.Context(), hangar.UserInvite{Email: "ann@example.com", Org: hangar.OrgPersonal})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(made.Code), Password: hangar.NewSensitive(browserPassword)}); err != nil {
		t.Fatal(err)
	}
	l := &laptop{t, t.TempDir(), &fakeKeyring{tokens: map[string]string{}}}
	page, end := l.login(t, "login", p.URL(), "--name", "lab", "--no-browser")
	u, err := url.Parse(page)
	if err != nil || u.Query().Get("client_id") != "hangar-cli" || u.Query().Get("code_challenge_method") != "S256" {
		t.Fatalf("asks to open %q: %v", page, err)
	}
	// Other users of this computer can neither end the login nor give it a code of their own.
	for _, bad := range []string{"", "?state=x&code=y", "?code=y", "?error=access_denied", "x"} {
		res, err := http.Get(u.Query().Get("redirect_uri") + bad)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode < http.StatusBadRequest {
			t.Errorf("%q is answered %d", bad, res.StatusCode)
		}
	}
	if shown := surf(t, page, "allow"); !strings.Contains(shown, "You are signed in.") {
		t.Errorf("the browser shows %s", shown)
	}
	code, said := end()
	if code != cli.ExitOK || !strings.Contains(said, "as ann@example.com") || !strings.Contains(said, "all that the user may do") {
		t.Fatalf("code %d\n%s", code, said)
	}
	token := strings.TrimPrefix(l.keys.tokens["lab"], p.URL()+" ")
	as := client.New(p.URL(), token)
	defer as.Close()
	if tokens, err := as.CurrentTokens(t.Context()); err != nil || len(tokens) != 1 || tokens[0].Kind != hangar.TokenLogin {
		t.Errorf("tokens %+v, %v", tokens, err)
	}
	if out := l.must("", "logout"); strings.Contains(out, "stays valid") {
		t.Errorf("logout says\n%s", out)
	}
	if _, err := as.CurrentUser(t.Context()); hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("the token after logout: %v", err)
	}

	page, end = l.login(t, "login", "--context", "lab", "--no-browser")
	if shown := surf(t, page, "deny"); !strings.Contains(shown, "You are not signed in.") {
		t.Errorf("denied, the browser shows %s", shown)
	}
	if code, said := end(); code != cli.ExitDenied || !strings.Contains(said, "the user does not allow it") {
		t.Errorf("denied: code %d\n%s", code, said)
	}
	for _, args := range [][]string{{"--browser", "--email", "a@example.com"}, {"--browser", "--no-browser"}, {"--no-browser", "--code", "x"}} {
		if code, out := l.run("", append([]string{"login", p.URL()}, args...)...); code == cli.ExitOK {
			t.Errorf("%v: code %d\n%s", args, code, out)
		}
	}
}

// TestLogoutWithoutThePlatform: the command forgets the token, and says that it stays valid.
func TestLogoutWithoutThePlatform(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{})
	l := &laptop{t, t.TempDir(), &fakeKeyring{tokens: map[string]string{}}}
	l.must(p.Token(), "login", p.URL(), "--name", "lab", "--token-stdin")
	if out := l.must("", "logout"); !strings.Contains(out, "does not come from signing in as a user, and stays valid") {
		t.Errorf("logout says\n%s", out)
	}
	l.must(p.Token(), "login", p.URL(), "--name", "lab", "--token-stdin")
	p.End()
	if out := l.must("", "logout"); !strings.Contains(out, "stays valid until it expires") || len(l.keys.tokens) != 0 {
		t.Errorf("logout says\n%s", out)
	}
}
