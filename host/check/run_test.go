package check_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/check"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// address dials the same server for every address.
type address string

func (a address) Dial(ctx context.Context, _ hangar.MachineID, _ int) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", string(a))
}

// result runs a check until something is known of it.
func result(t *testing.T, to net.Addr, spec hangar.NamedCheck) hangar.MachineCheck {
	t.Helper()
	changed := make(chan hangar.MachineCheck, 1)
	c := check.New(check.Options{Dialer: address(to.String()), Now: time.Now, Changed: func(_ hangar.MachineID, c check.Change) {
		select {
		case changed <- c.After:
		default:
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	spec.Name, spec.Port, spec.Interval = "c", 8080, time.Minute
	if spec.Timeout == 0 {
		spec.Timeout = time.Minute
	}
	c.Watch(check.Target{Machine: "m", Addr: netip.MustParseAddr("fdaa::2"), Checks: []hangar.NamedCheck{spec}})
	select {
	case r := <-changed:
		return r
	case <-time.After(2 * time.Minute):
		t.Fatal("the check did not run")
		return hangar.MachineCheck{}
	}
}

func TestHTTP(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "all well\n") })
	mux.HandleFunc("/empty", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no database", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s %s %s %s", r.Method, r.Host, r.RequestURI, r.Header["X-A"], r.UserAgent())
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("é\x00\x1b", 1000)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 2000 {
			w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 100))
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	for name, test := range map[string]struct {
		spec   hangar.NamedCheck
		status hangar.CheckStatus
		output string // or its beginning, if it ends in …
	}{
		"passes":        {hangar.NamedCheck{Path: "/ok"}, hangar.CheckPassing, "all well"},
		"without body":  {hangar.NamedCheck{Path: "/empty"}, hangar.CheckPassing, "204 No Content"},
		"redirect":      {hangar.NamedCheck{Path: "/moved"}, hangar.CheckCritical, "302 Found…"},
		"not found":     {hangar.NamedCheck{Path: "/none"}, hangar.CheckCritical, "404 Not Found: 404 page not found"},
		"server error":  {hangar.NamedCheck{Path: "/broken"}, hangar.CheckCritical, "503 Service Unavailable: no database"},
		"request":       {hangar.NamedCheck{Path: "/echo?a=%20b", Method: "PUT"}, hangar.CheckPassing, "PUT [fdaa::2]:8080 /echo?a=%20b [] hangar-health-check"},
		"slow":          {hangar.NamedCheck{Path: "/slow", Timeout: 50 * time.Millisecond}, hangar.CheckCritical, "no answer from port 8080 within 50ms"},
		"endless":       {hangar.NamedCheck{Path: "/endless"}, hangar.CheckPassing, "ééé…"},
		"large headers": {hangar.NamedCheck{Path: "/headers"}, hangar.CheckCritical, "net/http: HTTP/1.x transport connection broken…"},
		"https to http": {hangar.NamedCheck{Path: "/ok", TLS: true}, hangar.CheckCritical, "tls: first record does not look like a TLS handshake"},
		"own headers": {hangar.NamedCheck{Path: "/echo", Headers: []hangar.Header{
			{Name: "x-a", Values: []string{"1", "2"}}, {Name: "Host", Values: []string{"shop.test"}}, {Name: "User-Agent", Values: []string{"me"}},
		}}, hangar.CheckPassing, "GET shop.test /echo [1 2] me"},
	} {
		t.Run(name, func(t *testing.T) {
			test.spec.Type = "http"
			if test.spec.Method == "" {
				test.spec.Method = http.MethodGet
			}
			got := result(t, server.Listener.Addr(), test.spec)
			begins, cut := strings.CutSuffix(test.output, "…")
			if as := got.Output == begins || cut && strings.HasPrefix(got.Output, begins); !as || got.Status != test.status {
				t.Errorf("got %s %q, want %s %q", got.Status, got.Output, test.status, test.output)
			}
			if len(got.Output) > hangar.MaxCheckOutput || !utf8.ValidString(got.Output) || strings.ContainsAny(got.Output, "\x00\x1b") {
				t.Errorf("output %q", got.Output)
			}
		})
	}
}

func TestHTTPS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "for "+r.TLS.ServerName)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	for name, test := range map[string]struct {
		spec   hangar.NamedCheck
		status hangar.CheckStatus
		output string
	}{
		"any certificate":     {hangar.NamedCheck{SkipVerify: true}, hangar.CheckPassing, "for"},
		"its name is sent":    {hangar.NamedCheck{SkipVerify: true, ServerName: "example.com"}, hangar.CheckPassing, "for example.com"},
		"a certificate of no": {hangar.NamedCheck{ServerName: "example.com"}, hangar.CheckCritical, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			test.spec.Type, test.spec.TLS, test.spec.Method, test.spec.Path = "http", true, http.MethodGet, "/"
			if got := result(t, server.Listener.Addr(), test.spec); got.Status != test.status || !strings.Contains(got.Output, test.output) {
				t.Errorf("got %s %q", got.Status, got.Output)
			}
		})
	}
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if got := result(t, listener.Addr(), hangar.NamedCheck{Type: "tcp"}); got.Status != hangar.CheckPassing || got.Output != "Success" {
		t.Errorf("a port that listens: %+v", got)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	free, err := freeport.Port(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closed := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: free}
	if got := result(t, closed, hangar.NamedCheck{Type: "tcp"}); got.Status != hangar.CheckCritical || !strings.HasSuffix(got.Output, "connect: connection refused") {
		t.Errorf("a port that does not: %+v", got)
	}
}

// TestNoise answers with something that is not HTTP.
func TestNoise(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "220 \xff\xfe mail.test ESMTP\r\n")
			_ = conn.Close()
		}
	}()
	got := result(t, listener.Addr(), hangar.NamedCheck{Type: "http", Method: http.MethodGet, Path: "/"})
	if got.Status != hangar.CheckCritical || !utf8.ValidString(got.Output) {
		t.Errorf("got %+v", got)
	}
	_ = listener.Close()
	<-done
}
