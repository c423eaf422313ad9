package host

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// watchers wakes those who wait for a Machine to change. While nobody waits it
// costs nothing.
type watchers struct {
	mu       sync.Mutex
	next     chan struct{} // closed at the next change; nil while nobody waits
	progress *hangar.PullProgress
}

// wait returns a channel that closes at the next change, and the progress of a
// pull that is under way.
func (w *watchers) wait() (<-chan struct{}, *hangar.PullProgress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.next, w.progress
}

func (w *watchers) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		close(w.next)
		w.next = nil
	}
}

// report tells of the progress of a pull; nil when it has ended.
func (w *watchers) report(p *hangar.PullProgress) {
	w.mu.Lock()
	w.progress = p
	w.mu.Unlock()
	w.changed()
}

// WaitMachine implements hangar.MachineOps.
func (a *Agent) WaitMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	m, err := a.machine(ref)
	if err != nil {
		return hangar.MachineReached{}, err
	}
	if len(in.States) == 0 {
		in.States = []hangar.MachineState{hangar.MachineStarted}
	}
	timeout := in.Timeout
	if timeout <= 0 {
		timeout = hangar.DefaultWaitTimeout
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()

	after := in.FromEvent
	for {
		changed, _ := m.watchers.wait()
		reached, last, err := m.reached(in, after)
		if err != nil || reached != nil {
			return deref(reached), err
		}
		// From here on a state that comes and goes between two looks counts, too.
		after = last
		select {
		case <-changed:
		case <-deadline.C:
			return hangar.MachineReached{}, hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout,
				"machine failed to reach desired state, %s, currently %s", joinStates(in.States), m.rec.Load().Machine.State)
		case <-ctx.Done():
			return hangar.MachineReached{}, ctx.Err()
		case <-a.lifetime.Done():
			return hangar.MachineReached{}, hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down")
		}
	}
}

func deref(r *hangar.MachineReached) hangar.MachineReached {
	if r == nil {
		return hangar.MachineReached{}
	}
	return *r
}

// newestEvent returns the id of the newest event, "" before the first.
func (m *machine) newestEvent() (hangar.EventID, error) {
	newest, err := m.agent.o.Journal.Events(m.id, 1)
	if err != nil || len(newest) == 0 {
		return "", err
	}
	return newest[0].ID, nil
}

// reached returns how the wish came true, if it has, and the newest event. Record
// and events are read under the lock, so that neither is ahead of the other.
func (m *machine) reached(in hangar.MachineWait, after hangar.EventID) (*hangar.MachineReached, hangar.EventID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rec.Load()
	state, version := rec.Machine.State, rec.Machine.InstanceID
	last, err := m.newestEvent()
	if err != nil {
		return nil, "", err
	}
	if in.Instance != "" && version < in.Instance {
		return nil, last, nil
	}
	if in.FromEvent == "" && satisfies(in.States, state) {
		return &hangar.MachineReached{EventID: last, State: state, Version: version}, last, nil
	}
	// A Machine that destroys itself may have done its work before anybody could wait
	// for its start: all that it has been counts.
	gone := state == hangar.MachineDestroyed && rec.Machine.Config.AutoDestroy && in.FromEvent == ""
	if gone {
		after = ""
	}
	if gone || after != "" && after != last {
		passed, err := m.agent.o.Journal.EventsAfter(m.id, after)
		if err != nil {
			return nil, "", err
		}
		if in.Instance != "" {
			passed = sinceUpdate(passed)
		}
		for _, e := range passed {
			if satisfies(in.States, hangar.MachineState(e.Status)) {
				return &hangar.MachineReached{EventID: e.ID, State: hangar.MachineState(e.Status), Version: version}, last, nil
			}
		}
	}
	if state == hangar.MachineDestroyed {
		return nil, last, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonOutOfReach,
			"machine %s is destroyed and can no longer become %s", m.id, joinStates(in.States))
	}
	return nil, last, nil
}

// sinceUpdate leaves out the events of versions before the current one.
func sinceUpdate(passed []hangar.Event) []hangar.Event {
	for i, e := range slices.Backward(passed) {
		if e.Type == hangar.EventUpdate && e.Status == string(hangar.MachineReplacing) {
			return passed[i:]
		}
	}
	return passed
}

func satisfies(wished []hangar.MachineState, state hangar.MachineState) bool {
	return slices.Contains(wished, state) || state.Settled() && slices.Contains(wished, hangar.WaitSettled)
}

func joinStates(states []hangar.MachineState) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return strings.Join(names, " or ")
}

// since returns the Machine as it is and the events after last; for the first
// look only the newest, from which to go on.
func (m *machine) since(first bool, last hangar.EventID) (*hangar.Machine, []hangar.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.rec.Load().Machine
	var events []hangar.Event
	var err error
	if first {
		events, err = m.agent.o.Journal.Events(m.id, 1)
	} else {
		events, err = m.agent.o.Journal.EventsAfter(m.id, last)
	}
	return &now, events, err
}

// WatchMachine implements hangar.MachineReader.
func (a *Agent) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return func(yield func(hangar.MachineChange, error) bool) {
		m, err := a.machine(ref)
		if err != nil {
			yield(hangar.MachineChange{}, err)
			return
		}
		var last hangar.EventID
		var told hangar.PullProgress
		for first := true; ; first = false {
			changed, progress := m.watchers.wait()
			now, events, err := m.since(first, last)
			if err != nil {
				yield(hangar.MachineChange{}, err)
				return
			}
			if first && !yield(hangar.MachineChange{Machine: now}, nil) {
				return
			}
			for _, e := range events {
				last = e.ID
				then := *now // as the event left it
				then.State = hangar.MachineState(e.Status)
				if !first && !yield(hangar.MachineChange{Machine: &then, Event: &e}, nil) {
					return
				}
			}
			if progress != nil && *progress != told {
				told = *progress
				if !yield(hangar.MachineChange{Machine: now, Progress: progress}, nil) {
					return
				}
			}
			if now.State == hangar.MachineDestroyed {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-a.lifetime.Done():
				return
			}
		}
	}
}
