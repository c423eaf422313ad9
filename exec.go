package hangar

import (
	"context"
	"io"
	"time"
)

// ExecRequest is a command to run inside a started Machine.
type ExecRequest struct {
	Command []string
	TTY     bool          // allocate a terminal; stdout and stderr are then one stream
	Size    TerminalSize  // of the terminal, when TTY is set
	Timeout time.Duration // 0: none; the command is killed when it has passed
}

// TerminalSize is in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExecStreams are the standard streams of an exec'd command, on the caller's
// side. Nil readers are empty, nil writers discard. The command is killed when
// the context of ExecMachine ends, or when Stdin fails: see CopyStdin.
type ExecStreams struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Resize <-chan TerminalSize // new sizes of the terminal; may be nil
}

// CopyStdin copies the input to w until it ends, and returns CodeInternal if it cannot be read: a command must not take
// what it has for all of its input. It returns nil if w takes no more, because a command need not read its input.
func (s ExecStreams) CopyStdin(w io.Writer) error {
	if s.Stdin == nil {
		return nil
	}
	in := &input{Reader: s.Stdin}
	_, _ = io.Copy(w, in)
	return in.broken
}

// input keeps the error of its Reader apart from those of writing. It hides a WriteTo, which may write all at once.
type input struct {
	io.Reader
	broken error
}

func (r *input) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		r.broken = Errorf(CodeInternal, "", "read the input of the command: %w", err)
	}
	return n, err
}

// ExecResult is how an exec'd command ended.
type ExecResult struct {
	ExitCode   int `json:"exit_code"`   // 128+signal for a command that a signal ended
	ExitSignal int `json:"exit_signal"` // number, 0 for none
}

// Process is a process inside a Machine.
type Process struct {
	PID           int            `json:"pid"`
	StartedMS     int64          `json:"stime"` // milliseconds of system time
	RunMS         int64          `json:"rtime"` // milliseconds of user time
	Command       string         `json:"command"`
	Directory     string         `json:"directory"`
	CPU           float64        `json:"cpu"` // share of one core since the process started
	RSS           int64          `json:"rss"` // bytes
	ListenSockets []ListenSocket `json:"listen_sockets"`
}

// ListenSocket is a socket on which a process listens.
type ListenSocket struct {
	Proto   string `json:"proto"`   // "tcp" or "udp"
	Address string `json:"address"` // "[::]:80"
}

// MachineExecer runs commands inside Machines.
type MachineExecer interface {
	// ExecMachine returns when the command has ended. It answers
	// CodeFailedPrecondition for a Machine that is not started, CodeInvalid for an
	// empty command and CodeTimeout when req.Timeout passed. A command that fails
	// is no error.
	ExecMachine(ctx context.Context, ref MachineRef, req ExecRequest, streams ExecStreams) (ExecResult, error)
}
