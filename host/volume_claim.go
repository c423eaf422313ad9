package host

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// volumeClaims are changes of volumes that are committed with one of their Machine. The
// volumes are locked until done is called.
type volumeClaims []volumeDraft

func (c volumeClaims) put(tx *journal.Tx) error {
	for _, d := range c {
		if err := tx.PutVolume(d.next); err != nil {
			return err
		}
	}
	return nil
}

func (c volumeClaims) settle() {
	for _, d := range c {
		d.settle()
	}
}

func (c volumeClaims) done() {
	for _, d := range c {
		d.v.mu.Unlock()
	}
}

// claimVolumes gives a new Machine the volumes that its config mounts, and fills in what
// the config says of them. done must be called whatever follows, unless it fails.
func (a *Agent) claimVolumes(spec *hangar.MachineSpec) (claims volumeClaims, err error) {
	mounts := spec.Config.Mounts
	if len(mounts) > a.volumesPerMachine() {
		return nil, badMounts("config.mounts", "has %d volumes, more than the %d that a machine may have", len(mounts), a.volumesPerMachine())
	}
	defer func() {
		if err != nil {
			claims.done()
			claims = nil
		}
	}()
	for _, i := range byVolume(mounts) {
		d, err := a.claimVolume(spec, i)
		if d.v != nil {
			claims = append(claims, d)
		}
		if err != nil {
			return claims, err
		}
		spec.Config.DescribeMount(&d.next.Volume)
	}
	return claims, nil
}

// byVolume returns the indices of mounts in the order of their volumes' ids.
func byVolume(mounts []hangar.Mount) []int {
	order := make([]int, len(mounts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return strings.Compare(mounts[x].Volume, mounts[y].Volume) })
	return order
}

// releaseWait bounds how long a volume is waited for whose Machine is being destroyed.
const releaseWait = 10 * time.Second

// awaitRelease waits, within limits, until a Machine that is being destroyed has let go
// of a volume: whoever destroys a Machine, and then uses or destroys its volume, need not
// know that the first takes a moment.
func (a *Agent) awaitRelease(ctx context.Context, ref hangar.VolumeRef) {
	v, err := a.volume(ref)
	if err != nil {
		return
	}
	by := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: v.rec.Load().Volume.AttachedMachine}
	if m, err := a.machine(by); err != nil || m.rec.Load().Machine.State != hangar.MachineDestroying {
		return
	}
	// What came of it shows when the volume is asked for.
	_, _ = a.WaitMachine(ctx, by, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}, Timeout: releaseWait})
}

// claimVolume is claimVolumes for one mount. The draft's volume, if there is one, is
// locked, also after an error.
func (a *Agent) claimVolume(spec *hangar.MachineSpec, i int) (volumeDraft, error) {
	id := spec.Config.Mounts[i].Volume
	for j, m := range spec.Config.Mounts {
		if m.Volume == id && j < i {
			return volumeDraft{}, badMounts(volumeField(i), "%s is mounted twice", id)
		}
	}
	v, err := a.volume(hangar.VolumeRef{App: spec.App, AppID: spec.AppID, ID: hangar.VolumeID(id)})
	if err != nil || v.rec.Load().Volume.State.Gone() {
		return volumeDraft{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonVolumeNotFound, "volume not found: %s is %q", volumeField(i), id)
	}
	v.mu.Lock()
	rec := v.rec.Load()
	held := volumeDraft{v: v}
	switch by := rec.Volume.AttachedMachine; {
	case !rec.Volume.State.Usable():
		return held, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "volume %s cannot be mounted: it is %s", id, rec.Volume.State)
	case by != "":
		return held, hangar.VolumeClaimed(by)
	case rec.Volume.Wanted == hangar.FSRaw:
		return held, badMounts(volumeField(i), "%s is a raw block device, which the driver %s cannot give to a machine",
			id, a.o.Driver.Capabilities().Name)
	}
	return v.draft(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.AttachedMachine = spec.ID
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventAttach, Machine: spec.ID}}
	}), nil
}

// volumeField is where the config names its i-th volume.
func volumeField(i int) string { return "config.mounts[" + strconv.Itoa(i) + "].volume" }

func badMounts(field, format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid "+field+": "+format, args...)
}

// disclaimVolumes takes its volumes from a Machine that is destroyed. done must be called.
func (m *machine) disclaimVolumes(rec *journal.Record) (claims volumeClaims) {
	for _, v := range m.volumes(rec) {
		v.mu.Lock()
		claims = append(claims, v.draft(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Volume.AttachedMachine = ""
			next.Volume.NeedsRestart = false
			return []hangar.VolumeEvent{{Type: hangar.VolumeEventDetach, Machine: m.id}}
		}))
	}
	return claims
}

// volumes returns those that the Machine has, sorted by id.
func (m *machine) volumes(rec *journal.Record) (list []*volume) {
	mounts := rec.Machine.Config.Mounts
	for _, i := range byVolume(mounts) {
		v := m.agent.volumeByID(hangar.VolumeID(mounts[i].Volume))
		if v != nil && v.rec.Load().Volume.AttachedMachine == m.id {
			list = append(list, v)
		}
	}
	return list
}

// keepsVolumes refuses a config for a Machine that mounts other volumes than it has, and
// fills in what the config says of them.
func (m *machine) keepsVolumes(config *hangar.MachineConfig) error {
	current := m.rec.Load()
	has := volumesOf(current.Machine.Config.Mounts)
	if !slices.Equal(has, volumesOf(config.Mounts)) {
		what := "none"
		if len(has) > 0 {
			what = strings.Join(has, ", ")
		}
		return badMounts("config.mounts", "the volumes of a machine cannot be changed, it has %s; destroy the machine and create another one", what)
	}
	for _, v := range m.volumes(current) {
		config.DescribeMount(&v.rec.Load().Volume)
	}
	return nil
}

func volumesOf(mounts []hangar.Mount) (ids []string) {
	for _, m := range mounts {
		ids = append(ids, m.Volume)
	}
	slices.Sort(ids)
	return ids
}
