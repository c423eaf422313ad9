package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/wsmux"
)

// ExecMachine implements hangar.MachineExecer. A read of streams.Stdin that is
// under way when the command ends is not interrupted: its goroutine ends when the
// read does, and what it read is lost. It answers CodeInternal if streams.Stdin or a
// write of the output fails, and ends the command.
func (c *Client) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := get(machinePath(ref, "exec"))
	in.query = url.Values{"command": req.Command}
	if req.TTY {
		in.query.Set("tty", "true")
		in.query.Set("rows", strconv.Itoa(int(req.Size.Rows)))
		in.query.Set("cols", strconv.Itoa(int(req.Size.Cols)))
	}
	if req.Timeout != 0 {
		in.query.Set("timeout", req.Timeout.String())
	}
	ws, err := c.upgrade(ctx, in)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	defer func() { _ = ws.CloseNow() }()
	conn := wsmux.New(ws)
	go func() {
		if err := sendStdin(ctx, conn, streams); err != nil {
			cancel(err)
		}
	}()
	resized := make(chan struct{})
	go func() {
		defer close(resized)
		sendSizes(ctx, conn, streams.Resize)
	}()
	defer func() {
		cancel(nil)
		<-resized
	}()
	result, err := receive(ctx, conn, streams)
	var known *hangar.Error
	switch {
	case err == nil || errors.As(err, &known):
		return result, err
	case errors.As(context.Cause(ctx), &known):
		return result, known
	}
	return result, lost(ctx, in, err)
}

// receive passes on the output of the command until the command has ended.
func receive(ctx context.Context, conn *wsmux.Conn, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	for {
		stream, payload, err := conn.Receive(ctx)
		if err != nil {
			return hangar.ExecResult{}, err
		}
		switch stream {
		case wsmux.Stdout:
			err = writeTo(streams.Stdout, payload)
		case wsmux.Stderr:
			err = writeTo(streams.Stderr, payload)
		case wsmux.Exit:
			return exitFrom(payload)
		}
		if err != nil {
			return hangar.ExecResult{}, hangar.Errorf(hangar.CodeInternal, "", "write the output of the command: %w", err)
		}
	}
}

func exitFrom(payload []byte) (hangar.ExecResult, error) {
	var exit struct {
		hangar.ExecResult
		errorBody
	}
	if err := json.Unmarshal(payload, &exit); err != nil {
		return hangar.ExecResult{}, err
	}
	if exit.Code != "" {
		return hangar.ExecResult{}, exit.rebuild()
	}
	return exit.ExecResult, nil
}

func writeTo(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

// sendStdin sends the input, and then the empty message that ends it. It returns an error if the input cannot be
// read: the command must not take what it has for all of it.
func sendStdin(ctx context.Context, conn *wsmux.Conn, streams hangar.ExecStreams) error {
	if err := streams.CopyStdin(conn.Writer(ctx, wsmux.Stdin)); err != nil {
		return err
	}
	// The read side reports a connection that is lost.
	_ = conn.Send(ctx, wsmux.Stdin, nil)
	return nil
}

func sendSizes(ctx context.Context, conn *wsmux.Conn, sizes <-chan hangar.TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			payload, err := json.Marshal(size)
			if err != nil || conn.Send(ctx, wsmux.Resize, payload) != nil {
				return
			}
		}
	}
}
