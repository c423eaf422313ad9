package machines

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// ask decides on and commits a verb, and wakes the worker. It returns the previous state. If there
// is nothing to do, it does not call alter. m.mu is held, and leaseAllows was called.
func (m *machine) ask(verb hangar.Verb, alter change) (hangar.MachineState, error) {
	state := m.rec.Load().Machine.State
	switch state.Answers(verb) {
	case hangar.Already:
		return state, nil
	case hangar.Accept:
	case hangar.Refuse:
		return state, refusal(verb, state)
	}
	if err := m.roomFor(verb); err != nil {
		return state, err
	}
	if _, err := m.commit(alter); err != nil {
		return state, err
	}
	m.wake()
	return state, nil
}

// roomFor refuses verbs without room on the disk: a boot writes some files and the program's data,
// a suspend the whole memory.
func (m *machine) roomFor(verb hangar.Verb) error {
	space := m.store.o.Space
	rec := m.rec.Load()
	switch {
	case verb == hangar.VerbStart, verb == hangar.VerbRestart && rec.Machine.State != hangar.MachineStarted:
		return space.Admit(diskspace.StartMachine, 0)
	case verb == hangar.VerbSuspend:
		return space.Admit(diskspace.SuspendMachine, snapshotSize(rec))
	default:
		return nil
	}
}

// snapshotSize is the maximum size of a Machine's snapshot, in bytes.
func snapshotSize(rec *journal.Record) int64 { return int64(rec.Machine.Config.Guest.Memory()) << 20 }

// refusal is the error of an impossible verb. Clients of the public platform match its text.
func refusal(verb hangar.Verb, state hangar.MachineState) error {
	refuse := func(format string, args ...any) error {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, format, args...)
	}
	switch verb {
	case hangar.VerbStart:
		switch state {
		case hangar.MachineReplacing:
			return refuse("machine getting replaced, refusing to start")
		case hangar.MachineStopping, hangar.MachineSuspending:
			return refuse("machine still active, refusing to start: it is %s", state)
		default:
			return refuse("unable to start machine from current state: '%s'", state)
		}
	case hangar.VerbExec:
		return refuse("machine not running: it is %s", state)
	case hangar.VerbUpdate:
		if state == hangar.MachineReplacing {
			return hangar.Errorf(hangar.CodeConflict, hangar.ReasonWrongState, "machine is replacing: concurrent update in progress")
		}
	default:
	}
	return refuse("unable to %s machine from current state: '%s'", verb, state)
}

// StartMachine implements hangar.MachineOps.
func (s *Store) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	result, err := s.startMachine(ctx, ref)
	if err == nil {
		s.awaitView(ctx, ref)
	}
	return result, err
}

func (s *Store) startMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	var result hangar.StartResult
	err := s.guarded(ctx, ref, func(m *machine) (err error) {
		result.PreviousState, err = m.ask(hangar.VerbStart, func(next *journal.Record) []hangar.Event {
			next.Machine.State = hangar.MachineStarting
			next.Restarts = nil
			return []hangar.Event{{Type: hangar.EventStart, Source: hangar.EventSourceFrom(ctx)}}
		})
		return err
	})
	return result, err
}

// StopMachine implements hangar.MachineOps.
func (s *Store) StopMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineStop) error {
	return s.guarded(ctx, ref, func(m *machine) error { return m.stop(ctx, in) })
}

// stop is StopMachine. m.mu is held.
func (m *machine) stop(ctx context.Context, in hangar.MachineStop) error {
	if m.rec.Load().Machine.State == hangar.MachineStopping {
		return m.stopOtherwise(in)
	}
	_, err := m.ask(hangar.VerbStop, func(next *journal.Record) []hangar.Event {
		stop := hangar.Event{Type: hangar.EventStop, Source: hangar.EventSourceFrom(ctx)}
		switch {
		case next.Machine.State == hangar.MachineSuspended:
			dropSnapshot(next)
			next.Machine.State = hangar.MachineStopped
		case next.Machine.State == hangar.MachineRestarting && (next.Handle == nil || next.Ended):
			next.Stop = nil
			next.Machine.State = hangar.MachineStopped
		default:
			next.Machine.State = hangar.MachineStopping
			next.Stop = howToStop(next.Machine.Config, in)
		}
		return []hangar.Event{stop}
	})
	return err
}

// stopOtherwise changes how a Machine is being stopped, for an impatient user. A repeated request
// changes nothing: it must not restart the grace period. m.mu is held.
func (m *machine) stopOtherwise(in hangar.MachineStop) error {
	rec := m.rec.Load()
	stop := howToStop(rec.Machine.Config, in)
	if in == (hangar.MachineStop{}) || rec.Stop != nil && *stop == *rec.Stop {
		return nil
	}
	_, err := m.commit(func(next *journal.Record) []hangar.Event {
		next.Stop = stop
		return nil
	})
	if err == nil {
		m.wake()
	}
	return err
}

// howToStop completes the request from the config.
func howToStop(c hangar.MachineConfig, in hangar.MachineStop) *journal.Stop {
	stop := &journal.Stop{Signal: in.Signal, Grace: in.Timeout}
	if stop.Signal == 0 {
		stop.Signal = c.StopSignal()
	}
	if stop.Grace <= 0 {
		stop.Grace = c.StopTimeout()
	}
	return stop
}

// dropSnapshot makes the next start a cold boot. The worker removes the files.
func dropSnapshot(next *journal.Record) {
	next.Snapshot, next.Resuming, next.ColdBoot = false, false, ""
}

// SuspendMachine implements hangar.MachineOps.
func (s *Store) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	return s.guarded(ctx, ref, func(m *machine) error {
		rec := m.rec.Load()
		if rec.Machine.State.Answers(hangar.VerbSuspend) == hangar.Accept {
			if err := canSuspend(s.o.Driver, rec); err != nil {
				return err
			}
		}
		return m.askToSuspend(ctx)
	})
}

// askToSuspend is SuspendMachine for a Machine that can be suspended. m.mu is held.
func (m *machine) askToSuspend(ctx context.Context) error {
	_, err := m.ask(hangar.VerbSuspend, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineSuspending
		return []hangar.Event{{Type: hangar.EventSuspend, Source: hangar.EventSourceFrom(ctx)}}
	})
	return err
}

func canSuspend(d driver.Driver, rec *journal.Record) error {
	can := d.Capabilities()
	if _, ok := d.(driver.Suspender); !ok || !can.Suspend {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonUnsupported, "unable to suspend machine: driver %s cannot suspend", can.Name)
	}
	return rec.Machine.Config.CanSuspend()
}

// RestartMachine implements hangar.MachineOps.
func (s *Store) RestartMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineRestart) error {
	return s.guarded(ctx, ref, func(m *machine) error {
		_, err := m.ask(hangar.VerbRestart, func(next *journal.Record) []hangar.Event {
			restart := hangar.Event{Type: hangar.EventRestart, Source: hangar.EventSourceFrom(ctx)}
			next.Restarts = nil
			dropSnapshot(next)
			if next.Machine.State != hangar.MachineStarted {
				next.Machine.State = hangar.MachineStarting
				return []hangar.Event{restart}
			}
			next.Machine.State = hangar.MachineRestarting
			next.Stop = howToStop(next.Machine.Config, in.MachineStop)
			if in.ForceStop {
				next.Stop.Signal, next.Stop.Grace = sigKill, 0
			}
			next.RestartAt = time.Time{}
			return []hangar.Event{restart}
		})
		return err
	})
}

// sigKill is SIGKILL.
const sigKill hangar.Signal = 9

// SignalMachine implements hangar.MachineOps.
func (s *Store) SignalMachine(ctx context.Context, ref hangar.MachineRef, sig hangar.Signal) error {
	rec, err := s.running(ref)
	if err != nil {
		return err
	}
	return gone(s.o.Driver.Signal(ctx, rec.Handle, sig))
}

// DestroyMachine implements hangar.MachineOps.
func (s *Store) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	return s.guarded(ctx, ref, func(m *machine) error {
		if state := m.rec.Load().Machine.State; state.NeedsForce() && !in.Force {
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState,
				"unable to destroy machine, not currently stopped: it is %s; stop it first or use force", state)
		}
		_, err := m.ask(hangar.VerbDestroy, func(next *journal.Record) []hangar.Event {
			next.Machine.State = hangar.MachineDestroying
			return []hangar.Event{{Type: hangar.EventDestroy, Source: hangar.EventSourceFrom(ctx)}}
		})
		return err
	})
}
