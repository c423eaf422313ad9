package volumes

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// snapshotsAtOnce bounds the snapshots of a host that are being read, which compete with
// Machines for its disk. One organization has at most all but one of them.
const snapshotsAtOnce = 3

// Snapshots implements hangar.VolumeAgent.
func (s *Store) Snapshots(_ context.Context, ref hangar.VolumeRef) ([]*hangar.Snapshot, error) {
	v, err := s.volume(ref)
	if err != nil {
		return nil, err
	}
	list := []*hangar.Snapshot{}
	for _, s := range v.snapshots(v.rec.Load()) {
		list = append(list, &s)
	}
	return list, nil
}

// snapshots returns the snapshots of a record, with the progress of the one that is being taken.
func (v *volume) snapshots(rec *journal.VolumeRecord) []hangar.Snapshot {
	p := v.reading.Load()
	if p == nil {
		return rec.Snapshots
	}
	list := slices.Clone(rec.Snapshots)
	for i := range list {
		if list[i].State == hangar.SnapshotRunning {
			list[i].Progress = *p
		}
	}
	return list
}

// CreateSnapshot implements hangar.VolumeAgent.
func (s *Store) CreateSnapshot(ctx context.Context, ref hangar.VolumeRef) (*hangar.Snapshot, error) {
	v, err := s.volume(ref)
	if err != nil {
		return nil, err
	}
	if s.o.Archive == nil {
		return nil, errNoArchive()
	}
	if err := s.o.Space.Admit(diskspace.TakeSnapshot, 0); err != nil {
		return nil, err
	}
	return v.beginSnapshot(ctx, false)
}

// beginSnapshot commits a waiting snapshot, and starts taking it.
func (v *volume) beginSnapshot(ctx context.Context, daily bool) (*hangar.Snapshot, error) {
	var s hangar.Snapshot
	err := v.claiming(ctx, func(rec *journal.VolumeRecord) (*hangar.VolumeRow, error) {
		if err := mayBeSnapshotted(rec, daily); err != nil {
			return nil, err
		}
		s = v.newSnapshot(rec, daily)
		wanted := rowOf(rec)
		wanted.Snapshots = slices.Insert(slices.Clone(rec.Snapshots), 0, s)
		return &wanted, nil
	}, func(rec *journal.VolumeRecord) error {
		return v.commitTo(rec, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Snapshots = slices.Insert(slices.Clone(next.Snapshots), 0, s)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	// If the daemon ends first, the next one takes the snapshot.
	v.store.work.Go(func() { v.takeSnapshot(v.store.work.Context, s.ID) })
	return &s, nil
}

func (v *volume) newSnapshot(rec *journal.VolumeRecord, daily bool) hangar.Snapshot {
	return hangar.Snapshot{
		ID: hangar.NewSnapshotID(), Volume: v.id, State: hangar.SnapshotWaiting, VolumeSize: int64(rec.Volume.SizeGB) << 30,
		CreatedAt: wholeSecond(v.store.o.Now()), RetentionDays: rec.Volume.SnapshotRetention, Daily: daily,
	}
}

// dailySnapshot begins a daily snapshot. Beyond the organization's quota it lists the snapshot as
// failed, which is retried like every failed one.
func (v *volume) dailySnapshot(ctx context.Context) error {
	_, err := v.beginSnapshot(ctx, true)
	if hangar.ReasonOf(err) != hangar.ReasonQuota {
		return err
	}
	now := v.store.o.Now()
	s := v.newSnapshot(v.rec.Load(), true)
	s.State, s.FinishedAt, s.Fault = hangar.SnapshotFailed, wholeSecond(now), hangar.MessageOf(err)
	_, recorded := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Snapshots = slices.Insert(slices.Clone(next.Snapshots), 0, s)
		discard(next, dispensable(next.Snapshots, v.store.expiry.now())...)
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventSnapshot, Snapshot: s.ID, Text: "The daily snapshot was not taken", Fault: s.Fault}}
	})
	return recorded
}

func mayBeSnapshotted(rec *journal.VolumeRecord, daily bool) error {
	if !rec.Volume.State.Usable() {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState,
			"failed_precondition: volume %s is %s, so that no snapshot can be taken", rec.Volume.ID, rec.Volume.State)
	}
	if i := slices.IndexFunc(rec.Snapshots, func(s hangar.Snapshot) bool { return underWay(&s) }); i >= 0 {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSnapshotRunning,
			"failed_precondition: snapshot is already scheduled at %s", rec.Snapshots[i].CreatedAt.Format(time.RFC3339))
	}
	if !roomForSnapshot(rec.Snapshots, daily) {
		return hangar.Errorf(hangar.CodeExhausted, "", "resource_exhausted: volume %s has %d snapshots, which is as many as are kept; they expire by their retention",
			rec.Volume.ID, hangar.MaxSnapshots)
	}
	return nil
}

// withSnapshot returns a copy of snapshots in which alter has changed the one with id, if there is
// one.
func withSnapshot(snapshots []hangar.Snapshot, id hangar.SnapshotID, alter func(*hangar.Snapshot)) []hangar.Snapshot {
	list := slices.Clone(snapshots)
	if i := slices.IndexFunc(list, func(s hangar.Snapshot) bool { return s.ID == id }); i >= 0 {
		alter(&list[i])
	}
	return list
}

// takeSnapshot takes a waiting snapshot. If ctx ends first, the snapshot waits for the next daemon,
// and has the content of that later time.
func (v *volume) takeSnapshot(ctx context.Context, id hangar.SnapshotID) {
	store := v.store
	release, err := store.snapshots.Acquire(ctx, v.rec.Load().OrgID)
	if err != nil {
		return
	}
	defer release()
	_, err = v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Snapshots = withSnapshot(next.Snapshots, id, func(s *hangar.Snapshot) { s.State = hangar.SnapshotRunning })
		return nil
	})
	var (
		entry archive.Entry
		took  time.Duration
	)
	if err == nil {
		entry, took, err = v.archiveSnapshot(ctx, id)
	}
	if err != nil && ctx.Err() != nil {
		v.putOff(id)
		return
	}
	if err != nil {
		store.o.Log.Error("snapshot of a volume", keyVolume, v.id, keySnapshot, id, keyError, err)
		store.metrics.snapshots.WithLabelValues(resultFailed).Inc()
		err = v.recordEnd(ctx, v.snapshotFailed(id, hangar.MessageOf(err)))
	} else {
		store.metrics.snapshots.WithLabelValues(resultCreated).Inc()
		err = v.recordEnd(ctx, v.snapshotCreated(entry, took))
	}
	if err != nil && ctx.Err() == nil {
		store.o.Log.Error("record the end of a snapshot", keyVolume, v.id, keySnapshot, id, keyError, err)
	}
	store.lookSoon()
}

// putOff sets an incomplete snapshot back to waiting.
func (v *volume) putOff(id hangar.SnapshotID) {
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Snapshots = withSnapshot(next.Snapshots, id, func(s *hangar.Snapshot) { s.State = hangar.SnapshotWaiting })
		return nil
	})
	if err != nil {
		v.store.o.Log.Warn("a snapshot that is under way will have failed", keyVolume, v.id, keySnapshot, id, keyError, err)
	}
}

// snapshotCreated marks a snapshot as created, and discards those that are dispensable then.
func (v *volume) snapshotCreated(entry archive.Entry, took time.Duration) change {
	now := v.store.o.Now()
	return func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Snapshots = withSnapshot(next.Snapshots, entry.ID, func(s *hangar.Snapshot) {
			s.State, s.FinishedAt, s.Frozen = hangar.SnapshotCreated, wholeSecond(now), took
			s.Size, s.VolumeSize, s.Digest = entry.Stored, entry.VolumeSize, entry.Digest
		})
		discard(next, dispensable(next.Snapshots, v.store.expiry.now())...)
		return []hangar.VolumeEvent{{
			Type: hangar.VolumeEventSnapshot, Snapshot: entry.ID,
			Text: fmt.Sprintf("A snapshot was taken: %d bytes were added to the archive, and writes waited for %s", entry.Stored, took.Round(time.Millisecond)),
		}}
	}
}

// snapshotFailed marks a snapshot as failed, and discards the parts of it that the archive may have.
func (v *volume) snapshotFailed(id hangar.SnapshotID, fault string) change {
	now := v.store.o.Now()
	return func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Snapshots = withSnapshot(next.Snapshots, id, func(s *hangar.Snapshot) {
			s.State, s.FinishedAt, s.Fault = hangar.SnapshotFailed, wholeSecond(now), fault
		})
		next.Discarded = append(slices.Clone(next.Discarded), id)
		discard(next, dispensable(next.Snapshots, v.store.expiry.now())...)
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventSnapshot, Snapshot: id, Text: "No snapshot was taken", Fault: fault}}
	}
}

// archiveSnapshot stores the content of the volume in the archive. took is how long writers waited.
func (v *volume) archiveSnapshot(ctx context.Context, id hangar.SnapshotID) (entry archive.Entry, took time.Duration, err error) {
	store, err := v.store.archiver.getSoon(ctx)
	if err != nil {
		return entry, 0, err
	}
	defer v.reading.Store(nil)
	progress := func(p hangar.Progress) { v.reading.Store(&p) }
	err = v.frozen(ctx, diskspace.TakeSnapshot, string(id), func(view view) error {
		took = view.Took()
		meta := archive.Meta{
			ID: id, Volume: v.id, App: view.of.Volume.App, Org: view.of.Org, OrgID: view.of.OrgID, CreatedAt: wholeSecond(v.store.o.Now()),
			FSType: view.content, Encrypted: view.of.Volume.Encrypted,
		}
		base, unpin, err := v.base(ctx, view)
		if err != nil {
			return err
		}
		defer unpin()
		entry, err = writeArchive(ctx, store, meta, view, view.data, base, progress)
		return err
	})
	return entry, took, err
}

// base returns the newest snapshot with the changes since; nil: they are not known. The snapshot is
// kept until the returned function is called.
func (v *volume) base(ctx context.Context, view view) (*archive.Base, func(), error) {
	snapshots := v.rec.Load().Snapshots
	i := slices.IndexFunc(snapshots, func(s hangar.Snapshot) bool { return s.State == hangar.SnapshotCreated })
	if i < 0 {
		return nil, func() {}, nil
	}
	id := snapshots[i].ID
	unpin := v.store.archiver.pin(id)
	changed, known, err := view.Changed(ctx, string(id))
	if err != nil || !known {
		unpin()
		return nil, func() {}, err
	}
	return &archive.Base{ID: id, Changed: changed}, unpin, nil
}

// recoverSnapshots takes the snapshots that an earlier daemon left waiting. It lists as failed one
// that was being taken when that daemon was killed, which may be long ago. Drills continue, too.
func (s *Store) recoverSnapshots() error {
	if err := s.drills.read(); err != nil {
		return err
	}
	for _, v := range s.all() {
		for _, snapshot := range v.rec.Load().Snapshots {
			switch snapshot.State {
			case hangar.SnapshotWaiting:
				s.work.Go(func() { v.takeSnapshot(s.work.Context, snapshot.ID) })
			case hangar.SnapshotRunning:
				s.metrics.snapshots.WithLabelValues(resultFailed).Inc()
				if _, err := v.record(v.snapshotFailed(snapshot.ID, "the server ended unexpectedly meanwhile")); err != nil {
					return err
				}
			default:
			}
		}
	}
	s.drills.resume()
	return nil
}
