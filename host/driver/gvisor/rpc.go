package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The methods of a sandbox's control server that the driver calls. The types of their arguments are
// gVisor's, reduced to the fields in use, so that the driver need not link the sentry. A test
// compares them with the originals.
const (
	methodExec      = "containerManager.ExecuteAsync"
	methodWaitPID   = "containerManager.WaitPID"
	methodSignal    = "containerManager.Signal"
	methodProcesses = "containerManager.Processes"
	methodProcfs    = "containerManager.ProcfsDump"
	methodRestored  = "containerManager.WaitRestore"
	methodCat       = "Fs.Cat"
)

// execArgs are the arguments of methodExec. The files are standard input, output and error.
type execArgs struct {
	Filename         string   `json:"filename"`
	Argv             []string `json:"argv"`
	Envv             []string `json:"envv"`
	WorkingDirectory string   `json:"wd"`
	KUID             uint32
	KGID             uint32
	ExtraKGIDs       []uint32
	Capabilities     *taskCapabilities
	StdioIsPty       bool
	SupportTTYs      bool
	GuestFDs         []int
	ContainerID      string
	filePayload
}

// taskCapabilities are sets of capabilities as bit masks.
type taskCapabilities struct {
	PermittedCaps   uint64
	InheritableCaps uint64
	EffectiveCaps   uint64
	BoundingCaps    uint64
	AmbientCaps     uint64
}

type waitPIDArgs struct {
	PID int32
	CID string
}

// The receivers of a signal.
const (
	toProcess         = 0
	toForegroundGroup = 2
	toProcessGroup    = 3
)

type signalArgs struct {
	CID   string
	Signo int32
	PID   int32
	Mode  int
}

// guestProcess is a process as methodProcesses lists it.
type guestProcess struct {
	PID int32 `json:"pid"`
}

// procfsEntry is a process as methodProcfs describes it.
type procfsEntry struct {
	Args      []string  `json:"args"`
	CWD       string    `json:"cwd"`
	FDs       []fdEntry `json:"fdlist"`
	StartTime int64     `json:"clone_ts"` // nanoseconds since 1970
	Status    struct {
		Comm  string `json:"comm"`
		PID   int32  `json:"pid"`
		PPID  int32  `json:"ppid"`   // 0: started from outside
		VMRSS uint64 `json:"vm_rss"` // KiB
	} `json:"status"`
}

type fdEntry struct {
	Number int32  `json:"number"`
	Path   string `json:"path"`
}

// procfsList is the answer of methodProcfs.
type procfsList []procfsEntry

// allTasks is how many tasks a sandbox of gVisor can have.
const allTasks = 1 << 16

// UnmarshalJSON refuses more processes than a sandbox can have: an entry takes up to 35 times the memory
// of its text.
func (l *procfsList) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		if len(*l) == allTasks {
			return errTooMuch
		}
		var e procfsEntry
		if err := d.Decode(&e); err != nil {
			return err
		}
		*l = append(*l, e)
	}
	return nil
}

// catArgs are the arguments of methodCat. The file receives the contents.
type catArgs struct {
	Files []string `json:"files"`
	filePayload
}

// filePayload are files that are sent with a call.
type filePayload struct {
	Files []*os.File `json:"-"`
}

func (p *filePayload) payload() []*os.File { return p.Files }

// request and answer are the JSON messages of a call's connection. Files are sent with the first
// bytes of the request.
type (
	request struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}
	answer struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
		Result  any    `json:"result"`
	}
)

// refusal is an error that the sandbox returned.
type refusal string

func (r refusal) Error() string { return string(r) }

// call calls a method of the sandbox. When ctx ends, it closes the connection, which ends the call on
// this side. No other process inherits the connection; gVisor's own client, package urpc, leaks it to
// every process that starts meanwhile, even to other sandboxes. call returns driver.ErrNotFound if
// the sandbox has ended.
func (s *sandbox) call(ctx context.Context, method string, arg, result any) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return s.broken(ctx, fmt.Errorf("connect to sandbox: %w", err))
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := exchange(conn, method, arg, result); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err = fmt.Errorf("%s: %w", method, err)
		if errors.As(err, new(refusal)) || errors.Is(err, errTooMuch) {
			return err
		}
		return s.broken(ctx, err)
	}
	return nil
}

// dial connects to the sandbox. It retries while the sandbox's backlog is full.
func (s *sandbox) dial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", s.Socket)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) { // its backlog is full
			return nil, err
		}
		select {
		case <-time.After(dialPause):
		case <-s.done:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// dialPause is the time between two attempts to connect.
const dialPause = 5 * time.Millisecond

// broken returns the error of a call whose connection broke. It is goneError if the sandbox has
// ended, which happens a moment after its connections break.
func (s *sandbox) broken(ctx context.Context, err error) error {
	timer := time.NewTimer(endWait)
	defer timer.Stop()
	select {
	case <-s.done:
		return s.goneError()
	case <-ctx.Done():
	case <-timer.C:
	}
	return err
}

// endWait limits the wait for a sandbox whose connections broke.
const endWait = time.Second

// maxAnswer limits the answer to a call. The largest describes all processes, with their mappings and
// environments.
const maxAnswer = 64 << 20

// exchange sends the request of a call and reads its answer.
func exchange(conn *net.UnixConn, method string, arg, result any) error {
	data, err := json.Marshal(request{method, arg})
	if err != nil {
		return err
	}
	var rights []byte
	if p, ok := arg.(interface{ payload() []*os.File }); ok && len(p.payload()) > 0 {
		rights = unix.UnixRights(descriptorsOf(p.payload())...)
	}
	n, _, err := conn.WriteMsgUnix(data, rights, nil)
	runtime.KeepAlive(arg) // keeps its files open until they are sent
	if err != nil {
		return err
	}
	if n < len(data) { // writing nothing would fail when the sandbox has answered and hung up
		if _, err := conn.Write(data[n:]); err != nil {
			return err
		}
	}
	a := answer{Result: result}
	in := &io.LimitedReader{R: conn, N: maxAnswer}
	if err := json.NewDecoder(in).Decode(&a); err != nil {
		if in.N <= 0 {
			return errTooMuch
		}
		return err
	}
	if !a.Success {
		return refusal(a.Err)
	}
	return nil
}

func descriptorsOf(files []*os.File) []int {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	return fds
}
