package peertest

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar/internal/finish"
)

// OverWebSocket returns an address on which WireGuard's packets are taken that go to the gateway of a host by a
// WebSocket, as existing clients send them, which verify no certificate. The host is at an address, whatever its name.
// It connects again when the connection has ended and there is a packet to send.
func OverWebSocket(tb testing.TB, host string, at netip.AddrPort) netip.AddrPort {
	tb.Helper()
	plug, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := finish.Lifetime(tb.Context())
	c := &carried{url: "wss://" + host + "/", plug: plug, client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at.String())
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as existing clients
	}}}
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx, &running) })
	tb.Cleanup(func() {
		cancel()
		_ = plug.Close()
		running.Wait()
	})
	return netip.MustParseAddrPort(plug.LocalAddr().String())
}

type carried struct {
	url    string
	plug   *net.UDPConn
	client *http.Client
}

// run takes packets of WireGuard until the plug is closed.
func (c *carried) run(ctx context.Context, running *sync.WaitGroup) {
	var out net.Conn
	packet := make([]byte, 4+2048)
	for {
		n, from, err := c.plug.ReadFromUDPAddrPort(packet[4:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if out == nil {
			if out, err = c.dial(ctx); err != nil {
				continue // WireGuard sends again
			}
			in := out
			running.Go(func() { c.answers(in, from) })
		}
		binary.BigEndian.PutUint32(packet, uint32(n))
		// In two messages, as existing clients do.
		if _, err = out.Write(packet[:4]); err == nil {
			_, err = out.Write(packet[4 : 4+n])
		}
		if err != nil {
			_ = out.Close()
			out = nil
		}
	}
}

func (c *carried) dial(ctx context.Context) (net.Conn, error) {
	ws, _, err := websocket.Dial(ctx, c.url, &websocket.DialOptions{HTTPClient: c.client}) //nolint:bodyclose // it is the connection
	if err != nil {
		return nil, err
	}
	conn := websocket.NetConn(ctx, ws, websocket.MessageText)
	_, err = conn.Write([]byte{0x2F, 0xAC, 0xED, 0x77})
	return conn, err
}

func (c *carried) answers(in net.Conn, to netip.AddrPort) {
	defer in.Close()
	for packet := make([]byte, 2048); ; {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > uint32(len(packet)) {
			return
		}
		if _, err := io.ReadFull(in, packet[:n]); err != nil {
			return
		}
		if _, err := c.plug.WriteToUDPAddrPort(packet[:n], to); err != nil {
			return
		}
	}
}
