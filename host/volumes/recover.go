package volumes

import (
	"cmp"
	"context"
	"errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/finish"
)

// load makes the volumes of the journal known.
func (s *Store) load() error {
	err := s.o.Journal.Volumes(func(rec *journal.VolumeRecord) error {
		s.add(s.newVolume(rec))
		return nil
	})
	if err != nil {
		return err
	}
	ids, err := s.o.Journal.VolumeIDs()
	if err != nil {
		return err
	}
	s.unread = make(map[hangar.VolumeID]bool)
	for _, id := range ids {
		if s.byID(id) == nil {
			s.unread[id] = true
		}
	}
	return nil
}

// Sweep closes volumes that are open without a user. It keeps images that no record claims:
// they may hold data of a tenant.
func (s *Store) Sweep(ctx context.Context) error {
	open, err := s.o.Devices.List(ctx)
	if err != nil {
		// Machines without volumes do not depend on it.
		s.o.Log.Error("leftovers of volumes stay until the next start", keyError, err)
	}
	for _, id := range open {
		if s.needed(id) {
			continue
		}
		if err := s.closeOpen(ctx, id); err != nil {
			s.o.Log.Error("leftovers of a volume stay until the next start", keyVolume, id, keyError, err)
		}
	}
	for _, v := range s.all() {
		by := v.rec.Load().Volume.AttachedMachine
		if by == "" || s.o.Machines.Owns(by) {
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

// closeOpen closes an open device, with all that was written if it can be.
func (s *Store) closeOpen(ctx context.Context, id hangar.VolumeID) error {
	if v := s.byID(id); v != nil {
		return v.open.machineEnded(ctx)
	}
	return finish.Do(ctx, closing, func(ctx finish.Context) error { return s.o.Devices.Release(ctx, id) })
}

// needed reports whether an open device is kept, for a Machine that may still run or until an
// unreadable record is repaired.
func (s *Store) needed(id hangar.VolumeID) bool {
	v := s.byID(id)
	if v == nil {
		return s.unread[id]
	}
	return s.o.Machines.MayRun(v.rec.Load().Volume.AttachedMachine)
}

// resume continues the work on volumes that an earlier daemon has left.
func (s *Store) resume(ctx context.Context, left []*volume) {
	for _, v := range left {
		if ctx.Err() != nil {
			return
		}
		if err := v.resume(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Error("go on with a volume", keyVolume, v.id, keyState, v.rec.Load().Volume.State, keyError, err)
		}
	}
}

func (v *volume) resume(ctx context.Context) error {
	switch v.rec.Load().Volume.State {
	case hangar.VolumeCreating:
		err := v.make(ctx)
		if err == nil || errors.Is(err, errNone) {
			return err
		}
		_, recorded := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Volume.State = hangar.VolumeFailed
			return []hangar.VolumeEvent{{Type: hangar.VolumeEventCreate, Fault: hangar.MessageOf(err)}}
		})
		return cmp.Or(recorded, err)
	case hangar.VolumeRestoring:
		v.beginFilling()
		return nil
	case hangar.VolumeExtending:
		return v.finishExtending(ctx, hangar.VolumeEvent{})
	default:
		return nil
	}
}
