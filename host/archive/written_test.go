package archive_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// noisy is a device that reads as noise wherever nothing was written, as an encrypted one does.
type noisy struct {
	b     []byte
	noise byte
}

func newNoisy(size int, noise byte) *noisy { return &noisy{bytes.Repeat([]byte{noise}, size), noise} }

func (n *noisy) Size() int64                             { return int64(len(n.b)) }
func (n *noisy) ReadAt(b []byte, at int64) (int, error)  { return copy(b, n.b[at:]), nil }
func (n *noisy) WriteAt(b []byte, at int64) (int, error) { return copy(n.b[at:], b), nil }

// TestZerosAreRestored: written zeros are zeros after a restore to an encrypted volume, where
// unwritten parts are noise; noise is neither stored nor part of the digest.
func TestZerosAreRestored(t *testing.T) {
	racetest.Skip(t)
	a := archive.New(archive.Options{
		URL: "file://" + t.TempDir() + "/archive", Cache: t.TempDir(),
		Password: func(context.Context) ([]byte, error) { return bytes.Repeat([]byte{7}, archive.PasswordSize), nil },
	})
	if err := a.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	const size, segment = 200 << 20, 1 << 20
	text := bytes.Repeat([]byte("data"), 1024)
	data := extent.Of(
		extent.Extent{Offset: 0, Length: 4096},                 // text
		extent.Extent{Offset: 8192, Length: 8192},              // zeros
		extent.Extent{Offset: 3 * segment, Length: segment},    // zeros, a whole segment
		extent.Extent{Offset: 100 * segment, Length: 4096},     // zeros, all of a group
		extent.Extent{Offset: size - 8192, Length: 4096},       // text
		extent.Extent{Offset: 50*segment - 4096, Length: 8192}, // text, then zeros, of two segments
	)
	fill := func(d *noisy) {
		for _, e := range data {
			clear(d.b[e.Offset:e.End()])
		}
		copy(d.b, text)
		copy(d.b[size-8192:], text)
		copy(d.b[50*segment-4096:], text)
	}
	one, other := newNoisy(size, 0xa5), newNoisy(size, 0x11)
	fill(one)
	fill(other)
	meta := archive.Meta{ID: hangar.NewSnapshotID(), Volume: hangar.NewVolumeID(), App: "web", Org: "personal", CreatedAt: time.Now()}
	entry, err := a.Write(t.Context(), meta, one, data, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := a.Digest(t.Context(), other, data); err != nil || digest != entry.Digest {
		t.Errorf("the same content amid other noise has the digest %s, %v; want %s", digest, err, entry.Digest)
	}
	target := newNoisy(size, 0x3c)
	if _, err := a.Read(t.Context(), entry.ID, target, nil); err != nil {
		t.Fatal(err)
	}
	want := newNoisy(size, 0x3c)
	fill(want)
	if !bytes.Equal(target.b, want.b) {
		t.Error("the restored volume differs")
	}
	// A second snapshot builds on it, and has one more block of zeros.
	meta.ID = hangar.NewSnapshotID()
	more := extent.Of(extent.Extent{Offset: 20 * segment, Length: 4096})
	clear(one.b[20*segment : 20*segment+4096])
	clear(want.b[20*segment : 20*segment+4096])
	if _, err := a.Write(t.Context(), meta, one, data.Union(more), &archive.Base{ID: entry.ID, Changed: more}, nil); err != nil {
		t.Fatal(err)
	}
	target = newNoisy(size, 0x3c)
	if _, err := a.Read(t.Context(), meta.ID, target, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(target.b, want.b) {
		t.Error("the second restored volume differs")
	}
}
