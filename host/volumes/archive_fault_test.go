package volumes

import (
	"context"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
)

// withoutBase is an archive whose earlier snapshots cannot be built upon.
type withoutBase struct {
	Archive
	err error
}

func (w withoutBase) Write(_ context.Context, meta archive.Meta, _ archive.Source, _ extent.List, base *archive.Base, _ func(hangar.Progress)) (archive.Entry, error) {
	if base != nil {
		return archive.Entry{}, w.err
	}
	return archive.Entry{Meta: meta}, nil
}

// TestSnapshotWithoutItsBase: a snapshot whose base is missing or damaged is written whole.
func TestSnapshotWithoutItsBase(t *testing.T) {
	for _, err := range []error{archive.ErrNotFound, &archive.CorruptError{}} {
		entry, got := writeArchive(t.Context(), withoutBase{err: err}, archive.Meta{ID: "s"}, nil, nil, &archive.Base{}, nil)
		if got != nil || entry.ID != "s" {
			t.Errorf("%v: %v", err, got)
		}
	}
}
