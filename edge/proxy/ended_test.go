package proxy_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// silent accepts requests and then sends nothing, like the connections of a killed Machine; first
// is what it sends on each before that.
func (w *world) silent(first string) (addr string, asked chan struct{}) {
	asked = make(chan struct{}, 100)
	addr = w.scripted(func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		_, _ = io.WriteString(c, first)
		asked <- struct{}{}
		_, _ = io.Copy(io.Discard, br)
	})
	return addr, asked
}

// TestMachineKilled: no request waits for a dead Machine, even if its connections stay open.
func TestMachineKilled(t *testing.T) {
	during := func(t *testing.T, w *world, asked chan struct{}, after hangar.MachineState, r *http.Request) (*http.Response, error) {
		t.Helper()
		answered := make(chan struct{})
		var telling sync.WaitGroup
		defer telling.Wait()
		defer close(answered)
		telling.Go(func() {
			select {
			case <-asked:
			case <-answered:
				return
			}
			w.row("a1", "app", "", func(m *hangar.Machine) { m.Config.Services, m.State = service(nil), after })
		})
		return w.client().Do(r)
	}
	for _, after := range []hangar.MachineState{hangar.MachineStopped, hangar.MachineFailed, hangar.MachineDestroying, hangar.MachineStarting} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(string(after)+"/"+method, func(t *testing.T) {
				w := newWorld(t)
				addr, asked := w.silent("")
				bad := w.machine("a1", "app", addr, nil)
				w.machine("a2", "app", w.backend(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "other") }), nil)
				res, err := during(t, w, asked, after, w.request(method, "http://app.apps.test/", strings.NewReader("body"), "fly-prefer-instance-id", string(bad)))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				body, _ := io.ReadAll(res.Body)
				if method == "GET" && (res.StatusCode != http.StatusOK || string(body) != "other") || method == "POST" && res.StatusCode != http.StatusBadGateway {
					t.Errorf("got %d %q", res.StatusCode, body)
				}
			})
		}
	}
	t.Run("in an answer", func(t *testing.T) {
		w := newWorld(t)
		addr, asked := w.silent("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
		w.machine("a1", "app", addr, nil)
		res, err := w.client().Do(w.request("GET", "http://app.apps.test/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		<-asked
		w.row("a1", "app", "", func(m *hangar.Machine) { m.Config.Services, m.State = service(nil), hangar.MachineStopped })
		if body, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("got %q as if it were whole", body)
		}
	})
	t.Run("over HTTP/2", func(t *testing.T) {
		w := newWorld(t)
		asked := make(chan struct{}, 1)
		w.machine("a1", "app", w.backend(func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done()
		}), h2Backend)
		res, err := during(t, w, asked, hangar.MachineStopped, w.request("POST", "http://app.apps.test/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusBadGateway {
			t.Errorf("got %d", res.StatusCode)
		}
	})
	t.Run("while it is dialled", func(t *testing.T) {
		w := newWorld(t)
		asked := make(chan struct{}, 1)
		w.dialed("a1", "app", func(ctx context.Context) (net.Conn, error) {
			asked <- struct{}{}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}, func(m *hangar.Machine) { m.Config.Services = service(nil) })
		res, err := during(t, w, asked, hangar.MachineFailed, w.request("POST", "http://app.apps.test/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode < 500 {
			t.Errorf("got %d", res.StatusCode)
		}
	})
}

// TestTunnelOfAKilledMachine: a tunnel ends with the Machine, but not when the Machine is asked to
// stop or is suspended.
func TestTunnelOfAKilledMachine(t *testing.T) {
	w := newWorld(t)
	addr, _ := w.silent(switching)
	become := func(s hangar.MachineState) {
		w.row("a1", "app", addr, func(m *hangar.Machine) { m.Config.Services, m.State, m.InstanceID = service(nil), s, "1" })
	}
	become(hangar.MachineStarted)
	c, br := w.upgraded(false)
	for _, s := range []hangar.MachineState{hangar.MachineSuspending, hangar.MachineSuspended, hangar.MachineStarting, hangar.MachineStarted, hangar.MachineStopping} {
		become(s)
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		if _, err := br.ReadByte(); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Fatalf("%s: %v", s, err)
		}
	}
	become(hangar.MachineStopped)
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := br.ReadByte(); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the tunnel is still open: %v", err)
	}
	if !eventually(func() bool { return w.gate.inside() == 0 }) {
		t.Error("the tunnel still counts")
	}
}
