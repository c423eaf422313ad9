package gvisor

import (
	"context"
	"fmt"

	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
)

// The methods of a sandbox's control server that the driver calls. The types of
// their arguments are gVisor's, cut down to what is used, so that the sentry is not
// linked in; a test compares them with the originals.
const (
	methodExec      = "containerManager.ExecuteAsync"
	methodWaitPID   = "containerManager.WaitPID"
	methodSignal    = "containerManager.Signal"
	methodProcesses = "containerManager.Processes"
	methodProcfs    = "containerManager.ProcfsDump"
	methodRestored  = "containerManager.WaitRestore"
	methodCat       = "Fs.Cat"
)

// execArgs are those of methodExec. The files are standard input, output and error.
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
	urpc.FilePayload
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

// Who a signal is for.
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

// catArgs are those of methodCat. The file receives the contents.
type catArgs struct {
	Files []string `json:"files"`
	urpc.FilePayload
}

// call calls a method of the sandbox. The connection is closed, which ends the
// call on this side, when ctx ends.
func (s *sandbox) call(ctx context.Context, method string, arg, result any) error {
	conn, err := unet.Connect(s.Socket, false)
	if err != nil {
		return fmt.Errorf("connect to sandbox: %w", err)
	}
	client := urpc.NewClient(conn)
	// The socket itself: the client's Close waits for the call to end.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			_ = conn.Close()
		}
	}()
	if err := client.Call(method, arg, result); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}
