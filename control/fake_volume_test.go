package control_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// fakeVolumes are those of a fakeHost: they are made, filled and frozen at once.
type fakeVolumes struct {
	mu       sync.Mutex
	rows     map[hangar.VolumeID]*hangar.VolumeRow
	seq      uint64
	room     int  // GiB; 0: enough
	elastic  bool // it can restore the snapshots of others
	drills   map[hangar.AppID]hangar.VolumeDrill
	onCreate func(spec hangar.VolumeSpec) (before, after error)
	mute     bool            // the host does not publish
	read     hangar.VolumeID // is being read, and cannot be purged
}

// volumeRow finds a volume. volumes.mu is held.
func (f *fakeHost) volumeRow(ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	if f.isDown() {
		return nil, errDown
	}
	row := f.volumes.rows[ref.ID]
	if row == nil || row.Volume.AppID != ref.AppID {
		return nil, hangar.VolumeNotFound(ref.ID)
	}
	return row, nil
}

func (f *fakeHost) isDown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down
}

// changeVolume alters a volume, publishes it as hosts do, and returns its row.
func (f *fakeHost) changeVolume(ctx context.Context, ref hangar.VolumeRef, alter func(row *hangar.VolumeRow) error) (*hangar.VolumeRow, error) {
	f.volumes.mu.Lock()
	row, err := f.volumeRow(ref)
	if err == nil {
		err = alter(row)
	}
	if err != nil {
		f.volumes.mu.Unlock()
		return nil, err
	}
	f.volumes.seq++
	row.Seq = f.volumes.seq
	answer := *row
	answer.Snapshots = slices.Clone(row.Snapshots)
	f.volumes.mu.Unlock()
	if f.rows != nil && !f.volumes.mute {
		err = f.rows.PublishVolume(context.WithoutCancel(ctx), answer)
	}
	return &answer, err
}

func (f *fakeHost) CreateVolume(ctx context.Context, spec hangar.VolumeSpec) (*hangar.VolumeRow, error) {
	var before, after error
	if f.volumes.onCreate != nil {
		before, after = f.volumes.onCreate(spec)
	}
	if before != nil {
		return nil, before
	}
	if f.isDown() {
		return nil, errDown
	}
	f.volumes.mu.Lock()
	if f.volumes.room > 0 && spec.SizeGB > f.volumes.room {
		f.volumes.mu.Unlock()
		return nil, errRoom
	}
	if spec.Snapshot != "" && !f.knows(spec.Snapshot) {
		f.volumes.mu.Unlock()
		return nil, hangar.SnapshotNotFound(spec.Snapshot)
	}
	if f.volumes.rows == nil {
		f.volumes.rows = map[hangar.VolumeID]*hangar.VolumeRow{}
	}
	if f.volumes.rows[spec.ID] == nil {
		state := hangar.VolumeCreated
		if spec.Snapshot != "" || spec.Source != "" {
			state = hangar.VolumeRestoring
		}
		f.volumes.rows[spec.ID] = &hangar.VolumeRow{Org: spec.Org, OrgID: spec.OrgID, Volume: hangar.Volume{
			ID: spec.ID, Name: spec.Name, App: spec.App, AppID: spec.AppID, State: state, SizeGB: max(spec.SizeGB, 1), Region: spec.Region, Host: f.host.ID,
			Zone: "a7b1", Encrypted: spec.Encrypted, CreatedAt: time.Unix(1_700_000_000, 0).UTC(), SnapshotRetention: spec.SnapshotRetention,
			AutoBackup: spec.AutoBackup, Wanted: spec.FSType, Filling: hangar.Filling{Snapshot: spec.Snapshot, Source: spec.Source},
		}}
	}
	f.volumes.mu.Unlock()
	row, err := f.changeVolume(ctx, hangar.VolumeRef{AppID: spec.AppID, ID: spec.ID}, func(*hangar.VolumeRow) error { return nil })
	if after != nil {
		return nil, after
	}
	return row, err
}

// knows reports whether the host can restore a snapshot. volumes.mu is held.
func (f *fakeHost) knows(id hangar.SnapshotID) bool {
	for _, row := range f.volumes.rows {
		if slices.ContainsFunc(row.Snapshots, func(s hangar.Snapshot) bool { return s.ID == id }) {
			return true
		}
	}
	return f.volumes.elastic
}

func (f *fakeHost) VolumeRow(_ context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	f.volumes.mu.Lock()
	defer f.volumes.mu.Unlock()
	row, err := f.volumeRow(ref)
	if err != nil {
		return nil, err
	}
	answer := *row
	answer.Snapshots = slices.Clone(row.Snapshots)
	return &answer, nil
}

func (f *fakeHost) VolumeRows(ctx context.Context, app hangar.AppID) ([]*hangar.VolumeRow, error) {
	if f.isDown() {
		return nil, errDown
	}
	f.volumes.mu.Lock()
	defer f.volumes.mu.Unlock()
	var list []*hangar.VolumeRow
	for _, row := range f.volumes.rows {
		if app == "" || row.Volume.AppID == app {
			list = append(list, new(*row))
		}
	}
	slices.SortFunc(list, func(a, b *hangar.VolumeRow) int { return strings.Compare(string(a.Volume.ID), string(b.Volume.ID)) })
	return list, ctx.Err()
}

func (f *fakeHost) UpdateVolume(ctx context.Context, ref hangar.VolumeRef, in hangar.VolumeUpdate) (*hangar.VolumeRow, error) {
	return f.changeVolume(ctx, ref, func(row *hangar.VolumeRow) error {
		if in.SnapshotRetention != nil {
			row.Volume.SnapshotRetention = *in.SnapshotRetention
		}
		return nil
	})
}

func (f *fakeHost) ExtendVolume(ctx context.Context, ref hangar.VolumeRef, sizeGB int) (*hangar.VolumeRow, error) {
	if err := f.claim(ctx, ref, func(row *hangar.VolumeRow) { row.Volume.SizeGB = sizeGB }); err != nil {
		return nil, err
	}
	return f.changeVolume(ctx, ref, func(row *hangar.VolumeRow) error {
		if f.volumes.room > 0 && sizeGB > f.volumes.room {
			return errRoom
		}
		row.Volume.SizeGB = sizeGB
		return row.Volume.CheckExtension(sizeGB)
	})
}

func (f *fakeHost) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return f.changeVolume(ctx, ref, func(row *hangar.VolumeRow) error {
		v := &row.Volume
		switch {
		case v.AttachedMachine != "":
			return hangar.VolumeBound(v.AttachedMachine)
		case v.State == hangar.VolumeExtending:
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "busy")
		case !v.State.Gone():
			v.State, v.DestroyedAt = hangar.VolumePendingDestroy, time.Now().UTC()
		}
		return nil
	})
}

func (f *fakeHost) UndeleteVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return f.changeVolume(ctx, ref, func(row *hangar.VolumeRow) error {
		if row.Volume.State != hangar.VolumePendingDestroy {
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "not destroyed")
		}
		row.Volume.State, row.Volume.DestroyedAt = hangar.VolumeCreated, time.Time{}
		return nil
	})
}

// PurgeVolume forgets one that has no snapshots, as hosts do soon afterwards.
func (f *fakeHost) PurgeVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return f.changeVolume(ctx, ref, func(row *hangar.VolumeRow) error {
		if !row.Volume.State.Gone() || f.volumes.read == ref.ID {
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "not destroyed, or being read")
		}
		row.Volume.State = hangar.VolumeDestroyed
		return nil
	})
}

// claim counts a volume as change will make it.
func (f *fakeHost) claim(ctx context.Context, ref hangar.VolumeRef, change func(*hangar.VolumeRow)) error {
	row, err := f.VolumeRow(ctx, ref)
	if err != nil || f.rows == nil {
		return err
	}
	change(row)
	return f.rows.ClaimVolume(ctx, *row)
}

func (f *fakeHost) VolumeEvents(ctx context.Context, ref hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	_, err := f.VolumeRow(ctx, ref)
	return []hangar.VolumeEvent{}, err
}

func (f *fakeHost) Snapshots(ctx context.Context, ref hangar.VolumeRef) ([]*hangar.Snapshot, error) {
	row, err := f.VolumeRow(ctx, ref)
	if err != nil {
		return nil, err
	}
	list := []*hangar.Snapshot{}
	for _, s := range row.Snapshots {
		list = append(list, &s)
	}
	return list, nil
}

func (f *fakeHost) CreateSnapshot(ctx context.Context, ref hangar.VolumeRef) (*hangar.Snapshot, error) {
	made := hangar.Snapshot{ID: hangar.NewSnapshotID(), Volume: ref.ID, State: hangar.SnapshotCreated, CreatedAt: time.Unix(1_700_000_000, 0).UTC()}
	grow := func(row *hangar.VolumeRow) { row.Snapshots = slices.Insert(slices.Clone(row.Snapshots), 0, made) }
	if err := f.claim(ctx, ref, grow); err != nil {
		return nil, err
	}
	_, err := f.changeVolume(ctx, ref, func(row *hangar.VolumeRow) error {
		made.VolumeSize = int64(row.Volume.SizeGB) << 30
		row.Snapshots = slices.Insert(slices.Clone(row.Snapshots), 0, made)
		return nil
	})
	return &made, err
}

func (f *fakeHost) DrillVolumes(ctx context.Context, app hangar.AppID) (*hangar.VolumeDrill, error) {
	rows, err := f.VolumeRows(ctx, app)
	if err != nil {
		return nil, err
	}
	f.volumes.mu.Lock()
	defer f.volumes.mu.Unlock()
	for _, row := range rows {
		if len(row.Snapshots) > 0 {
			if f.volumes.drills == nil {
				f.volumes.drills = map[hangar.AppID]hangar.VolumeDrill{}
			}
			f.volumes.drills[app] = hangar.VolumeDrill{App: row.Volume.App, Volume: row.Volume.ID, Snapshot: row.Snapshots[0].ID, StartedAt: time.Now()}
			return new(f.volumes.drills[app]), nil
		}
	}
	return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound, "no snapshot")
}

func (f *fakeHost) VolumeDrill(_ context.Context, app hangar.AppID) (*hangar.VolumeDrill, error) {
	if f.isDown() {
		return nil, errDown
	}
	f.volumes.mu.Lock()
	defer f.volumes.mu.Unlock()
	drill, ok := f.volumes.drills[app]
	if !ok {
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "no drill")
	}
	return &drill, nil
}

// alter changes a volume behind the platform's back, as a Machine that mounts it does.
func (f *fakeHost) alter(ctx context.Context, ref hangar.VolumeRef, change func(v *hangar.Volume)) error {
	_, err := f.changeVolume(ctx, ref, func(row *hangar.VolumeRow) error { change(&row.Volume); return nil })
	return err
}
