package fake

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// hostDisk is what the one host has for volumes, in GiB.
const hostDisk = 1 << 10

// volume is everything that is known of a volume.
type volume struct {
	hangar.Volume
	org       hangar.OrgID         // its id
	content   string               // what is on it; two that say the same have equal digests
	snapshots []*hangar.Snapshot   // newest first
	events    []hangar.VolumeEvent // newest first
	contents  map[hangar.SnapshotID]string
}

// volumes are all of the platform.
type volumes struct {
	byID   map[hangar.VolumeID]*volume
	drills map[hangar.AppName]hangar.VolumeDrill
	made   uint64 // the last number of a volume or a snapshot
}

// volumeFor finds a volume for a caller who wants to do action to it. The caller holds mu.
func (s *Service) volumeFor(ctx context.Context, action hangar.Action, ref hangar.VolumeRef) (*volume, error) {
	a, err := s.appFor(ctx, action, hangar.MachineRef{App: ref.App})
	if err != nil {
		return nil, err
	}
	if v := s.volumeOf(a, ref.ID); v != nil {
		return v, nil
	}
	return nil, hangar.VolumeNotFound(ref.ID)
}

// volumeOf is nil for a volume that is not the App's. The caller holds mu.
func (s *Service) volumeOf(a *hangar.App, id hangar.VolumeID) *volume {
	v := s.volumes.byID[id]
	if v == nil || v.AppID != a.ID {
		return nil
	}
	if v.State == hangar.VolumePendingDestroy && s.now().Sub(v.DestroyedAt) >= hangar.VolumeGrace {
		v.State = hangar.VolumeDestroyed
	}
	return v
}

func (v *volume) copy() *hangar.Volume {
	c := v.Volume
	return &c
}

// CreateVolume implements hangar.VolumeService. A volume that is made from another one is
// complete right after.
func (s *Service) CreateVolume(ctx context.Context, app hangar.AppName, in hangar.VolumeCreate) (*hangar.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.appFor(ctx, hangar.ActionCreate, hangar.MachineRef{App: app})
	if err != nil {
		return nil, err
	}
	if err := in.Complete(); err != nil {
		return nil, err
	}
	if in.Region != "" && in.Region != s.region {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid region: %q is not one of [%s]", in.Region, s.region)
	}
	from, err := s.origin(ctx, a.Org, &in)
	if err != nil {
		return nil, err
	}
	if err := s.diskFor(in.SizeGB); err != nil {
		return nil, err
	}
	s.volumes.made++
	now := s.now().UTC().Truncate(time.Millisecond)
	v := &volume{
		Volume: hangar.Volume{
			ID: hangar.VolumeID(fmt.Sprintf("vol_%016d", s.volumes.made)), Name: in.Name, App: app, AppID: a.ID, State: hangar.VolumeCreated, SizeGB: in.SizeGB,
			Region: s.region, Zone: fmt.Sprintf("%04x", s.volumes.made), Host: hostID, Encrypted: in.Encrypted == nil || *in.Encrypted,
			CreatedAt: now, UpdatedAt: now, SnapshotRetention: in.SnapshotRetention, AutoBackup: in.AutoBackup == nil || *in.AutoBackup,
			HostStatus: "ok", Wanted: in.FSType,
		},
		org: a.Org.ID, content: from, contents: map[hangar.SnapshotID]string{},
	}
	if from == "" {
		v.content = "nothing"
	}
	s.volumes.byID[v.ID] = v
	s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventCreate, Source: hangar.SourceUser})
	answer := v.copy()
	if from != "" {
		total := int64(in.SizeGB) << 30
		answer.State = hangar.VolumeRestoring
		answer.Filling = hangar.Filling{Snapshot: in.Snapshot, Source: in.Source, Progress: hangar.Progress{Total: total}}
		s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventRestore, Source: hangar.SourceAgent, Snapshot: in.Snapshot})
	}
	return answer, nil
}

// origin completes a wish by what the volume is made from, and returns its content.
func (s *Service) origin(ctx context.Context, org hangar.Org, in *hangar.VolumeCreate) (string, error) {
	p, err := principal(ctx)
	if err != nil {
		return "", err
	}
	for _, v := range s.volumes.byID {
		if v.org != org.ID || !p.May(hangar.ActionRead, hangar.Target{Org: org.Slug, OrgID: org.ID, App: v.App, AppID: v.AppID}) {
			continue
		}
		size, content := int64(v.SizeGB)<<30, v.content
		if in.Source != v.ID {
			i := slices.IndexFunc(v.snapshots, func(s *hangar.Snapshot) bool { return in.Snapshot != "" && s.ID == in.Snapshot })
			if i < 0 {
				continue
			}
			size, content = v.snapshots[i].VolumeSize, v.contents[in.Snapshot]
		} else if !v.State.Usable() {
			return "", wrongVolumeState(v)
		}
		if err := in.CheckSource(size, v.Wanted); err != nil {
			return "", err
		}
		in.FSType = v.Wanted
		if in.SizeGB == 0 {
			in.SizeGB = int(size >> 30)
		}
		return content, nil
	}
	switch {
	case in.Snapshot != "":
		return "", hangar.SnapshotNotFound(in.Snapshot)
	case in.Source != "":
		return "", hangar.VolumeNotFound(in.Source)
	default:
		return "", nil
	}
}

func wrongVolumeState(v *volume) error {
	return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "volume %s is %s", v.ID, v.State)
}

// diskFor refuses what the host has no room for.
func (s *Service) diskFor(sizeGB int) error {
	if sizeGB > s.diskLeft() {
		return hangar.Errorf(hangar.CodeConflict, hangar.ReasonVolumeCapacity, "no capacity: no host has the room")
	}
	return nil
}

// diskLeft is what the host has no volumes for, in GiB. The caller holds mu.
func (s *Service) diskLeft() int {
	left := hostDisk
	for _, v := range s.volumes.byID {
		left -= v.SizeGB
	}
	return left
}

// tell adds an event. The caller holds mu.
func (s *Service) tell(v *volume, e hangar.VolumeEvent) {
	now := s.now().UTC()
	e.ID, e.Timestamp = hangar.NewEventID(now), now.UnixMilli()
	v.events = slices.Insert(v.events, 0, e)
	v.events = v.events[:min(len(v.events), hangar.MaxVolumeEvents)]
	v.UpdatedAt = now.Truncate(time.Millisecond)
}

// Volume implements hangar.VolumeService.
func (s *Service) Volume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionRead, ref)
	if err != nil {
		return nil, err
	}
	return v.copy(), nil
}

// Volumes implements hangar.VolumeService.
func (s *Service) Volumes(ctx context.Context, app hangar.AppName) ([]*hangar.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.appFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app})
	if err != nil {
		return nil, err
	}
	return s.listVolumes(a), nil
}

// listVolumes are those of an App that are not destroyed, sorted. The caller holds mu.
func (s *Service) listVolumes(a *hangar.App) []*hangar.Volume {
	list := []*hangar.Volume{}
	for id := range s.volumes.byID {
		if v := s.volumeOf(a, id); v != nil && v.State != hangar.VolumeDestroyed {
			list = append(list, v.copy())
		}
	}
	slices.SortFunc(list, byVolumeID)
	return list
}

func byVolumeID(a, b *hangar.Volume) int { return strings.Compare(string(a.ID), string(b.ID)) }

// OrgVolumes implements hangar.VolumeService.
func (s *Service) OrgVolumes(ctx context.Context, org hangar.OrgSlug, after hangar.VolumeID, limit int) ([]*hangar.Volume, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.readsOrg(p, org); err != nil {
		return nil, err
	}
	list := []*hangar.Volume{}
	for _, a := range s.apps {
		if a.Org.Slug == org && p.May(hangar.ActionRead, targetOf(a, "")) {
			list = append(list, s.listVolumes(a)...)
		}
	}
	list = slices.DeleteFunc(list, func(v *hangar.Volume) bool { return v.ID <= after })
	slices.SortFunc(list, byVolumeID)
	return list[:min(len(list), max(limit, 0))], nil
}

// DestroyedVolumes implements hangar.VolumeService.
func (s *Service) DestroyedVolumes(ctx context.Context, org hangar.OrgSlug) ([]*hangar.Volume, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.readsOrg(p, org); err != nil {
		return nil, err
	}
	list := []*hangar.Volume{}
	for _, v := range s.destroyedVolumes(org) {
		if p.May(hangar.ActionRead, s.volumeTarget(org, v)) {
			list = append(list, v.copy())
		}
	}
	return list, nil
}

// readsOrg refuses who may read nothing of an organization. The caller holds mu.
func (s *Service) readsOrg(p hangar.Principal, org hangar.OrgSlug) error {
	if s.orgs[org] == nil {
		return orgNotFound(org)
	}
	if t := s.orgTarget(org); !p.Reaches(hangar.ActionRead, t) {
		return denied(p, t)
	}
	return nil
}

func (s *Service) volumeTarget(org hangar.OrgSlug, v *volume) hangar.Target {
	t := s.orgTarget(org)
	t.App, t.AppID = v.App, v.AppID
	return t
}

// destroyedVolumes are those of an organization that can be undeleted, the oldest first. The
// caller holds mu.
func (s *Service) destroyedVolumes(org hangar.OrgSlug) []*volume {
	of := s.orgTarget(org).OrgID
	var list []*volume
	for _, v := range s.volumes.byID {
		if v.org == of && v.State == hangar.VolumePendingDestroy && s.now().Sub(v.DestroyedAt) < hangar.VolumeGrace {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b *volume) int {
		return cmp.Or(a.DestroyedAt.Compare(b.DestroyedAt), byVolumeID(&a.Volume, &b.Volume))
	})
	return list
}

// PurgeVolume implements hangar.VolumeService.
func (s *Service) PurgeVolume(ctx context.Context, org hangar.OrgSlug, id hangar.VolumeID) (*hangar.Volume, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.readsOrg(p, org); err != nil {
		return nil, err
	}
	v := s.volumes.byID[id]
	if v == nil || v.org != s.orgTarget(org).OrgID || !p.Sees(s.volumeTarget(org, v)) {
		return nil, hangar.VolumeNotFound(id)
	}
	if t := s.volumeTarget(org, v); !p.May(hangar.ActionDelete, t) {
		return nil, denied(p, t)
	}
	if !v.State.Gone() {
		return nil, wrongVolumeState(v)
	}
	if v.State != hangar.VolumeDestroyed {
		v.State = hangar.VolumeDestroyed
		s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventDestroy, Source: hangar.SourceUser, Text: "it was purged"})
	}
	return v.copy(), nil
}

// UpdateVolume implements hangar.VolumeService.
func (s *Service) UpdateVolume(ctx context.Context, ref hangar.VolumeRef, in hangar.VolumeUpdate) (*hangar.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionWrite, ref)
	if err != nil {
		return nil, err
	}
	if err := in.Validate(); err != nil {
		return nil, err
	}
	if v.State.Gone() {
		return nil, wrongVolumeState(v)
	}
	if in.SnapshotRetention != nil {
		v.SnapshotRetention = *in.SnapshotRetention
	}
	if in.AutoBackup != nil {
		v.AutoBackup = *in.AutoBackup
	}
	s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventUpdate, Source: hangar.SourceUser})
	return v.copy(), nil
}

// ExtendVolume implements hangar.VolumeService. A Machine that runs has to be restarted to
// see the new size.
func (s *Service) ExtendVolume(ctx context.Context, ref hangar.VolumeRef, sizeGB int) (hangar.VolumeExtended, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionWrite, ref)
	if err != nil {
		return hangar.VolumeExtended{}, err
	}
	if err := v.CheckExtension(sizeGB); err != nil {
		return hangar.VolumeExtended{}, err
	}
	if !v.State.Usable() {
		return hangar.VolumeExtended{}, wrongVolumeState(v)
	}
	if err := s.diskFor(sizeGB - v.SizeGB); err != nil {
		return hangar.VolumeExtended{}, err
	}
	m := s.machines[v.AttachedMachine]
	v.NeedsRestart = v.NeedsRestart || sizeGB > v.SizeGB && m != nil && !m.State.AtRest()
	v.SizeGB = sizeGB
	if m != nil {
		m.Config.DescribeMount(&v.Volume)
	}
	s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventExtend, Source: hangar.SourceUser})
	return hangar.VolumeExtended{Volume: v.copy(), NeedsRestart: v.NeedsRestart}, nil
}

// DestroyVolume implements hangar.VolumeService.
func (s *Service) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionDelete, ref)
	if err != nil {
		return nil, err
	}
	if v.AttachedMachine != "" {
		return nil, hangar.VolumeBound(v.AttachedMachine)
	}
	s.destroyVolume(v)
	return v.copy(), nil
}

// destroyVolume may be repeated. The caller holds mu.
func (s *Service) destroyVolume(v *volume) {
	if v.State.Gone() {
		return
	}
	v.State, v.DestroyedAt = hangar.VolumePendingDestroy, s.now().UTC().Truncate(time.Millisecond)
	s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventDestroy, Source: hangar.SourceUser})
}

// UndeleteVolume implements hangar.VolumeService.
func (s *Service) UndeleteVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionWrite, ref)
	if err != nil {
		return nil, err
	}
	if v.State != hangar.VolumePendingDestroy {
		return nil, wrongVolumeState(v)
	}
	v.State, v.DestroyedAt = hangar.VolumeCreated, time.Time{}
	s.tell(v, hangar.VolumeEvent{Type: hangar.VolumeEventUndelete, Source: hangar.SourceUser})
	return v.copy(), nil
}

// VolumeEvents implements hangar.VolumeService.
func (s *Service) VolumeEvents(ctx context.Context, ref hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumeFor(ctx, hangar.ActionRead, ref)
	if err != nil {
		return nil, err
	}
	return slices.Clone(v.events), nil
}
