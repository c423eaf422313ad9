package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar"
)

func TestWebSocket(t *testing.T) {
	w := newWorld(t)
	addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{Subprotocols: []string{"echo"}, CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		for {
			kind, p, err := c.Read(r.Context())
			if err != nil {
				if ce, ok := errors.AsType[websocket.CloseError](err); ok {
					_ = c.Close(ce.Code, ce.Reason)
				}
				return
			}
			if string(p) == "close me" {
				_ = c.Close(4321, "as you wish")
				return
			}
			if c.Write(r.Context(), kind, p) != nil {
				return
			}
		}
	})
	w.machine("a1", "app", addr, nil)
	for _, scheme := range []string{"ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			url := strings.Replace(scheme, "ws", "http", 1) + "://app.apps.test/"
			dial := func() *websocket.Conn {
				c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: w.client(), Subprotocols: []string{"echo"}, CompressionMode: websocket.CompressionContextTakeover})
				if err != nil {
					t.Fatal(err)
				}
				c.SetReadLimit(-1)
				return c
			}
			c := dial()
			defer c.CloseNow()
			if c.Subprotocol() != "echo" {
				t.Errorf("the subprotocol is %q", c.Subprotocol())
			}
			for _, size := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20, 8 << 20} {
				sent := bytes.Repeat([]byte("x"), size)
				go func() { _ = c.Write(ctx, websocket.MessageBinary, sent) }()
				kind, got, err := c.Read(ctx)
				if err != nil || kind != websocket.MessageBinary || !bytes.Equal(got, sent) {
					t.Fatalf("%d bytes: got %d bytes, %v", size, len(got), err)
				}
			}
			if !eventually(func() bool { return w.gate.inside() == 1 }) { // a closed one may count for a moment
				t.Errorf("%d requests are counted, want 1", w.gate.inside())
			}
			_ = c.Write(ctx, websocket.MessageText, []byte("close me"))
			_, _, err := c.Read(ctx)
			if websocket.CloseStatus(err) != 4321 {
				t.Errorf("the Machine closed with %v", err)
			}
			d := dial()
			if err := d.Close(websocket.StatusGoingAway, "bye"); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// upgraded requests a protocol, and returns the connection after the answer.
func (w *world) upgraded(secure bool) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	addr := w.addr
	if secure {
		addr = w.tlsAddr
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		w.t.Fatal(err)
	}
	if secure {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "app.apps.test"})
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	// Bytes behind the request are early.
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: app.apps.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\nearly"); err != nil {
		w.t.Fatal(err)
	}
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Upgrade") != "websocket" || res.Header.Get("Connection") != "Upgrade" || res.Header.Get("Fly-Request-Id") == "" {
		w.t.Fatalf("got %d %v", res.StatusCode, res.Header)
	}
	return c, br
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"

// TestTunnelIsTransparent: after the switch, the proxy forwards all bytes unchanged, however they
// are split: the frames of Autobahn's cases (fragments, control frames between them, reserved bits
// and opcodes, invalid UTF-8, lengths that are not the shortest, a close without or with an invalid
// code).
func TestTunnelIsTransparent(t *testing.T) {
	w := newWorld(t)
	addr := w.scripted(func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		_, _ = io.WriteString(c, switching+"hello")
		_, _ = io.Copy(c, br)
		_ = c.(*net.TCPConn).CloseWrite()
	})
	w.machine("a1", "app", addr, nil)
	frame := func(first byte, masked bool, payload string) []byte {
		b := []byte{first}
		bit := byte(0)
		if masked {
			bit = 0x80
		}
		switch n := len(payload); {
		case n < 126:
			b = append(b, bit|byte(n))
		case n < 65536:
			b = binary.BigEndian.AppendUint16(append(b, bit|126), uint16(n))
		default:
			b = binary.BigEndian.AppendUint64(append(b, bit|127), uint64(n))
		}
		if masked {
			b = append(b, 0, 0, 0, 0)
		}
		return append(b, payload...)
	}
	var cases [][]byte
	for _, masked := range []bool{true, false} {
		cases = append(cases,
			frame(0x81, masked, "text"), frame(0x82, masked, strings.Repeat("b", 70000)), frame(0x89, masked, strings.Repeat("p", 125)),
			frame(0x89, masked, strings.Repeat("p", 126)), frame(0x8a, masked, "unsolicited pong"),
			bytes.Join([][]byte{frame(0x01, masked, "a"), frame(0x89, masked, "ping"), frame(0x00, masked, "b"), frame(0x80, masked, "c")}, nil),
			frame(0xc1, masked, "reserved bit"), frame(0x83, masked, "reserved opcode"), frame(0x8f, masked, ""), frame(0x09, masked, "fragmented ping"),
			frame(0x81, masked, "\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80edited"), frame(0x80, masked, "continues nothing"),
			frame(0x88, masked, ""), frame(0x88, masked, "\x03"), frame(0x88, masked, "\x03\xe8bye"), frame(0x88, masked, "\x00\x00"), frame(0x88, masked, "\xff\xff\xff"),
			append([]byte{0x82, 127, 0, 0, 0, 0, 0, 0, 0, 1}, 'x'),
		)
	}
	noise := make([]byte, 3<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	all := append(bytes.Join(cases, nil), noise...)
	for _, secure := range []bool{false, true} {
		c, br := w.upgraded(secure)
		go func() {
			rest := all
			for len(rest) > 0 {
				n := min(len(rest), 1+rand.IntN(20000))
				if len(rest) > len(noise) {
					n = min(n, 7)
				}
				if _, err := c.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(br)
		if want := "helloearly" + string(all); err != nil || string(got) != want {
			t.Errorf("secure=%t: %d bytes came back, want %d: %v", secure, len(got), len(want), err)
		}
		_ = c.Close()
	}
}

func TestTunnelEnds(t *testing.T) {
	w := newWorld(t)
	ended := make(chan struct{}, 1)
	addr := w.scripted(func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		_, _ = io.WriteString(c, switching)
		_, _ = io.Copy(io.Discard, br)
		ended <- struct{}{}
	})
	one := uint32(1)
	w.machine("a1", "app", addr, func(p *hangar.ServicePort) { p.HTTP = &hangar.HTTPOptions{IdleTimeout: &one} })
	wait := func(t *testing.T) {
		t.Helper()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("the Machine's side is still open")
		}
	}
	t.Run("idle", func(t *testing.T) {
		start := time.Now()
		w.upgraded(false)
		wait(t)
		if took := time.Since(start); took < time.Second {
			t.Errorf("it was cut after %s", took)
		}
	})
	t.Run("client gone", func(t *testing.T) {
		c, _ := w.upgraded(false)
		reset(c)
		wait(t)
	})
	t.Run("busy", func(t *testing.T) {
		busy := func() (err error) {
			c, _ := w.upgraded(false)
			for i := 0; i < 20 && err == nil; i++ {
				time.Sleep(100 * time.Millisecond)
				_, err = io.WriteString(c, "x")
			}
			_ = c.Close()
			wait(t)
			return err
		}
		err := busy()
		for tries := 1; err != nil && tries < 5; tries++ {
			err = busy() // a stall of the whole machine makes a tunnel idle, but not each
		}
		if err != nil {
			t.Fatalf("it was cut while it was used: %v", err)
		}
	})
	t.Run("drain", func(t *testing.T) {
		w.upgraded(false)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		w.proxy.Drain(ctx)
		wait(t)
	})
}

func TestUpgradeRefused(t *testing.T) {
	w := newWorld(t)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "no", http.StatusTeapot) }), nil)
	got := w.raw("GET / HTTP/1.1\r\nHost: app.apps.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET / HTTP/1.1\r\nHost: app.apps.test\r\nConnection: close\r\n\r\n")
	if strings.Count(got, "HTTP/1.1 418 ") != 2 {
		t.Errorf("got %q", got)
	}
}
