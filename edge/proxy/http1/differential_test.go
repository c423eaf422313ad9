package http1

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// seen is what a handler or a client sees of a message.
type seen struct {
	Line    string
	Header  http.Header
	Trailer http.Header
	Body    string
	Length  int64
	Coding  []string
	Close   bool
	Err     string
}

func seenRequest(r *http.Request) seen {
	b, err := io.ReadAll(r.Body)
	s := seen{
		Line:   fmt.Sprintf("%s %s %q %q %q %v %s %s", r.Method, r.RequestURI, r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.URL.ForceQuery, r.Host, r.Proto),
		Header: r.Header, Trailer: trailerOf(r.Trailer), Body: string(b), Length: r.ContentLength, Coding: r.TransferEncoding, Close: r.Close,
	}
	if err != nil {
		s.Err = err.Error()
	}
	return s
}

// trailerOf makes a nil and an empty trailer equal.
func trailerOf(h http.Header) http.Header {
	if len(h) == 0 {
		return nil
	}
	return h
}

// TestRequestsAreSeenAsNetHTTPSeesThem sends random valid requests to both servers.
func TestRequestsAreSeenAsNetHTTPSeesThem(t *testing.T) {
	got := make(chan seen, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got <- seenRequest(r) })
	ours := listen(t, quick(h))
	theirs := httptest.NewServer(h)
	defer theirs.Close()
	a, b := dial(t, ours), dial(t, theirs.Listener.Addr().String())
	ra, rb := bufio.NewReader(a), bufio.NewReader(b)
	rapid.Check(t, func(t *rapid.T) {
		request := validRequest(t)
		io.WriteString(a, request)
		x := <-got
		io.WriteString(b, request)
		y := <-got
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("%q\nis here\n%#v\nand there\n%#v", request, x, y)
		}
		for _, br := range []*bufio.Reader{ra, rb} {
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
	})
}

var (
	token  = rapid.StringMatching(`[a-zA-Z][a-zA-Z0-9!#$%&'*+.^_|~-]{0,12}`)
	value  = rapid.StringMatching(`([!-~]([ -~\t]{0,30}[!-~])?)?`)
	target = rapid.StringMatching(`/([a-zA-Z0-9$&+,/:;=@._~!'()*-]|%[0-9a-fA-F]{2}){0,30}(\?([a-zA-Z0-9$&+,/:;=@._~!'()*?|{}-]|%[0-9a-fA-F]{2}){0,20})?`)
	host   = rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,10}[a-z0-9])?(:[1-9][0-9]{1,3})?`)
	// reserved names have a meaning for the framing, and Pragma one for net/http.
	reserved = []string{"host", "content-length", "transfer-encoding", "trailer", "connection", "expect", "te", "upgrade", "pragma"}
)

func fields(t *rapid.T, label string) string {
	var b strings.Builder
	for range rapid.IntRange(0, 8).Draw(t, label) {
		name := token.Filter(func(s string) bool { return !slices.Contains(reserved, strings.ToLower(s)) }).Draw(t, "name")
		fmt.Fprintf(&b, "%s:%s%s%s\r\n", name, rapid.SampledFrom([]string{"", " ", "\t", "  "}).Draw(t, "space"), value.Draw(t, "value"), rapid.SampledFrom([]string{"", " "}).Draw(t, "space"))
	}
	return b.String()
}

// validRequest draws a request that keeps the connection.
func validRequest(t *rapid.T) string {
	method := rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "X-OTHER"}).Draw(t, "method")
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nhOsT: %s\r\n%s", method, target.Draw(t, "target"), host.Draw(t, "host"), fields(t, "fields"))
	switch rapid.IntRange(0, 2).Draw(t, "framing") {
	case 0:
		return head + "\r\n"
	case 1:
		body := rapid.String().Draw(t, "body")
		return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	}
	head += "Transfer-Encoding: chunked\r\n"
	trailer := ""
	if rapid.Bool().Draw(t, "trailer") {
		head += "Trailer: X-Sum, X-Never\r\n"
		trailer = "x-sum: 1\r\n" + "X-Sum: 2\r\n"
	}
	var b strings.Builder
	for _, chunk := range rapid.SliceOf(rapid.StringN(1, 40, -1)).Draw(t, "chunks") {
		fmt.Fprintf(&b, "%x%s\r\n%s\r\n", len(chunk), rapid.SampledFrom([]string{"", ";a", ";a=b"}).Draw(t, "extension"), chunk)
	}
	return head + "\r\n" + b.String() + "0\r\n" + trailer + "\r\n"
}

// TestAllPairsSeeTheSame sends random requests through all pairs of clients and servers, ours and
// net/http's, and through a proxy made of ours.
func TestAllPairsSeeTheSame(t *testing.T) {
	got := make(chan seen, 1)
	var answer func(w http.ResponseWriter)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- seenRequest(r)
		answer(w)
	})
	ours := listen(t, quick(h))
	theirs := httptest.NewServer(h)
	defer theirs.Close()
	addrs := map[string]string{
		"ours": ours, "theirs": theirs.Listener.Addr().String(),
		"proxied to ours":   listen(t, quick(newPool(t, ours).ServeHTTP)),
		"proxied to theirs": listen(t, quick(newPool(t, theirs.Listener.Addr().String()).ServeHTTP)),
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	conns := map[string]*Conn{}
	for name, addr := range addrs {
		conns[name] = NewConn(dial(t, addr))
	}
	rapid.Check(t, func(t *rapid.T) {
		method := rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT", "DELETE"}).Draw(t, "method")
		uri := target.Draw(t, "target")
		body := rapid.StringN(0, 6000, -1).Draw(t, "body")
		chunked, trailer := rapid.Bool().Draw(t, "chunked"), rapid.Bool().Draw(t, "trailer")
		header := http.Header{"User-Agent": {"x"}}
		for range rapid.IntRange(0, 5).Draw(t, "fields") {
			header.Add("X-"+rapid.StringMatching(`[A-Za-z]{1,5}`).Draw(t, "name"), value.Draw(t, "value"))
		}
		status := rapid.SampledFrom([]int{200, 201, 204, 304, 404, 500}).Draw(t, "status")
		parts := rapid.SliceOf(rapid.StringN(0, 3000, -1)).Draw(t, "parts")
		flush, declare := rapid.Bool().Draw(t, "flush"), rapid.Bool().Draw(t, "declare")
		answer = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "a/b")
			w.Header()["Date"] = nil
			if trailer {
				w.Header().Set("Trailer", "X-Sum")
			}
			if n := len(strings.Join(parts, "")); declare {
				w.Header().Set("Content-Length", fmt.Sprint(n))
			}
			w.WriteHeader(status)
			for _, p := range parts {
				io.WriteString(w, p)
				if flush {
					w.(http.Flusher).Flush()
				}
			}
			w.Header().Set("X-Sum", "1")
		}
		request := func(name string) *http.Request {
			r, err := http.NewRequest(method, "http://"+addrs[name]+uri, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "a.example"
			r.Header = header.Clone()
			if method == "POST" || method == "PUT" {
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				if chunked || body == "" {
					r.ContentLength = -1
					if trailer {
						r.Trailer = http.Header{"X-Sum": {"2"}}
					}
				}
			}
			return r
		}
		var first [2]any
		for _, name := range slices.Sorted(maps.Keys(addrs)) {
			for _, client := range []string{"ours", "theirs"} {
				var resp *http.Response
				var err error
				if r := request(name); client == "ours" {
					resp, err = conns[name].RoundTrip(context.Background(), r, RoundTripOptions{})
				} else {
					resp, err = tr.RoundTrip(r)
				}
				if err != nil {
					t.Fatalf("%s to %s: %v", client, name, err)
				}
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatalf("%s to %s: %v", client, name, err)
				}
				resp.Body.Close()
				delete(resp.Header, "Content-Length") // of what is small and not flushed it is known, or not
				delete(resp.Header, "Date")
				request := <-got
				delete(request.Header, "X-Forwarded-For")
				sees := [2]any{request, seen{Line: resp.Status, Header: resp.Header, Trailer: trailerOf(resp.Trailer), Body: string(b)}}
				if first[0] == nil {
					first = sees
				} else if !reflect.DeepEqual(sees, first) {
					t.Fatalf("%s to %s:\n%#v\ninstead of\n%#v", client, name, sees, first)
				}
			}
		}
	})
}

// TestTargetsAreWrittenAsTheyCame: a proxied target is the same, or escaped.
func TestTargetsAreWrittenAsTheyCame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := head{method: http.MethodGet, target: target.Draw(t, "target")}
		var u url.URL
		uri, err := h.parseTarget(&u)
		if err != nil || uri != h.target || u.RequestURI() != h.target {
			t.Fatalf("%q became %q and %q, %v", h.target, uri, u.RequestURI(), err)
		}
		b, _, err := appendRequest(nil, &http.Request{Method: http.MethodGet, URL: &u, Host: "a.example"})
		if want := "GET " + h.target + " HTTP/1.1\r\n"; err != nil || !bytes.HasPrefix(b, []byte(want)) {
			t.Fatalf("%q was written as %q, %v", h.target, b, err)
		}
	})
}

// TestCurl sends requests with curl to the server in several ways.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %d\n", r.Method, r.URL, len(b))
	}))
	proxied := listen(t, quick(newPool(t, addr).ServeHTTP))
	big := strings.Repeat("x", 2<<20)
	for _, to := range []string{addr, proxied} {
		for _, k := range []struct {
			args []string
			want string
		}{
			{[]string{"http://" + to + "/a"}, "GET /a 0\n"},
			{[]string{"-0", "http://" + to + "/a"}, "GET /a 0\n"},
			{[]string{"http://" + to + "/a", "http://" + to + "/b"}, "GET /a 0\nGET /b 0\n"},
			{[]string{"-d", "abc", "http://" + to + "/a"}, "POST /a 3\n"},
			{[]string{"-H", "Transfer-Encoding: chunked", "--data-binary", "@-", "http://" + to + "/a"}, "POST /a 2097152\n"},
			{[]string{"-H", "Expect: 100-continue", "-T", "-", "http://" + to + "/a"}, "PUT /a 2097152\n"},
			{[]string{"--request-target", "http://b.example/c?d", "http://" + to + "/a"}, "GET /c?d 0\n"},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			cmd := exec.CommandContext(ctx, curl, append([]string{"-sS", "--noproxy", "*"}, k.args...)...)
			if slices.Contains(k.args, "@-") || slices.Contains(k.args, "-") {
				cmd.Stdin = strings.NewReader(big)
			}
			out, err := cmd.CombinedOutput()
			cancel()
			if string(out) != k.want || err != nil {
				t.Errorf("curl %q: %q, %v", k.args, out, err)
			}
		}
	}
}
