package archive_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// TestScatteredChanges: after scattered changes to one per cent of a volume, little more than that
// is stored.
func TestScatteredChanges(t *testing.T) {
	racetest.Skip(t)
	a := inDirectory(t).open(t)
	const size = 64 * mib
	d := randomDevice(size, 1)
	volume := hangar.NewVolumeID()
	first := write(t, a, newMeta(volume), d, whole(d), nil)
	var changed []extent.Extent
	for i := range size / 100 / (64 * kib) {
		e := extent.Extent{Offset: int64(i*97+5) * 64 * kib, Length: 64 * kib}
		fill(d.b[e.Offset:e.End()], uint64(i))
		changed = append(changed, e)
	}
	e := write(t, a, newMeta(volume), d, whole(d), &archive.Base{ID: first.ID, Changed: extent.Of(changed...)})
	if e.Stored > size*15/1000 {
		t.Errorf("%d bytes were stored", e.Stored)
	}
}

// numbered is a large volume in which every page contains its number.
type numbered struct{ size int64 }

func (n numbered) Size() int64 { return n.size }

func (n numbered) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	for i := 0; i+8 <= len(b); i += 4096 {
		binary.BigEndian.PutUint64(b[i:], uint64(at)+uint64(i)+1)
	}
	return len(b), nil
}

// WriteAt verifies restored pages.
func (n numbered) WriteAt(b []byte, at int64) (int, error) {
	for i := 0; i+8 <= len(b); i += 4096 {
		if got := binary.BigEndian.Uint64(b[i:]); got != uint64(at)+uint64(i)+1 {
			return i, fmt.Errorf("page %d at %d", got, at+int64(i))
		}
	}
	return len(b), nil
}

// TestLarge: what is added to the index before a large snapshot is complete is not garbage
// meanwhile.
func TestLarge(t *testing.T) {
	racetest.Skip(t)
	a := inDirectory(t).open(t)
	src := numbered{1100 * mib}
	done := make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case done <- nil:
				return
			default:
				_, err = a.Collect(t.Context())
			}
		}
		done <- err
	}()
	e, err := a.Write(t.Context(), newMeta(hangar.NewVolumeID()), src, extent.Of(extent.Extent{Length: src.size}), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := a.Read(t.Context(), e.ID, src, nil); err != nil {
		t.Error(err)
	}
}
