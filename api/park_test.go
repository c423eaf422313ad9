package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
)

// crowded is a MachineService with more waits than there are seats. The first waits stay until the test
// ends, and the others are the test's.
type crowded struct {
	hangar.MachineService
	seats   chan struct{} // one for each of the first
	await   func(told func(hangar.MachineReached, error)) error
	forgot  chan struct{}
	blocked func() error // what a wait with a goroutine answers after the first
}

// seats is how many waits are served like other requests.
const seats = 500

func (c *crowded) WaitMachine(ctx context.Context, _ hangar.MachineRef, _ hangar.MachineWait) (hangar.MachineReached, error) {
	select {
	case c.seats <- struct{}{}:
		<-ctx.Done()
		return hangar.MachineReached{}, ctx.Err()
	default:
		return hangar.MachineReached{State: hangar.MachineStopped}, c.blocked()
	}
}

func (c *crowded) AwaitMachine(
	_ context.Context, _ hangar.MachineRef, _ hangar.MachineWait, told func(hangar.MachineReached, error),
) (func(), error) {
	if err := c.await(told); err != nil {
		return nil, err
	}
	var once sync.Once
	return func() { once.Do(func() { c.forgot <- struct{}{} }) }, nil
}

// mortal has one token, which the test ends.
type mortal struct{ life context.Context } //nolint:containedctx // it is the token's

func (mortal) Authenticate(context.Context, string) (hangar.Principal, error) {
	return hangar.Principal{Subject: "me", Admin: true, Tokens: []hangar.TokenID{"t"}}, nil
}

func (m mortal) Life(hangar.TokenID) context.Context { return m.life }

// waitOn sends a wait and returns the connection.
func waitOn(t *testing.T, address string) net.Conn {
	t.Helper()
	conn := dialTo(t, address)
	sendWait(t, conn)
	return conn
}

func dialTo(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func sendWait(t *testing.T, conn net.Conn) {
	t.Helper()
	const text = "GET /v1/apps/web/machines/d8912340000002/wait?timeout=60 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n\r\n"
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// answered reads an answer, and the kind of its error.
func answered(t *testing.T, conn net.Conn) (res *http.Response, body string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res, string(raw)
}

func TestParkedWaits(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	c := &crowded{seats: make(chan struct{}, seats), forgot: make(chan struct{}, 10), blocked: func() error { return nil }}
	server := httptest.NewUnstartedServer(nil)
	server.Config = api.Server(newAPI(func(config *api.Config) { config.Machines, config.Auth = c, mortal{life} }))
	server.Start()
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	for range seats {
		waitOn(t, address)
	}
	for len(c.seats) < seats {
		time.Sleep(time.Millisecond)
	}
	reached := hangar.MachineReached{EventID: "e", State: hangar.MachineStarted, Version: "v"}
	const started = `"state":"started"`
	for name, test := range map[string]struct {
		await  func(told func(hangar.MachineReached, error)) error
		status int
		text   string
		parked bool // the connection was taken over, and is closed
	}{
		"told later": {await: func(told func(hangar.MachineReached, error)) error {
			time.AfterFunc(10*time.Millisecond, func() { told(reached, nil) })
			return nil
		}, status: http.StatusOK, text: started, parked: true},
		"told at once": {await: func(told func(hangar.MachineReached, error)) error {
			told(reached, nil)
			return nil
		}, status: http.StatusOK, text: started, parked: true},
		"told of an error": {await: func(told func(hangar.MachineReached, error)) error {
			told(hangar.MachineReached{}, hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout, "too late"))
			return nil
		}, status: http.StatusRequestTimeout, text: hangar.ReasonWaitTimeout, parked: true},
		"told of the end": {await: func(told func(hangar.MachineReached, error)) error {
			told(hangar.MachineReached{}, hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down"))
			return nil
		}, status: http.StatusServiceUnavailable, text: "shutting down", parked: true},
		"refused": {await: func(func(hangar.MachineReached, error)) error {
			return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found")
		}, status: http.StatusNotFound, text: "machine not found"},
		"not offered": {await: func(func(hangar.MachineReached, error)) error { return errors.ErrUnsupported }, status: http.StatusOK, text: `"state":"stopped"`},
	} {
		t.Run(name, func(t *testing.T) {
			c.await = test.await
			conn := waitOn(t, address)
			res, body := answered(t, conn)
			if res.StatusCode != test.status || !strings.Contains(body, test.text) || res.Close != test.parked {
				t.Errorf("answered %d %s, close %v", res.StatusCode, body, res.Close)
			}
			for _, h := range []string{hangar.HeaderRequestID.Neutral, hangar.HeaderRequestID.Original, "Content-Type", "X-Content-Type-Options", "Date"} {
				if res.Header.Get(h) == "" {
					t.Errorf("no header %s", h)
				}
			}
			if retry := res.Header.Get("Retry-After"); (retry != "") != (test.status == http.StatusServiceUnavailable) {
				t.Errorf("Retry-After is %q", retry)
			}
			if !test.parked {
				return
			}
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the connection stays open: %v", err)
			}
			<-c.forgot
		})
	}

	// With TLS, because the edge would otherwise close the connection and no longer count it.
	c.await = func(func(hangar.MachineReached, error)) error {
		t.Error("a connection with TLS is parked")
		return errors.ErrUnsupported
	}
	secure := httptest.NewUnstartedServer(server.Config.Handler)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	held := tls.Client(dialTo(t, secure.Listener.Addr().String()), &tls.Config{InsecureSkipVerify: true})
	sendWait(t, held)
	if res, body := answered(t, held); res.StatusCode != http.StatusOK || !strings.Contains(body, `"state":"stopped"`) || res.Close {
		t.Errorf("with TLS: answered %d %s, close %v", res.StatusCode, body, res.Close)
	}

	told := make(chan func(hangar.MachineReached, error), 1)
	c.await = func(f func(hangar.MachineReached, error)) error {
		told <- f
		return nil
	}
	gone := waitOn(t, address)
	late := <-told
	_ = gone.Close()
	<-c.forgot // a client that hangs up leaves nothing behind
	late(reached, nil)

	conn := waitOn(t, address)
	<-told
	end()
	if res, body := answered(t, conn); res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("a wait whose token has ended is answered %d %s", res.StatusCode, body)
	}
	<-c.forgot
}
