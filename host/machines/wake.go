package machines

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// WakeMachine implements hangar.MachineGate.
func (mg *machineGate) WakeMachine(ctx context.Context, ref hangar.MachineRef, port int) error {
	m, err := mg.index.machine(ref)
	if err != nil {
		return err
	}
	release, err := m.rouse(ctx)
	if err != nil {
		return waitError(err)
	}
	defer release()
	if port == 0 {
		return nil
	}
	return waitError(m.reachable(ctx, port))
}

// waitError gives a timeout its message, and returns other errors unchanged.
func waitError(err error) error {
	if hangar.CodeOf(err) == hangar.CodeTimeout && hangar.ReasonOf(err) == "" {
		return &hangar.Error{Code: hangar.CodeTimeout, Message: "the machine was not ready in time", Err: err}
	}
	return err
}

// rouse returns once the Machine is started and admits requests. Until release is called it is not
// stopped for being idle.
func (m *machine) rouse(ctx context.Context) (release func(), err error) {
	asked := false
	for {
		rec := m.rec.Load()
		state := rec.Machine.State
		switch {
		case rec.Machine.Cordoned:
			return nil, notWoken(hangar.ReasonWrongState, "machine %s is cordoned", m.id)
		case state == hangar.MachineStarted:
			if release, err = m.enterStarted(ctx); release != nil || err != nil {
				return release, err
			}
			continue
		case asked && state.AtRest():
			return nil, notWoken(hangar.ReasonStartFailed, "machine %s was started for a request and is %s", m.id, state)
		case state.Answers(hangar.VerbStart) == hangar.Accept:
			_, err := m.store.startMachine(hangar.WithEventSource(ctx, hangar.SourceProxy), rec.Machine.Ref())
			if err != nil && m.rec.Load() == rec {
				return nil, err
			}
			asked = true
		case state == hangar.MachineDestroying || state == hangar.MachineDestroyed:
			return nil, refusal(hangar.VerbStart, state)
		case state == hangar.MachineRestarting:
			if err := m.hasten(); err != nil {
				return nil, err
			}
			asked = true
		case state == hangar.MachineStarting:
			asked = true
		}
		if _, err := m.settled(ctx); err != nil {
			return nil, err
		}
	}
}

// hasten shortens the policy's pause before a restart to one second, because a request waits. The
// pause can grow to ten.
func (m *machine) hasten() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rec.Load()
	soon := rec.Since.Add(restartPause(1))
	if rec.Machine.State != hangar.MachineRestarting || rec.Stop != nil || !rec.RestartAt.After(soon) {
		return nil
	}
	_, err := m.commit(func(next *journal.Record) []hangar.Event {
		next.RestartAt = soon
		return nil
	})
	if err == nil {
		m.wake()
	}
	return err
}

func notWoken(reason, format string, args ...any) error {
	return hangar.Errorf(hangar.CodeFailedPrecondition, reason, format, args...)
}

// enterStarted holds a started Machine, or returns nil if it is no longer started. A Machine that
// is being stopped for being idle either stays, or has to end first.
func (m *machine) enterStarted(ctx context.Context) (release func(), err error) {
	if release, err := m.gate.Hold(); err == nil {
		return release, nil
	}
	open, changed := m.gate.Reopen()
	switch {
	case open:
		return nil, nil
	case changed == nil: // a commit is about to open or close the gate
		m.mu.Lock()
		defer m.mu.Unlock()
		return nil, nil
	}
	select {
	case <-changed:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.store.work.Context.Done():
		return nil, errShutDown()
	}
}

// settled waits until the Machine is in a stable state, and returns it.
func (m *machine) settled(ctx context.Context) (hangar.MachineState, error) {
	told := make(chan *verdict, 1)
	w := &waiter{wish: hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}}, tell: func(v *verdict) { told <- v }}
	for {
		v, err := m.enlist(w)
		if err != nil {
			return "", err
		}
		if v == nil {
			select {
			case v = <-told:
			case <-ctx.Done():
				m.watchers.strike(w)
				return "", ctx.Err()
			case <-m.store.work.Context.Done():
				m.watchers.strike(w)
				return "", errShutDown()
			}
		}
		if !v.look {
			return v.reached.State, v.err
		}
	}
}
