package control

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
)

// KeepMachineBusy implements hangar.MachineBusier.
func (m *Machines) KeepMachineBusy(ctx context.Context, ref hangar.MachineRef, ttl time.Duration) (hangar.MachineBusy, error) {
	return ask(ctx, m, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) (hangar.MachineBusy, error) {
		if err := hangar.CheckBusy(ttl); err != nil {
			return hangar.MachineBusy{}, err
		}
		return a.KeepMachineBusy(ctx, ref, ttl)
	})
}
