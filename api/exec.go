package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
	"github.com/hangar-platform/hangar/internal/cmdline"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/wsmux"
)

const (
	defaultExecTimeout = 30 * time.Second
	maxExecTimeout     = 24 * time.Hour
	// maxExecOutput is how much of each stream a plain exec keeps; what follows is
	// read and dropped.
	maxExecOutput = 4 << 20
	// maxStdinAhead is how much input is taken before the command has read it.
	maxStdinAhead = 1 << 20
	// pongTimeout bounds the wait for the answer to a ping.
	pongTimeout = 5 * time.Second
)

func (s *server) execRoutes() {
	s.Lasting("POST "+machine+"/exec", s.execMachine, router.Operation{
		ID: "execMachine", Tag: "Execution", Summary: "Run a command in a Machine",
		Text:    "Give the command as `command` or, as one line, as `cmd`. A command that fails is answered with 200 and its exit code.",
		Lenient: true, Body: execRequest{Command: []string{"cat", "/etc/hostname"}, Timeout: 10},
		Answer: execView{Stdout: "web\n"}, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Stream("GET "+machine+"/exec", s.execStream, router.Operation{
		ID: "execStream", Tag: "Execution", Summary: "Run a command with streams",
		Text: textOfExec,
		Query: []router.Param{
			{Name: "command", Example: []string{"sh", "-c", "date"}, Text: "The command and its arguments, one each time."},
			{Name: "tty", Example: true, Text: "Give it a terminal."},
			{Name: "rows", Example: 40, Text: "Of the terminal."},
			{Name: "cols", Example: 120, Text: "Of the terminal."},
			{Name: "timeout", Example: "1m", Text: "Kill it after this time: seconds, or a duration such as 10s. The default is never."},
		},
		Status: http.StatusSwitchingProtocols, Errors: []int{http.StatusPreconditionFailed, http.StatusNotImplemented},
	})
	s.Handle("GET "+machine+"/ps", s.listProcesses, router.Operation{
		ID: "listProcesses", Tag: "Execution", Summary: "List processes",
		Query: []router.Param{
			{Name: "sort_by", Example: "pid", Text: "Accepted, without effect."},
			{Name: "order", Example: "asc", Text: "Accepted, without effect."},
		},
		Answer: []view.Process{view.OfProcess(hangar.Process{
			PID: 1, StartedMS: 20, RunMS: 40, Command: "nginx: master process", Directory: "/", CPU: 0.02, RSS: 8 << 20,
			ListenSockets: []hangar.ListenSocket{{Proto: "tcp", Address: "[::]:80"}},
		})},
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+machine+"/signal", s.signalMachine, router.Operation{
		ID: "signalMachine", Tag: "Execution", Summary: "Signal a Machine",
		Lenient: true, Body: signalRequest{Signal: hangar.Signal(15)}, Answer: router.DoneAnswer{OK: true}, Errors: []int{http.StatusPreconditionFailed},
	})
}

// textOfExec is the protocol of the package comment, for users.
const textOfExec = `Upgrade to WebSocket. Every message is binary, and its first byte says what the rest is:

- 0: stdin, from the client; an empty one ends it
- 1: stdout, from the server
- 2: stderr, from the server; never with a terminal
- 3: a new size of the terminal, from the client: {"rows": 40, "cols": 120}
- 4: the end, from the server: {"exit_code": 0, "exit_signal": 0}, or an error

The command is killed when the connection is lost.`

// execRequest is the body of exec.
type execRequest struct {
	Cmd       string   `json:"cmd"`     // a command line
	Command   []string `json:"command"` // the same, split
	Container string   `json:"container"`
	Stdin     string   `json:"stdin"`
	Timeout   float64  `json:"timeout"` // seconds
}

// execView is how a command ended, and what it printed.
type execView struct {
	hangar.ExecResult
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated,omitempty"` // a stream was longer than what the answer holds of it
}

// execMachine runs a command to its end and answers with its output. A command
// that fails is no error.
func (s *server) execMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[execRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Container != "" {
		return router.Answer{}, input.Unsupported("container", "several containers in one machine are not offered by this server")
	}
	if len(in.Command) == 0 {
		if in.Command, err = cmdline.Split(in.Cmd); err != nil {
			return router.Answer{}, input.Invalid("cmd", "%s", err)
		}
	}
	timeout := time.Duration(in.Timeout * float64(time.Second))
	switch {
	case len(in.Command) == 0 || in.Command[0] == "":
		return router.Answer{}, input.Invalid("command", "is empty")
	case in.Timeout < 0 || in.Timeout > maxExecTimeout.Seconds():
		return router.Answer{}, input.Invalid("timeout", "%g is not a number of seconds from 0 to %g", in.Timeout, maxExecTimeout.Seconds())
	case timeout == 0:
		timeout = defaultExecTimeout
	}
	stdout, stderr := &head{limit: maxExecOutput}, &head{limit: maxExecOutput}
	result, err := s.Machines.ExecMachine(r.Context(), ref, hangar.ExecRequest{Command: in.Command, Timeout: timeout},
		hangar.ExecStreams{Stdin: strings.NewReader(in.Stdin), Stdout: stdout, Stderr: stderr})
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(execView{result, stdout.String(), stderr.String(), stdout.dropped || stderr.dropped})
}

// head keeps the beginning of what is written to it. The two streams of a command
// may be written from different goroutines, each head from one at a time.
type head struct {
	limit   int
	mu      sync.Mutex // guards what follows
	buf     bytes.Buffer
	dropped bool
}

// Write implements io.Writer and always takes everything.
func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keep := min(len(p), h.limit-h.buf.Len())
	h.buf.Write(p[:keep])
	h.dropped = h.dropped || keep < len(p)
	return len(p), nil
}

// String returns what was kept.
func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.buf.String()
}

// execStream runs a command with live streams over a WebSocket.
func (s *server) execStream(w http.ResponseWriter, r *http.Request) error {
	ref, err := machineRef(r)
	if err != nil {
		return err
	}
	q := input.QueryOf(r)
	req := hangar.ExecRequest{
		Command: q.Values["command"],
		TTY:     q.Bool("tty"),
		Size:    hangar.TerminalSize{Rows: uint16(q.Int("rows", 0, 1<<16-1)), Cols: uint16(q.Int("cols", 0, 1<<16-1))},
		Timeout: q.Duration("timeout", maxExecTimeout),
	}
	switch {
	case q.Err != nil:
		return q.Err
	case len(req.Command) == 0 || req.Command[0] == "":
		return input.Invalid("parameter command", "is empty")
	}
	ws, err := upgrade(w, r)
	if errors.Is(err, errHungUp) {
		s.Log.DebugContext(r.Context(), "upgrade failed", router.KeyRequest, router.RequestID(r), router.KeyError, err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = ws.CloseNow() }()
	s.runStream(r, ws, ref, req)
	return nil
}

// runStream returns when the connection or the command ends, whichever is first. When something else
// ends the request, the connection outlives the command by the time that it takes to say so.
func (s *server) runStream(r *http.Request, ws *websocket.Conn, ref hangar.MachineRef, req hangar.ExecRequest) {
	ctx, hangUp := finish.Lifetime(r.Context()) // of the connection
	defer hangUp()
	command, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer context.AfterFunc(r.Context(), func() { time.AfterFunc(router.EndTimeout, hangUp) })()
	conn := wsmux.New(ws)
	stdin := newStdin(maxStdinAhead)
	sizes := make(chan hangar.TerminalSize, 1)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchPeer(ctx, ws, hangUp)
	}()
	received := make(chan struct{})
	go func() {
		defer close(received)
		// The client is gone, or has violated the protocol. Either ends the command.
		defer hangUp()
		defer stdin.finish(errClientGone)
		receiveExec(ctx, conn, stdin, sizes)
	}()
	result, err := s.Machines.ExecMachine(command, ref, req, hangar.ExecStreams{
		Stdin:  stdin,
		Stdout: timedWriter{ctx, conn, wsmux.Stdout},
		Stderr: timedWriter{ctx, conn, wsmux.Stderr},
		Resize: sizes,
	})
	var end any = result
	if err = router.EndedBy(r.Context(), err); err != nil {
		body := router.Describe(err)
		end = body
		if body.Code == hangar.CodeInternal {
			s.Log.ErrorContext(ctx, "exec failed", router.KeyRequest, router.RequestID(r), router.KeyPath, r.URL.Path, router.KeyError, err)
		}
	}
	if raw, err := json.Marshal(end); err == nil && ctx.Err() == nil {
		if _, err := (timedWriter{ctx, conn, wsmux.Exit}).Write(raw); err == nil {
			_ = ws.Close(websocket.StatusNormalClosure, "")
		}
	}
	hangUp()
	_ = ws.CloseNow()
	stdin.finish(errClientGone)
	<-received
	<-watched
}

var errClientGone = errors.New("the client is gone")

// watchPeer calls lost when it cannot write to the client. While stdin is full, nothing else would
// notice that the client is gone.
func watchPeer(ctx context.Context, ws *websocket.Conn, lost func()) {
	t := time.NewTicker(router.Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		bounded, cancel := context.WithTimeout(ctx, pongTimeout)
		err := ws.Ping(bounded)
		cancel()
		// A client may be slow to answer because its messages are not read.
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			lost()
			return
		}
	}
}

// receiveExec passes on what the client sends until the connection ends.
func receiveExec(ctx context.Context, conn *wsmux.Conn, stdin *stdin, sizes chan hangar.TerminalSize) {
	for {
		stream, payload, err := conn.Receive(ctx)
		if err != nil {
			return
		}
		switch stream {
		case wsmux.Stdin:
			if len(payload) == 0 {
				stdin.finish(io.EOF)
			} else if !stdin.put(ctx, payload) {
				return
			}
		case wsmux.Resize:
			var size hangar.TerminalSize
			if json.Unmarshal(payload, &size) != nil {
				return
			}
			// Only the latest size matters.
			select {
			case <-sizes:
			default:
			}
			sizes <- size
		default:
			return
		}
	}
}

// timedWriter sends to a stream of a client that must not be too slow.
type timedWriter struct {
	ctx    context.Context //nolint:containedctx // a writer has no other way to learn of its end
	conn   *wsmux.Conn
	stream byte
}

// Write implements io.Writer.
func (t timedWriter) Write(p []byte) (int, error) {
	ctx, cancel := context.WithTimeout(t.ctx, router.StreamTimeout)
	defer cancel()
	n, err := t.conn.Writer(ctx, t.stream).Write(p)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = hangar.Errorf(hangar.CodeTimeout, "", "the client did not read for %s", router.StreamTimeout)
	}
	return n, err
}
