package fake

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
)

const (
	sigHup  = hangar.Signal(syscall.SIGHUP)
	sigInt  = hangar.Signal(syscall.SIGINT)
	sigKill = hangar.Signal(syscall.SIGKILL)
	sigTerm = hangar.Signal(syscall.SIGTERM)
)

// become changes the state of a Machine and says so. The caller holds mu.
func (s *Service) become(m *machine, next hangar.MachineState, t hangar.EventType, source hangar.EventSource, request *hangar.EventRequest) {
	if !m.State.CanBecome(next) {
		panic(fmt.Sprintf("fake: machine %s in state %s cannot become %s", m.ID, m.State, next))
	}
	m.State = next
	m.disconnect()
	s.record(m, t, string(next), source, request)
}

// record adds an event. The caller holds mu.
func (s *Service) record(m *machine, t hangar.EventType, status string, source hangar.EventSource, request *hangar.EventRequest) {
	now := s.now().UTC()
	id := hangar.NewEventID(now)
	if len(m.events) > 0 && id <= m.events[0].ID {
		id = after(m.events[0].ID)
	}
	e := hangar.Event{ID: id, Type: t, Status: status, Source: source, Timestamp: now.UnixMilli(), Request: request}
	m.events = slices.Insert(m.events, 0, e)
	m.UpdatedAt = now.Truncate(time.Second)
	c := m.Machine
	m.changes = append(m.changes, hangar.MachineChange{Machine: &c, Event: &e})
	s.wake()
}

// after returns the id that follows id, for events of the same millisecond.
func after(id hangar.EventID) hangar.EventID {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	b := []byte(id)
	for i := len(b) - 1; i >= 0; i-- {
		n := slices.Index([]byte(digits), b[i])
		if n < len(digits)-1 {
			b[i] = digits[n+1]
			break
		}
		b[i] = digits[0]
	}
	return hangar.EventID(b)
}

// boot starts or resumes. The caller holds mu.
func (s *Service) boot(m *machine, source hangar.EventSource) {
	s.become(m, hangar.MachineStarting, hangar.EventStart, source, nil)
	s.mountAll(m)
	s.become(m, hangar.MachineStarted, hangar.EventStart, hangar.SourceAgent, nil)
	s.log(m, hangar.LogRunner, "machine started")
	s.log(m, hangar.LogApp, "hello from "+m.Name)
	if code, ok := m.endsWith("exit"); ok && m.restarts == 0 {
		s.ended(m, code, 0)
	}
}

// endsWith is the code with which the Machine's program ends the first time that it runs: at
// once after the word "exit", and as soon as somebody watches it after the word "doomed".
func (m *machine) endsWith(word string) (code int, ok bool) {
	cmd := m.Config.Init.Cmd
	if len(cmd) != 2 || cmd[0] != word {
		return 0, false
	}
	code, err := strconv.Atoi(cmd[1])
	return code, err == nil
}

// doom ends a program that is doomed. The caller holds mu.
func (s *Service) doom(m *machine) {
	if code, ok := m.endsWith("doomed"); ok && m.State == hangar.MachineStarted && m.restarts == 0 {
		s.ended(m, code, 0)
	}
}

// exited records how the main process ended. The caller holds mu.
func (s *Service) exited(m *machine, sig hangar.Signal, requested bool) {
	s.exitEvent(m, 128+int(sig), sig, requested, m.State == hangar.MachineRestarting)
}

// exitEvent records the end of the main process; sig 0: no signal ended it.
func (s *Service) exitEvent(m *machine, code int, sig hangar.Signal, requested, restarting bool) {
	if sig == 0 {
		sig = -1
	}
	exit := &hangar.ExitEvent{
		ExitCode: code, GuestExitCode: code, GuestSignal: int(sig), Signal: int(sig),
		RequestedStop: requested, Restarting: restarting, ExitedAt: s.now().UTC().Truncate(time.Millisecond),
	}
	s.record(m, hangar.EventExit, string(m.State), hangar.SourceAgent,
		&hangar.EventRequest{ExitEvent: exit, MonitorEvent: &hangar.MonitorEvent{ExitEvent: exit}, RestartCount: m.restarts})
}

// ended follows an exit that nobody asked for. The caller holds mu.
func (s *Service) ended(m *machine, code int, sig hangar.Signal) {
	policy, limit := m.Config.RestartPolicy()
	restart := policy == hangar.RestartAlways || policy == hangar.RestartOnFailure && code != 0 && m.restarts < limit
	if m.Config.AutoDestroy {
		s.exitEvent(m, code, sig, false, false)
		s.destroy(m, hangar.SourceAgent)
		return
	}
	if !restart {
		m.State = hangar.MachineStopped
		s.exitEvent(m, code, sig, false, false)
		return
	}
	m.restarts++
	m.State = hangar.MachineRestarting
	s.exitEvent(m, code, sig, false, true)
	s.boot(m, hangar.SourceAgent)
}

// destroy removes a Machine in any state. The caller holds mu.
func (s *Service) destroy(m *machine, source hangar.EventSource) {
	if m.State.Answers(hangar.VerbDestroy) != hangar.Accept {
		return
	}
	s.become(m, hangar.MachineDestroying, hangar.EventDestroy, source, nil)
	s.become(m, hangar.MachineDestroyed, hangar.EventDestroy, hangar.SourceAgent, nil)
	m.lease = nil
	s.detach(m.ID)
}
