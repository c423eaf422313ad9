package machines

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/journal"
)

// Volumes mounts the volumes of Machines; package volumes implements it. The config in a method is
// that of the Machine. Release, Mount, Unmount and Retake may be repeated.
type Volumes interface {
	// Claim gives a new Machine the volumes that its config mounts, and completes the config from
	// them.
	Claim(spec *hangar.MachineSpec) (Claims, error)
	// Release detaches the volumes of a Machine that is being destroyed.
	Release(id hangar.MachineID, config *hangar.MachineConfig) Claims
	// Keep refuses a new config that mounts other volumes than the current one, and completes the
	// config from them.
	Keep(id hangar.MachineID, current, next *hangar.MachineConfig) error
	// AwaitRelease waits, within limits, for the end of a Machine that is being destroyed and has
	// a volume.
	AwaitRelease(ctx context.Context, ref hangar.VolumeRef)
	// Mount opens the i-th volume of a config and returns where it is on the host. With resume,
	// unclean says that the suspended memory does not match its file system, which is left as it is.
	Mount(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig, i int, resume bool) (dir string, unclean bool, err error)
	// Unmount closes what a Machine has mounted, once its sandbox has ended.
	Unmount(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig) error
	// Retake adopts the volumes of a Machine that has kept running without a daemon. It answers a
	// VolumeLost for a volume that was lost meanwhile.
	Retake(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig) error
	// Watch returns a context that ends with a VolumeLost when a Machine loses a volume, and with
	// ctx. end must be called.
	Watch(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig) (watched context.Context, end func())
	// MountedAt is where a volume is mounted on the host. It does not wait.
	MountedAt(id hangar.VolumeID) (dir string, ok bool)
	// OpenRoot opens the root directory of a volume that is mounted.
	OpenRoot(id hangar.VolumeID) (fd int, err error)
}

// Claims are changes of volumes that are committed with one of their Machine. The volumes are
// locked until Done.
type Claims interface {
	// Put adds them to a commit.
	Put(tx *journal.Tx) error
	// Settle makes them visible, once they are committed.
	Settle()
	// Done unlocks the volumes. It must be called, with or without Settle before.
	Done()
}

// VolumeLost is the error of a Machine that has lost a volume.
type VolumeLost interface {
	error
	// Volume is the one that was lost.
	Volume() hangar.VolumeID
	// Record records an event of the loss, with the Machine.
	Record(by hangar.MachineID) error
	// Unwrap returns why it was lost.
	Unwrap() error
}

// errUnclean turns a resume into a cold boot, which may repair the file system: the suspended memory
// does not match it.
var errUnclean = errors.New("a volume was not closed when its machine was suspended")

// mountVolumes opens the volumes that the Machine mounts. If its memory is resumed, it changes
// nothing on them; otherwise it gives their roots to the run user.
func (w *worker) mountVolumes(ctx context.Context, rec *journal.Record, user guest.Process) ([]driver.Mount, error) {
	var mounts []driver.Mount
	if len(rec.Machine.Config.Mounts) > 0 {
		w.clean, w.released = false, false
	}
	for i, mount := range rec.Machine.Config.Mounts {
		dir, unclean, err := w.store.o.Volumes.Mount(ctx, w.id, &rec.Machine.Config, i, rec.Snapshot)
		if err != nil {
			return nil, err
		}
		if unclean {
			return nil, errUnclean
		}
		if !rec.Snapshot {
			w.note("info", "Mounting %s at %s w/ uid: %d, gid: %d and chmod 0755", mount.Volume, mount.Path, user.UID, user.GID)
			if err := errors.Join(os.Chown(dir, int(user.UID), int(user.GID)), os.Chmod(dir, 0o755)); err != nil { //nolint:gosec // as everywhere
				return nil, fmt.Errorf("mount volume %s: %w", mount.Volume, err)
			}
		}
		mounts = append(mounts, driver.Mount{Source: dir, Target: mount.Path})
	}
	return mounts, nil
}

// withoutVolume ends a Machine that has lost a volume, because further writes would be lost as
// well. The next boot repairs the volume.
func (w *worker) withoutVolume(ctx context.Context, rec *journal.Record, err error) error {
	var lost VolumeLost
	if !errors.As(err, &lost) {
		return err
	}
	w.store.o.Log.Error("machine lost a volume", keyMachine, w.id, keyVolume, lost.Volume(), keyError, lost.Unwrap())
	w.note("error", "Volume %s was lost, ending the machine", lost.Volume())
	if err := lost.Record(w.id); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, w.store.limits.release)
	defer cancel()
	d := w.store.o.Driver
	exit := lostExit(w.store.o.Now())
	if err := d.Stop(bounded, rec.Handle, sigKill, 0); err == nil {
		if ended, err := d.Wait(bounded, rec.Handle); err == nil {
			exit = ended
		}
	}
	if ctx.Err() != nil {
		return errOvertaken
	}
	if exit.Code == 0 {
		exit.Code = 137 // a failure to the restart policy
	}
	return w.exitedBecause(rec, exit, lost.Error())
}
