package host

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
)

// ask decides and commits what a verb asks for, and wakes the worker. It returns
// the state before. When there is nothing to do, alter is not called.
func (m *machine) ask(ctx context.Context, verb hangar.Verb, alter change) (hangar.MachineState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.askLocked(ctx, verb, alter)
}

func (m *machine) askLocked(ctx context.Context, verb hangar.Verb, alter change) (hangar.MachineState, error) {
	state := m.rec.Load().Machine.State
	switch state.Answers(verb) {
	case hangar.Already:
		return state, nil
	case hangar.Accept:
	case hangar.Refuse:
		return state, refusal(verb, state)
	}
	if _, err := m.commit(ctx, alter); err != nil {
		return state, err
	}
	m.wake()
	return state, nil
}

// refusal says why a verb is not possible, in words that clients of the public
// platform match.
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
func (a *Agent) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	m, err := a.machine(ref)
	if err != nil {
		return hangar.StartResult{}, err
	}
	previous, err := m.ask(ctx, hangar.VerbStart, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarting
		next.Restarts = nil
		return []hangar.Event{{Type: hangar.EventStart, Source: hangar.SourceUser}}
	})
	return hangar.StartResult{PreviousState: previous}, err
}

// StopMachine implements hangar.MachineOps.
func (a *Agent) StopMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineStop) error {
	m, err := a.machine(ref)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rec.Load().Machine.State == hangar.MachineStopping {
		return m.stopOtherwise(ctx, in)
	}
	_, err = m.askLocked(ctx, hangar.VerbStop, func(next *journal.Record) []hangar.Event {
		stop := hangar.Event{Type: hangar.EventStop, Source: hangar.SourceUser}
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

// stopOtherwise changes how a Machine is being stopped, as for somebody who loses
// patience. A request that says nothing new changes nothing: repeating it must not
// begin the grace again. m.mu is held.
func (m *machine) stopOtherwise(ctx context.Context, in hangar.MachineStop) error {
	rec := m.rec.Load()
	stop := howToStop(rec.Machine.Config, in)
	if in == (hangar.MachineStop{}) || rec.Stop != nil && *stop == *rec.Stop {
		return nil
	}
	_, err := m.commit(ctx, func(next *journal.Record) []hangar.Event {
		next.Stop = stop
		return nil
	})
	if err == nil {
		m.wake()
	}
	return err
}

// howToStop fills in what the request leaves open from the config.
func howToStop(c hangar.MachineConfig, in hangar.MachineStop) *journal.Stop {
	stop := &journal.Stop{Signal: in.Signal, Grace: in.Timeout, Source: hangar.SourceUser}
	if stop.Signal == 0 {
		stop.Signal = c.StopSignal()
	}
	if stop.Grace <= 0 {
		stop.Grace = c.StopTimeout()
	}
	return stop
}

// dropSnapshot makes the next start a cold boot. The files go when the worker
// looks at the Machine.
func dropSnapshot(next *journal.Record) {
	next.Snapshot, next.Resuming, next.ColdBoot = false, false, ""
}

// SuspendMachine implements hangar.MachineOps.
func (a *Agent) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	m, err := a.machine(ref)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rec.Load()
	if rec.Machine.State.Answers(hangar.VerbSuspend) == hangar.Accept {
		if err := a.canSuspend(rec); err != nil {
			return err
		}
	}
	_, err = m.askLocked(ctx, hangar.VerbSuspend, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineSuspending
		return []hangar.Event{{Type: hangar.EventSuspend, Source: hangar.SourceUser}}
	})
	return err
}

func (a *Agent) canSuspend(rec *journal.Record) error {
	can := a.o.Driver.Capabilities()
	if _, ok := a.o.Driver.(driver.Suspender); !ok || !can.Suspend {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonUnsupported, "unable to suspend machine: driver %s cannot suspend", can.Name)
	}
	return rec.Machine.Config.CanSuspend()
}

// RestartMachine implements hangar.MachineOps.
func (a *Agent) RestartMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineRestart) error {
	m, err := a.machine(ref)
	if err != nil {
		return err
	}
	_, err = m.ask(ctx, hangar.VerbRestart, func(next *journal.Record) []hangar.Event {
		next.Restarts = nil
		dropSnapshot(next)
		if next.Machine.State != hangar.MachineStarted {
			next.Machine.State = hangar.MachineStarting
			return []hangar.Event{{Type: hangar.EventRestart, Source: hangar.SourceUser}}
		}
		next.Machine.State = hangar.MachineRestarting
		next.Stop = howToStop(next.Machine.Config, in.MachineStop)
		if in.ForceStop {
			next.Stop.Signal, next.Stop.Grace = sigKill, 0
		}
		next.RestartAt = time.Time{}
		return []hangar.Event{{Type: hangar.EventRestart, Source: hangar.SourceUser}}
	})
	return err
}

// sigKill is SIGKILL.
const sigKill hangar.Signal = 9

// SignalMachine implements hangar.MachineOps.
func (a *Agent) SignalMachine(ctx context.Context, ref hangar.MachineRef, sig hangar.Signal) error {
	rec, err := a.running(ref)
	if err != nil {
		return err
	}
	return gone(a.o.Driver.Signal(ctx, rec.Handle, sig))
}

// DestroyMachine implements hangar.MachineOps.
func (a *Agent) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	m, err := a.machine(ref)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state := m.rec.Load().Machine.State; state.NeedsForce() && !in.Force {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState,
			"unable to destroy machine, not currently stopped: it is %s; stop it first or use force", state)
	}
	_, err = m.askLocked(ctx, hangar.VerbDestroy, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineDestroying
		return []hangar.Event{{Type: hangar.EventDestroy, Source: hangar.SourceUser}}
	})
	return err
}

// UpdateMachine implements hangar.MachineOps. The old version keeps running until
// the image of the new one is on the host.
func (a *Agent) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	m, err := a.machine(ref)
	if err != nil {
		return nil, err
	}
	if err := immutable(&m.rec.Load().Machine, in); err != nil {
		return nil, err
	}
	if err := a.room(in.Config); err != nil {
		return nil, err
	}
	img, err := a.resolve(ctx, in.Config.Image)
	if err != nil {
		return nil, err
	}
	if err := m.update(ctx, in, img); err != nil {
		return nil, err
	}
	return a.Machine(ctx, ref)
}

// immutable refuses an update of what cannot be changed.
func immutable(m *hangar.Machine, in hangar.MachineUpdate) error {
	switch {
	case in.Name != "" && in.Name != m.Name:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid name: %q cannot be changed, the machine is called %q", in.Name, m.Name)
	case in.Region != "" && in.Region != m.Region:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid region: %q cannot be changed, the machine is in %q", in.Region, m.Region)
	default:
		return nil
	}
}

func (m *machine) update(ctx context.Context, in hangar.MachineUpdate, img hangar.ImageRef) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if current := m.rec.Load().Machine.InstanceID; in.CurrentVersion != "" && in.CurrentVersion != current {
		return hangar.Errorf(hangar.CodeConflict, hangar.ReasonStaleVersion,
			"machine version is stale: current_version is %s, the machine is at %s", in.CurrentVersion, current)
	}
	_, err := m.askLocked(ctx, hangar.VerbUpdate, func(next *journal.Record) []hangar.Event {
		state := next.Machine.State
		if state == hangar.MachineRestarting {
			state = hangar.MachineStarted
		}
		next.Previous = &journal.Previous{
			Config: next.Machine.Config, InstanceID: next.Machine.InstanceID, ImageRef: next.Machine.ImageRef, State: state,
		}
		next.Machine.State = hangar.MachineReplacing
		next.Machine.Config = in.Config
		next.Machine.InstanceID = hangar.NewInstanceID(m.agent.o.Now())
		next.Machine.ImageRef = img
		next.MetadataTimes = hangar.MetadataTimes{All: m.agent.o.Now().UnixMilli()}
		next.SkipLaunch = in.SkipLaunch
		next.Restarts = nil
		if in.SkipServiceRegistration {
			next.Machine.Cordoned = true
		}
		return []hangar.Event{{Type: hangar.EventUpdate, Source: hangar.SourceUser}}
	})
	return err
}
