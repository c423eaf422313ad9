package statics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rules = []hangar.Static{
	{GuestPath: "/app/public", URLPrefix: "/public"},
	{GuestPath: "/app/deep", URLPrefix: "/public/deep/"},
	{GuestPath: "/app/media", URLPrefix: "/media"},
}

func TestMatch(t *testing.T) {
	for sent, want := range map[string]string{
		"/public/a.css":             "/app/public a.css",
		"/public/":                  "/app/public ",
		"/public":                   "/app/public ",
		"/public/deep/x/y.js":       "/app/deep x/y.js",
		"/public/deep":              "/app/deep ",
		"/public/deeper/x":          "/app/public deeper/x",
		"/media/a%20b.png":          "/app/media a b.png",
		"/media/%C3%A4.png":         "/app/media ä.png",
		"/media/..hidden":           "/app/media ..hidden",
		"/publications/x":           "",
		"/":                         "",
		"":                          "",
		"media/x":                   "",
		"/media/../etc/passwd":      "",
		"/media/%2e%2e/etc/passwd":  "",
		"/media/.%2E/x":             "",
		"/media/./x":                "",
		"/media/..":                 "",
		"/media/a%2fb":              "",
		"/media/..%2F..%2Fetc":      "",
		"/media/..%5c..%5Cetc":      "",
		"/media/..\\etc":            "",
		"/media/%00":                "",
		"/media/a\x00b":             "",
		"/media//etc/passwd":        "",
		"/media/%zz":                "",
		"/media/%252e%252e/x":       "/app/media %2e%2e/x",
		"/public/deep/%2e%2e%2f..":  "",
		"http://web.example/media/": "",
	} {
		rule, rest, ok := Match(rules, sent)
		got := ""
		if ok {
			got = rule.GuestPath + " " + rest
		}
		if got != want {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
	}
	if _, rest, ok := Match([]hangar.Static{{GuestPath: "/", URLPrefix: "/"}}, "/a/b"); !ok || rest != "a/b" {
		t.Errorf("everything: %q, %v", rest, ok)
	}
	if _, _, ok := Match(nil, "/a"); ok {
		t.Error("a match without rules")
	}
}

func FuzzMatch(f *testing.F) {
	for _, seed := range []string{"/public/a", "/media/%2e%2e/x", "/media//x", "/media/%00", "/public/deep/%252e/..%2f", "/media/\\..\\x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		rule, rest, ok := Match(rules, sent)
		if !ok {
			return
		}
		name := path.Join(rule.GuestPath, rest)
		if name != rule.GuestPath && !strings.HasPrefix(name, rule.GuestPath+"/") || strings.Contains(rest, "\x00") || path.IsAbs(rest) {
			t.Fatalf("%q leads to %q", sent, name)
		}
	})
}

// file is a file of a Machine, as the host returns it.
type file struct {
	*os.File
	info os.FileInfo
}

func (f file) Size() int64        { return f.info.Size() }
func (f file) ModTime() time.Time { return f.info.ModTime() }

var written = time.Date(2026, 8, 14, 9, 57, 35, 5, time.UTC)

// machine is a Machine with some files.
func machine(t *testing.T, files map[string]string) Source {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, written, written); err != nil {
			t.Fatal(err)
		}
	}
	return func(_ context.Context, name string) (hangar.MachineFile, error) {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			return nil, hangar.Errorf(hangar.CodeNotFound, "", "no such file")
		}
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, hangar.Errorf(hangar.CodeNotFound, "", "no such file")
		}
		return file{f, info}, nil
	}
}

// serve requests a path; headers come in pairs.
func serve(t *testing.T, files Source, method, sent string, headers ...string) (*http.Response, string, error) {
	t.Helper()
	r := httptest.NewRequest(method, sent, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rule, rest, ok := Match(rules, r.URL.EscapedPath())
	if !ok {
		return nil, "", ErrNoFile
	}
	w := httptest.NewRecorder()
	err := Serve(w, r, files, rule, rest)
	res := w.Result()
	body, _ := io.ReadAll(res.Body)
	if err != nil && (len(res.Header) != 0 || len(body) != 0) {
		t.Errorf("%s %s: %v, and yet it answered %v %q", method, sent, err, res.Header, body)
	}
	return res, string(body), err
}

func TestServe(t *testing.T) {
	files := machine(t, map[string]string{
		"app/public/a.css": "body { color: red }", "app/public/A.JS": "x", "app/public/noext": "<html>", "app/public/dir/b.txt": "b",
		"app/public/data.bin": "\x00\x01", "app/media/a b.svg": "<svg/>", "app/public/index.html": "home",
	})
	for _, test := range []struct{ sent, body, kind string }{
		{"/public/a.css", "body { color: red }", "text/css; charset=utf-8"},
		{"/public/A.JS", "x", "text/javascript; charset=utf-8"},
		{"/public/noext", "<html>", "text/html; charset=utf-8"},
		{"/public/data.bin", "\x00\x01", "application/octet-stream"},
		{"/public/dir/b.txt", "b", "text/plain; charset=utf-8"},
		{"/media/a%20b.svg", "<svg/>", "image/svg+xml"},
		{"/public/index.html", "home", "text/html; charset=utf-8"},
	} {
		res, body, err := serve(t, files, http.MethodGet, test.sent)
		if err != nil || res.StatusCode != http.StatusOK || body != test.body || res.Header.Get("Content-Type") != test.kind ||
			res.Header.Get("Last-Modified") != "Fri, 14 Aug 2026 09:57:35 GMT" || res.Header.Get("Etag") == "" || res.Header.Get("Accept-Ranges") != "bytes" {
			t.Errorf("%s: %v, %q, %v", test.sent, err, body, res)
		}
	}
	for _, sent := range []string{"/public/", "/public", "/public/dir", "/public/dir/", "/public/none.css", "/other", "/public/a.css/"} {
		if _, _, err := serve(t, files, http.MethodGet, sent); !errors.Is(err, ErrNoFile) {
			t.Errorf("%s: %v", sent, err)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodOptions, http.MethodDelete, "PURGE"} {
		if _, _, err := serve(t, files, method, "/public/a.css"); !errors.Is(err, ErrNoFile) {
			t.Errorf("%s: %v", method, err)
		}
	}
	away := func(context.Context, string) (hangar.MachineFile, error) {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "away")
	}
	var e *hangar.EdgeError
	if _, _, err := serve(t, away, http.MethodGet, "/public/a.css"); !errors.As(err, &e) || e.Code != hangar.EdgeStatics || e.Status != http.StatusBadGateway {
		t.Errorf("a machine that is away: %v", err)
	}
}

func TestServeConditionsAndRanges(t *testing.T) {
	files := machine(t, map[string]string{"app/public/a.txt": "0123456789"})
	res, _, err := serve(t, files, http.MethodGet, "/public/a.txt")
	if err != nil {
		t.Fatal(err)
	}
	tag, date := res.Header.Get("Etag"), res.Header.Get("Last-Modified")
	for _, test := range []struct {
		method  string
		headers []string
		status  int
		body    string
	}{
		{http.MethodHead, nil, 200, ""},
		{http.MethodGet, []string{"Range", "bytes=2-4"}, 206, "234"},
		{http.MethodGet, []string{"Range", "bytes=-3"}, 206, "789"},
		{http.MethodGet, []string{"Range", "bytes=20-"}, 416, "invalid range: failed to overlap\n"},
		{http.MethodGet, []string{"Range", "bytes=2-4", "If-Range", tag}, 206, "234"},
		{http.MethodGet, []string{"Range", "bytes=2-4", "If-Range", `"other"`}, 200, "0123456789"},
		{http.MethodGet, []string{"If-None-Match", tag}, 304, ""},
		{http.MethodGet, []string{"If-None-Match", "W/" + tag}, 304, ""},
		{http.MethodGet, []string{"If-None-Match", `"other"`}, 200, "0123456789"},
		{http.MethodGet, []string{"If-Modified-Since", date}, 304, ""},
		{http.MethodGet, []string{"If-Match", `"other"`}, 412, ""},
		{http.MethodGet, []string{"If-Unmodified-Since", "Fri, 14 Aug 2020 09:57:35 GMT"}, 412, ""},
	} {
		res, body, err := serve(t, files, test.method, "/public/a.txt", test.headers...)
		if err != nil || res.StatusCode != test.status || body != test.body {
			t.Errorf("%s %v: %v, %d, %q", test.method, test.headers, err, res.StatusCode, body)
		}
		if test.method == http.MethodHead && res.Header.Get("Content-Length") != "10" {
			t.Errorf("HEAD: %v", res.Header)
		}
	}
}

// TestManyRanges: so many that each byte would be fetched for itself are ignored.
func TestManyRanges(t *testing.T) {
	text := strings.Repeat("0123456789", 10)
	files := machine(t, map[string]string{"app/public/a.txt": text})
	for n, status := range map[int]int{maxRanges: http.StatusPartialContent, maxRanges + 1: http.StatusOK} {
		res, body, err := serve(t, files, http.MethodGet, "/public/a.txt", "Range", "bytes=2-2"+strings.Repeat(",4-4", n-1))
		if err != nil || res.StatusCode != status || (body == text) != (status == http.StatusOK) {
			t.Errorf("%d ranges: %d, %q, %v", n, res.StatusCode, body, err)
		}
	}
}

// store is a bucket service that records its requests.
type store struct {
	*httptest.Server
	asked []*http.Request
}

func newStore(t *testing.T, objects map[string]string) *store {
	t.Helper()
	s := &store{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked = append(s.asked, r)
		text, ok := objects[r.Host+r.URL.EscapedPath()]
		if !ok {
			text, ok = objects[r.URL.EscapedPath()]
		}
		switch {
		case r.URL.Path == "/site/forbidden":
			http.Error(w, "<AccessDenied/>", http.StatusForbidden)
		case r.URL.Path == "/site/elsewhere":
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect)
		case r.URL.Path == "/site/fault":
			http.Error(w, "<InternalError/>", http.StatusInternalServerError)
		case !ok:
			http.Error(w, "<NoSuchKey/>", http.StatusNotFound)
		default:
			w.Header().Set("Set-Cookie", "store=1")
			w.Header().Set("X-Amz-Request-Id", "1")
			w.Header().Set("Content-Type", "binary/octet-stream")
			w.Header().Set("Etag", `"tag"`)
			http.ServeContent(w, r, "", written, strings.NewReader(text))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *store) buckets(t *testing.T, virtualHost bool) *Buckets {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuckets(BucketOptions{Endpoint: u, VirtualHost: virtualHost})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// fromBucket requests the part after a prefix; headers come in pairs.
func fromBucket(t *testing.T, b *Buckets, rule hangar.Static, method, rest string, headers ...string) (*http.Response, string, error) {
	t.Helper()
	r := httptest.NewRequest(method, "/", http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	err := b.Serve(w, r, rule, rest)
	res := w.Result()
	body, _ := io.ReadAll(res.Body)
	if err != nil && (len(res.Header) != 0 || len(body) != 0) {
		t.Errorf("%s %s: %v, and yet it answered %v %q", method, rest, err, res.Header, body)
	}
	return res, string(body), err
}

func TestBucket(t *testing.T) {
	s := newStore(t, map[string]string{
		"/site/www/a.css": "css", "/site/www/index.html": "home", "/site/www/docs/index.html": "docs", "/site/www/a%20b%2Bc&d.txt": "odd",
		"/site/top.txt": "top",
	})
	b := s.buckets(t, false)
	rule := hangar.Static{GuestPath: "/www/", URLPrefix: "/", TigrisBucket: "site", IndexDocument: "index.html"}
	for rest, want := range map[string]string{
		"a.css": "css", "": "home", "docs/": "docs", "docs": "docs", "a b+c&d.txt": "odd",
	} {
		res, body, err := fromBucket(t, b, rule, http.MethodGet, rest)
		if err != nil || res.StatusCode != http.StatusOK || body != want {
			t.Errorf("%q: %v, %q", rest, err, body)
			continue
		}
		if h := res.Header; h.Get("Set-Cookie") != "" || h.Get("X-Amz-Request-Id") != "" || h.Get("Etag") != `"tag"` || strings.Contains(h.Get("Content-Type"), "octet") {
			t.Errorf("%q: headers %v", rest, h)
		}
	}
	if _, body, err := fromBucket(t, b, hangar.Static{GuestPath: "/", TigrisBucket: "site"}, http.MethodGet, "top.txt"); err != nil || body != "top" {
		t.Errorf("without a folder: %q, %v", body, err)
	}
	for _, rest := range []string{"none", "none/"} {
		if _, _, err := fromBucket(t, b, rule, http.MethodGet, rest); !errors.Is(err, ErrNoFile) {
			t.Errorf("%q: %v", rest, err)
		}
	}
	plain := hangar.Static{GuestPath: "/", TigrisBucket: "site"}
	if _, _, err := fromBucket(t, b, plain, http.MethodGet, "www/"); !errors.Is(err, ErrNoFile) {
		t.Errorf("a folder without an index: %v", err)
	}
	if _, _, err := fromBucket(t, b, plain, http.MethodGet, "forbidden"); !errors.Is(err, ErrNoFile) {
		t.Errorf("forbidden: %v", err)
	}
	if _, _, err := fromBucket(t, b, rule, http.MethodPost, "a.css"); !errors.Is(err, ErrNoFile) {
		t.Errorf("POST: %v", err)
	}
	for _, rest := range []string{"elsewhere", "fault"} {
		var e *hangar.EdgeError
		if _, _, err := fromBucket(t, b, plain, http.MethodGet, rest); !errors.As(err, &e) || e.Code != hangar.EdgeStatics {
			t.Errorf("%s: %v", rest, err)
		}
	}
}

func TestBucketConditionsAndRanges(t *testing.T) {
	s := newStore(t, map[string]string{"/site/a.txt": "0123456789"})
	b, rule := s.buckets(t, false), hangar.Static{GuestPath: "/", TigrisBucket: "site"}
	for _, test := range []struct {
		method  string
		headers []string
		status  int
		body    string
	}{
		{http.MethodHead, nil, 200, ""},
		{http.MethodGet, []string{"Range", "bytes=2-4"}, 206, "234"},
		{http.MethodGet, []string{"Range", "bytes=20-"}, 416, ""},
		{http.MethodGet, []string{"If-None-Match", `"tag"`}, 304, ""},
		{http.MethodGet, []string{"If-Match", `"other"`}, 412, ""},
	} {
		test.headers = append(test.headers, "Cookie", "secret", "Authorization", "secret", "X-Forwarded-For", "192.0.2.1")
		res, body, err := fromBucket(t, b, rule, test.method, "a.txt", test.headers...)
		if err != nil || res.StatusCode != test.status || body != test.body {
			t.Errorf("%s %v: %v, %d, %q", test.method, test.headers, err, res.StatusCode, body)
		}
		if test.method == http.MethodHead && res.Header.Get("Content-Length") != "10" {
			t.Errorf("HEAD: %v", res.Header)
		}
	}
	for _, r := range s.asked {
		if r.Header.Get("Cookie") != "" || r.Header.Get("Authorization") != "" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("the store receives %v", r.Header)
		}
	}
}

func TestBucketNames(t *testing.T) {
	s := newStore(t, nil)
	b := s.buckets(t, false)
	for _, name := range []string{"", "ab", "..", "a/b", "site/../other", "Site", "site?x", "a..b", "-abc", "abc-", "a_b", strings.Repeat("a", 64), "site#", "169.254.169.254/x"} {
		var e *hangar.EdgeError
		if _, _, err := fromBucket(t, b, hangar.Static{GuestPath: "/", TigrisBucket: name}, http.MethodGet, "x"); !errors.As(err, &e) || e.Code != hangar.EdgeStatics {
			t.Errorf("%q: %v", name, err)
		}
	}
	if len(s.asked) != 0 {
		t.Errorf("the store was asked %d times", len(s.asked))
	}
}

func TestBucketByVirtualHost(t *testing.T) {
	s := newStore(t, nil)
	u, err := url.Parse("http://s3.example:1234/base/")
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuckets(BucketOptions{Endpoint: u, VirtualHost: true, Transport: toServer(s.URL)})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := fromBucket(t, b, hangar.Static{GuestPath: "/www", TigrisBucket: "my.site"}, http.MethodGet, "a/b"); !errors.Is(err, ErrNoFile) {
		t.Fatal(err)
	}
	if r := s.asked[0]; r.Host != "my.site.s3.example:1234" || r.URL.Path != "/base/www/a/b" {
		t.Errorf("asked %s for %s", r.Host, r.URL)
	}
}

// toServer sends every request to one server.
type toServer string

func (s toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	u, err := url.Parse(string(s))
	if err != nil {
		return nil, err
	}
	r.Host, r.URL.Host = r.URL.Host, u.Host
	res, err := http.DefaultTransport.RoundTrip(r)
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	return res, err
}

func TestBucketThatDoesNotAnswer(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer s.Close()
	defer close(release)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuckets(BucketOptions{Endpoint: u, Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var e *hangar.EdgeError
	if _, _, err := fromBucket(t, b, hangar.Static{GuestPath: "/", TigrisBucket: "site"}, http.MethodGet, "x"); !errors.As(err, &e) || e.Code != hangar.EdgeStatics {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"ftp://x", "http://", "http://user@x", "http://x?y", "http://x#y", "x"} {
		u, err := url.Parse(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewBuckets(BucketOptions{Endpoint: u}); err == nil {
			t.Errorf("%s is an endpoint", bad)
		}
	}
}
