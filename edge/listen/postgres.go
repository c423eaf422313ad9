package listen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// A PostgreSQL client begins with a length, which counts itself, and a number; see "Message
// Formats" in PostgreSQL's manual. The number is a version of the protocol, or one of these.
const (
	pgCancel = 1234<<16 | 5678
	pgTLS    = 1234<<16 | 5679
	pgGSS    = 1234<<16 | 5680
)

const (
	pgHeader = 8
	// maxPgCancel is the length of the longest cancel request: a header, a process and a key.
	maxPgCancel = pgHeader + 4 + 256
	minPgCancel = pgHeader + 4 + 4
	// maxPgRequests is how often a client may ask for some encryption.
	maxPgRequests = 2
)

// pgIntent is what a client begins with.
type pgIntent int

const (
	pgWantsTLS pgIntent = iota
	pgWantsGSS
	pgWantsCancel
	pgWantsPlain // it has begun a session
)

var errNotPostgres = errors.New("this is not the PostgreSQL protocol")

// parsePg reads the header of a client's first message: what it wants, and how many bytes
// of the message are still to come.
func parsePg(b [pgHeader]byte) (intent pgIntent, rest int, err error) {
	length, number := binary.BigEndian.Uint32(b[:4]), binary.BigEndian.Uint32(b[4:])
	switch {
	case number == pgTLS && length == pgHeader:
		return pgWantsTLS, 0, nil
	case number == pgGSS && length == pgHeader:
		return pgWantsGSS, 0, nil
	case number == pgCancel && length >= minPgCancel && length <= maxPgCancel:
		return pgWantsCancel, int(length) - pgHeader, nil
	case number>>16 == 3 || number>>16 == 2:
		return pgWantsPlain, 0, nil
	}
	return 0, 0, errNotPostgres
}

// pgRefusal is an ErrorResponse that ends the session.
func pgRefusal(code, message string) []byte {
	b := []byte{'E', 0, 0, 0, 0}
	for _, field := range []string{"SFATAL", "VFATAL", "C" + code, "M" + message} {
		b = append(append(b, field...), 0)
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	return b
}

// servePostgres terminates TLS as a PostgreSQL server does: when the client asks for it, or at
// once for clients of version 17 and later that know it is offered. A client that asks for
// neither is refused.
func (l *Listeners) servePostgres(ctx context.Context, a *arrival) error {
	first, err := l.peek(a.conn)
	if err != nil {
		return err
	}
	if first == tlsRecord {
		return l.servePostgresTLS(ctx, a, true)
	}
	if err := a.conn.SetDeadline(time.Now().Add(l.o.Limits.FirstByte)); err != nil {
		return err
	}
	for range maxPgRequests {
		var b [pgHeader]byte
		if _, err := io.ReadFull(a.conn, b[:]); err != nil {
			return fmt.Errorf("%w: %w", io.EOF, err)
		}
		intent, rest, err := parsePg(b)
		if err != nil {
			return &hangar.EdgeError{Code: hangar.EdgeTLSHandshake, Message: err.Error()}
		}
		switch intent {
		case pgWantsTLS:
			if _, err := a.conn.Write([]byte{'S'}); err != nil {
				return err
			}
			if err := a.conn.SetDeadline(time.Time{}); err != nil {
				return err
			}
			return l.servePostgresTLS(ctx, a, false)
		case pgWantsGSS:
			if _, err := a.conn.Write([]byte{'N'}); err != nil {
				return err
			}
		case pgWantsCancel:
			return l.cancelQuery(ctx, a, b, rest)
		case pgWantsPlain:
			return refusePlain(a.conn)
		}
	}
	return &hangar.EdgeError{Code: hangar.EdgeTLSHandshake, Message: "the client asks for encryption again and again"}
}

// servePostgresTLS terminates TLS. A client that did not ask for it in PostgreSQL's way has to name
// the protocol in TLS's (ALPN).
func (l *Listeners) servePostgresTLS(ctx context.Context, a *arrival, direct bool) error {
	conn, err := l.handshake(ctx, a)
	if err != nil {
		return err
	}
	if direct && conn.ConnectionState().NegotiatedProtocol != protoPostgres {
		return &hangar.EdgeError{Code: hangar.EdgeTLSHandshake, Message: "the client did not negotiate the protocol postgresql by ALPN"}
	}
	return l.join(ctx, a, conn, nil)
}

// refusePlain answers a client that its session has to be encrypted.
func refusePlain(conn *traffic.Conn) error {
	const invalidAuthorization = "28000"
	if _, err := conn.Write(pgRefusal(invalidAuthorization, "the connection has to be encrypted: use sslmode=require")); err != nil {
		return err
	}
	linger(conn)
	return nil
}

// lingerTime is for how long a refused client may still send. Unread bytes would reset the
// connection before the client has read the reason.
const lingerTime = time.Second

// linger ends a connection after the client has, or lingerTime.
func linger(conn *traffic.Conn) {
	defer conn.Close()
	if conn.CloseWrite() != nil || conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 64<<10))
}

// cancelQuery passes on a request to cancel a query, which few clients encrypt. It means nothing to
// any Machine but the one that gave out its key.
func (l *Listeners) cancelQuery(ctx context.Context, a *arrival, header [pgHeader]byte, rest int) error {
	request := slices.Grow(header[:], rest)[:pgHeader+rest]
	if _, err := io.ReadFull(a.conn, request[pgHeader:]); err != nil {
		return fmt.Errorf("%w: %w", io.EOF, err)
	}
	if err := a.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	return l.join(ctx, a, a.conn, request)
}
