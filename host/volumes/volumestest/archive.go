package volumestest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
)

// archiveBlock is what the pretend archive stores at once.
const archiveBlock = 4096

// Archive is a store of snapshots in memory, which outlives the agents that use it.
type Archive struct {
	mu      sync.Mutex
	away    error // nil: it can be reached; guarded by mu
	open    int   // guarded by mu
	has     map[hangar.SnapshotID]*archived
	bases   map[hangar.SnapshotID]*archive.Base // with which they were written; guarded by mu
	collect int                                 // how often; guarded by mu
	lies    bool                                // says of every device that it has another digest; guarded by mu
	writing int                                 // guarded by mu
	most    int                                 // that were written at once; guarded by mu

	// before is called with what is about to happen; nil: nothing. It may wait, and fail it.
	before func(ctx context.Context, op string, id hangar.SnapshotID) error
}

type archived struct {
	entry  archive.Entry
	blocks map[int64][]byte // by offset; those of zeros are left out
}

// NewArchive returns an archive without snapshots.
func NewArchive() *Archive {
	return &Archive{has: map[hangar.SnapshotID]*archived{}, bases: map[hangar.SnapshotID]*archive.Base{}}
}

func (f *Archive) begin(ctx context.Context, op string, id hangar.SnapshotID) error {
	f.mu.Lock()
	before, away := f.before, f.away
	f.mu.Unlock()
	if away != nil {
		return away
	}
	if before != nil {
		return before(ctx, op, id)
	}
	return nil
}

// Open implements volumes.Archive.
func (f *Archive) Open(ctx context.Context) error {
	if err := f.begin(ctx, "open", ""); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	return nil
}

// Close implements volumes.Archive.
func (f *Archive) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	return nil
}

// Write implements volumes.Archive.
func (f *Archive) Write(
	ctx context.Context, meta archive.Meta, src archive.Source, data extent.List, base *archive.Base, progress func(hangar.Progress),
) (archive.Entry, error) {
	f.mu.Lock()
	f.writing++
	f.most = max(f.most, f.writing)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.writing--
		f.mu.Unlock()
	}()
	f.mu.Lock()
	known := f.has[meta.ID]
	f.mu.Unlock()
	if known != nil {
		return archive.Entry{}, archive.ErrExists
	}
	progress(hangar.Progress{Total: data.Length()})
	made := &archived{entry: archive.Entry{Meta: meta, VolumeSize: src.Size()}, blocks: map[int64][]byte{}}
	read := data
	if base != nil {
		f.mu.Lock()
		from := f.has[base.ID]
		f.mu.Unlock()
		if from == nil {
			return archive.Entry{}, archive.ErrNotFound
		}
		maps.Copy(made.blocks, from.blocks)
		read = data.Intersect(base.Changed)
	}
	for _, e := range read.Align(archiveBlock, src.Size()) {
		for at := e.Offset; at < e.End(); at += archiveBlock {
			block := make([]byte, archiveBlock)
			if _, err := src.ReadAt(block, at); err != nil && !errors.Is(err, io.EOF) {
				return archive.Entry{}, err
			}
			delete(made.blocks, at)
			if slices.ContainsFunc(block, func(b byte) bool { return b != 0 }) {
				made.blocks[at] = block
				made.entry.Stored += archiveBlock
			}
		}
	}
	if err := f.begin(ctx, "write", meta.ID); err != nil {
		return archive.Entry{}, err
	}
	made.entry.Digest = digestOf(src.Size(), made.blocks)
	progress(hangar.Progress{Done: data.Length(), Total: data.Length()})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.has[meta.ID], f.bases[meta.ID] = made, base
	return made.entry, nil
}

// digestOf is the same for equal contents.
func digestOf(size int64, blocks map[int64][]byte) string {
	h := sha256.New()
	fmt.Fprintln(h, size)
	for _, at := range slices.Sorted(maps.Keys(blocks)) {
		fmt.Fprintln(h, at)
		_, _ = h.Write(blocks[at])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

func (f *Archive) get(id hangar.SnapshotID) (*archived, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has[id] == nil {
		return nil, archive.ErrNotFound
	}
	return f.has[id], nil
}

// Read implements volumes.Archive.
func (f *Archive) Read(ctx context.Context, id hangar.SnapshotID, dst io.WriterAt, progress func(hangar.Progress)) (archive.Entry, error) {
	found, err := f.get(id)
	if err != nil {
		return archive.Entry{}, err
	}
	total := int64(len(found.blocks)) * archiveBlock
	progress(hangar.Progress{Total: total})
	if err := f.begin(ctx, "read", id); err != nil {
		return archive.Entry{}, err
	}
	for at, block := range found.blocks {
		if err := ctx.Err(); err != nil {
			return archive.Entry{}, err
		}
		if _, err := dst.WriteAt(block, at); err != nil {
			return archive.Entry{}, err
		}
	}
	if digestOf(found.entry.VolumeSize, found.blocks) != found.entry.Digest {
		return archive.Entry{}, archive.ErrCorrupt
	}
	progress(hangar.Progress{Done: total, Total: total})
	return found.entry, nil
}

// Digest implements volumes.Archive.
func (f *Archive) Digest(_ context.Context, src archive.Source, data extent.List) (string, error) {
	blocks := map[int64][]byte{}
	for _, e := range data.Align(archiveBlock, src.Size()) {
		for at := e.Offset; at < e.End(); at += archiveBlock {
			block := make([]byte, archiveBlock)
			if _, err := src.ReadAt(block, at); err != nil && !errors.Is(err, io.EOF) {
				return "", err
			}
			if slices.ContainsFunc(block, func(b byte) bool { return b != 0 }) {
				blocks[at] = block
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lies {
		return digestOf(0, nil), nil
	}
	return digestOf(src.Size(), blocks), nil
}

// Entry implements volumes.Archive.
func (f *Archive) Entry(ctx context.Context, id hangar.SnapshotID) (archive.Entry, error) {
	if err := f.begin(ctx, "entry", id); err != nil {
		return archive.Entry{}, err
	}
	found, err := f.get(id)
	if err != nil {
		return archive.Entry{}, err
	}
	return found.entry, nil
}

// Remove implements volumes.Archive.
func (f *Archive) Remove(ctx context.Context, ids ...hangar.SnapshotID) error {
	if err := f.begin(ctx, "remove", ids[0]); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		delete(f.has, id)
	}
	return nil
}

// Collect implements volumes.Archive.
func (f *Archive) Collect(ctx context.Context) (int64, error) {
	f.mu.Lock()
	f.collect++
	f.mu.Unlock()
	return 0, f.begin(ctx, "collect", "")
}

// IDs are the ids of all snapshots, sorted.
func (f *Archive) IDs() []hangar.SnapshotID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.has))
}

// SetAway makes it unreachable, or not.
func (f *Archive) SetAway(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = err
}

// Intercept has before called before each operation, which it may delay or fail.
func (f *Archive) Intercept(before func(ctx context.Context, op string, id hangar.SnapshotID) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

// Gate holds up an operation of an Archive.
type Gate struct {
	Reached chan struct{} // closes when the first one has come
	Open    chan struct{} // to be closed by the test, which lets them go on
}

// Hold has operations of a kind held up until the Gate is opened, or their context ends.
func (f *Archive) Hold(op string) *Gate {
	g := &Gate{Reached: make(chan struct{}), Open: make(chan struct{})}
	reached := sync.OnceFunc(func() { close(g.Reached) })
	f.Intercept(func(ctx context.Context, at string, _ hangar.SnapshotID) error {
		if at != op {
			return nil
		}
		reached()
		select {
		case <-g.Open:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return g
}

// Spoil damages a snapshot.
func (f *Archive) Spoil(id hangar.SnapshotID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	spoilt := *f.has[id]
	spoilt.blocks = maps.Clone(spoilt.blocks)
	for at, block := range spoilt.blocks {
		bad := slices.Clone(block)
		bad[7] ^= 1
		spoilt.blocks[at] = bad
		break
	}
	f.has[id] = &spoilt
}

// Put adds a snapshot without content.
func (f *Archive) Put(entry archive.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.has[entry.ID] = &archived{entry: entry}
}

// Share gives the archive a snapshot of another one.
func (f *Archive) Share(from *Archive, id hangar.SnapshotID) {
	shared, err := from.get(id)
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.has[id] = shared
}

// Content reads what a snapshot has at an offset, and its digest.
func (f *Archive) Content(id hangar.SnapshotID, b []byte, at int64) (digest string, err error) {
	kept, err := f.get(id)
	if err != nil {
		return "", err
	}
	readBlocks(kept.blocks, b, at)
	return kept.entry.Digest, nil
}

// Base is the one with which a snapshot was written; nil: it was written as a whole.
func (f *Archive) Base(id hangar.SnapshotID) *archive.Base {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bases[id]
}

// Lie has it report a wrong digest for every device.
func (f *Archive) Lie() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lies = true
}

// Writing is how many snapshots are being written.
func (f *Archive) Writing() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writing
}

// Most is how many snapshots were being written at once.
func (f *Archive) Most() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}
