package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/extent"
)

// Base is an earlier snapshot of the same volume, and what has changed since then: bytes outside
// Changed are unchanged. What the volume has grown by counts as changed.
type Base struct {
	ID      hangar.SnapshotID
	Changed extent.List
}

// Write stores the content of src, of which only data was ever written, and returns when
// that is durable. With a base it reads only what of data has changed; a base that is not
// in the archive, is damaged or of another volume counts as none. Without one it reads
// all of data, and stores what the archive does not have, or is known to have lost. It
// answers ErrExists.
//
// src must not change meanwhile: parts of it may be read again. progress, which may be
// nil, is called at most ten times a second, and when all is read; never twice at once.
// When ctx ends, or anything fails, there is no snapshot.
func (a *Archive) Write(ctx context.Context, meta Meta, src Source, data extent.List, base *Base, progress func(hangar.Progress)) (_ Entry, err error) {
	ctx, done := a.operation(ctx)
	defer done(&err)
	entry, err := a.write(ctx, meta, src, data, base, progress)
	if err != nil {
		return Entry{}, fmt.Errorf("write snapshot %s: %w", meta.ID, err)
	}
	a.changes.Add(1)
	return entry, nil
}

func (a *Archive) write(ctx context.Context, meta Meta, src Source, data extent.List, base *Base, progress func(hangar.Progress)) (Entry, error) {
	if !meta.ID.Valid() || !meta.Volume.Valid() || src.Size() <= 0 {
		return Entry{}, fmt.Errorf("id %q, volume %q and size %d must be valid", meta.ID, meta.Volume, src.Size())
	}
	switch _, err := a.Entry(ctx, meta.ID); {
	case err == nil:
		return Entry{}, ErrExists
	case !errors.Is(err, ErrNotFound):
		return Entry{}, err
	}
	if _, err := a.marked(ctx); err != nil {
		return Entry{}, err
	}
	meta.CreatedAt = meta.CreatedAt.UTC()
	w := &writing{
		tree: &tree{Entry: Entry{Meta: meta, VolumeSize: src.Size()}, volume: cut(src.Size())},
		src:  blankSource{src, data},
	}
	w.written = data.Intersect(extent.List{{Length: src.Size()}})
	w.groups = make([]group, w.volume.groups())
	w.present = w.touched(data)
	if err := w.start(ctx, a, base); err != nil {
		return Entry{}, err
	}
	s, err := a.begin(ctx, "write")
	if err != nil {
		return Entry{}, err
	}
	defer s.end()
	w.session = s
	w.report = newReporter(progress, w.bytes(w.plan()))
	err = w.each(ctx, func(ctx context.Context, g int, buf []byte) (err error) {
		if w.groups[g], err = w.writeGroup(ctx, g, w.base, buf); err == nil {
			err = w.flushSome(ctx)
		}
		return err
	})
	if err != nil {
		return Entry{}, err
	}
	if err := s.w.Flush(ctx); err != nil {
		return Entry{}, err
	}
	return w.Entry, w.finish(ctx)
}

// writing is a snapshot in progress.
type writing struct {
	*tree
	*session
	src     Source
	present marks // segments that have data
	base    *tree // nil: none
	changed marks // segments that differ from base
	report  *reporter

	pending atomic.Int64 // roughly, segments stored since the last flush

	mu    sync.Mutex
	zeros map[int64]object.ID // the stored object for zeros, by length
}

// maxPending bounds the segments that the library keeps in memory until the index is written, at
// some 500 bytes each.
const maxPending = 16 << 10

// flushSome writes the index to disk if much was stored. The open session protects the content
// until the snapshot refers to it.
func (w *writing) flushSome(ctx context.Context) error {
	if n := w.pending.Load(); n < maxPending || !w.pending.CompareAndSwap(n, 0) {
		return nil
	}
	return w.w.Flush(ctx)
}

// start opens the base.
func (w *writing) start(ctx context.Context, a *Archive, base *Base) error {
	w.zeros = map[int64]object.ID{}
	if base == nil {
		return nil
	}
	t, err := a.getTree(ctx, base.ID)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrCorrupt):
		a.opts.Log.InfoContext(ctx, "A snapshot cannot build on an earlier one and reads the whole volume.", "snapshot", w.ID, "volume", w.Volume, "error", err)
		return nil
	case err != nil:
		return err
	case t.Volume != w.Volume:
		return nil
	}
	// A segment whose length differs from the base's has changed.
	changed := base.Changed
	if t.size != w.size {
		from := min(t.size, w.size) / segmentSize * segmentSize
		changed = changed.Union(extent.Of(extent.Extent{Offset: from, Length: w.size - from}))
	}
	w.base, w.changed = t, w.touched(changed)
	return nil
}

// plan returns the segments to read.
func (w *writing) plan() marks {
	if w.base == nil {
		return w.present
	}
	return w.present.both(w.changed)
}

// writeGroup stores a group. It reads the parts that have changed since the base, or all without
// one, and refers to the base for the rest.
func (w *writing) writeGroup(ctx context.Context, g int, base *tree, buf []byte) (group, error) {
	n := w.segments(g)
	changed := func(int) bool { return true }
	parts, sums := make([]object.ID, n), w.zeroTable(g)
	if base != nil && g < len(base.groups) {
		changed = func(i int) bool { return w.changed.has(g, i) }
		switch count := countIf(n, changed); count {
		case 0:
			return base.groups[g], nil
		case n:
		default:
			old, oldSums, err := base.getGroup(ctx, w.w, g)
			if err != nil {
				return group{}, w.a.damaged(ctx, base.ID, w.span(g).Offset, err)
			}
			copy(parts, old)
			copy(sums, oldSums)
		}
	}
	for i := range n {
		if !changed(i) || w.present.has(g, i) {
			continue
		}
		var err error
		if parts[i], sums[i], err = w.writeZeros(ctx, w.segment(g, i).Length); err != nil {
			return group{}, err
		}
	}
	wanted := func(i int) bool { return changed(i) && w.present.has(g, i) }
	err := w.read(ctx, w.src, g, wanted, buf, func(i int, b []byte) (err error) {
		parts[i], sums[i], err = w.writeSegment(ctx, b)
		return err
	})
	if err != nil {
		return group{}, err
	}
	data, err := w.putIndex(ctx, parts, func(i int) int64 { return w.segment(g, i).Length })
	if err != nil {
		return group{}, err
	}
	table, err := w.put(ctx, indexPrefix, flat(sums))
	if err != nil {
		return group{}, err
	}
	return group{data: data, table: table, sum: sumOf(sums)}, nil
}

// countIf returns for how many of n indexes holds is true.
func countIf(n int, holds func(i int) bool) (count int) {
	for i := range n {
		if holds(i) {
			count++
		}
	}
	return count
}

func (w *writing) writeSegment(ctx context.Context, b []byte) (object.ID, sum, error) {
	defer w.report.add(int64(len(b)))
	if zeros(b) {
		return w.writeZeros(ctx, int64(len(b)))
	}
	w.pending.Add(1)
	id, err := w.put(ctx, "", b)
	return id, sha256.Sum256(b), err
}

func (w *writing) writeZeros(ctx context.Context, length int64) (id object.ID, of sum, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of = w.zeroSum(length)
	if id, ok := w.zeros[length]; ok {
		return id, of, nil
	}
	if id, err = w.put(ctx, "", make([]byte, length)); err == nil {
		w.zeros[length] = id
	}
	return id, of, err
}

// finish makes a snapshot of the stored groups. Meanwhile this process declares nothing garbage;
// content that any process had declared garbage is stored again.
func (w *writing) finish(ctx context.Context) error {
	if err := w.a.gate.Acquire(ctx, 1); err != nil {
		return err
	}
	defer w.a.gate.Release(1)
	w.Stored = w.uploaded.Load()
	if err := w.a.refresh(ctx); err != nil {
		return err
	}
	for round := 1; ; round++ {
		healed, err := w.heal(ctx)
		if err != nil {
			return err
		}
		if !healed {
			break
		}
		if round == healRounds {
			return errLost
		}
		if err := w.w.Flush(ctx); err != nil {
			return err
		}
	}
	sums := make([]sum, len(w.groups))
	for g := range w.groups {
		sums[g] = w.groups[g].sum
	}
	w.Digest = w.digest(sums)
	root, parts, err := w.putTree(ctx, w.tree)
	if err != nil {
		return err
	}
	if err := w.w.Flush(ctx); err != nil {
		return err
	}
	if slices.ContainsFunc(parts, func(id object.ID) bool { return !w.has(ctx, id) }) {
		return errLost
	}
	at := fs.UTCTimestampFromTime(w.CreatedAt)
	if _, err := snapshot.SaveSnapshot(ctx, w.w, &snapshot.Manifest{
		Source:    snapshot.SourceInfo{Host: owner, UserName: owner, Path: "/" + string(w.Volume)},
		StartTime: at, EndTime: at, RootEntry: root, Tags: w.tags(),
		Stats: snapshot.Stats{TotalFileSize: w.size, TotalFileCount: 1},
	}); err != nil {
		return err
	}
	return w.w.Flush(ctx)
}

// errLost means that content is missing after it was stored again. The library orders its records
// of a content by time, so that after the clock was set back, it can still count as garbage.
var errLost = errors.New("stored content is missing: was the clock set back?")

// healRounds is how often heal runs: the first finds garbage and damaged indexes, the second what it
// had found sound in the files with those indexes, and the third nothing.
const healRounds = 3

// heal stores groups again that have become garbage or are lost, and reports whether there were any.
// They become garbage when another snapshot had stored them and was removed meanwhile.
func (w *writing) heal(ctx context.Context) (healed bool, err error) {
	clear(w.zeros)
	var mu sync.Mutex
	sound := map[object.ID]bool{}
	err = w.each(ctx, func(ctx context.Context, g int, buf []byte) error {
		was := w.groups[g]
		mu.Lock()
		known := sound[was.data] && sound[was.table]
		mu.Unlock()
		if known || w.intact(ctx, g) {
			mu.Lock()
			defer mu.Unlock()
			sound[was.data], sound[was.table] = true, true
			return ctx.Err()
		}
		again, err := w.writeGroup(ctx, g, nil, buf)
		if err != nil {
			return err
		}
		if again.sum != was.sum {
			return fmt.Errorf("the volume has changed between %d and %d while it was read", w.span(g).Offset, w.span(g).End())
		}
		mu.Lock()
		defer mu.Unlock()
		w.groups[g], healed = again, true
		return nil
	})
	return healed, err
}

// intact reports whether all of a group is in the archive and not garbage.
func (w *writing) intact(ctx context.Context, g int) bool {
	if !w.has(ctx, w.groups[g].table) || !w.has(ctx, w.groups[g].data) {
		return false
	}
	parts, err := getIndex(ctx, w.w, w.groups[g].data, w.segments(g))
	if err != nil {
		w.a.suspect(ctx, err)
		return false
	}
	for _, part := range parts {
		if !w.has(ctx, part) {
			return false
		}
	}
	return true
}

func (w *writing) has(ctx context.Context, id object.ID) bool {
	if of, ok := id.IndexObjectID(); ok {
		id = of
	}
	content, _, ok := id.ContentID()
	if !ok {
		return false
	}
	info, err := w.w.ContentInfo(ctx, content)
	return err == nil && !info.Deleted && !w.a.isLost(info)
}
