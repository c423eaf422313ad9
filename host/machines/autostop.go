package machines

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/gate"
)

// stopPatience bounds how long one slow stop may block other idle stops: it may take minutes, and
// needs nothing of the host meanwhile. A suspend does.
const stopPatience = time.Second

// stopIdle stops or suspends an empty Machine, and returns when that is done, continues by
// itself, or is not to be.
func (e *edge) stopIdle(ctx context.Context, idle gate.Stopping) {
	m, err := e.index.machine(idle.Ref)
	if err != nil {
		return
	}
	began, suspend, err := m.stopIdle(hangar.WithEventSource(ctx, hangar.SourceProxy), idle)
	if hangar.ReasonOf(err) == hangar.ReasonDiskFull {
		// It stays: a stop would lose its memory, and nothing is started on a full disk.
		if !m.noRoom.Swap(true) {
			e.logs.Append(idle.Ref, hangar.LogProxy, "warn", "The machine is idle and keeps running: "+hangar.MessageOf(err))
		}
		return
	}
	if err != nil {
		if ctx.Err() == nil {
			e.log.Error("stop an idle machine", keyMachine, m.id, keyError, err)
		}
		return
	}
	if !began {
		return
	}
	verb, limit := "autostopping", stopPatience
	if suspend {
		verb, limit = "autosuspending", m.store.limits.suspend
	}
	e.logs.Append(idle.Ref, hangar.LogProxy, "info", excessText(idle, verb, m.rec.Load().Machine.Region))
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if state, err := m.settled(bounded); err == nil && suspend && state == hangar.MachineStarted && !m.noRoom.Load() {
		m.unsuspendable.Store(true)
	}
}

// stopIdle asks the Machine to stop, unless it has been asked something else since its gate
// closed. The lease of a user does not keep it from that.
func (m *machine) stopIdle(ctx context.Context, s gate.Stopping) (began, suspend bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rec.Load()
	if rec.Machine.State != hangar.MachineStarted || !s.Still() {
		return false, false, nil
	}
	if s.Suspend && !m.unsuspendable.Load() && canSuspend(m.store.o.Driver, rec) == nil {
		return true, true, m.askToSuspend(ctx)
	}
	return true, false, m.stop(ctx, hangar.MachineStop{})
}
