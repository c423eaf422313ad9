package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"sync"

	"github.com/hangar-platform/hangar"
)

// WatchMachine implements hangar.MachineReader.
func (a agent) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return values[hangar.MachineChange](ctx, a.peer, "WatchMachine", ref)
}

// FollowLogs implements hangar.LogAgent.
func (a agent) FollowLogs(ctx context.Context, app hangar.AppID, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return values[hangar.LogEntry](ctx, a.peer, "FollowLogs", app, q)
}

// values yields the values of a stream as they come, until the host ends it, ctx ends or the caller
// breaks off.
func values[T any](ctx context.Context, p *peer, name string, args ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := each(ctx, p, name, args, func(v T) bool { return yield(v, nil) }); err != nil {
			var none T
			yield(none, err)
		}
	}
}

func each[T any](ctx context.Context, p *peer, name string, args []any, use func(T) bool) error {
	call, err := encodeCall(ctx, args)
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if err := writeFrame(&body, kindCall, call); err != nil {
		return err
	}
	answer, err := p.exchange(ctx, name, &body)
	if err != nil {
		return err
	}
	defer answer.Close()
	for {
		k, payload, err := readFrame(answer, maxAnswer)
		switch {
		case err != nil:
			return p.failure(ctx, lostError{err})
		case k == kindResult:
			return nil
		case k == kindError:
			return rebuilt(payload)
		case k != kindValue:
			continue // of a later version
		}
		var v T
		if err := json.Unmarshal(payload, &v); err != nil {
			return hangar.Errorf(hangar.CodeInternal, "", "the answer of host %s cannot be read: %w", p.host.ID, err)
		}
		if !use(v) {
			return nil
		}
	}
}

// duplex is an exchange whose two bodies flow at the same time.
type duplex struct {
	answer io.ReadCloser
	out    *frameWriter
	over   <-chan struct{} // closed when both have ended
	finish func()          // ends the request, after what was written
	end    func()          // ends both
}

// both begins an exchange in both directions. ctx bounds the wait for the answer to begin; what the
// exchange does then lives until end is called, or the peer is closed.
func (p *peer) both(ctx context.Context, name string, args ...any) (*duplex, error) {
	call, err := encodeCall(ctx, args)
	if err != nil {
		return nil, err
	}
	var first bytes.Buffer
	if err := writeFrame(&first, kindCall, call); err != nil {
		return nil, err
	}
	body, pipe := io.Pipe()
	lasting, end := context.WithCancelCause(p.work.Context)
	// The transport checks the context of a request only while it does not wait for its body.
	context.AfterFunc(lasting, func() { _ = pipe.CloseWithError(net.ErrClosed) })
	attached := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	// The transport closes the body when the connection breaks, and with it the pipe.
	answer, err := p.exchange(lasting, name, struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&first, body), body})
	d := &duplex{
		answer: answer, out: &frameWriter{w: pipe}, over: lasting.Done(), finish: func() { _ = pipe.Close() },
		end: func() {
			end(net.ErrClosed)
			if answer != nil {
				_ = answer.Close()
			}
		},
	}
	if err == nil && !attached() {
		err = p.failure(ctx, ctx.Err())
	}
	if err != nil {
		attached()
		d.end()
		return nil, err
	}
	return d, nil
}

// opened returns the payload of the frame with which a connection begins.
func (p *peer) opened(ctx context.Context, d *duplex) ([]byte, error) {
	attached := context.AfterFunc(ctx, d.end)
	defer attached()
	k, payload, err := readFrame(d.answer, maxCall)
	switch {
	case err != nil:
		return nil, p.failure(ctx, lostError{err})
	case k == kindError:
		return nil, rebuilt(payload)
	case k != kindOpen:
		return nil, p.unreachable(fmt.Errorf("unexpected frame %q", k))
	default:
		return payload, nil
	}
}

// dial opens a connection to a Machine. prepare sees it before its first frame; nil: there is no need.
func (p *peer) dial(ctx context.Context, name string, datagrams bool, ref hangar.MachineRef, port int, prepare func(*conn)) (net.Conn, error) {
	d, err := p.both(ctx, name, ref, port)
	if err != nil {
		return nil, err
	}
	if _, err := p.opened(ctx, d); err != nil {
		d.end()
		return nil, err
	}
	c := newConn(d.answer, d.out, fmt.Sprintf("%s:%d", ref.ID, port), datagrams, d.over, d.finish, d.end)
	if prepare != nil {
		prepare(c)
	}
	if !p.work.Go(func() {
		c.pump()
		d.end()
	}) {
		d.end()
		return nil, p.unreachable(net.ErrClosed)
	}
	return c, nil
}

// DialMachine implements hangar.MachineDialer.
func (a agent) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	return a.dial(ctx, "DialMachine", false, ref, port, nil)
}

// ExecMachine implements hangar.MachineExecer. A read of streams.Stdin that is under way when the
// command ends is not interrupted: its goroutine ends when the read does, and what it read is lost.
func (a agent) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d, err := a.both(ctx, "ExecMachine", ref, req)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	defer d.end()
	defer context.AfterFunc(ctx, d.end)()
	go func() {
		if err := streams.CopyStdin(pieces{d.out, kindStdin}); err != nil {
			cancel(err) // without the frame that ends the input
			return
		}
		_ = d.out.write(kindStdin, nil) // the reader of the answer learns of a lost connection
	}()
	var resized sync.WaitGroup
	resized.Go(func() { sendSizes(ctx, d.out, streams.Resize) })
	defer resized.Wait()
	defer cancel(nil)
	for {
		k, payload, err := readFrame(d.answer, maxPiece+frameHeader)
		if err != nil && ctx.Err() != nil && caller.Err() == nil {
			return hangar.ExecResult{}, context.Cause(ctx) // of its input
		}
		if err != nil {
			return hangar.ExecResult{}, a.failure(ctx, lostError{err})
		}
		switch k {
		case kindStdout:
			err = writeTo(streams.Stdout, payload)
		case kindStderr:
			err = writeTo(streams.Stderr, payload)
		case kindError:
			return hangar.ExecResult{}, rebuilt(payload)
		case kindResult:
			var result hangar.ExecResult
			return result, json.Unmarshal(payload, &result)
		default: // of a later version
		}
		if err != nil {
			return hangar.ExecResult{}, hangar.Errorf(hangar.CodeInternal, "", "write the output of the command: %w", err)
		}
	}
}

func writeTo(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

func sendSizes(ctx context.Context, out *frameWriter, sizes <-chan hangar.TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			payload, err := json.Marshal(size)
			if err != nil || out.write(kindResize, payload) != nil {
				return
			}
		}
	}
}
