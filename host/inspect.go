package host

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
)

// running returns the record of a Machine that is started.
func (a *Agent) running(ref hangar.MachineRef) (*journal.Record, error) {
	m, err := a.machine(ref)
	if err != nil {
		return nil, err
	}
	rec := m.rec.Load()
	if rec.Machine.State.Answers(hangar.VerbExec) != hangar.Accept {
		return nil, refusal(hangar.VerbExec, rec.Machine.State)
	}
	return rec, nil
}

// gone turns the driver's word that a sandbox has ended into the platform's.
func gone(err error) error {
	if errors.Is(err, driver.ErrNotFound) {
		return refusal(hangar.VerbExec, hangar.MachineStopped)
	}
	return err
}

// ExecMachine implements hangar.MachineExecer. Commands run as root, in the main
// process's environment.
func (a *Agent) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	if len(req.Command) == 0 || req.Command[0] == "" {
		return hangar.ExecResult{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid command: must not be empty")
	}
	rec, err := a.running(ref)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	main, err := a.process(rec)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	result, err := a.o.Driver.Exec(ctx, rec.Handle, driver.Command{
		Args: req.Command, Env: main.Env, Dir: main.Dir, TTY: req.TTY, Size: req.Size,
	}, streams)
	switch {
	case errors.Is(err, driver.ErrCommandNotFound):
		return result, &hangar.Error{
			Code: hangar.CodeInvalid, Err: err,
			Message: fmt.Sprintf("invalid command: %q is not in the machine's file system or not executable", req.Command[0]),
		}
	case errors.Is(err, context.DeadlineExceeded) && req.Timeout > 0:
		return result, hangar.Errorf(hangar.CodeTimeout, "", "the command was killed: it ran for more than %s", req.Timeout)
	case errors.Is(err, driver.ErrNotFound):
		return result, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "the machine has ended before the command has")
	default:
		return result, err
	}
}

// MachineProcesses implements hangar.MachineReader.
func (a *Agent) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	rec, err := a.running(ref)
	if err != nil {
		return nil, err
	}
	list, err := a.o.Driver.Processes(ctx, rec.Handle)
	return list, gone(err)
}

// Logs implements hangar.Agent.
func (a *Agent) Logs(_ context.Context, app hangar.AppID, q hangar.LogQuery) (hangar.LogPage, error) {
	return a.o.Logs.Read(app, q)
}

// FollowLogs implements hangar.Agent.
func (a *Agent) FollowLogs(ctx context.Context, app hangar.AppID, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return a.o.Logs.Follow(ctx, app, q)
}

// Images implements hangar.ImageService.
func (a *Agent) Images(_ context.Context) ([]hangar.Image, error) { return a.listImages() }

// ImageUsage implements hangar.Agent.
func (a *Agent) ImageUsage(ctx context.Context, org hangar.OrgID) (hangar.ImageUsage, error) {
	return a.o.Images.Usage(ctx, org)
}

// RemoveOrg implements hangar.Agent.
func (a *Agent) RemoveOrg(ctx context.Context, org hangar.OrgID) error {
	return a.o.Images.RemoveOrg(ctx, org)
}

// RemoveImage implements hangar.ImageService.
func (a *Agent) RemoveImage(ctx context.Context, digest string) error {
	if a.ImagesInUse()[digest] {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "image %s is used by a machine", digest)
	}
	err := a.o.Images.Remove(ctx, digest)
	if errors.Is(err, image.ErrNotFound) {
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "image not found: %s", digest)
	}
	return err
}
