package wire

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/platform"
)

// TestHead: every GET has a HEAD with the same status and headers, and no body.
func TestHead(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for _, path := range []string{"/v1/apps", "/v1/apps/nothing", "/v1/nothing", "/healthz", "/v1/openapi.json", "/v1/platform/regions", "/v1/images"} {
		answers := map[string]*http.Response{}
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r, err := http.NewRequestWithContext(t.Context(), method, p.URL()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+p.Token())
			res, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil || (len(body) == 0) != (method == http.MethodHead) {
				t.Errorf("%s %s has a body of %d bytes, %v", method, path, len(body), err)
			}
			_ = res.Body.Close()
			answers[method] = res
		}
		get, head := answers[http.MethodGet], answers[http.MethodHead]
		if get.StatusCode != head.StatusCode || get.ContentLength != head.ContentLength || get.Header.Get("Content-Type") != head.Header.Get("Content-Type") {
			t.Errorf("GET %s is answered %d %v, HEAD %d %v", path, get.StatusCode, get.Header, head.StatusCode, head.Header)
		}
	}
}

// TestOddTargets asks, past every client, for what is no path.
func TestOddTargets(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{})
	for line, want := range map[string]int{
		"GET * HTTP/1.1":                      http.StatusNotFound,
		"CONNECT example.com:443 HTTP/1.1":    http.StatusNotFound,
		"GET http://example.com/a HTTP/1.1":   http.StatusNotFound,
		"GET /v1/apps/%2e%2e HTTP/1.1":        http.StatusNotFound,
		"GET /v1/apps/./web HTTP/1.1":         http.StatusNotFound,
		"GET /v1/%61pps HTTP/1.1":             http.StatusOK,
		"GET /v1/apps/a%2Fb HTTP/1.1":         http.StatusNotFound,
		"GET //v1/apps HTTP/1.1":              http.StatusNotFound,
		"DELETE /v1/apps/web/../web HTTP/1.1": http.StatusNotFound,
		"PUT / HTTP/1.1":                      http.StatusMethodNotAllowed,
		"OPTIONS /v1/apps HTTP/1.0":           http.StatusMethodNotAllowed,
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.WriteString(conn, line+"\r\nHost: x\r\nAuthorization: Bearer "+p.Token()+"\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want || res.Header.Get("Content-Type") != "application/json" || res.Header.Get(hangar.HeaderRequestID.Original) == "" {
			t.Errorf("%s is answered %d %v %s, want %d", line, res.StatusCode, res.Header, body, want)
		}
		_ = conn.Close()
	}
}
