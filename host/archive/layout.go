package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/extent"
)

// To the library, a snapshot is a directory of four files:
//
//   - volume, the content, as a tree of two levels: its index lists groups, whose
//     indexes list segments. Groups and segments that are alike are one object.
//   - segments.sha256, the sum of each segment, one object per group.
//   - groups.sha256, the sum of each group's part of that; see Archive.Digest.
//   - written, what was ever written of the volume; see fileWritten.
const (
	fileVolume   = "volume"
	fileSegments = "segments.sha256"
	fileGroups   = "groups.sha256"
)

const (
	splitter    = "FIXED-1M"
	compression = "zstd-fastest"
	// indexPrefix makes the library store something separately from data, and cache it.
	indexPrefix = "x"
	dirPrefix   = "k"
)

// group is a stored part of a volume.
type group struct {
	data  object.ID // an index of segments
	table object.ID // the sums of the segments
	sum   sum       // of the table
}

// tree is a stored snapshot, without the content of its groups.
type tree struct {
	Entry
	volume
	groups  []group
	written extent.List
}

// index is the library's indirect object: one that consists of others.
type index struct {
	Stream  string                       `json:"stream"`
	Entries []object.IndirectObjectEntry `json:"entries"`
}

const indexStream = "kopia:indirect"

// put stores an object. One larger than a segment becomes an index of segments.
func put(ctx context.Context, w repo.RepositoryWriter, prefix string, b []byte) (object.ID, error) {
	o := w.NewObjectWriter(ctx, object.WriterOptions{
		Splitter: splitter, Compressor: compression, MetadataCompressor: compression,
		Prefix: content.IDPrefix(prefix),
	})
	defer o.Close()
	if _, err := o.Write(b); err != nil {
		return object.EmptyID, err
	}
	return o.Result()
}

// putIndex stores an object that consists of others, with the given lengths.
func (s *session) putIndex(ctx context.Context, parts []object.ID, length func(i int) int64) (object.ID, error) {
	x := index{Stream: indexStream}
	var at int64
	for i, part := range parts {
		x.Entries = append(x.Entries, object.IndirectObjectEntry{Start: at, Length: length(i), Object: part})
		at += length(i)
	}
	b, err := json.Marshal(x)
	if err != nil {
		return object.EmptyID, err
	}
	id, err := s.put(ctx, indexPrefix, b)
	if err != nil {
		return object.EmptyID, err
	}
	return object.ParseID("I" + id.String())
}

// get returns the content of an object.
func get(ctx context.Context, rep repo.DirectRepository, id object.ID) ([]byte, error) {
	b, err := getOnce(ctx, rep, id)
	if errors.Is(err, blob.ErrBlobNotFound) {
		// Collect has moved it meanwhile, or it is missing.
		if err := rep.Refresh(ctx); err != nil {
			return nil, err
		}
		b, err = getOnce(ctx, rep, id)
	}
	if of, _, ok := id.ContentID(); ok && err != nil {
		if info, gone := rep.ContentInfo(ctx, of); gone == nil {
			err = &unreadable{err, info.PackBlobID}
		}
	}
	return b, err
}

func getOnce(ctx context.Context, rep repo.DirectRepository, id object.ID) ([]byte, error) {
	if of, compressed, ok := id.ContentID(); ok && !compressed {
		return rep.ContentReader().GetContent(ctx, of) // returned without a copy
	}
	r, err := rep.OpenObject(ctx, id)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, r.Length())
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b, nil
}

// getIndex returns the n objects that another one consists of.
func getIndex(ctx context.Context, rep repo.DirectRepository, id object.ID, n int) ([]object.ID, error) {
	of, ok := id.IndexObjectID()
	if !ok {
		return nil, fmt.Errorf("object %s is not an index", id)
	}
	b, err := get(ctx, rep, of)
	if err != nil {
		return nil, err
	}
	var x index
	if err := json.Unmarshal(b, &x); err != nil {
		return nil, fmt.Errorf("index %s: %w", id, err)
	}
	if x.Stream != indexStream || len(x.Entries) != n {
		return nil, fmt.Errorf("index %s is %q with %d entries, not %d", id, x.Stream, len(x.Entries), n)
	}
	parts := make([]object.ID, n)
	for i, e := range x.Entries {
		parts[i] = e.Object
	}
	return parts, nil
}

// putTree stores what is above the groups of a snapshot. It returns the root and all objects that
// it has stored.
func (s *session) putTree(ctx context.Context, t *tree) (*snapshot.DirEntry, []object.ID, error) {
	data, tables := make([]object.ID, len(t.groups)), make([]object.ID, len(t.groups))
	sums := make([]sum, len(t.groups))
	for g, stored := range t.groups {
		data[g], tables[g], sums[g] = stored.data, stored.table, stored.sum
	}
	whole, err := s.putIndex(ctx, data, func(g int) int64 { return t.span(g).Length })
	if err != nil {
		return nil, nil, err
	}
	segments, err := s.putIndex(ctx, tables, func(g int) int64 { return int64(t.segments(g) * len(sum{})) })
	if err != nil {
		return nil, nil, err
	}
	groups, err := s.put(ctx, indexPrefix, flat(sums))
	if err != nil {
		return nil, nil, err
	}
	written, length, err := s.putWritten(ctx, t.written, t.size)
	if err != nil {
		return nil, nil, err
	}
	at := fs.UTCTimestampFromTime(t.CreatedAt)
	file := func(name string, size int64, id object.ID) *snapshot.DirEntry {
		return &snapshot.DirEntry{
			Name: name, Type: snapshot.EntryTypeFile, Permissions: 0o600, FileSize: size, ModTime: at, ObjectID: id,
		}
	}
	segmentsInAll := (t.size + segmentSize - 1) / segmentSize
	dir := snapshot.DirManifest{
		StreamType: "kopia:directory",
		Entries: []*snapshot.DirEntry{ // sorted by name
			file(fileGroups, int64(len(t.groups)*len(sum{})), groups),
			file(fileSegments, segmentsInAll*int64(len(sum{})), segments),
			file(fileVolume, t.size, whole),
			file(fileWritten, length, written),
		},
		Summary: &fs.DirectorySummary{TotalFileSize: t.size, TotalFileCount: 4, MaxModTime: at},
	}
	b, err := json.Marshal(dir)
	if err != nil {
		return nil, nil, err
	}
	root, err := s.put(ctx, dirPrefix, b)
	if err != nil {
		return nil, nil, err
	}
	return &snapshot.DirEntry{
		Name: string(t.ID), Type: snapshot.EntryTypeDirectory, Permissions: 0o700, ModTime: at,
		ObjectID: root, DirSummary: dir.Summary,
	}, []object.ID{whole, segments, groups, written, root}, nil
}

// getTree reads a snapshot that putTree stored, and verifies it against the digest.
func (a *Archive) getTree(ctx context.Context, id hangar.SnapshotID) (*tree, error) {
	e, m, err := a.find(ctx, id)
	if err != nil {
		return nil, err
	}
	t, err := a.readTree(ctx, e, m)
	if err != nil {
		return nil, a.damaged(ctx, id, 0, err)
	}
	return t, nil
}

func (a *Archive) readTree(ctx context.Context, e Entry, m manifest.ID) (*tree, error) {
	saved, err := snapshot.LoadSnapshot(ctx, a.rep, m)
	if err != nil {
		return nil, err
	}
	b, err := get(ctx, a.rep, saved.RootObjectID())
	if err != nil {
		return nil, err
	}
	var dir snapshot.DirManifest
	if err := json.Unmarshal(b, &dir); err != nil {
		return nil, err
	}
	file := func(name string) object.ID {
		i := slices.IndexFunc(dir.Entries, func(e *snapshot.DirEntry) bool { return e.Name == name })
		if i < 0 {
			return saved.RootObjectID() // is no index, which the reader of it says
		}
		return dir.Entries[i].ObjectID
	}
	t := &tree{Entry: e, volume: cut(e.VolumeSize)}
	t.groups = make([]group, t.volume.groups())
	data, err := getIndex(ctx, a.rep, file(fileVolume), len(t.groups))
	if err != nil {
		return nil, err
	}
	tables, err := getIndex(ctx, a.rep, file(fileSegments), len(t.groups))
	if err != nil {
		return nil, err
	}
	sums, err := get(ctx, a.rep, file(fileGroups))
	if err != nil {
		return nil, err
	}
	if len(sums) != len(t.groups)*len(sum{}) {
		return nil, fmt.Errorf("%d bytes of sums for %d groups", len(sums), len(t.groups))
	}
	for g, s := range table(sums) {
		t.groups[g] = group{data: data[g], table: tables[g], sum: s}
	}
	if digest := t.digest(table(sums)); digest != t.Digest {
		return nil, fmt.Errorf("its sums make the digest %s, not %s", digest, t.Digest)
	}
	t.written, err = getWritten(ctx, a.rep, file(fileWritten), t.size)
	return t, err
}

// getGroup returns the segments of a group and their sums.
func (t *tree) getGroup(ctx context.Context, rep repo.DirectRepository, g int) ([]object.ID, []sum, error) {
	n := t.segments(g)
	parts, err := getIndex(ctx, rep, t.groups[g].data, n)
	if err != nil {
		return nil, nil, err
	}
	b, err := get(ctx, rep, t.groups[g].table)
	if err != nil {
		return nil, nil, err
	}
	sums := table(b)
	if len(sums) != n || sumOf(sums) != t.groups[g].sum {
		return nil, nil, errors.New("the sums of its segments are damaged")
	}
	return parts, sums, nil
}

// CorruptError names the damaged part of a snapshot. It is an ErrCorrupt.
type CorruptError struct {
	ID     hangar.SnapshotID
	Offset int64 // in the volume, from which on something is damaged; 0 as well if all is
	Err    error
}

// Error is for people.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("snapshot %s is damaged at %d: %v", e.ID, e.Offset, e.Err)
}

// Unwrap makes the error an ErrCorrupt.
func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }

// damaged separates damage from errors that say nothing about the snapshot: an ended context, a
// store that cannot be read now, or removal of the snapshot meanwhile.
func (a *Archive) damaged(ctx context.Context, id hangar.SnapshotID, offset int64, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, ErrUnreachable) {
		return err
	}
	if _, _, gone := a.find(ctx, id); errors.Is(gone, ErrNotFound) {
		return gone
	}
	a.suspect(ctx, err)
	return &CorruptError{ID: id, Offset: offset, Err: err}
}

// zeros reports whether all bytes are zero.
func zeros(b []byte) bool {
	const n = 4096
	var zero [n]byte
	for len(b) > n {
		if !bytes.Equal(b[:n], zero[:]) {
			return false
		}
		b = b[n:]
	}
	return bytes.Equal(b, zero[:len(b)])
}
