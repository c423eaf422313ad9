package fake

import (
	"slices"

	"github.com/hangar-platform/hangar"
)

const blockSize = 4096 // of the file systems, in bytes

// claim gives a Machine the volumes that a config mounts, or none of them, and says in the
// config what they are. The caller holds mu.
func (s *Service) claim(a *hangar.App, id hangar.MachineID, config *hangar.MachineConfig) error {
	for i, mount := range config.Mounts {
		v := s.volumeOf(a, hangar.VolumeID(mount.Volume))
		switch {
		case v == nil || v.State.Gone():
			return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonVolumeNotFound, "volume not found: config.mounts[%d].volume is %q", i, mount.Volume)
		case v.AttachedMachine != "" && v.AttachedMachine != id:
			return hangar.VolumeClaimed(v.AttachedMachine)
		case !v.State.Usable():
			return wrongVolumeState(v)
		}
	}
	for _, mount := range config.Mounts {
		v := s.volumes.byID[hangar.VolumeID(mount.Volume)]
		config.DescribeMount(&v.Volume)
		if v.AttachedMachine == "" {
			v.AttachedMachine = id
			s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventAttach, Source: hangar.SourceAgent, Machine: id})
		}
	}
	return nil
}

// sameVolumes refuses an update that mounts others than the Machine has.
func sameVolumes(before, after []hangar.Mount) error {
	ids := func(mounts []hangar.Mount) (list []string) {
		for _, m := range mounts {
			list = append(list, m.Volume)
		}
		slices.Sort(list)
		return list
	}
	if !slices.Equal(ids(before), ids(after)) {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
			"invalid config.mounts: the volumes of a machine cannot change: destroy it and create another one")
	}
	return nil
}

// detach gives the volumes of a Machine back. The caller holds mu.
func (s *Service) detach(id hangar.MachineID) {
	for _, v := range s.volumes.byID {
		if v.AttachedMachine == id {
			v.AttachedMachine = ""
			s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventDetach, Source: hangar.SourceAgent, Machine: id})
		}
	}
}

// mountAll is what a boot does to the volumes of a Machine: those that were never used get
// a file system, and all are as large as they can be. The caller holds mu.
func (s *Service) mountAll(m *machine) {
	for _, mount := range m.Config.Mounts {
		v := s.volumes.byID[hangar.VolumeID(mount.Volume)]
		if v == nil {
			continue
		}
		if v.Usage.Blocks == 0 && v.Wanted == hangar.FSExt4 {
			s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventFormat, Source: hangar.SourceAgent, Machine: m.ID})
		}
		v.NeedsRestart = false
		if blocks := int64(v.SizeGB) << 30 / blockSize; v.Wanted == hangar.FSExt4 {
			v.Usage = hangar.VolumeUsage{FSType: hangar.FSExt4, Blocks: blocks, BlockSize: blockSize, BlocksFree: blocks - 10, BlocksAvail: blocks - 20}
		}
	}
}
