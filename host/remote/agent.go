package remote

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
)

// agent is a hangar.Agent on another host. Each method is a call of the same name; package hangar
// documents the answers.
type agent struct{ *peer }

var _ hangar.Agent = agent{}

// Host implements hangar.Agent: the record of the host, as it was last known.
func (a agent) Host() hangar.Host { return a.host }

func (a agent) Room(ctx context.Context) (hangar.HostRoom, error) {
	return ask[hangar.HostRoom](ctx, a.peer, "Room")
}

func (a agent) Bid(ctx context.Context, in hangar.MachineAsk) (hangar.MachineBid, error) {
	return ask[hangar.MachineBid](ctx, a.peer, "Bid", in)
}

func (a agent) CreateMachine(ctx context.Context, spec hangar.MachineSpec) (*hangar.Machine, error) {
	return ask[*hangar.Machine](ctx, a.peer, "CreateMachine", spec)
}

func (a agent) Machines(ctx context.Context, app hangar.AppID, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	return ask[[]*hangar.Machine](ctx, a.peer, "Machines", app, filter)
}

func (a agent) OrgMachines(ctx context.Context, org hangar.OrgID, after hangar.MachineID, limit int, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	return ask[[]*hangar.Machine](ctx, a.peer, "OrgMachines", org, after, limit, filter)
}

func (a agent) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	return ask[*hangar.Machine](ctx, a.peer, "Machine", ref)
}

func (a agent) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	return ask[*hangar.Machine](ctx, a.peer, "UpdateMachine", ref, in)
}

func (a agent) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	return ask[hangar.StartResult](ctx, a.peer, "StartMachine", ref)
}

func (a agent) StopMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineStop) error {
	return order(ctx, a.peer, "StopMachine", ref, in)
}

func (a agent) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	return order(ctx, a.peer, "SuspendMachine", ref)
}

func (a agent) RestartMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineRestart) error {
	return order(ctx, a.peer, "RestartMachine", ref, in)
}

func (a agent) SignalMachine(ctx context.Context, ref hangar.MachineRef, sig hangar.Signal) error {
	return order(ctx, a.peer, "SignalMachine", ref, sig)
}

func (a agent) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	return order(ctx, a.peer, "DestroyMachine", ref, in)
}

func (a agent) CordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return order(ctx, a.peer, "CordonMachine", ref)
}

func (a agent) UncordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return order(ctx, a.peer, "UncordonMachine", ref)
}

func (a agent) WaitMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	return ask[hangar.MachineReached](ctx, a.peer, "WaitMachine", ref, in)
}

func (a agent) MachineEvents(ctx context.Context, ref hangar.MachineRef, limit int) ([]hangar.Event, error) {
	return ask[[]hangar.Event](ctx, a.peer, "MachineEvents", ref, limit)
}

func (a agent) MachineVersions(ctx context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	return ask[[]hangar.MachineVersion](ctx, a.peer, "MachineVersions", ref)
}

func (a agent) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	return ask[[]hangar.Process](ctx, a.peer, "MachineProcesses", ref)
}

func (a agent) AcquireLease(ctx context.Context, ref hangar.MachineRef, in hangar.LeaseAcquire) (hangar.Lease, error) {
	return ask[hangar.Lease](ctx, a.peer, "AcquireLease", ref, in)
}

func (a agent) MachineLease(ctx context.Context, ref hangar.MachineRef) (hangar.Lease, error) {
	return ask[hangar.Lease](ctx, a.peer, "MachineLease", ref)
}

func (a agent) ReleaseLease(ctx context.Context, ref hangar.MachineRef) error {
	return order(ctx, a.peer, "ReleaseLease", ref)
}

func (a agent) MachineMetadata(ctx context.Context, ref hangar.MachineRef) (map[string]string, error) {
	return ask[map[string]string](ctx, a.peer, "MachineMetadata", ref)
}

func (a agent) SetMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataPair) error {
	return order(ctx, a.peer, "SetMachineMetadata", ref, in)
}

func (a agent) RemoveMachineMetadata(ctx context.Context, ref hangar.MachineRef, key string) error {
	return order(ctx, a.peer, "RemoveMachineMetadata", ref, key)
}

func (a agent) ReplaceMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return order(ctx, a.peer, "ReplaceMachineMetadata", ref, in)
}

func (a agent) MergeMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return order(ctx, a.peer, "MergeMachineMetadata", ref, in)
}

func (a agent) KeepMachineBusy(ctx context.Context, ref hangar.MachineRef, ttl time.Duration) (hangar.MachineBusy, error) {
	return ask[hangar.MachineBusy](ctx, a.peer, "KeepMachineBusy", ref, ttl)
}

func (a agent) CreateVolume(ctx context.Context, spec hangar.VolumeSpec) (*hangar.VolumeRow, error) {
	return ask[*hangar.VolumeRow](ctx, a.peer, "CreateVolume", spec)
}

func (a agent) VolumeRow(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return ask[*hangar.VolumeRow](ctx, a.peer, "VolumeRow", ref)
}

func (a agent) VolumeRows(ctx context.Context, app hangar.AppID) ([]*hangar.VolumeRow, error) {
	return ask[[]*hangar.VolumeRow](ctx, a.peer, "VolumeRows", app)
}

func (a agent) UpdateVolume(ctx context.Context, ref hangar.VolumeRef, in hangar.VolumeUpdate) (*hangar.VolumeRow, error) {
	return ask[*hangar.VolumeRow](ctx, a.peer, "UpdateVolume", ref, in)
}

func (a agent) ExtendVolume(ctx context.Context, ref hangar.VolumeRef, sizeGB int) (*hangar.VolumeRow, error) {
	return ask[*hangar.VolumeRow](ctx, a.peer, "ExtendVolume", ref, sizeGB)
}

func (a agent) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return ask[*hangar.VolumeRow](ctx, a.peer, "DestroyVolume", ref)
}

func (a agent) UndeleteVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return ask[*hangar.VolumeRow](ctx, a.peer, "UndeleteVolume", ref)
}

func (a agent) PurgeVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return ask[*hangar.VolumeRow](ctx, a.peer, "PurgeVolume", ref)
}

func (a agent) VolumeEvents(ctx context.Context, ref hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	return ask[[]hangar.VolumeEvent](ctx, a.peer, "VolumeEvents", ref)
}

func (a agent) Snapshots(ctx context.Context, ref hangar.VolumeRef) ([]*hangar.Snapshot, error) {
	return ask[[]*hangar.Snapshot](ctx, a.peer, "Snapshots", ref)
}

func (a agent) CreateSnapshot(ctx context.Context, ref hangar.VolumeRef) (*hangar.Snapshot, error) {
	return ask[*hangar.Snapshot](ctx, a.peer, "CreateSnapshot", ref)
}

func (a agent) DrillVolumes(ctx context.Context, app hangar.AppID) (*hangar.VolumeDrill, error) {
	return ask[*hangar.VolumeDrill](ctx, a.peer, "DrillVolumes", app)
}

func (a agent) VolumeDrill(ctx context.Context, app hangar.AppID) (*hangar.VolumeDrill, error) {
	return ask[*hangar.VolumeDrill](ctx, a.peer, "VolumeDrill", app)
}

func (a agent) Images(ctx context.Context) ([]hangar.Image, error) {
	return ask[[]hangar.Image](ctx, a.peer, "Images")
}

func (a agent) RemoveImage(ctx context.Context, digest string) error {
	return order(ctx, a.peer, "RemoveImage", digest)
}

func (a agent) Resolve(ctx context.Context, who hangar.ImagePuller, ref string) (*hangar.ResolvedImage, error) {
	return ask[*hangar.ResolvedImage](ctx, a.peer, "Resolve", who, ref)
}

func (a agent) ImageUsage(ctx context.Context, org hangar.OrgID) (hangar.ImageUsage, error) {
	return ask[hangar.ImageUsage](ctx, a.peer, "ImageUsage", org)
}

func (a agent) RemoveOrg(ctx context.Context, org hangar.OrgID) error {
	return order(ctx, a.peer, "RemoveOrg", org)
}

func (a agent) Logs(ctx context.Context, app hangar.AppID, q hangar.LogQuery) (hangar.LogPage, error) {
	return ask[hangar.LogPage](ctx, a.peer, "Logs", app, q)
}
