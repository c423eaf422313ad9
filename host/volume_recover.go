package host

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/finish"
)

// readVolumes makes the volumes of the journal known.
func (a *Agent) readVolumes() error {
	err := a.o.Journal.Volumes(func(rec *journal.VolumeRecord) error {
		a.addVolume(a.newVolume(rec))
		return nil
	})
	if err != nil {
		return err
	}
	ids, err := a.o.Journal.VolumeIDs()
	if err != nil {
		return err
	}
	a.volumes.unread = make(map[hangar.VolumeID]bool)
	for _, id := range ids {
		if a.volumeByID(id) == nil {
			a.volumes.unread[id] = true
		}
	}
	return nil
}

// sweepVolumes closes what is open on the host for nobody. An image that no record
// claims stays: it is somebody's data.
func (a *Agent) sweepVolumes(ctx context.Context) error {
	open, err := a.o.Devices.List(ctx)
	if err != nil {
		// Machines without volumes are served nevertheless.
		a.o.Log.Error("leftovers of volumes stay until the next start", keyError, err)
	}
	for _, id := range open {
		if a.needsVolume(id) {
			continue
		}
		if err := a.closeVolume(ctx, id); err != nil {
			a.o.Log.Error("leftovers of a volume stay until the next start", keyVolume, id, keyError, err)
		}
	}
	for _, v := range a.allVolumes() {
		by := v.rec.Load().Volume.AttachedMachine
		if by == "" || a.claims(by) {
			continue
		}
		_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Volume.AttachedMachine = ""
			return []hangar.VolumeEvent{{Type: hangar.VolumeEventDetach, Machine: by}}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// closeVolume closes an open device, with all that was written if it can be.
func (a *Agent) closeVolume(ctx context.Context, id hangar.VolumeID) error {
	if v := a.volumeByID(id); v != nil {
		return v.letGo(ctx)
	}
	return finish.Do(ctx, volumeClosing, func(ctx finish.Context) error { return a.o.Devices.Release(ctx, id) })
}

// needsVolume reports whether an open device is left to the worker of a Machine, which
// may still run, or to whoever mends a record.
func (a *Agent) needsVolume(id hangar.VolumeID) bool {
	v := a.volumeByID(id)
	if v == nil {
		return a.volumes.unread[id]
	}
	by := v.rec.Load().Volume.AttachedMachine
	a.mu.RLock()
	m := a.machines[by]
	a.mu.RUnlock()
	return a.unread[by] || m != nil && !m.clean
}

// resumeVolumes goes on with what was under way when the daemon ended, which left those
// volumes.
func (a *Agent) resumeVolumes(ctx context.Context, left []*volume) {
	for _, v := range left {
		if ctx.Err() != nil {
			return
		}
		if err := v.resume(ctx); err != nil && ctx.Err() == nil {
			a.o.Log.Error("go on with a volume", keyVolume, v.id, keyState, v.rec.Load().Volume.State, keyError, err)
		}
	}
}

func (v *volume) resume(ctx context.Context) error {
	switch v.rec.Load().Volume.State {
	case hangar.VolumeCreating:
		err := v.make(ctx)
		if err == nil {
			return nil
		}
		_, recorded := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Volume.State = hangar.VolumeFailed
			return []hangar.VolumeEvent{{Type: hangar.VolumeEventCreate, Fault: userText(err)}}
		})
		return firstError(recorded, err)
	case hangar.VolumeRestoring:
		v.beginFilling()
		return nil
	case hangar.VolumeExtending:
		return v.finishExtending(ctx, hangar.VolumeEvent{})
	default:
		return nil
	}
}
