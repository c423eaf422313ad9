package carrier_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar/host/wireguard/carrier"
)

// wireguard plays the port of a gateway: it answers a packet with the same, unless that says no.
func wireguard(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for packet := make([]byte, 1<<16); ; {
			n, from, err := c.ReadFromUDPAddrPort(packet)
			if err != nil {
				return
			}
			if string(packet[:n]) != "no" {
				_, _ = c.WriteToUDPAddrPort(packet[:n], from)
			}
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-ended })
	return c
}

func serve(t *testing.T, port uint16, limits carrier.Limits) (url string) {
	t.Helper()
	s := httptest.NewServer(carrier.New(func() uint16 { return port }, limits, slog.New(slog.DiscardHandler)))
	t.Cleanup(s.Close)
	return s.URL + "/"
}

func portOf(c *net.UDPConn) uint16 { return netip.MustParseAddrPort(c.LocalAddr().String()).Port() }

// open opens a tunnel with messages of a type, and begins it with a word.
func open(t *testing.T, url string, messages websocket.MessageType, word uint32) net.Conn {
	t.Helper()
	o := &websocket.DialOptions{}
	if messages == websocket.MessageBinary {
		o.Subprotocols = []string{carrier.Subprotocol}
	}
	ws, res, err := websocket.Dial(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Header.Get("Sec-WebSocket-Protocol"); messages == websocket.MessageBinary && got != carrier.Subprotocol {
		t.Errorf("the subprotocol is %q", got)
	}
	conn := websocket.NetConn(t.Context(), ws, messages)
	t.Cleanup(func() { _ = ws.CloseNow() })
	if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, word)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func framed(packets ...string) (b []byte) {
	for _, p := range packets {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(p))), p...)
	}
	return b
}

func TestCarry(t *testing.T) {
	t.Parallel()
	url := serve(t, portOf(wireguard(t)), carrier.Limits{})
	for name, messages := range map[string]websocket.MessageType{"text": websocket.MessageText, "binary": websocket.MessageBinary} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := open(t, url, messages, carrier.Magic)
			// Packets that are no text, signs of life, several in one message, and one in several.
			want := framed("\x04\xff\xfe", string(bytes.Repeat([]byte{0x80}, 1500)), "last")
			sent := append(framed("", "\x04\xff\xfe", ""), framed(string(bytes.Repeat([]byte{0x80}, 1500)), "last")...)
			for _, piece := range [][]byte{sent[:9], sent[9:10], sent[10:]} {
				if _, err := conn.Write(piece); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
		})
	}
}

// ends waits until a tunnel ends.
func ends(t *testing.T, conn net.Conn) {
	t.Helper()
	if b, err := io.ReadAll(conn); len(b) > 0 {
		t.Errorf("read %q, %v", b, err)
	}
}

func TestStrangers(t *testing.T) {
	t.Parallel()
	port := portOf(wireguard(t))
	url := serve(t, port, carrier.Limits{})
	ends(t, open(t, url, websocket.MessageText, 0x2FACED78))
	long := open(t, url, websocket.MessageText, carrier.Magic)
	if _, err := long.Write(binary.BigEndian.AppendUint32(nil, 2049)); err != nil {
		t.Fatal(err)
	}
	ends(t, long)
	// Whom WireGuard does not answer is gone, also one that goes on to send.
	unanswered := open(t, serve(t, port, carrier.Limits{Answer: 50 * time.Millisecond}), websocket.MessageText, carrier.Magic)
	_, _ = unanswered.Write(framed("no")) // it may have ended already
	ends(t, unanswered)
	ends(t, open(t, serve(t, port, carrier.Limits{Silence: 50 * time.Millisecond}), websocket.MessageText, carrier.Magic))

	for what, test := range map[string]struct {
		url     string
		upgrade bool
		status  int
	}{
		"another path": {url + "x", true, http.StatusNotFound},
		"no WebSocket": {url, false, http.StatusNotFound},
		"no peers":     {serve(t, 0, carrier.Limits{}), true, http.StatusServiceUnavailable},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, test.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if test.upgrade {
			r.Header.Set("Upgrade", "websocket")
			r.Header.Set("Connection", "Upgrade")
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != test.status {
			t.Errorf("%s: %d", what, res.StatusCode)
		}
	}
}

// TestShare: a client has no more tunnels than its share, which it receives again once one has ended, and begins no more
// handshakes in one than a few.
func TestShare(t *testing.T) {
	t.Parallel()
	url := serve(t, portOf(wireguard(t)), carrier.Limits{Client: 2, All: 10, Initiation: time.Hour})
	first := open(t, url, websocket.MessageText, carrier.Magic)
	open(t, url, websocket.MessageText, carrier.Magic)
	_, res, err := websocket.Dial(t.Context(), url, nil)
	if err == nil || res.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("a third: %v", err)
	}
	initiations := make([]string, 50)
	for i := range initiations {
		initiations[i] = "\x01" + string(rune('0'+i))
	}
	if _, err := first.Write(framed(append(initiations, "end")...)); err != nil {
		t.Fatal(err)
	}
	want := framed(append(initiations[:5:5], "end")...)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(first, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	_ = first.Close()
	for {
		ws, _, err := websocket.Dial(t.Context(), url, nil)
		if err == nil {
			_ = ws.CloseNow()
			return
		}
		if errors.Is(err, context.Canceled) || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}
