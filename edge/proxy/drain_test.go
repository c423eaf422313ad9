package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy"
)

func TestDrain(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%t", h2), func(t *testing.T) {
			w := newWorld(t)
			asked, goOn := make(chan struct{}), make(chan struct{})
			w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					close(asked)
					<-goOn
				}
				io.WriteString(rw, "done")
			}), nil)
			c := w.clientOf(h2)
			w.do(c, w.request(http.MethodGet, "http://app.apps.test/", nil))
			idle, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close()
			// It has received an answer, so the proxy knows it.
			_, _ = io.WriteString(idle, "GET / HTTP/1.1\r\nHost: app.apps.test\r\n\r\n")
			br := bufio.NewReader(idle)
			first, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, first.Body)
			answered := make(chan result, 1)
			go func() {
				defer close(answered) // also when do ends this goroutine
				answered <- w.do(c, w.request(http.MethodGet, "http://app.apps.test/slow", nil))
			}()
			<-asked
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
				defer cancel()
				w.proxy.Drain(ctx)
			}()
			_ = idle.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := br.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("an idle connection is not closed: %v", err)
			}
			select {
			case <-drained:
				t.Fatal("it did not wait for the request")
			case <-time.After(50 * time.Millisecond):
			}
			close(goOn)
			got, ok := <-answered
			if !ok {
				t.FailNow()
			}
			if got.body != "done" || !h2 && !got.Close {
				t.Errorf("got %d %q, close: %t", got.StatusCode, got.body, got.Close)
			}
			select {
			case <-drained:
			case <-time.After(time.Minute):
				t.Error("it still waits")
			}
		})
	}
}

// TestDrainWithTunnel: a WebSocket continues while the proxy drains, until the drain's limit, and
// is then cut.
func TestDrainWithTunnel(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, ends := range []bool{true, false} {
			t.Run(fmt.Sprintf("tls=%t, ends=%t", secure, ends), func(t *testing.T) {
				w := newWorld(t)
				w.machine("a1", "app", w.scripted(func(_ int, c net.Conn) {
					br := bufio.NewReader(c)
					readRequest(br)
					_, _ = io.WriteString(c, switching)
					_, _ = io.Copy(c, br)
				}), nil)
				c, br := w.upgraded(secure)
				say := func(text string) {
					t.Helper()
					_, _ = io.WriteString(c, text)
					got := make([]byte, len(text))
					if _, err := io.ReadFull(br, got); err != nil || string(got) != text {
						t.Fatalf("it came back as %q, %v", got, err)
					}
				}
				if _, err := br.Discard(len("early")); err != nil {
					t.Fatal(err)
				}
				say("before")
				ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
				defer cancel()
				drained := make(chan struct{})
				go func() {
					defer close(drained)
					w.proxy.Drain(ctx)
				}()
				for { // until it drains
					other, err := net.Dial("tcp", w.addr)
					if err != nil {
						t.Fatal(err)
					}
					_ = other.SetDeadline(time.Now().Add(time.Minute))
					_, _ = io.WriteString(other, "GET / HTTP/1.1\r\nHost: nobody.apps.test\r\n\r\n")
					_, err = http.ReadResponse(bufio.NewReader(other), nil)
					_ = other.Close()
					if err != nil {
						break
					}
				}
				say("meanwhile")
				select {
				case <-drained:
					t.Fatal("it did not wait for the tunnel")
				default:
				}
				if ends {
					_ = c.Close()
				} else {
					cancel()
					if _, err := br.ReadByte(); err == nil {
						t.Error("the tunnel is still open")
					}
				}
				select {
				case <-drained:
				case <-time.After(time.Minute):
					t.Error("it still waits")
				}
			})
		}
	}
}

// TestFailureCodes: each fault of a Machine's connection has its code.
func TestFailureCodes(t *testing.T) {
	for _, test := range []struct {
		name string
		code hangar.EdgeCode
		do   func(c net.Conn)
	}{
		{"reset", hangar.EdgeReset, func(c net.Conn) { readRequest(bufio.NewReader(c)); reset(c) }},
		{"closed", hangar.EdgeAborted, func(c net.Conn) { readRequest(bufio.NewReader(c)) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.machine("a1", "app", w.scripted(func(_ int, c net.Conn) { test.do(c) }), nil)
			r := w.request(http.MethodPost, "http://app.apps.test/", strings.NewReader("x"), "Accept", "application/json")
			got := w.do(w.client(), r)
			wantCode(t, got, http.StatusBadGateway, test.code)
			if !strings.Contains(got.body, `"code":"`+string(test.code)+`"`) {
				t.Errorf("got %s", got.body)
			}
		})
	}
}

// TestLinesAreBounded: the log of an App is not flooded, and reports how many lines are missing.
func TestLinesAreBounded(t *testing.T) {
	w := newWorld(t, func(o *proxy.Options) { o.Limits.MaxBody = 1 })
	w.machine("a1", "app", "", nil)
	c := w.client()
	const requests, most, window = 50, 10, 10 * time.Second
	began := time.Now()
	for range requests {
		w.do(c, w.request(http.MethodPost, "http://app.apps.test/", strings.NewReader("large")))
	}
	windows := 1 + int(time.Since(began)/window)
	if n := len(w.gate.lines()); n < most || n > most*windows {
		t.Errorf("there are %d lines in %d windows", n, windows)
	}
}

// TestGone: connections to a Machine from before its restart are not reused.
func TestGone(t *testing.T) {
	w := newWorld(t)
	addr := w.backend(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "ok") })
	c := w.client()
	for range 3 {
		w.machine("a1", "app", addr, nil)
		w.do(c, w.request(http.MethodGet, "http://app.apps.test/", nil))
	}
	if n := w.proxy.Stats().Dials; n != 3 {
		t.Errorf("%d connections were made to 3 versions", n)
	}
}
