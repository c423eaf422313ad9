package machines

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
)

// gone converts the driver's error for an ended sandbox.
func gone(err error) error {
	if errors.Is(err, driver.ErrNotFound) {
		return refusal(hangar.VerbExec, hangar.MachineStopped)
	}
	return err
}

// ExecMachine implements hangar.MachineExecer. Commands run as root, in the main
// process's environment.
func (s *Store) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	return s.exec(ctx, ref, req, streams, func(main guest.Process) driver.Command {
		return driver.Command{Args: req.Command, Env: main.Env, Dir: main.Dir, TTY: req.TTY, Size: req.Size}
	})
}

// exec runs a command that is derived from a Machine's main process.
func (s *Store) exec(
	ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams, command func(guest.Process) driver.Command,
) (hangar.ExecResult, error) {
	if len(req.Command) == 0 || req.Command[0] == "" {
		return hangar.ExecResult{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid command: must not be empty")
	}
	rec, err := s.running(ref)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	main, err := s.process(rec)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	result, err := s.o.Driver.Exec(ctx, rec.Handle, command(main), streams)
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

// SSHMachine implements hangar.SSHHost.
func (s *Store) SSHMachine(id hangar.MachineID) (hangar.MachineRef, hangar.OrgID, error) {
	m := s.find(id)
	if m == nil {
		return hangar.MachineRef{}, "", notFound(id)
	}
	rec := m.rec.Load()
	_, err := s.running(rec.Machine.Ref())
	return rec.Machine.Ref(), rec.OrgID, err
}

// SSHUser implements hangar.SSHHost.
func (s *Store) SSHUser(ref hangar.MachineRef, name string) (hangar.SSHUser, error) {
	rec, err := s.running(ref)
	if err != nil {
		return hangar.SSHUser{}, err
	}
	img, err := s.o.Images.Get(rec.Machine.ImageRef.Digest)
	if err != nil {
		return hangar.SSHUser{}, err
	}
	return guest.User(asGuest(img).Layers, name)
}

// ExecSSH implements hangar.SSHHost.
func (s *Store) ExecSSH(ctx context.Context, ref hangar.MachineRef, in hangar.SSHExec, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	return s.exec(ctx, ref, in.ExecRequest, streams, func(main guest.Process) driver.Command {
		return driver.Command{
			Args: in.Command, Env: overriding(in.Env, main.Env), Dir: "/", UID: in.User.UID, GID: in.User.GID, Groups: in.User.Groups,
			TTY: in.TTY, Size: in.Size,
		}
	})
}

// overriding returns an environment in which variables of first replace those with the same names.
// If first has a name twice, the last one wins.
func overriding(first, env []string) []string {
	seen := make(map[string]bool, len(first)+len(env))
	kept := make([]string, 0, len(first)+len(env))
	for _, v := range slices.Backward(slices.Concat(env, first)) {
		name, _, _ := strings.Cut(v, "=")
		if !seen[name] {
			seen[name] = true
			kept = append(kept, v)
		}
	}
	slices.Reverse(kept)
	return kept
}

// MachineProcesses implements hangar.MachineReader.
func (s *Store) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	rec, err := s.running(ref)
	if err != nil {
		return nil, err
	}
	list, err := s.o.Driver.Processes(ctx, rec.Handle)
	return list, gone(err)
}
