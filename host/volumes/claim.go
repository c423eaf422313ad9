package volumes

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// Claims are changes of volumes that are committed with one of their Machine. The
// volumes are locked until Done is called.
type Claims []draft

// Put adds the changes to the commit.
func (c Claims) Put(tx *journal.Tx) error {
	for _, d := range c {
		if err := tx.PutVolume(d.next); err != nil {
			return err
		}
	}
	return nil
}

// Settle makes the committed changes visible.
func (c Claims) Settle() {
	for _, d := range c {
		d.settle()
	}
}

// Done unlocks the volumes. It must be called, with or without Settle before.
func (c Claims) Done() {
	for _, d := range c {
		d.v.mu.Unlock()
	}
}

// Claim gives a new Machine the volumes that its config mounts, and completes the config from
// them. Unless Claim fails, Done must be called in the end.
func (s *Store) Claim(spec *hangar.MachineSpec) (claims Claims, err error) {
	mounts := spec.Config.Mounts
	if len(mounts) > s.o.PerMachine {
		return nil, badMounts("config.mounts", "has %d volumes, more than the %d that a machine may have", len(mounts), s.o.PerMachine)
	}
	defer func() {
		if err != nil {
			claims.Done()
			claims = nil
		}
	}()
	for _, i := range byVolume(mounts) {
		d, err := s.claim(spec, i)
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

// AwaitRelease waits, within limits, until a Machine that is being destroyed has released a volume,
// so that a user can destroy a Machine and use its volume right after.
func (s *Store) AwaitRelease(ctx context.Context, ref hangar.VolumeRef) {
	v, err := s.volume(ref)
	if err != nil {
		return
	}
	s.o.Machines.AwaitEnd(ctx, hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: v.rec.Load().Volume.AttachedMachine})
}

// claim is Claim for one mount. The draft's volume, if there is one, is
// locked, also after an error.
func (s *Store) claim(spec *hangar.MachineSpec, i int) (draft, error) {
	id := spec.Config.Mounts[i].Volume
	for j, m := range spec.Config.Mounts {
		if m.Volume == id && j < i {
			return draft{}, badMounts(mountField(i), "%s is mounted twice", id)
		}
	}
	v, err := s.volume(hangar.VolumeRef{App: spec.App, AppID: spec.AppID, ID: hangar.VolumeID(id)})
	if err != nil || v.rec.Load().Volume.State.Gone() {
		return draft{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonVolumeNotFound, "volume not found: %s is %q", mountField(i), id)
	}
	v.mu.Lock()
	rec := v.rec.Load()
	held := draft{v: v}
	switch by := rec.Volume.AttachedMachine; {
	case !rec.Volume.State.Usable():
		return held, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "volume %s cannot be mounted: it is %s", id, rec.Volume.State)
	case by != "":
		return held, hangar.VolumeClaimed(by)
	case rec.Volume.Wanted == hangar.FSRaw:
		return held, badMounts(mountField(i), "%s is a raw block device, which the driver %s cannot give to a machine",
			id, s.o.Driver)
	}
	return v.draft(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.AttachedMachine = spec.ID
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventAttach, Machine: spec.ID}}
	}), nil
}

// mountField is where the config names its i-th volume.
func mountField(i int) string { return "config.mounts[" + strconv.Itoa(i) + "].volume" }

func badMounts(field, format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid "+field+": "+format, args...)
}

// Release detaches the volumes of a Machine that is being destroyed. Done must be called.
func (s *Store) Release(id hangar.MachineID, config *hangar.MachineConfig) (claims Claims) {
	for _, v := range s.heldBy(id, config) {
		v.mu.Lock()
		claims = append(claims, v.draft(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Volume.AttachedMachine = ""
			next.Volume.NeedsRestart = false
			return []hangar.VolumeEvent{{Type: hangar.VolumeEventDetach, Machine: id}}
		}))
	}
	return claims
}

// Keep refuses a new config for a Machine that mounts other volumes than it has, and completes the
// config from them.
func (s *Store) Keep(id hangar.MachineID, current, next *hangar.MachineConfig) error {
	has := volumesOf(current.Mounts)
	if !slices.Equal(has, volumesOf(next.Mounts)) {
		what := "none"
		if len(has) > 0 {
			what = strings.Join(has, ", ")
		}
		return badMounts("config.mounts", "the volumes of a machine cannot be changed, it has %s; destroy the machine and create another one", what)
	}
	for _, v := range s.heldBy(id, current) {
		next.DescribeMount(&v.rec.Load().Volume)
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
