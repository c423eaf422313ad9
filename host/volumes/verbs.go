package volumes

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
	"github.com/hangar-platform/hangar/internal/flight"
	"github.com/hangar-platform/hangar/internal/pause"
)

// CreateVolume implements hangar.VolumeAgent.
func (s *Store) CreateVolume(ctx context.Context, spec hangar.VolumeSpec) (*hangar.VolumeRow, error) {
	v, err := flight.Do(ctx, &s.creates, string(spec.ID), func() (*volume, error) { return s.create(ctx, spec) })
	if err != nil {
		return nil, err
	}
	if v.rec.Load().Volume.AppID != spec.AppID {
		return nil, hangar.VolumeNotFound(spec.ID)
	}
	return v.row(ctx), nil
}

func (s *Store) create(ctx context.Context, spec hangar.VolumeSpec) (*volume, error) {
	if known := s.byID(spec.ID); known != nil {
		return known, nil
	}
	purpose := diskspace.CreateVolume
	switch {
	case spec.Snapshot != "":
		purpose = diskspace.RestoreSnapshot
	case spec.Source != "":
		purpose = diskspace.ForkVolume
	}
	if err := s.o.Space.Admit(purpose, 0); err != nil {
		return nil, err
	}
	if err := hasComputeRoom(s.o.Machines, spec.Compute); err != nil {
		return nil, err
	}
	filling, release, err := s.fillingOf(ctx, &spec)
	if err != nil {
		return nil, err
	}
	defer release()
	var v *volume
	err = s.promises.make(ctx, spec.OrgID, spec.SizeGB, func() (err error) {
		if err := ctx.Err(); err != nil {
			return err // the caller, who is gone, takes the volume for one that will never be
		}
		v, err = s.record(ctx, spec, filling)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := v.make(ctx); err != nil {
		return nil, errors.Join(err, s.unmake(ctx, v))
	}
	return v, nil
}

// unmake removes a volume that could not be made without a trace, because its caller has not seen it yet. After a
// failure, as on a full disk, it is repeated until the daemon ends.
func (s *Store) unmake(ctx context.Context, v *volume) error {
	err := s.erase(ctx, v)
	if err != nil {
		s.work.Go(func() { s.unmakeLater(s.work.Context, v) })
	}
	return err
}

func (s *Store) unmakeLater(ctx context.Context, v *volume) {
	for delay := minPause; pause.For(ctx, delay) == nil; delay = min(2*delay, maxPause) {
		err := s.erase(ctx, v)
		if err == nil {
			return
		}
		s.o.Log.Error("remove a volume that could not be made", keyVolume, v.id, keyError, err)
	}
}

// erase removes the image of a volume that is not open, and then its record: without one, nothing would remove
// the image.
func (s *Store) erase(ctx context.Context, v *volume) error {
	if err := v.eraseImage(ctx); err != nil {
		return err
	}
	return s.forget(v)
}

// eraseImage removes the image of a volume that is not open.
func (v *volume) eraseImage(ctx context.Context) error {
	return finish.Do(ctx, closing, func(ctx finish.Context) error { return v.store.o.Devices.Remove(ctx, v.id) })
}

// record commits a new volume, which has no image yet, and makes it known.
func (s *Store) record(ctx context.Context, spec hangar.VolumeSpec, filling hangar.Filling) (v *volume, err error) {
	now := wholeMillisecond(s.o.Now())
	rec := &journal.VolumeRecord{Org: spec.Org, OrgID: spec.OrgID, Volume: hangar.Volume{
		ID: spec.ID, Name: spec.Name, App: spec.App, AppID: spec.AppID, State: hangar.VolumeCreating, SizeGB: spec.SizeGB, Region: spec.Region,
		Zone: newZone(), Host: s.o.Host, Filling: filling, Encrypted: spec.Encrypted, CreatedAt: now, UpdatedAt: now,
		SnapshotRetention: spec.SnapshotRetention, AutoBackup: spec.AutoBackup, Wanted: spec.FSType,
	}}
	created := []hangar.VolumeEvent{{Type: hangar.VolumeEventCreate, Source: hangar.EventSourceFrom(ctx)}}
	rec.Events = withEvents(nil, created, s.o.Now())
	err = s.keys.sealing(spec.ID, spec.Encrypted, func(sealed []byte) error {
		rec.Key = sealed
		err := s.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutVolume(rec) })
		if err != nil {
			return notRecorded(spec.ID, err)
		}
		v = s.newVolume(rec)
		s.add(v) // before the keys may be replaced, which rewrites those of known volumes
		return nil
	})
	return v, err
}

// newZone makes a unique zone for each volume, as if no two shared hardware.
func newZone() string {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	return hex.EncodeToString(b[:])
}

// makeTimeout bounds the creation of an image, which may have to allocate all of its room.
const makeTimeout = 10 * time.Minute

// make brings a volume from creating to created, or to restoring if it is to be filled. It may be
// repeated: an existing image is empty.
func (v *volume) make(ctx context.Context) error {
	bounded, cancel := finish.Within(ctx, makeTimeout)
	defer cancel()
	rec := v.rec.Load()
	spec, err := v.store.spec(rec)
	if err != nil {
		return err
	}
	err = v.store.o.Devices.Create(bounded, spec)
	if errors.Is(err, fs.ErrExist) {
		if err = v.eraseImage(ctx); err == nil {
			err = v.store.o.Devices.Create(bounded, spec)
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
func (s *Store) VolumeRow(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	v, err := s.volume(ref)
	if err != nil {
		return nil, err
	}
	return v.row(ctx), nil
}

// VolumeRows implements hangar.VolumeAgent.
func (s *Store) VolumeRows(ctx context.Context, app hangar.AppID) ([]*hangar.VolumeRow, error) {
	rows := []*hangar.VolumeRow{}
	ctx, cancel := context.WithTimeout(ctx, 5*usagePatience) // for all volumes together
	defer cancel()
	for _, v := range s.all() {
		if app == "" || v.rec.Load().Volume.AppID == app {
			rows = append(rows, v.row(ctx))
		}
	}
	return rows, nil
}

// VolumeEvents implements hangar.VolumeAgent.
func (s *Store) VolumeEvents(_ context.Context, ref hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	v, err := s.volume(ref)
	if err != nil {
		return nil, err
	}
	return append([]hangar.VolumeEvent{}, v.rec.Load().Events...), nil
}

// change commits a verb. It does not call alter if allowed refuses, or says that there is nothing
// to do. The volume is locked meanwhile.
func (s *Store) change(
	ctx context.Context, ref hangar.VolumeRef, allowed func(rec *journal.VolumeRecord) (done bool, err error), alter change,
) (*hangar.VolumeRow, error) {
	v, err := s.volume(ref)
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

func wrongState(verb string, rec *journal.VolumeRecord) error {
	return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "unable to %s volume %s from current state: '%s'",
		verb, rec.Volume.ID, rec.Volume.State)
}

// UpdateVolume implements hangar.VolumeAgent.
func (s *Store) UpdateVolume(ctx context.Context, ref hangar.VolumeRef, in hangar.VolumeUpdate) (*hangar.VolumeRow, error) {
	return s.change(ctx, ref, func(rec *journal.VolumeRecord) (bool, error) {
		if rec.Volume.State.Gone() {
			return false, wrongState("update", rec)
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

// DestroyVolume implements hangar.VolumeAgent. It may be repeated. The filling of a volume ends
// with it.
func (s *Store) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	row, err := s.destroy(ctx, ref)
	if err != nil || !row.Volume.State.Gone() {
		return row, err
	}
	if v := s.byID(ref.ID); v != nil {
		if end := v.endFilling.Load(); end != nil {
			(*end)()
		}
	}
	return row, nil
}

func (s *Store) destroy(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	s.AwaitRelease(ctx, ref)
	return s.change(ctx, ref, func(rec *journal.VolumeRecord) (bool, error) {
		state := rec.Volume.State
		switch {
		case state.Gone():
			return true, nil
		case rec.Volume.AttachedMachine != "":
			return false, hangar.VolumeBound(rec.Volume.AttachedMachine)
		case state != hangar.VolumeCreated && state != hangar.VolumeFailed && state != hangar.VolumeRestoring:
			return false, wrongState("destroy", rec)
		default:
			return false, nil
		}
	}, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Unfilled = next.Volume.State != hangar.VolumeCreated
		next.Volume.State = hangar.VolumePendingDestroy
		next.Volume.DestroyedAt = wholeMillisecond(s.o.Now())
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventDestroy, Source: hangar.EventSourceFrom(ctx)}}
	})
}

// UndeleteVolume implements hangar.VolumeAgent.
func (s *Store) UndeleteVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return s.change(ctx, ref, func(rec *journal.VolumeRecord) (bool, error) {
		if rec.Volume.State != hangar.VolumePendingDestroy {
			return false, wrongState("undelete", rec)
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
