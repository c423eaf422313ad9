// Package carrier carries the packets of WireGuard peers inside WebSockets, for peers whose network passes no UDP.
//
// The stream of a WebSocket begins with Magic. Then come packets, each after its length in four bytes, big endian; a
// packet of no bytes is a sign of life. Where messages begin and end means nothing. They are text unless the client
// asks for Subprotocol, because that is what existing clients send and expect, whatever bytes are in them.
//
// Anyone may open a tunnel, as anyone may send packets to the UDP port: WireGuard drops what no peer has sent. A
// client holds a bounded number of them, begins a bounded number of handshakes in each, and has to get an answer of
// WireGuard within Limits.Answer.
package carrier

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar/internal/connlimit"
)

const (
	// Magic begins a stream.
	Magic = 0x2FACED77
	// Subprotocol is what a client asks for that wants binary messages.
	Subprotocol = "wswg-binary"
	// maxPacket is the largest packet in bytes: more than the device's MTU with what WireGuard adds.
	maxPacket = 2048
	// initiation is the first byte of a packet that begins a handshake.
	initiation = 1
)

// Limits bound what clients may take. What is 0 has its default.
type Limits struct {
	Client     int           // tunnels of one client; 32
	All        int           // tunnels; 4096
	Initiation time.Duration // one handshake may begin this often in a tunnel, after the first five; 2s
	Answer     time.Duration // within which WireGuard must have answered; 2m
	Silence    time.Duration // after which a client that sends nothing is gone; 1m
}

func (l Limits) complete() Limits {
	return Limits{
		Client: cmp.Or(l.Client, 32), All: cmp.Or(l.All, 4096),
		Initiation: cmp.Or(l.Initiation, 2*time.Second), Answer: cmp.Or(l.Answer, 2*time.Minute), Silence: cmp.Or(l.Silence, time.Minute),
	}
}

// burst is how many handshakes may begin at once in a tunnel.
const burst = 5

// Carrier is a handler of requests that open tunnels. It is safe for concurrent use.
type Carrier struct {
	limits Limits
	port   func() uint16
	log    *slog.Logger
	open   *connlimit.Count[netip.Addr]
}

// New returns a Carrier to the UDP port of this server that port returns; 0: there is none now.
func New(port func() uint16, limits Limits, log *slog.Logger) *Carrier {
	limits = limits.complete()
	return &Carrier{limits: limits, port: port, log: log, open: connlimit.NewCount[netip.Addr](limits.Client, limits.All)}
}

// ServeHTTP implements http.Handler. It returns when the tunnel has ended.
func (c *Carrier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		http.NotFound(w, r)
		return
	}
	port := c.port()
	if port == 0 {
		http.Error(w, "this server has no WireGuard peers", http.StatusServiceUnavailable)
		return
	}
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	client := connlimit.ClientOf(remote.Addr())
	if err != nil || !c.open.Take(client) {
		http.Error(w, "too many WireGuard connections of this client are open", http.StatusTooManyRequests)
		return
	}
	defer c.open.Leave(client)
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{Subprotocol}, InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled, // nothing here trusts a cookie
	})
	if err != nil {
		return // it has answered
	}
	err = c.carry(r.Context(), ws, port)
	c.log.DebugContext(r.Context(), "tunnel of WireGuard ended", slog.String("client", r.RemoteAddr), slog.Any("error", err))
}

// carry joins a WebSocket with the port of WireGuard until one of them ends.
func (c *Carrier) carry(ctx context.Context, ws *websocket.Conn, port uint16) error {
	defer func() { _ = ws.CloseNow() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	group, ctx := errgroup.WithContext(ctx)
	messages := websocket.MessageText
	if ws.Subprotocol() == Subprotocol {
		messages = websocket.MessageBinary
	}
	client := websocket.NetConn(ctx, ws, messages)
	gateway, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = gateway.Close() })()
	defer gateway.Close()
	var answered atomic.Bool
	defer time.AfterFunc(c.limits.Answer, func() {
		if !answered.Load() {
			cancel(errStranger)
		}
	}).Stop()
	group.Go(func() error { return c.fromClient(client, gateway) })
	group.Go(func() error { return toClient(client, gateway, &answered, c.limits.Silence) })
	return group.Wait()
}

// errStranger is the error of a stream that is none of a WireGuard client.
var errStranger = errors.New("the client does not speak WireGuard")

// fromClient sends what a client says to WireGuard.
func (c *Carrier) fromClient(client, gateway net.Conn) error {
	in, initiations := bufio.NewReaderSize(client, 2*maxPacket), rate.NewLimiter(rate.Every(c.limits.Initiation), burst)
	packet := make([]byte, maxPacket)
	for begun := false; ; begun = true {
		// It bounds a packet, too, so that who sends one byte at a time is gone.
		if err := client.SetReadDeadline(time.Now().Add(c.limits.Silence)); err != nil {
			return err
		}
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(head[:])
		switch {
		case !begun && size != Magic:
			return errStranger
		case !begun || size == 0:
			continue
		case size > maxPacket:
			return fmt.Errorf("%w: a packet of %d bytes", errStranger, size)
		}
		if _, err := io.ReadFull(in, packet[:size]); err != nil {
			return err
		}
		if packet[0] == initiation && !initiations.Allow() {
			continue
		}
		if _, err := gateway.Write(packet[:size]); err != nil && !refused(err) {
			return err
		}
	}
}

// toClient sends what WireGuard says to a client.
func toClient(client, gateway net.Conn, answered *atomic.Bool, patience time.Duration) error {
	packet := make([]byte, 4+maxPacket)
	for {
		n, err := gateway.Read(packet[4:])
		switch {
		case refused(err): // the daemon opens the port again
			continue
		case err != nil:
			return err
		}
		answered.Store(true)
		binary.BigEndian.PutUint32(packet, uint32(n))
		if err := client.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := client.Write(packet[:4+n]); err != nil {
			return err
		}
	}
}

// refused reports whether no socket was at the port of WireGuard for an earlier packet.
func refused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }
