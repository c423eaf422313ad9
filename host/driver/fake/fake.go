// Package fake is a driver whose sandboxes are small files: a pretend host on
// which Machines start, run, end, are suspended and killed, without a process.
//
// The World is the host. It is in a directory, not in the daemon. A daemon that is killed at any
// moment finds its Machines as it left them, and planned events, such as an exit after 200 ms, have
// happened at their time. Each sandbox has memory that only a suspend preserves, and it writes to its
// root file system. So a test can distinguish a true resume from a boot, and a kept root from a reset
// one. Delays and failures come from Options.Faults or from the environment of the Machine; see the
// Env constants.
//
// A Driver and its World may be used from many goroutines. The World serialises its changes; one
// process at a time may use a directory.
//
// It is strict where a real driver would merely behave badly: it refuses a violation of the contract
// of driver.Driver with ErrMisuse and records it in the World, where Misuses finds it. It isolates
// nothing and runs no program; run.go lists the few commands that it plays.
package fake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// ErrMisuse reports that the caller violated the contract of driver.Driver.
var ErrMisuse = errors.New("driver misused")

// Environment variables of a Machine that steer its sandbox.
const (
	// EnvExit plans the end of the main process: "CODE@DELAY", e.g. "7@200ms"; "signal:9@1s" ends it
	// by a signal and "oom@1s" for lack of memory. The delay counts from the start, without the time
	// spent suspended.
	EnvExit = "HANGAR_FAKE_EXIT"
	// EnvStop is the main process's answer to a signal that would end it: "ignore", or a value as of
	// EnvExit with the delay counted from the signal. Unset: the signal ends it at once. SIGKILL
	// always does.
	EnvStop = "HANGAR_FAKE_STOP"
	// EnvOutput is the text that the main process prints when it starts.
	EnvOutput = "HANGAR_FAKE_OUTPUT"
	// EnvMemoryMB is how much memory the Machine uses, in MiB.
	EnvMemoryMB = "HANGAR_FAKE_MEMORY_MB"

	// Delays are durations, errors are texts. "command not found" and "snapshot unusable" become the
	// driver's errors of these names.
	EnvStartDelay   = "HANGAR_FAKE_START_DELAY"
	EnvStartError   = "HANGAR_FAKE_START_ERROR"
	EnvSuspendDelay = "HANGAR_FAKE_SUSPEND_DELAY"
	EnvSuspendError = "HANGAR_FAKE_SUSPEND_ERROR"
	EnvResumeDelay  = "HANGAR_FAKE_RESUME_DELAY"
	EnvResumeError  = "HANGAR_FAKE_RESUME_ERROR"
)

// Op is a moment at which a fault can be injected.
type Op string

// The moments. Those named Done are between the effect and the answer, where a crash of the daemon
// leaves an effect without a record.
const (
	OpStart       Op = "start"
	OpStartDone   Op = "start done"
	OpSuspend     Op = "suspend"
	OpSuspendDone Op = "suspend done"
	OpResume      Op = "resume"
	OpResumeDone  Op = "resume done"
	OpRecover     Op = "recover"
	OpAdopt       Op = "adopt"
	OpSignal      Op = "signal"
	OpStop        Op = "stop"
	OpExec        Op = "exec"
	OpDestroy     Op = "destroy"
	OpDestroyDone Op = "destroy done"
	OpList        Op = "list"
)

// Options of a Driver.
type Options struct {
	// Faults is called at every Op; nil: no faults. The operation waits for delay and then fails with
	// err, if that is not nil. Faults may block. For OpList id is empty.
	Faults func(op Op, id hangar.MachineID) (delay time.Duration, err error)
	// MaxSuspendMemoryMB is reported as a capability; 0: 2048.
	MaxSuspendMemoryMB int
	// Swap is reported as a capability.
	Swap bool
	// Programs are the possible main processes of a Machine, as its command names them; nil: any.
	Programs []string
}

// Driver runs Machines in a World. It has no state of its own.
type Driver struct {
	world *World
	o     Options
}

var (
	_ driver.Driver      = (*Driver)(nil)
	_ driver.Suspender   = (*Driver)(nil)
	_ driver.Adopter     = (*Driver)(nil)
	_ driver.StatsReader = (*Driver)(nil)
	_ driver.UsageReader = (*Driver)(nil)
)

// New returns a Driver for the World.
func New(w *World, o Options) *Driver {
	if o.MaxSuspendMemoryMB == 0 {
		o.MaxSuspendMemoryMB = 2048
	}
	return &Driver{world: w, o: o}
}

// Capabilities says that the driver can suspend.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{Name: "fake", Suspend: true, MaxSuspendMemoryMB: d.o.MaxSuspendMemoryMB, Swap: d.o.Swap}
}

// handle is the content of a driver.Handle. Boot distinguishes the sandboxes of one Machine.
type handle struct {
	ID   hangar.MachineID `json:"id"`
	Boot string           `json:"boot"`
}

func (h handle) encode() driver.Handle {
	b, _ := json.Marshal(h) // only strings: cannot fail
	return b
}

func (d *Driver) decode(h driver.Handle) (handle, error) {
	var v handle
	if err := json.Unmarshal(h, &v); err != nil || v.ID == "" || v.Boot == "" {
		return handle{}, fmt.Errorf("%w: %w", driver.ErrNotFound, d.world.misused("", "handle %q is none of this driver's", h))
	}
	return v, nil
}

// Start boots a sandbox.
func (d *Driver) Start(ctx context.Context, spec driver.Spec) (driver.Handle, error) {
	end, err := d.world.begin("start", spec.ID)
	if err != nil {
		return nil, err
	}
	defer end()
	env, err := d.checkSpec(spec, "start")
	if err != nil {
		return nil, err
	}
	if err := d.fault(ctx, OpStart, spec.ID); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	if err := env.fault(ctx, EnvStartDelay, EnvStartError); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	s := &sandbox{Spec: spec, Boot: rand.Text(), Started: now()}
	for _, cmd := range s.commands() {
		if name := cmd.Args[0]; d.o.Programs != nil && !slices.Contains(d.o.Programs, name) {
			return nil, fmt.Errorf("start %s: %s: %w", spec.ID, name, driver.ErrCommandNotFound)
		}
	}
	s.Incarnation = s.Boot
	if err := s.bootRoot(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	if err := s.writeFiles(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	if err := s.startAll(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	return d.launch(ctx, s, OpStartDone)
}

// launch adds a sandbox to the World. An error before the answer removes it again.
func (d *Driver) launch(ctx context.Context, s *sandbox, done Op) (driver.Handle, error) {
	if err := d.world.add(s); err != nil {
		return nil, err
	}
	if err := d.fault(ctx, done, s.Spec.ID); err != nil {
		return nil, errors.Join(err, d.world.remove(s.Spec.ID))
	}
	if done == OpStartDone {
		s.print(s.said)
	}
	return handle{s.Spec.ID, s.Incarnation}.encode(), nil
}

// Recover reports whether the sandbox is known.
func (d *Driver) Recover(ctx context.Context, h driver.Handle) error {
	v, err := d.decode(h)
	if err != nil {
		return err
	}
	if err := d.fault(ctx, OpRecover, v.ID); err != nil {
		return fmt.Errorf("recover %s: %w", v.ID, err)
	}
	_, err = d.world.find(v)
	return err
}

// Adopt returns the handle of an existing sandbox.
func (d *Driver) Adopt(ctx context.Context, id hangar.MachineID, _ string) (driver.Handle, error) {
	if err := d.fault(ctx, OpAdopt, id); errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("adopt %s: %w", id, driver.ErrNotFound)
	} else if err != nil {
		return nil, fmt.Errorf("adopt %s: %w", id, err)
	}
	s, err := d.world.load(id)
	if err != nil {
		return nil, err
	}
	if s.suspended() {
		return nil, fmt.Errorf("adopt %s: %w", id, driver.ErrNotFound)
	}
	return s.handle().encode(), nil
}

// Wait returns the exit of the sandbox.
func (d *Driver) Wait(ctx context.Context, h driver.Handle) (driver.Exit, error) {
	v, err := d.decode(h)
	if err != nil {
		return driver.Exit{}, err
	}
	return d.world.wait(ctx, v)
}

// Signal sends sig to all processes of the sandbox.
func (d *Driver) Signal(ctx context.Context, h driver.Handle, sig hangar.Signal) error {
	v, err := d.decode(h)
	if err != nil {
		return err
	}
	if err := d.fault(ctx, OpSignal, v.ID); err != nil {
		return fmt.Errorf("signal %s: %w", v.ID, err)
	}
	return d.signal(v, sig)
}

func (d *Driver) signal(h handle, sig hangar.Signal) error {
	var said string
	var after *sandbox
	err := d.world.change(h, func(s *sandbox) (err error) {
		said, err = s.signal(sig)
		after = s
		return err
	})
	if err == nil {
		after.print(said)
	}
	return err
}

// Stop sends sig to the sandbox and, when grace has passed, SIGKILL.
func (d *Driver) Stop(ctx context.Context, h driver.Handle, sig hangar.Signal, grace time.Duration) error {
	v, err := d.decode(h)
	if err != nil {
		return err
	}
	end, err := d.world.begin("stop", v.ID)
	if err != nil {
		return err
	}
	defer end()
	if err := d.fault(ctx, OpStop, v.ID); err != nil {
		return fmt.Errorf("stop %s: %w", v.ID, err)
	}
	if s, err := d.world.find(v); err == nil && s.Ended != nil {
		return nil // it has ended already
	}
	if err := d.signal(v, sig); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, grace)
	_, err = d.world.wait(patient, v)
	cancel()
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = d.signal(v, sigKill)
	if errors.Is(err, driver.ErrNotFound) {
		return nil // it ended by itself at the last moment
	}
	return err
}

// Destroy removes the sandbox from the World.
func (d *Driver) Destroy(ctx finish.Context, id hangar.MachineID, _ string) error {
	end, err := d.world.begin("destroy", id)
	if err != nil {
		return err
	}
	defer end()
	if err := d.fault(ctx, OpDestroy, id); err != nil {
		return fmt.Errorf("destroy %s: %w", id, err)
	}
	if err := d.world.remove(id); err != nil {
		return fmt.Errorf("destroy %s: %w", id, err)
	}
	return d.fault(ctx, OpDestroyDone, id)
}

// List returns the Machines whose sandbox runs or has ended, but not those of suspended ones.
func (d *Driver) List(ctx context.Context) ([]hangar.MachineID, error) {
	if err := d.fault(ctx, OpList, ""); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	ids, err := d.world.list()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ids, func(id hangar.MachineID) bool {
		s, err := d.world.load(id)
		return err == nil && s.suspended() || errors.Is(err, driver.ErrNotFound)
	}), nil
}

// Processes lists the main process and those beside it.
func (d *Driver) Processes(_ context.Context, h driver.Handle) ([]hangar.Process, error) {
	s, err := d.running(h)
	if err != nil {
		return nil, err
	}
	var out []hangar.Process
	for i, cmd := range s.commands() {
		out = append(out, hangar.Process{
			PID:           1 + i,
			Command:       strings.Join(cmd.Args, " "),
			Directory:     cmd.Dir,
			RunMS:         now().Sub(s.Started).Milliseconds(),
			RSS:           s.memoryBytes(),
			ListenSockets: []hangar.ListenSocket{},
		})
	}
	return out, nil
}

// Stats reports as much processor time as the sandbox has been running.
func (d *Driver) Stats(_ context.Context, h driver.Handle) (driver.Stats, error) {
	s, err := d.running(h)
	if err != nil {
		return driver.Stats{}, err
	}
	return driver.Stats{CPUTime: now().Sub(s.Started), MemoryBytes: s.memoryBytes(), Processes: len(s.commands())}, nil
}

// Usage is that of a sandbox that has kept one processor busy since its start, and has cached
// nothing.
func (d *Driver) Usage(_ context.Context, h driver.Handle) (driver.Usage, error) {
	s, err := d.running(h)
	if err != nil {
		return driver.Usage{}, err
	}
	u := driver.Usage{User: now().Sub(s.Started), Memory: driver.MemoryUsage{Used: s.memoryBytes()}}
	if d.o.Swap {
		u.Memory.SwapTotal = int64(s.Spec.SwapMB) << 20
	}
	return u, nil
}

// running returns a sandbox that has not ended.
func (d *Driver) running(h driver.Handle) (*sandbox, error) {
	v, err := d.decode(h)
	if err != nil {
		return nil, err
	}
	return d.world.findRunning(v)
}

// checkSpec refuses what no driver could run, and reads the environment.
func (d *Driver) checkSpec(spec driver.Spec, what string) (environment, error) {
	switch {
	case spec.ID == "":
		return nil, d.world.misused(spec.ID, "%s without an id", what)
	case len(spec.Command.Args) == 0:
		return nil, d.world.misused(spec.ID, "%s without a command", what)
	case slices.ContainsFunc(spec.Others, func(c driver.Command) bool { return len(c.Args) == 0 }):
		return nil, d.world.misused(spec.ID, "%s with an empty command beside the main one", what)
	case len(spec.Others) > 0 && (spec.TTY || spec.StopSignal == 0):
		return nil, d.world.misused(spec.ID, "%s of several commands with a terminal or without a signal to stop", what)
	case len(spec.Root.Layers) == 0:
		return nil, d.world.misused(spec.ID, "%s without a root layer", what)
	}
	if info, err := os.Stat(spec.Dir); err != nil || !info.IsDir() {
		return nil, d.world.misused(spec.ID, "%s without its directory %q", what, spec.Dir)
	}
	switch s, err := d.world.load(spec.ID); {
	case err == nil && s.suspended(): // a suspended sandbox needs no Destroy
	case err == nil:
		return nil, d.world.misused(spec.ID, "%s while an earlier sandbox has not been destroyed", what)
	case !errors.Is(err, driver.ErrNotFound):
		return nil, err
	}
	return parseEnv(spec.Command.Env), nil
}

func (d *Driver) fault(ctx context.Context, op Op, id hangar.MachineID) error {
	if d.o.Faults == nil {
		return nil
	}
	delay, err := d.o.Faults(op, id)
	if derr := pause.For(ctx, delay); derr != nil {
		return derr
	}
	if err != nil {
		return err
	}
	return d.world.alive()
}
