package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"

	"github.com/hangar-platform/hangar"
)

// Meta is what is known of a snapshot before it is written.
type Meta struct {
	ID        hangar.SnapshotID
	Volume    hangar.VolumeID
	App       hangar.AppName
	Org       hangar.OrgSlug
	OrgID     hangar.OrgID // which no other organization ever has
	CreatedAt time.Time    // kept to the nanosecond, in UTC
	FSType    hangar.FSType
	Encrypted bool // the volume; the archive always is
}

// Entry is a snapshot of the archive.
type Entry struct {
	Meta
	VolumeSize int64  // bytes
	Stored     int64  // bytes that the snapshot added to the archive
	Digest     string // see Archive.Digest
}

// Tags of a snapshot. They are labels of its manifest: snapshots are found by them, and `kopia
// snapshot list --tags snapshot:vs_…` shows them.
const (
	tagSnapshot  = "tag:snapshot"
	tagVolume    = "tag:volume"
	tagApp       = "tag:app"
	tagOrg       = "tag:org"
	tagOrgID     = "tag:org-id"
	tagCreated   = "tag:created"
	tagFSType    = "tag:fstype"
	tagEncrypted = "tag:encrypted"
	tagSize      = "tag:size"
	tagStored    = "tag:stored"
	tagDigest    = "tag:digest"
)

func (e Entry) tags() map[string]string {
	return map[string]string{
		tagSnapshot:  string(e.ID),
		tagVolume:    string(e.Volume),
		tagApp:       string(e.App),
		tagOrg:       string(e.Org),
		tagOrgID:     string(e.OrgID),
		tagCreated:   e.CreatedAt.UTC().Format(time.RFC3339Nano),
		tagFSType:    string(e.FSType),
		tagEncrypted: strconv.FormatBool(e.Encrypted),
		tagSize:      strconv.FormatInt(e.VolumeSize, 10),
		tagStored:    strconv.FormatInt(e.Stored, 10),
		tagDigest:    e.Digest,
	}
}

func entryOf(tags map[string]string) (Entry, error) {
	created, err1 := time.Parse(time.RFC3339Nano, tags[tagCreated])
	encrypted, err2 := strconv.ParseBool(tags[tagEncrypted])
	size, err3 := strconv.ParseInt(tags[tagSize], 10, 64)
	stored, err4 := strconv.ParseInt(tags[tagStored], 10, 64)
	e := Entry{
		Meta: Meta{
			ID:        hangar.SnapshotID(tags[tagSnapshot]),
			Volume:    hangar.VolumeID(tags[tagVolume]),
			App:       hangar.AppName(tags[tagApp]),
			Org:       hangar.OrgSlug(tags[tagOrg]),
			OrgID:     hangar.OrgID(tags[tagOrgID]),
			CreatedAt: created,
			FSType:    hangar.FSType(tags[tagFSType]),
			Encrypted: encrypted,
		},
		VolumeSize: size,
		Stored:     stored,
		Digest:     tags[tagDigest],
	}
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Entry{}, err
	}
	if !e.ID.Valid() || !e.Volume.Valid() || size <= 0 {
		return Entry{}, fmt.Errorf("snapshot %q of volume %q with %d bytes", e.ID, e.Volume, size)
	}
	return e, nil
}

// Entry returns the snapshot with an id, or ErrNotFound.
func (a *Archive) Entry(ctx context.Context, id hangar.SnapshotID) (e Entry, err error) {
	ctx, done := a.operation(ctx)
	defer done(&err)
	e, _, err = a.find(ctx, id)
	return e, err
}

// find returns a snapshot and its manifest. If several processes wrote it, the first one wins.
func (a *Archive) find(ctx context.Context, id hangar.SnapshotID) (Entry, manifest.ID, error) {
	if err := a.refresh(ctx); err != nil {
		return Entry{}, "", err
	}
	found, err := a.rep.FindManifests(ctx, labels(tagSnapshot, string(id)))
	if err != nil {
		return Entry{}, "", fmt.Errorf("look for snapshot %s: %w", id, err)
	}
	if len(found) == 0 {
		return Entry{}, "", fmt.Errorf("%s: %w", id, ErrNotFound)
	}
	e, err := entryOf(found[0].Labels)
	if err != nil {
		return Entry{}, "", &CorruptError{ID: id, Err: err}
	}
	return e, found[0].ID, nil
}

// Entries returns the snapshots of a volume, or of all if it is empty, the newest first. Other
// entries of the repository are left out.
func (a *Archive) Entries(ctx context.Context, of hangar.VolumeID) (_ []Entry, err error) {
	ctx, done := a.operation(ctx)
	defer done(&err)
	if err := a.refresh(ctx); err != nil {
		return nil, err
	}
	want := labels("", "")
	if of != "" {
		want = labels(tagVolume, string(of))
	}
	found, err := a.rep.FindManifests(ctx, want)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	entries := make([]Entry, 0, len(found))
	for _, m := range found {
		if _, ours := m.Labels[tagSnapshot]; !ours {
			continue
		}
		e, err := entryOf(m.Labels)
		if err != nil {
			a.opts.Log.WarnContext(ctx, "A snapshot in the archive is not understood.", "snapshot", m.Labels[tagSnapshot], "error", err)
			continue
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(x, y Entry) int {
		return cmp.Or(y.CreatedAt.Compare(x.CreatedAt), cmp.Compare(x.ID, y.ID))
	})
	return slices.CompactFunc(entries, func(x, y Entry) bool { return x.ID == y.ID }), nil
}

// Remove forgets snapshots, durably and all at once. A missing snapshot is not an error. Collect
// frees their room.
func (a *Archive) Remove(ctx context.Context, ids ...hangar.SnapshotID) (err error) {
	ctx, done := a.operation(ctx)
	defer done(&err)
	if err := a.remove(ctx, ids); err != nil {
		return fmt.Errorf("remove snapshots: %w", err)
	}
	a.changes.Add(1)
	a.mergeSome(ctx)
	return nil
}

func (a *Archive) remove(ctx context.Context, ids []hangar.SnapshotID) error {
	if err := a.refresh(ctx); err != nil {
		return err
	}
	s, err := a.begin(ctx, "remove")
	if err != nil {
		return err
	}
	defer s.end()
	var removed time.Time // when the manifest that is removed was stored
	m, err := manifest.NewManager(ctx, s.w.ContentManager(), manifest.ManagerOptions{TimeNow: func() time.Time {
		// The library orders the changes of a manifest by time, and the clock may have been set back.
		if now := a.opts.Now(); now.After(removed) {
			return now
		}
		return removed.Add(1)
	}}, nil)
	if err != nil {
		return err
	}
	for _, id := range ids {
		found, err := m.Find(ctx, labels(tagSnapshot, string(id)))
		if err != nil {
			return fmt.Errorf("look for %s: %w", id, err)
		}
		for _, f := range found {
			removed = f.ModTime
			if err := m.Delete(ctx, f.ID); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
		}
	}
	if err := m.Flush(ctx); err != nil {
		return err
	}
	return s.w.Flush(ctx)
}

func labels(tag, value string) map[string]string {
	l := map[string]string{manifest.TypeLabelKey: snapshot.ManifestType}
	if tag != "" {
		l[tag] = value
	}
	return l
}

// refresh makes changes by other processes visible.
func (a *Archive) refresh(ctx context.Context) error {
	if !a.shared {
		return nil
	}
	if err := a.rep.Refresh(ctx); err != nil {
		return fmt.Errorf("read the index of the archive: %w", err)
	}
	return nil
}
