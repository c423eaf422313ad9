package machines

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/gate"
)

// stopPatience bounds how long one slow stop may block other idle stops: a stop may take minutes,
// and loads the host little meanwhile. A suspend writes to the disk and is awaited longer.
const stopPatience = time.Second

// stopIdle stops or suspends an empty Machine. It returns when that is done, continues in the
// background, or is called off.
func (mg *machineGate) stopIdle(ctx context.Context, idle gate.Stopping) {
	m, err := mg.index.machine(idle.Ref)
	if err != nil {
		return
	}
	began, suspend, err := m.stopIdle(hangar.WithEventSource(ctx, hangar.SourceProxy), idle)
	if hangar.ReasonOf(err) == hangar.ReasonDiskFull {
		// It keeps running: a stop would lose its memory, and on a full disk it could not start
		// again.
		if !m.noRoom.Swap(true) {
			mg.logs.Append(idle.Ref, hangar.LogProxy, "warn", "The machine is idle and keeps running: "+hangar.MessageOf(err))
		}
		return
	}
	if err != nil {
		if ctx.Err() == nil {
			mg.log.Error("stop an idle machine", keyMachine, m.id, keyError, err)
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
	mg.logs.Append(idle.Ref, hangar.LogProxy, "info", excessText(idle, verb, m.rec.Load().Machine.Region))
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if state, err := m.settled(bounded); err == nil && suspend && state == hangar.MachineStarted && !m.noRoom.Load() {
		m.unsuspendable.Store(true)
	}
}

// stopIdle asks the Machine to stop, unless another request has arrived since its gate closed. A
// user's lease does not prevent it (ADR 6).
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
