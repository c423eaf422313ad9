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

// The streams of an exec; package api documents the protocol.
const (
	execStdin byte = iota
	execStdout
	execStderr
	execResize
	execExit
)

// ExecMachine implements hangar.MachineExecer. A read of streams.Stdin that is
// under way when the command ends is not interrupted: its goroutine ends when the
// read does, and what it read is lost.
func (c *Client) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
	go sendStdin(ctx, conn, streams.Stdin)
	resized := make(chan struct{})
	go func() {
		defer close(resized)
		sendSizes(ctx, conn, streams.Resize)
	}()
	defer func() {
		cancel()
		<-resized
	}()
	result, err := receive(ctx, conn, streams)
	var known *hangar.Error
	if err != nil && !errors.As(err, &known) {
		return result, lost(ctx, in, err)
	}
	return result, err
}

// receive passes on the output of the command until the command has ended.
func receive(ctx context.Context, conn *wsmux.Conn, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	for {
		stream, payload, err := conn.Receive(ctx)
		if err != nil {
			return hangar.ExecResult{}, err
		}
		switch stream {
		case execStdout:
			err = writeTo(streams.Stdout, payload)
		case execStderr:
			err = writeTo(streams.Stderr, payload)
		case execExit:
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

// sendStdin sends the input, and then the empty message that ends it.
func sendStdin(ctx context.Context, conn *wsmux.Conn, stdin io.Reader) {
	if stdin != nil {
		if _, err := io.Copy(conn.Writer(ctx, execStdin), onlyReader{stdin}); err != nil && ctx.Err() != nil {
			return
		}
	}
	// The read side reports a connection that is lost.
	_ = conn.Send(ctx, execStdin, nil)
}

// onlyReader hides a WriteTo, which would send everything as one message.
type onlyReader struct{ io.Reader }

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
			if err != nil || conn.Send(ctx, execResize, payload) != nil {
				return
			}
		}
	}
}
