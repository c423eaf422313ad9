package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
)

// CreateVolume implements hangar.VolumeAgent.
func (a *Agent) CreateVolume(ctx context.Context, spec hangar.VolumeSpec) (*hangar.VolumeRow, error) {
	v, err := once(ctx, &a.volumes.creates, string(spec.ID), func() (*volume, error) { return a.createVolume(ctx, spec) })
	if err != nil {
		return nil, err
	}
	if v.rec.Load().Volume.AppID != spec.AppID {
		return nil, hangar.VolumeNotFound(spec.ID)
	}
	return v.row(ctx), nil
}

func (a *Agent) createVolume(ctx context.Context, spec hangar.VolumeSpec) (*volume, error) {
	if known := a.volumeByID(spec.ID); known != nil {
		return known, nil
	}
	making := "create a volume"
	switch {
	case spec.Snapshot != "":
		making = restoring
	case spec.Source != "":
		making = forking
	}
	if err := a.o.Space.Admit(making, 0); err != nil {
		return nil, err
	}
	if err := a.hasComputeRoom(ctx, spec.Compute); err != nil {
		return nil, err
	}
	filling, release, err := a.fillingOf(ctx, &spec)
	if err != nil {
		return nil, err
	}
	defer release()
	var v *volume
	err = a.promise(ctx, spec.OrgID, spec.SizeGB, func() (err error) {
		v, err = a.recordVolume(ctx, spec, filling)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := v.make(ctx); err != nil {
		// Nobody has been told of it: it is as if it had never been.
		return nil, errors.Join(err, v.eraseImage(ctx), a.forgetVolume(v))
	}
	return v, nil
}

// eraseImage removes the image of a volume that is not open.
func (v *volume) eraseImage(ctx context.Context) error {
	return finish.Do(ctx, volumeClosing, func(ctx finish.Context) error { return v.agent.o.Devices.Remove(ctx, v.id) })
}

// recordVolume makes a volume known that has no image yet.
func (a *Agent) recordVolume(ctx context.Context, spec hangar.VolumeSpec, filling hangar.Filling) (v *volume, err error) {
	now := wholeMillisecond(a.o.Now())
	rec := &journal.VolumeRecord{Org: spec.Org, OrgID: spec.OrgID, Volume: hangar.Volume{
		ID: spec.ID, Name: spec.Name, App: spec.App, AppID: spec.AppID, State: hangar.VolumeCreating, SizeGB: spec.SizeGB, Region: spec.Region,
		Zone: newZone(), Host: a.o.Host.ID, Filling: filling, Encrypted: spec.Encrypted, CreatedAt: now, UpdatedAt: now,
		SnapshotRetention: spec.SnapshotRetention, AutoBackup: spec.AutoBackup, Wanted: spec.FSType,
	}}
	created := []hangar.VolumeEvent{{Type: hangar.VolumeEventCreate, Source: hangar.EventSourceFrom(ctx)}}
	rec.Events = withEvents(nil, created, a.o.Now())
	err = a.sealingKey(spec.ID, spec.Encrypted, func(sealed []byte) error {
		rec.Key = sealed
		err := a.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutVolume(rec) })
		if err != nil {
			return volumeNotRecorded(spec.ID, err)
		}
		v = a.newVolume(rec)
		a.addVolume(v) // before the keys may be replaced, which looks at those that are known
		return nil
	})
	return v, err
}

// newZone is a place of its own for every volume, as if no two shared hardware.
func newZone() string {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	return hex.EncodeToString(b[:])
}

// volumeMaking bounds the making of an image, which may have to take all of its room from the disk.
const volumeMaking = 10 * time.Minute

// make brings a volume from creating to created, or to restoring if it is to be filled.
// It may be repeated: an image that is there has nothing on it.
func (v *volume) make(ctx context.Context) error {
	making, cancel := finish.Within(ctx, volumeMaking)
	defer cancel()
	rec := v.rec.Load()
	spec, err := v.agent.volumeSpec(rec)
	if err != nil {
		return err
	}
	err = v.agent.o.Devices.Create(making, spec)
	if errors.Is(err, fs.ErrExist) {
		if err = v.eraseImage(ctx); err == nil {
			err = v.agent.o.Devices.Create(making, spec)
		}
	}
	if err != nil {
		return fmt.Errorf("make the image of volume %s: %w", v.id, diskspace.Explain(err))
	}
	_, err = v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.State = hangar.VolumeCreated
		if next.Volume.Filling.Snapshot != "" || next.Volume.Filling.Source != "" {
			next.Volume.State = hangar.VolumeRestoring
		}
		return nil
	})
	if err == nil && v.rec.Load().Volume.State == hangar.VolumeRestoring {
		v.beginFilling()
	}
	return err
}

// VolumeRow implements hangar.VolumeAgent.
func (a *Agent) VolumeRow(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	v, err := a.volume(ref)
	if err != nil {
		return nil, err
	}
	return v.row(ctx), nil
}

// VolumeRows implements hangar.VolumeAgent.
func (a *Agent) VolumeRows(ctx context.Context, app hangar.AppID) ([]*hangar.VolumeRow, error) {
	rows := []*hangar.VolumeRow{}
	ctx, cancel := context.WithTimeout(ctx, 5*usagePatience) // of all together
	defer cancel()
	for _, v := range a.allVolumes() {
		if app == "" || v.rec.Load().Volume.AppID == app {
			rows = append(rows, v.row(ctx))
		}
	}
	return rows, nil
}

// VolumeEvents implements hangar.VolumeAgent.
func (a *Agent) VolumeEvents(_ context.Context, ref hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	v, err := a.volume(ref)
	if err != nil {
		return nil, err
	}
	return append([]hangar.VolumeEvent{}, v.rec.Load().Events...), nil
}

// changeVolume decides and commits what a verb asks for. alter is not called when allowed
// refuses, or says that there is nothing to do. The volume is locked for no longer than
// that.
func (a *Agent) changeVolume(
	ctx context.Context, ref hangar.VolumeRef, allowed func(rec *journal.VolumeRecord) (done bool, err error), alter volumeChange,
) (*hangar.VolumeRow, error) {
	v, err := a.volume(ref)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	done, err := allowed(v.rec.Load())
	if err == nil && !done {
		_, err = v.commit(alter)
	}
	v.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return v.row(ctx), nil
}

func wrongVolumeState(verb string, rec *journal.VolumeRecord) error {
	return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "unable to %s volume %s from current state: '%s'",
		verb, rec.Volume.ID, rec.Volume.State)
}

// UpdateVolume implements hangar.VolumeAgent.
func (a *Agent) UpdateVolume(ctx context.Context, ref hangar.VolumeRef, in hangar.VolumeUpdate) (*hangar.VolumeRow, error) {
	return a.changeVolume(ctx, ref, func(rec *journal.VolumeRecord) (bool, error) {
		if rec.Volume.State.Gone() {
			return false, wrongVolumeState("update", rec)
		}
		same := (in.SnapshotRetention == nil || *in.SnapshotRetention == rec.Volume.SnapshotRetention) &&
			(in.AutoBackup == nil || *in.AutoBackup == rec.Volume.AutoBackup)
		return same, nil
	}, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		if in.SnapshotRetention != nil {
			next.Volume.SnapshotRetention = *in.SnapshotRetention
		}
		if in.AutoBackup != nil {
			next.Volume.AutoBackup = *in.AutoBackup
		}
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventUpdate, Source: hangar.EventSourceFrom(ctx)}}
	})
}

// DestroyVolume implements hangar.VolumeAgent. Repeated, it changes nothing. One that is
// being filled is not filled any further.
func (a *Agent) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	row, err := a.destroyVolume(ctx, ref)
	if err != nil || !row.Volume.State.Gone() {
		return row, err
	}
	if v := a.volumeByID(ref.ID); v != nil {
		if end := v.endFilling.Load(); end != nil {
			(*end)()
		}
	}
	return row, nil
}

func (a *Agent) destroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	a.awaitRelease(ctx, ref)
	return a.changeVolume(ctx, ref, func(rec *journal.VolumeRecord) (bool, error) {
		state := rec.Volume.State
		switch {
		case state.Gone():
			return true, nil
		case rec.Volume.AttachedMachine != "":
			return false, hangar.VolumeBound(rec.Volume.AttachedMachine)
		case state != hangar.VolumeCreated && state != hangar.VolumeFailed && state != hangar.VolumeRestoring:
			return false, wrongVolumeState("destroy", rec)
		default:
			return false, nil
		}
	}, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Unfilled = next.Volume.State != hangar.VolumeCreated
		next.Volume.State = hangar.VolumePendingDestroy
		next.Volume.DestroyedAt = wholeMillisecond(a.o.Now())
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventDestroy, Source: hangar.EventSourceFrom(ctx)}}
	})
}

// UndeleteVolume implements hangar.VolumeAgent.
func (a *Agent) UndeleteVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return a.changeVolume(ctx, ref, func(rec *journal.VolumeRecord) (bool, error) {
		if rec.Volume.State != hangar.VolumePendingDestroy {
			return false, wrongVolumeState("undelete", rec)
		}
		return false, nil
	}, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		event := hangar.VolumeEvent{Type: hangar.VolumeEventUndelete, Source: hangar.EventSourceFrom(ctx)}
		next.Volume.State = hangar.VolumeCreated
		if next.Unfilled {
			next.Volume.State = hangar.VolumeFailed
			event.Text, event.Fault = "The volume could not be filled", "it was destroyed before it was complete"
		}
		next.Volume.DestroyedAt = time.Time{}
		return []hangar.VolumeEvent{event}
	})
}
