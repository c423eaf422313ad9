package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/wsmux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, handler http.HandlerFunc) *client.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c := client.New(server.URL+"/", "token")
	t.Cleanup(c.Close)
	return c
}

// reset ends a connection like a killed server.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func TestOnlyReadsAreRepeated(t *testing.T) {
	var calls atomic.Int32
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			reset(w)
			return
		}
		_, _ = io.WriteString(w, `{"apps":[{"name":"web"}]}`)
	})
	apps, err := c.Apps(t.Context(), hangar.AppFilter{})
	if err != nil || len(apps) != 1 || calls.Load() != 3 {
		t.Errorf("a read gave %v, %v after %d calls", apps, err, calls.Load())
	}
	calls.Store(0)
	if _, err = c.CreateApp(t.Context(), hangar.AppCreate{Name: "web"}); hangar.CodeOf(err) != hangar.CodeUnavailable || calls.Load() != 1 {
		t.Errorf("a write gave %v after %d calls, want one", err, calls.Load())
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	c := client.New("127.0.0.1:1", "token")
	defer c.Close()
	_, err := c.App(t.Context(), "web")
	if hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	_, err = client.New("http://bad host\x7f", "").App(t.Context(), "web")
	if hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("a bad address gives %v", err)
	}
}

func TestDeadline(t *testing.T) {
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.App(ctx, "web")
	if hangar.CodeOf(err) != hangar.CodeTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// late is a context whose deadline has passed, but which does not know it yet.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

type roundTrip func() error

func (f roundTrip) RoundTrip(*http.Request) (*http.Response, error) { return nil, f() }

// TestDeadlineOfADial: dialing ends at the deadline by its own clock.
func TestDeadlineOfADial(t *testing.T) {
	timeout := roundTrip(func() error { return &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded} })
	c := client.New("127.0.0.1:1", "token", client.WithHTTPClient(&http.Client{Transport: timeout}))
	if _, err := c.App(late{t.Context()}, "web"); hangar.CodeOf(err) != hangar.CodeTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
	if _, err := c.App(t.Context(), "web"); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("without one: %v", err)
	}
}

func TestForeignAnswers(t *testing.T) {
	for status, want := range map[int]hangar.Code{
		401: hangar.CodeUnauthenticated, 403: hangar.CodeForbidden, 404: hangar.CodeNotFound, 418: hangar.CodeInvalid,
		429: hangar.CodeExhausted, 500: hangar.CodeInternal, 502: hangar.CodeUnavailable, 503: hangar.CodeUnavailable,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", status) })
		if _, err := c.App(t.Context(), "web"); hangar.CodeOf(err) != want {
			t.Errorf("status %d gives %v, want %s", status, err, want)
		}
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	if _, err := c.App(t.Context(), "web"); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("an answer that is no JSON gives %v", err)
	}
}

func TestStreams(t *testing.T) {
	const line = `{"timestamp":"2026-08-14T09:57:35Z","message":"hello"}` + "\n"
	for name, test := range map[string]struct {
		write func(w http.ResponseWriter)
		lines int
		want  hangar.Code
	}{
		"complete":      {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "\n"+line+"\n\n"+line) }, 2, ""},
		"empty":         {func(http.ResponseWriter) {}, 0, ""},
		"error at last": {func(w http.ResponseWriter) { _, _ = io.WriteString(w, line+`{"error":"gone","code":"not_found"}`) }, 1, hangar.CodeNotFound},
		"not a log":     {func(w http.ResponseWriter) { _, _ = io.WriteString(w, line+"<html>") }, 1, hangar.CodeUnavailable},
		"connection lost": {func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, line)
			_ = http.NewResponseController(w).Flush()
			reset(w)
		}, 1, hangar.CodeUnavailable},
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { test.write(w) })
		lines, code := 0, hangar.Code("")
		for e, err := range c.FollowLogs(t.Context(), "web", hangar.LogQuery{}) {
			if code = hangar.CodeOf(err); err == nil {
				lines++
				if e.Message != "hello" {
					t.Errorf("%s: line %+v", name, e)
				}
			}
		}
		if lines != test.lines || code != test.want {
			t.Errorf("%s: %d lines and %q, want %d and %q", name, lines, code, test.lines, test.want)
		}
	}
}

// TestExecOfInputThatFails: what was read of an input is not taken for all of it.
func TestExecOfInputThatFails(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = ws.CloseNow() }()
		conn := wsmux.New(ws)
		for {
			stream, payload, err := conn.Receive(r.Context())
			if err != nil {
				return
			}
			if stream == wsmux.Stdin && len(payload) == 0 {
				_ = conn.Send(r.Context(), wsmux.Exit, []byte(`{"exit_code":0}`))
				return
			}
		}
	})
	broken := errors.New("the disk is broken")
	for name, test := range map[string]struct {
		end  error
		want error
	}{"complete": {io.EOF, nil}, "broken": {broken, broken}} {
		stdin := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(test.end))
		_, err := c.ExecMachine(t.Context(), hangar.MachineRef{App: "web", ID: "00000000000001"}, hangar.ExecRequest{Command: []string{"cat"}}, hangar.ExecStreams{Stdin: stdin})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRedirectsElsewhereAreRefused: a token is not sent to the target of a redirect, even if that is
// the same name without TLS.
func TestRedirectsElsewhereAreRefused(t *testing.T) {
	var leaked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) { leaked.Add(1) }))
	defer elsewhere.Close()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		case "/v1/orgs":
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect) // to itself
		default:
			_, _ = io.WriteString(w, `{"tokens":[]}`)
		}
	}))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	c := client.New(secure.URL, "secret", client.WithRootCAs(roots))
	defer c.Close()
	if _, err := c.CurrentTokens(t.Context()); err != nil {
		t.Errorf("with the authority: %v", err)
	}
	if _, err := c.Health(t.Context()); err == nil || leaked.Load() != 0 {
		t.Errorf("a redirect to another server: %v, %d requests there", err, leaked.Load())
	}
	if _, err := c.Orgs(t.Context()); err == nil {
		t.Error("a redirect without end was followed")
	}
	stranger := client.New(secure.URL, "secret")
	defer stranger.Close()
	_, err := stranger.CurrentTokens(t.Context())
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		t.Errorf("without the authority: %v", err)
	}
}
