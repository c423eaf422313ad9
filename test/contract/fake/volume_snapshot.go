package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
)

// snapshotSize is what every snapshot adds to the store, in bytes.
const snapshotSize = 1 << 20

// Snapshots implements hangar.SnapshotService.
func (s *Service) Snapshots(ctx context.Context, ref hangar.VolumeRef) ([]*hangar.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionRead, ref)
	if err != nil {
		return nil, err
	}
	list := make([]*hangar.Snapshot, len(v.snapshots))
	for i, snapshot := range v.snapshots {
		list[i] = new(*snapshot)
	}
	return list, nil
}

// CreateSnapshot implements hangar.SnapshotService. The snapshot is complete right after.
func (s *Service) CreateSnapshot(ctx context.Context, ref hangar.VolumeRef) (*hangar.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionCreate, ref)
	if err != nil {
		return nil, err
	}
	if !v.State.Usable() {
		return nil, wrongVolumeState(v)
	}
	if len(v.snapshots) >= hangar.MaxSnapshots {
		return nil, hangar.Errorf(hangar.CodeExhausted, "", "volume %s has %d snapshots, as many as are kept", v.ID, hangar.MaxSnapshots)
	}
	s.volumes.made++
	now := s.now().UTC().Truncate(time.Second)
	waiting := hangar.Snapshot{
		ID: hangar.SnapshotID(fmt.Sprintf("vs_%020d", s.volumes.made)), Volume: v.ID, State: hangar.SnapshotWaiting,
		VolumeSize: int64(v.SizeGB) << 30, CreatedAt: now, RetentionDays: v.SnapshotRetention,
	}
	done := waiting
	sum := sha256.Sum256(fmt.Append(nil, v.content, done.VolumeSize))
	done.State, done.Size, done.Digest, done.FinishedAt = hangar.SnapshotCreated, snapshotSize, "sha256:"+hex.EncodeToString(sum[:]), now
	v.contents[done.ID] = v.content
	v.snapshots = slices.Insert(v.snapshots, 0, &done)
	s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventSnapshot, Source: hangar.SourceUser, Snapshot: done.ID})
	waiting.AppID = v.AppID
	return &waiting, nil
}

// DrillVolumes implements hangar.SnapshotService. It tries the newest snapshot of the first
// volume that has one, which passes right after.
func (s *Service) DrillVolumes(ctx context.Context, app hangar.AppName) (*hangar.VolumeDrill, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.appFor(ctx, hangar.ActionCreate, hangar.MachineRef{App: app})
	if err != nil {
		return nil, err
	}
	for _, listed := range s.listVolumes(a) {
		v := s.volumes.byID[listed.ID]
		if len(v.snapshots) == 0 {
			continue
		}
		now := s.now().UTC().Truncate(time.Second)
		begun := hangar.VolumeDrill{
			App: app, Volume: v.ID, Snapshot: v.snapshots[0].ID, StartedAt: now, Progress: hangar.Progress{Total: v.snapshots[0].VolumeSize},
		}
		done := begun
		done.FinishedAt, done.Passed, done.Progress.Done = now, true, done.Progress.Total
		s.volumes.drills[app] = done
		s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventDrill, Source: hangar.SourceUser, Snapshot: done.Snapshot})
		return &begun, nil
	}
	return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound, "app %q has no snapshot to restore", app)
}

// VolumeDrill implements hangar.SnapshotService.
func (s *Service) VolumeDrill(ctx context.Context, app hangar.AppName) (*hangar.VolumeDrill, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app}); err != nil {
		return nil, err
	}
	drill, ok := s.volumes.drills[app]
	if !ok {
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "app %q had no drill", app)
	}
	return &drill, nil
}
