package machines

import (
	"context"
	"errors"
	"fmt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

// gone turns the driver's word that a sandbox has ended into the platform's.
func gone(err error) error {
	if errors.Is(err, driver.ErrNotFound) {
		return refusal(hangar.VerbExec, hangar.MachineStopped)
	}
	return err
}

// ExecMachine implements hangar.MachineExecer. Commands run as root, in the main
// process's environment.
func (s *Store) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
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
	result, err := s.o.Driver.Exec(ctx, rec.Handle, driver.Command{
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
func (s *Store) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	rec, err := s.running(ref)
	if err != nil {
		return nil, err
	}
	list, err := s.o.Driver.Processes(ctx, rec.Handle)
	return list, gone(err)
}
