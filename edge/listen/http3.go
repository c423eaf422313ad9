package listen

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/hangar-platform/hangar/internal/connlimit"
)

// streamsPerConnection is how many requests a client may have under way in a connection.
const streamsPerConnection = 100

// errTooMany refuses a QUIC connection.
var errTooMany = errors.New("too many connections")

// serveQUIC serves HTTP/3 if there is a socket for it. A datagram does not tell for which of the
// server's addresses it came, so that connections have to say whose they are. The returned function
// ends that: no new connection is accepted, and the socket is closed when the others have ended, or
// ctx did.
func (l *Listeners) serveQUIC(ctx context.Context) (end func()) {
	if l.quic == nil {
		return func() {}
	}
	resetKey, tokenKey := quic.StatelessResetKey(l.keys.derive("quic reset")), quic.TokenGeneratorKey(l.keys.derive("quic token"))
	transport := &quic.Transport{Conn: l.quic, StatelessResetKey: &resetKey, TokenGeneratorKey: &tokenKey, ConnContext: l.arriveQUIC, VerifySourceAddress: toProve}
	server := &http3.Server{Handler: http.HandlerFunc(l.serveRequest), MaxHeaderBytes: l.o.MaxHeaderBytes, ConnContext: connectedByQUIC}
	server.TLSConfig = http3.ConfigureTLSConfig(l.outer)
	listener, err := transport.ListenEarly(server.TLSConfig, &quic.Config{
		HandshakeIdleTimeout: l.o.Limits.Handshake, MaxIncomingStreams: streamsPerConnection,
	})
	if err != nil {
		l.log.Error("HTTP/3 is not served", slog.Any("error", err))
		_ = transport.Close()
		return func() {}
	}
	l.wg.Go(func() {
		if err := server.ServeListener(listener); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("HTTP/3 is not served any more", slog.Any("error", err))
		}
	})
	return func() {
		l.wg.Go(func() {
			_ = listener.Close()
			_ = server.Shutdown(ctx)
			_ = transport.Close()
			_ = l.quic.Close()
		})
	}
}

// toProve has every client prove its address before anything is counted for that: otherwise it
// could use up the share of others. A client that was here within a day has a token.
func toProve(net.Addr) bool { return true }

// arriveQUIC counts a connection until it ends.
func (l *Listeners) arriveQUIC(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	a := &arrival{local: l.https.local, remote: unmapped(info.RemoteAddr), port: l.https.port}
	a.flow = l.o.Traffic.NewFlow(a.passedByQUIC)
	a.client = connlimit.ClientOf(a.remote.Addr())
	if !l.byIP.allow(a.client, time.Now()) || !l.clients.Take(a.client) {
		l.refused.clients.Add(1)
		return nil, errTooMany
	}
	l.taken.Add(1)
	context.AfterFunc(ctx, func() {
		a.flow.End()
		l.discharge(a)
		l.clients.Leave(a.client)
	})
	return context.WithValue(ctx, handshakeKey{}, a), nil
}

// connectedByQUIC sets the connection of an arrival, before its first request.
func connectedByQUIC(ctx context.Context, conn *quic.Conn) context.Context {
	if a, ok := ctx.Value(handshakeKey{}).(*arrival); ok {
		a.quic.Store(conn)
	}
	return ctx
}

// passedByQUIC is how many bytes came and went by QUIC, without what UDP adds.
func (a *arrival) passedByQUIC() (in, out uint64) {
	conn := a.quic.Load()
	if conn == nil {
		return 0, 0
	}
	stats := conn.ConnectionStats()
	return stats.BytesReceived, stats.BytesSent
}

// serveRequest serves a request that came by HTTP/3.
func (l *Listeners) serveRequest(w http.ResponseWriter, r *http.Request) {
	a, ok := r.Context().Value(handshakeKey{}).(*arrival)
	if !ok || a.endpoint == nil || !a.endpoint.Handling.HTTP {
		http.Error(w, http.StatusText(http.StatusMisdirectedRequest), http.StatusMisdirectedRequest)
		return
	}
	e := a.entry()
	e.TLS = r.TLS
	l.o.ServeRequest(w, r, e)
}
