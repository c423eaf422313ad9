package control

import (
	"context"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/tenants"
)

// machineHosts returns the hosts that may get a new Machine, and completes its region. For a
// Machine with volumes it is the host of the volumes.
func (m *Machines) machineHosts(ctx context.Context, rec tenants.AppRecord, in *hangar.MachineCreate) ([]hangar.Host, error) {
	if len(in.Config.Mounts) == 0 {
		in.Region = regionFor(in.Region, m.hosts.regions())
		return m.hosts.regionHosts(in.Region)
	}
	var at *hangar.Volume
	for i, mount := range in.Config.Mounts {
		row, err := m.rows.volumeOf(ctx, rec.ID, hangar.VolumeID(mount.Volume))
		switch {
		case hangar.CodeOf(err) == hangar.CodeNotFound, err == nil && row.Volume.State.Gone():
			return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonVolumeNotFound, "volume not found: config.mounts[%d].volume is %q", i, mount.Volume)
		case err != nil:
			return nil, err
		case at == nil:
			at = &row.Volume
		case row.Volume.Host != at.Host:
			return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
				"invalid config.mounts[%d].volume: %s is on another server than %s", i, row.Volume.ID, at.ID)
		}
	}
	if in.Region = regionFor(in.Region, []hangar.Region{at.Region}); in.Region != at.Region {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
			"invalid region: %q is not that of volume %s, which is in %q, and a machine is where its volume is", in.Region, at.ID, at.Region)
	}
	hosts := m.hosts.agents.Hosts()
	if i := slices.IndexFunc(hosts, func(h hangar.Host) bool { return h.ID == at.Host }); i >= 0 {
		return hosts[i : i+1], nil
	}
	return []hangar.Host{{ID: at.Host, Region: at.Region}}, nil
}

// pinned returns the error for a Machine that can only be on the host of its volumes, which has no
// room.
func pinned(err error, mounts []hangar.Mount) error {
	if len(mounts) == 0 || hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
		return err
	}
	return &hangar.Error{
		Code: hangar.CodeFailedPrecondition, Reason: hangar.ReasonInsufficientCapacity,
		Message: "insufficient resources to create new machine with existing volume '" + mounts[0].Volume + "'", Err: err,
	}
}
