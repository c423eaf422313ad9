package control

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// MachineMetadata implements hangar.MachineService. While the host of the Machine
// cannot be reached, it is as it was published.
func (m *Machines) MachineMetadata(ctx context.Context, ref hangar.MachineRef) (map[string]string, error) {
	r, ref, err := m.reservations.findFor(ctx, ref, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	agent, err := m.hosts.agent(r.Host)
	if err == nil {
		var pairs map[string]string
		if pairs, err = agent.MachineMetadata(ctx, ref); err == nil {
			return pairs, nil
		}
	}
	row, err := m.reservations.rowInstead(ctx, ref, r.Host, err)
	if err != nil {
		return nil, err
	}
	return row.Config.Metadata, nil
}

// SetMachineMetadata implements hangar.MachineService.
func (m *Machines) SetMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataPair) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.SetMachineMetadata(ctx, ref, in) })
}

// RemoveMachineMetadata implements hangar.MachineService.
func (m *Machines) RemoveMachineMetadata(ctx context.Context, ref hangar.MachineRef, key string) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) error {
		return a.RemoveMachineMetadata(ctx, ref, key)
	})
}

// ReplaceMachineMetadata implements hangar.MachineService.
func (m *Machines) ReplaceMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) error {
		return a.ReplaceMachineMetadata(ctx, ref, in)
	})
}

// MergeMachineMetadata implements hangar.MachineService.
func (m *Machines) MergeMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.MergeMachineMetadata(ctx, ref, in) })
}
