package compat_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func (h hostile) brokenProtocol(t *testing.T) {
	t.Parallel()
	body := `{"name":"smuggled"}`
	for name, text := range map[string]string{
		"noise":                  "\x00\x01\x02\x03\r\n\r\n",
		"a TLS hello":            "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
		"an HTTP/2 preface":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"another version":        "GET / HTTP/9.9\r\nHost: x\r\n\r\n",
		"no host":                "GET /v1/apps HTTP/1.1\r\n\r\n",
		"a header without colon": "GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
		"a header with a NUL":    "GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
		"large headers":          h.request("GET", "/v1/apps", "X: "+strings.Repeat("a", 200<<10)) + "\r\n",
		"many headers":           h.request("GET", "/v1/apps", strings.Repeat("X: a\r\n", 40_000)) + "\r\n",
		"two lengths":            h.request("POST", "/v1/apps", "Content-Length: 3", "Content-Length: 19") + "\r\n" + body,
		"a negative length":      h.request("POST", "/v1/apps", "Content-Length: -1") + "\r\n" + body,
		"an absurd length":       h.request("POST", "/v1/apps", "Content-Length: 99999999999999999999") + "\r\n" + body,
		"an unknown encoding":    h.request("POST", "/v1/apps", "Transfer-Encoding: gzip, chunked") + "\r\n" + body,
		"a bad chunk":            h.request("POST", "/v1/apps", "Transfer-Encoding: chunked") + "\r\nzz\r\n" + body,
		"an endless chunk head":  h.request("POST", "/v1/apps", "Transfer-Encoding: chunked") + "\r\n1;" + strings.Repeat("x", 100_000),
	} {
		status, answer := h.answer(t, strings.NewReader(text))
		if status != 0 && (status < 400 || status > 599) || status == http.StatusInternalServerError {
			t.Errorf("%s is answered %d %.200s", name, status, answer)
		}
	}
	if _, err := h.client.app(t.Context(), "smuggled"); failure(t, err).status != 404 {
		t.Errorf("a request was smuggled in: %v", err)
	}
}

func (h hostile) pipelining(t *testing.T) {
	t.Parallel()
	const requests = 500
	conn := h.dial(t)
	written := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < requests && err == nil; i++ {
			_, err = io.WriteString(conn, h.request("GET", "/v1/apps/"+[]string{h.app, "nothing-there"}[i%2])+"\r\n")
		}
		written <- err
	}()
	r := bufio.NewReader(conn)
	for i := range requests {
		res, err := http.ReadResponse(r, nil)
		must(t, "read an answer", err)
		_, err = io.Copy(io.Discard, res.Body)
		must(t, "read an answer", err)
		_ = res.Body.Close()
		if want := []int{http.StatusOK, http.StatusNotFound}[i%2]; res.StatusCode != want {
			t.Fatalf("request %d is answered %d, want %d", i, res.StatusCode, want)
		}
	}
	must(t, "write requests", <-written)
}

func (h hostile) halfClosed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text     string
		statuses []int // 0: none
	}{
		// net/http takes the end of what a client sends for the end of the client, so
		// that a request may be broken off.
		"after a request":           {h.request("GET", "/v1/apps") + "\r\n", []int{http.StatusOK, http.StatusServiceUnavailable}},
		"in the headers":            {h.request("GET", "/v1/apps"), []int{0, http.StatusBadRequest}},
		"in the body":               {h.request("POST", "/v1/apps", "Content-Length: 100") + "\r\n{", []int{http.StatusBadRequest}},
		"in a chunk":                {h.request("POST", "/v1/apps", "Transfer-Encoding: chunked") + "\r\n10\r\n{", []int{http.StatusBadRequest}},
		"in an unwanted body":       {h.request("POST", "/v1/nothing", "Content-Length: 100") + "\r\n{", []int{http.StatusNotFound}},
		"before anything was asked": {"", []int{0}},
	} {
		conn := h.dial(t)
		_, err := io.WriteString(conn, test.text)
		must(t, "write", err)
		must(t, "close one half", conn.CloseWrite())
		status := 0
		r := bufio.NewReader(conn)
		if res, err := http.ReadResponse(r, nil); err == nil {
			status = res.StatusCode
			_ = res.Body.Close()
		}
		if !slices.Contains(test.statuses, status) {
			t.Errorf("half closed %s: answered %d, want one of %v", name, status, test.statuses)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Errorf("half closed %s: the connection stays open: %v", name, err)
		}
	}
}

// drip sends a text byte by byte until the connection is closed by the other side,
// which it must be.
func (h hostile) drip(t *testing.T, begin, rest string) {
	t.Helper()
	conn := h.dial(t)
	if _, err := io.WriteString(conn, begin); err != nil {
		t.Errorf("begin: %v", err)
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, conn)
	}()
	for i := 0; ; i++ {
		select {
		case <-closed:
			return
		case <-time.After(time.Second):
		}
		if time.Duration(i)*time.Second > patience {
			t.Errorf("%.60q: the connection is still open after %s", begin, patience)
			return
		}
		_, _ = io.WriteString(conn, rest[i%len(rest):][:1])
	}
}

func (h hostile) slowHeaders(t *testing.T) {
	t.Parallel()
	var dripping sync.WaitGroup
	for _, begin := range []string{"", "G", "GET /v1/apps HTTP/1.1\r\nHost: x\r\n", h.request("GET", "/v1/apps")} {
		for range 50 {
			dripping.Go(func() { h.drip(t, begin, "X: a\r\n") })
		}
	}
	dripping.Wait()
}

func (h hostile) slowBodies(t *testing.T) {
	t.Parallel()
	const length = "Content-Length: 100000"
	var dripping sync.WaitGroup
	for _, begin := range []string{
		h.request("POST", "/v1/apps", length),
		h.request("POST", machines(h.app, h.id, "start"), length), // takes no body
		h.request("GET", machines(h.app), length),
		h.request("GET", "/v1/apps/"+h.app+"/logs", length), // streams its answer
		h.request("POST", "/v1/nothing", length),
		"POST /v1/apps HTTP/1.1\r\nHost: x\r\n" + length + "\r\n", // has no token
		"PUT /v2/personal/x/manifests/1 HTTP/1.1\r\nHost: x\r\n" + length + "\r\n",
	} {
		for range 10 {
			dripping.Go(func() { h.drip(t, begin+"\r\n", " ") })
		}
	}
	dripping.Wait()
}

func (h hostile) manyIdle(t *testing.T) {
	t.Parallel()
	conns := make([]net.Conn, 1000)
	for i := range conns {
		conn := h.dial(t)
		conns[i] = conn
		if i%2 == 0 { // the others never ask anything
			_, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
			must(t, "write", err)
		}
	}
	for i := 0; i < len(conns); i += 2 {
		res, err := http.ReadResponse(bufio.NewReader(conns[i]), nil)
		must(t, "read an answer", err)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("connection %d is answered %d", i, res.StatusCode)
		}
	}
	for _, conn := range conns {
		must(t, "close", conn.Close())
	}
}

// lostClients ask for what takes long, and vanish with a reset.
func (h hostile) lostClients(t *testing.T) {
	t.Parallel()
	exec := `{"cmd":"sleep 100000","timeout":80000}`
	for _, request := range []string{
		h.request("GET", machines(h.app, h.id, "wait")+"?state=stopped") + "\r\n",
		h.request("GET", machines(h.app, h.id, "events")+"?follow=true") + "\r\n",
		h.request("GET", "/v1/apps/"+h.app+"/logs?follow=true") + "\r\n",
		h.request("POST", machines(h.app, h.id, "exec"), "Content-Length: "+strconv.Itoa(len(exec))) + "\r\n" + exec,
	} {
		for range 50 {
			conn := h.dial(t)
			_, err := io.WriteString(conn, request)
			must(t, "write", err)
			must(t, "linger", conn.SetLinger(0))
			must(t, "close", conn.Close())
		}
	}
}

// upgrade opens an exec with live streams.
func (h hostile) upgrade(t *testing.T, command string) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	conn := h.dial(t)
	head := h.request("GET", machines(h.app, h.id, "exec")+"?command="+strings.ReplaceAll(command, " ", "&command="),
		"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
	_, err := io.WriteString(conn, head+"\r\n")
	must(t, "ask for an upgrade", err)
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	must(t, "read the upgrade", err)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade is answered %d", res.StatusCode)
	}
	return conn, r
}

// frame makes a masked frame; the mask is zero.
func frame(opcode byte, payload []byte) []byte {
	b := []byte{0x80 | opcode, 0xff}
	b = binary.BigEndian.AppendUint64(b, uint64(len(payload)))
	return append(append(b, 0, 0, 0, 0), payload...)
}

// websocketAbuse breaks the protocol of exec in ways that each must end the command
// and the connection.
func (h hostile) websocketAbuse(t *testing.T) {
	t.Parallel()
	h = h.another(t)
	for name, sent := range map[string][]byte{
		"a text message":       frame(text, []byte("\x00hello")),
		"an empty message":     frame(binData, nil),
		"an unknown stream":    frame(binData, []byte{77, 1}),
		"the server's stream":  frame(binData, []byte{1, 'x'}),
		"a size that is none":  frame(binData, []byte("\x03nonsense")),
		"a message too large":  frame(binData, make([]byte, 1<<20)),
		"a frame of 2^63":      {0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0},
		"an unmasked frame":    {0x82, 0x02, 0, 'x'},
		"a reserved opcode":    frame(5, nil),
		"reserved bits":        {0xf2, 0x80, 0, 0, 0, 0},
		"a fragmented ping":    {0x09, 0x80, 0, 0, 0, 0},
		"a large ping":         frame(ping, make([]byte, 1000)),
		"endless fragments":    bytes.Repeat([]byte{0x02, 0x81, 0, 0, 0, 0, 0}, 2),
		"a close and the rest": append(frame(closing, []byte{0x03, 0xe8}), bytes.Repeat([]byte("x"), 100_000)...),
		"noise":                bytes.Repeat([]byte{0xde, 0xad, 0xbe, 0xef}, 1000),
	} {
		conn, r := h.upgrade(t, "sleep 100000")
		_, _ = conn.Write(sent)
		if _, err := io.Copy(io.Discard, r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open", name)
		}
	}
	// Pings are answered, however many.
	conn, r := h.upgrade(t, "sleep 100000")
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		_, _ = conn.Write(bytes.Repeat(frame(ping, []byte("x")), 10_000))
	}()
	var pongs bytes.Buffer
	if n, err := io.CopyN(&pongs, r, 3*10_000); err != nil {
		t.Errorf("10000 pings are answered with %d bytes, at last %q: %v", n, pongs.Bytes()[max(0, n-300):], err)
	}
	<-pinged
	must(t, "close one half", conn.CloseWrite())
	_, _ = io.Copy(io.Discard, r)
	// Clients that vanish.
	for i := range 50 {
		conn, _ := h.upgrade(t, "sleep 100000")
		if i%2 == 0 {
			must(t, "linger", conn.SetLinger(0))
		}
		must(t, "close", conn.Close())
	}
	for name, headers := range map[string][]string{
		"no key":          {"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"},
		"an old version":  {"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 8", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="},
		"a short key":     {"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AA=="},
		"no upgrade":      {},
		"another upgrade": {"Connection: Upgrade", "Upgrade: h2c"},
	} {
		status, text := h.answer(t, strings.NewReader(h.request("GET", machines(h.app, h.id, "exec")+"?command=true", headers...)+"\r\n"))
		if status < 400 || status > 499 {
			t.Errorf("an upgrade with %s is answered %d %s", name, status, text)
		}
	}
}

// floodedStdin sends more than commands read, and vanishes: these connections have no reader, so
// that their end is not seen.
func (h hostile) floodedStdin(t *testing.T) {
	t.Parallel()
	h = h.another(t)
	message := frame(binData, make([]byte, 32<<10+1))
	var flooding sync.WaitGroup
	for range 20 {
		conn, _ := h.upgrade(t, "sleep 100000")
		flooding.Go(func() {
			_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
			for range 1000 {
				if _, err := conn.Write(message); err != nil {
					return
				}
			}
		})
	}
	flooding.Wait()
}
