package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/splice"
)

// streams returns all methods whose answer is more than a result, by name.
func streams() map[string]streaming {
	return map[string]streaming{
		"WatchMachine": {1, func(h *Handler, x *served) {
			serveValues(h, x, func(ctx context.Context) (iter.Seq2[hangar.MachineChange, error], error) {
				ref, err := argument[hangar.MachineRef](&x.call, 0)
				return h.agent.WatchMachine(ctx, ref), err
			})
		}},
		"FollowLogs": {2, func(h *Handler, x *served) {
			serveValues(h, x, func(ctx context.Context) (iter.Seq2[hangar.LogEntry, error], error) {
				app, q, err := arguments[hangar.AppID, hangar.LogQuery](&x.call)
				return h.agent.FollowLogs(ctx, app, q), err
			})
		}},
		"ExecMachine":     {2, (*Handler).exec},
		"DialMachine":     {2, func(h *Handler, x *served) { h.dial(x, false, h.agent.DialMachine, nil) }},
		"DialService":     {2, func(h *Handler, x *served) { h.dial(x, false, h.gate.DialService, h.gate.EnterMachine) }},
		"DialDatagrams":   {2, func(h *Handler, x *served) { h.dial(x, true, h.gate.DialDatagrams, nil) }},
		"OpenMachineFile": {2, (*Handler).file},
		"Enter":           {0, (*Handler).enter},
		"OpenPushed":      {1, (*Handler).content},
	}
}

// serveValues answers with a stream of values.
func serveValues[T any](h *Handler, x *served, open func(context.Context) (iter.Seq2[T, error], error)) {
	ctx, cancel := x.call.context(x.r.Context())
	defer cancel()
	all, err := open(ctx)
	if err == nil {
		err = x.control.Flush() // the caller knows now that the host answers
	}
	if err != nil {
		h.answer(x, nil, err)
		return
	}
	for v, err := range all {
		if err != nil {
			h.answer(x, nil, err)
			return
		}
		payload, err := hangar.EncodeJSON(v)
		if err != nil {
			h.answer(x, nil, err)
			return
		}
		if x.out.write(kindValue, payload) != nil {
			return
		}
	}
	h.answer(x, struct{}{}, ctx.Err())
}

// exec runs a command. It is killed when the caller is gone.
func (h *Handler) exec(x *served) {
	ref, req, err := arguments[hangar.MachineRef, hangar.ExecRequest](&x.call)
	if err != nil {
		h.answer(x, nil, err)
		return
	}
	ctx, cancel := x.call.context(x.r.Context())
	defer cancel()
	if err := x.control.Flush(); err != nil {
		return
	}
	stdin, feed := io.Pipe()
	sizes := make(chan hangar.TerminalSize, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		err := x.frames(func(k kind, payload []byte) error { return execFrame(k, payload, feed, sizes) })
		_ = feed.CloseWithError(orEOF(err))
		if err != nil {
			cancel()
		}
	})
	result, err := h.agent.ExecMachine(ctx, ref, req, hangar.ExecStreams{
		Stdin: stdin, Stdout: pieces{x.out, kindStdout}, Stderr: pieces{x.out, kindStderr}, Resize: sizes,
	})
	h.answer(x, result, err)
	_ = stdin.Close() // the command reads no more
	_ = x.r.Body.Close()
	reading.Wait()
}

func orEOF(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// execFrame handles a frame for a command. A new terminal size replaces one that was not used yet.
func execFrame(k kind, payload []byte, stdin *io.PipeWriter, sizes chan hangar.TerminalSize) error {
	switch k {
	case kindStdin:
		if len(payload) == 0 {
			return stdin.Close()
		}
		if _, err := stdin.Write(payload); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
	case kindResize:
		var size hangar.TerminalSize
		if err := json.Unmarshal(payload, &size); err != nil {
			return err
		}
		select {
		case <-sizes:
		default:
		}
		sizes <- size // this goroutine alone sends
	default: // of a later version
	}
	return nil
}

// pieces writes to a stream of a command.
type pieces struct {
	out  *frameWriter
	kind kind
}

// Write implements io.Writer.
func (p pieces) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		piece := b[done:min(len(b), done+maxPiece)]
		if err := p.out.write(p.kind, piece); err != nil {
			return done, err
		}
		done += len(piece)
	}
	return len(b), nil
}

// dial connects the caller with a Machine. The deadline of the call bounds only the dialing.
// Requests enter over the connection if enter is not nil.
func (h *Handler) dial(
	x *served, datagrams bool, dial func(context.Context, hangar.MachineRef, int) (net.Conn, error), enter func(hangar.MachineRef, int) (func(), error),
) {
	ref, port, err := arguments[hangar.MachineRef, int](&x.call)
	var machine net.Conn
	if err == nil {
		ctx, cancel := x.call.context(x.r.Context())
		machine, err = dial(ctx, ref, port)
		cancel()
	}
	if err != nil {
		h.answer(x, nil, err)
		return
	}
	defer machine.Close()
	if err := x.out.write(kindOpen, nil); err != nil {
		splice.Abort(machine, err)
		return
	}
	caller := newConn(x.r.Body, x.out, fmt.Sprintf("host %s", x.peer), datagrams, x.r.Context().Done(), func() {}, x.abort)
	if enter != nil {
		v := &visitor{caller: caller, enter: func() (func(), error) { return enter(ref, port) }}
		caller.entries = v.handle
	}
	var pumping sync.WaitGroup
	pumping.Go(caller.pump)
	if datagrams {
		joinDatagrams(caller, machine)
	} else if splice.Join(x.r.Context(), caller, machine) == nil {
		_ = caller.Close()
	}
	_ = x.r.Body.Close()
	pumping.Wait()
}

// joinDatagrams passes datagrams on in both directions, until one end is closed.
func joinDatagrams(caller *conn, machine net.Conn) {
	var passing sync.WaitGroup
	for _, way := range [][2]net.Conn{{caller, machine}, {machine, caller}} {
		passing.Go(func() {
			defer machine.Close()
			defer caller.Close()
			b := make([]byte, maxPiece)
			for {
				n, err := way[0].Read(b)
				if err != nil {
					return
				}
				if _, err := way[1].Write(b[:n]); err != nil && way[1] == net.Conn(caller) {
					return // a datagram that the Machine does not take is lost
				}
			}
		})
	}
	passing.Wait()
}

// openedFile describes an open file.
type openedFile struct {
	Size    int64 `json:"size"`
	ModTime int64 `json:"mod_time"` // nanoseconds since 1970
}

// part is a part of a file that the caller wants.
type part struct {
	Offset int64 `json:"offset"`
	Bytes  int   `json:"bytes"`
}

// maxPart is how many bytes of a file are sent at once.
const maxPart = 256 << 10

// file serves a file of a Machine for as long as the caller has it open.
func (h *Handler) file(x *served) {
	ref, path, err := arguments[hangar.MachineRef, string](&x.call)
	var f hangar.MachineFile
	if err == nil {
		ctx, cancel := x.call.context(x.r.Context())
		defer cancel()
		f, err = h.gate.OpenMachineFile(ctx, ref, path)
	}
	if err != nil {
		h.answer(x, nil, err)
		return
	}
	defer f.Close()
	payload, err := json.Marshal(openedFile{f.Size(), f.ModTime().UnixNano()})
	if err != nil || x.out.write(kindOpen, payload) != nil {
		return
	}
	b := make([]byte, maxPart)
	err = x.frames(func(k kind, payload []byte) error {
		var want part
		if err := json.Unmarshal(payload, &want); k != kindRead || err != nil || want.Bytes < 1 || want.Bytes > maxPart {
			return errors.Join(hangar.Errorf(hangar.CodeInvalid, "", "a call of another host cannot be read"), err)
		}
		if _, err := f.Seek(want.Offset, io.SeekStart); err != nil {
			return err
		}
		n, err := io.ReadFull(f, b[:want.Bytes])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		return x.out.write(kindData, b[:n])
	})
	if err != nil {
		h.answer(x, nil, err)
	}
}
