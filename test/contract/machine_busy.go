package contract

import (
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func machineBusy(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	m := h.create(t, app, hangar.MachineCreate{Config: h.config()})
	h.wait(t, m.Ref(), hangar.MachineStarted)
	first, err := h.Machines.KeepMachineBusy(ctx, m.Ref(), time.Hour)
	must(t, "busy", err)
	second, err := h.Machines.KeepMachineBusy(ctx, m.Ref(), 2*time.Hour)
	must(t, "busy for longer", err)
	if longer := second.Until.Sub(first.Until); longer < time.Hour || longer > time.Hour+time.Minute {
		t.Errorf("busy until %s and then %s", first.Until, second.Until)
	}
	for range 2 {
		none, err := h.Machines.KeepMachineBusy(ctx, m.Ref(), 0)
		must(t, "not busy", err)
		if !none.Until.IsZero() {
			t.Errorf("busy until %s after that was ended", none.Until)
		}
	}
	for _, ttl := range []time.Duration{-time.Second, hangar.MaxBusy + time.Second} {
		_, err := h.Machines.KeepMachineBusy(ctx, m.Ref(), ttl)
		wantError(t, "busy for "+ttl.String(), err, hangar.CodeInvalid, "")
	}
	must(t, "stop", h.Machines.StopMachine(ctx, m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	_, err = h.Machines.KeepMachineBusy(ctx, m.Ref(), time.Hour)
	wantError(t, "busy while stopped", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}
