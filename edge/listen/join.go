package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/internal/splice"
)

const (
	// maxAttempts is how many Machines are tried for a connection.
	maxAttempts = 10
	// attemptPause is between attempts when there is no other Machine to try.
	attemptPause = 100 * time.Millisecond
)

// join connects a client with a Machine until both have ended, or one has failed; the Machine first
// gets the bytes that were read already. After an error the client's connection is still open.
func (l *Listeners) join(ctx context.Context, a *arrival, client net.Conn, read []byte) error {
	a.hand(&l.arrivals)
	permit, machine, err := l.connect(ctx, a.endpoint, dialStream)
	if err != nil {
		return err
	}
	defer permit.Release()
	defer permit.Traffic.Disconnected()
	defer machine.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer permit.OnExit(func() { end(errMachineEnded) })()
	if a.endpoint.Handling.ProxyProto {
		if err := introduce(machine, a, permit.Options); err != nil {
			return &hangar.EdgeError{Code: hangar.EdgeIO, Message: "the machine does not take the PROXY header", Err: err}
		}
	}
	if len(read) > 0 {
		if _, err := machine.Write(read); err != nil {
			return &hangar.EdgeError{Code: hangar.EdgeIO, Message: "the machine takes no data", Err: err}
		}
	}
	_ = splice.Join(ctx, client, machine) // both sides see how it ended
	_ = client.Close()
	return nil
}

// dialStream connects to the Machine of a permit, and counts the connection.
func dialStream(p *balance.Permit, ctx context.Context) (net.Conn, error) { //nolint:revive // as a method expression has it
	began := time.Now()
	conn, err := p.Dial(ctx)
	if err == nil {
		p.Traffic.Connected(time.Since(began))
	}
	return conn, err
}

// connect acquires a permit for a Machine and connects to it. While nothing was sent, another
// Machine will do.
func (l *Listeners) connect(ctx context.Context, e *balance.Endpoint, dial func(*balance.Permit, context.Context) (net.Conn, error)) (*balance.Permit, net.Conn, error) {
	var sel balance.Selector
	var latest *hangar.EdgeError // of a Machine
	for range maxAttempts {
		permit, err := l.o.Balancer.Acquire(ctx, e, sel)
		if err != nil {
			if latest == nil {
				return nil, nil, err
			}
			if pause.For(ctx, attemptPause) != nil {
				return nil, nil, latest
			}
			sel.Exclude = nil // there is no other
			continue
		}
		conn, err := dial(permit, ctx)
		if err == nil {
			return permit, conn, nil
		}
		permit.Failed(err)
		permit.Release()
		latest = dialError(err, permit)
		if ctx.Err() != nil {
			return nil, nil, latest
		}
		sel.Exclude = append(sel.Exclude, permit.Row.Machine.ID)
	}
	return nil, nil, latest
}

// errMachineEnded is why a connection ends whose Machine does not say so any more.
var errMachineEnded = errors.New("the machine has ended")

// dialError says why a Machine could not be connected to.
func dialError(err error, p *balance.Permit) *hangar.EdgeError {
	if e, ok := errors.AsType[*hangar.EdgeError](err); ok {
		return e
	}
	e := &hangar.EdgeError{Code: hangar.EdgeIO, Message: fmt.Sprintf("machine %s cannot be connected to on port %d", p.Row.Machine.ID, p.Port), Err: err}
	switch {
	case hangar.ReasonOf(err) == hangar.ReasonConnectionRefused, errors.Is(err, syscall.ECONNREFUSED):
		e.Code = hangar.EdgeRefusedPort
		e.Message = fmt.Sprintf("nothing listens on port %d of machine %s; a program has to listen on 0.0.0.0 or [::], not on 127.0.0.1", p.Port, p.Row.Machine.ID)
		e.Err = nil
	case hangar.CodeOf(err) == hangar.CodeTimeout:
		e.Code = hangar.EdgeConnectTimeout
	}
	return e
}

// introduce sends a Machine the client's address.
func introduce(machine net.Conn, a *arrival, options *hangar.ServicePort) error {
	version := byte(1)
	if options != nil && options.ProxyProto != nil && options.ProxyProto.Version == "v2" {
		version = 2
	}
	header := proxyproto.HeaderProxyFromAddrs(version, net.TCPAddrFromAddrPort(a.remote), net.TCPAddrFromAddrPort(a.local))
	_, err := header.WriteTo(machine)
	return err
}
