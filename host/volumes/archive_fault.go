package volumes

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
)

// archiveFault returns the error of the archive for users. Its address and the network are the
// operator's business, and only in the log.
func archiveFault(doing string, err error) error {
	if _, told := errors.AsType[*hangar.Error](err); err == nil || told {
		return err
	}
	switch {
	case errors.Is(err, archive.ErrNotFound):
		return &hangar.Error{Code: hangar.CodeInternal, Message: "the snapshot is not in the archive", Err: err}
	case errors.Is(err, archive.ErrCorrupt):
		return &hangar.Error{Code: hangar.CodeInternal, Message: "the snapshot is damaged in the archive", Err: err}
	default:
		return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the archive of snapshots cannot be " + doing, Err: err}
	}
}

// fault keeps the first error of a device, to distinguish it from an error of the archive.
type fault struct{ first atomic.Pointer[error] }

func (f *fault) keep(err error) {
	if err != nil && !errors.Is(err, io.EOF) {
		f.first.CompareAndSwap(nil, &err)
	}
}

// of returns the first error of the device or, without one, err as an error of the archive for
// users.
func (f *fault) of(doing string, err error) error {
	if first := f.first.Load(); err != nil && first != nil {
		return *first
	}
	return archiveFault(doing, err)
}

// watchedSource is a view that keeps the error of a read.
type watchedSource struct {
	archive.Source
	fault
}

func (s *watchedSource) ReadAt(b []byte, at int64) (int, error) {
	n, err := s.Source.ReadAt(b, at)
	s.keep(err)
	return n, err
}

// writeArchive stores a view as a snapshot.
func writeArchive(
	ctx context.Context, store Archive, meta archive.Meta, src archive.Source, data extent.List, base *archive.Base, progress func(hangar.Progress),
) (archive.Entry, error) {
	watched := &watchedSource{Source: src}
	entry, err := store.Write(ctx, meta, watched, data, base, progress)
	if errors.Is(err, archive.ErrExists) {
		// An earlier daemon completed this snapshot and ended before it recorded that. Changes are
		// counted from now on, so a new one is needed.
		if err = store.Remove(ctx, meta.ID); err == nil {
			entry, err = store.Write(ctx, meta, watched, data, base, progress)
		}
	}
	if base != nil && (errors.Is(err, archive.ErrNotFound) || errors.Is(err, archive.ErrCorrupt)) {
		// The base is no longer in the archive, or damaged there, so everything is read.
		entry, err = store.Write(ctx, meta, watched, data, nil, progress)
	}
	return entry, watched.of("written", err)
}

// readArchive writes a snapshot to a target.
func readArchive(ctx context.Context, store Archive, id hangar.SnapshotID, target *boundedTarget, progress func(hangar.Progress)) (archive.Entry, error) {
	entry, err := store.Read(ctx, id, target, progress)
	return entry, target.of("read", err)
}
