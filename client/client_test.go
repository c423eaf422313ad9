package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
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

// reset ends a connection as a server does that was killed.
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
