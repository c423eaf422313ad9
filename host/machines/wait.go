package machines

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// waiter waits for a state of a Machine. Each commit of a change to the Machine checks its waiters,
// so a waiter costs nothing until then, and ten thousand of them cost a commit one walk over a
// list.
type waiter struct {
	want    hangar.MachineWait
	deliver func(*verdict) // called at most once per register; must not block
}

// verdict is the result of a wait: the state was reached, or never will be.
type verdict struct {
	reached hangar.MachineReached
	err     error
	look    bool // neither is known: register again, which reads the Machine's history
}

// WaitMachine implements hangar.MachineOps.
func (s *Store) WaitMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	m, err := s.waitFor(ref, &in)
	if err != nil {
		return hangar.MachineReached{}, err
	}
	deadline := time.NewTimer(in.Timeout)
	defer deadline.Stop()
	verdicts := make(chan *verdict, 1)
	w := &waiter{want: in, deliver: func(v *verdict) { verdicts <- v }}
	for {
		v, err := m.register(w)
		switch {
		case err != nil:
			return hangar.MachineReached{}, err
		case v != nil:
			return v.reached, v.err
		}
		select {
		case v := <-verdicts:
			if v.look {
				continue
			}
			return v.reached, v.err // a waiter with a verdict is no longer in the list
		case <-deadline.C:
			m.watchers.unregister(w)
			return hangar.MachineReached{}, m.timedOut(in.States)
		case <-ctx.Done():
			m.watchers.unregister(w)
			return hangar.MachineReached{}, ctx.Err()
		case <-s.work.Context.Done():
			m.watchers.unregister(w)
			return hangar.MachineReached{}, errShutDown()
		}
	}
}

// waitFor finds the Machine of a wait and completes its parameters.
func (s *Store) waitFor(ref hangar.MachineRef, in *hangar.MachineWait) (*machine, error) {
	if err := in.Validate(); err != nil {
		return nil, err
	}
	if len(in.States) == 0 {
		in.States = []hangar.MachineState{hangar.MachineStarted}
	}
	if in.Timeout == 0 {
		in.Timeout = hangar.DefaultWaitTimeout
	}
	return s.machine(ref)
}

func (m *machine) timedOut(wanted []hangar.MachineState) error {
	return hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout,
		"machine failed to reach desired state, %s, currently %s", joinStates(wanted), m.rec.Load().Machine.State)
}

func errShutDown() error {
	return hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down")
}

// register returns the verdict if it is already known, or registers the waiter for future changes.
func (m *machine) register(w *waiter) (*verdict, error) {
	m.mu.Lock() // no commit between the check and the registration
	defer m.mu.Unlock()
	v, err := m.look(&w.want)
	if v == nil && err == nil {
		m.watchers.register(w)
	}
	return v, err
}

// look judges a wait by the Machine's state and history. m.mu is held.
func (m *machine) look(want *hangar.MachineWait) (*verdict, error) {
	now := &m.rec.Load().Machine
	if want.FromEvent == "" && satisfies(want.States, now.State) && now.InstanceID >= want.Instance {
		newest, err := m.newestTransit()
		if err != nil {
			return nil, err
		}
		return reached(now, now.State, newest), nil
	}
	if want.FromEvent != "" || selfDestroyed(now) {
		passed, err := m.store.o.Journal.EventsAfter(m.id, want.FromEvent)
		if err != nil {
			return nil, err
		}
		if want.Instance != "" {
			passed = sinceUpdate(passed)
		}
		for i := range passed {
			if v := judge(want, now, &passed[i]); v != nil {
				return v, nil
			}
		}
	}
	return hopeless(want, now), nil
}

// selfDestroyed reports whether all earlier states of the Machine count: it may have finished its
// work before a client could wait for its start.
func selfDestroyed(now *hangar.Machine) bool {
	return now.Config.AutoDestroy && (now.State == hangar.MachineDestroying || now.State == hangar.MachineDestroyed)
}

// newestTransit returns the id of the event that brought the Machine's state.
func (m *machine) newestTransit() (hangar.EventID, error) {
	for limit := 1; ; limit *= 8 {
		newest, err := m.store.o.Journal.Events(m.id, limit)
		if err != nil {
			return "", err
		}
		for _, e := range newest {
			if e.Type.Transits() {
				return e.ID, nil
			}
		}
		if len(newest) < limit {
			return "", nil
		}
	}
}

// judge returns the verdict of events that have just been committed.
func (w *waiter) judge(now *hangar.Machine, events []hangar.Event) *verdict {
	for i := range events {
		if v := judge(&w.want, now, &events[i]); v != nil {
			return v
		}
	}
	v := hopeless(&w.want, now)
	if v != nil && selfDestroyed(now) {
		return &verdict{look: true}
	}
	return v
}

// judge returns the verdict of one event; now is the Machine after it.
func judge(want *hangar.MachineWait, now *hangar.Machine, e *hangar.Event) *verdict {
	state := hangar.MachineState(e.Status)
	if !e.Type.Transits() || now.InstanceID < want.Instance || !satisfies(want.States, state) {
		return nil
	}
	return reached(now, state, e.ID)
}

func reached(now *hangar.Machine, state hangar.MachineState, by hangar.EventID) *verdict {
	return &verdict{reached: hangar.MachineReached{EventID: by, State: state, Version: now.InstanceID}}
}

// hopeless returns the verdict if the wait can no longer succeed; else nil.
func hopeless(want *hangar.MachineWait, now *hangar.Machine) *verdict {
	if now.InstanceID < want.Instance {
		// A version that a caller has received is the Machine's, unless its update failed.
		return outOfReach("machine %s has no version %s, it is at %s", now.ID, want.Instance, now.InstanceID)
	}
	if now.State == hangar.MachineFailed && !slices.Contains(want.States, hangar.WaitSettled) && !slices.Contains(want.States, hangar.MachineDestroyed) {
		// Only a request ends that state, and an answered request has already done so.
		return outOfReach("machine %s has failed and does not become %s unless it is started or updated", now.ID, joinStates(want.States))
	}
	for _, s := range want.States {
		if now.State.CanReach(s) || s == hangar.WaitSettled && now.State != hangar.MachineDestroyed {
			return nil
		}
	}
	return outOfReach("machine %s is %s and can no longer become %s", now.ID, now.State, joinStates(want.States))
}

func outOfReach(format string, args ...any) *verdict {
	return &verdict{err: hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonOutOfReach, format, args...)}
}

// sinceUpdate returns the events of the current version.
func sinceUpdate(passed []hangar.Event) []hangar.Event {
	for i, e := range slices.Backward(passed) {
		if e.Type == hangar.EventUpdate && e.Status == string(hangar.MachineReplacing) {
			return passed[i:]
		}
	}
	return passed
}

func satisfies(wanted []hangar.MachineState, state hangar.MachineState) bool {
	return slices.Contains(wanted, state) || state.Settled() && slices.Contains(wanted, hangar.WaitSettled)
}

func joinStates(states []hangar.MachineState) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return strings.Join(names, " or ")
}
