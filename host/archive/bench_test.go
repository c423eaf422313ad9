package archive_test

import (
	"math/rand/v2"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
)

// mixed is a volume of which half is noise, and half compresses well.
func mixed(size int) *device {
	d := randomDevice(size, 1)
	for at := 0; at < size; at += 2 * mib {
		for i := range min(mib, size-at) {
			d.b[at+i] &= 0x11
		}
	}
	return d
}

// BenchmarkArchive writes a volume of 256 MiB, changes one per cent of it at random places, writes
// that with and without knowing the changes, writes it unchanged, and reads it, to and from a
// directory.
func BenchmarkArchive(b *testing.B) {
	const size = 256 * mib
	d := mixed(size)
	volume := hangar.NewVolumeID()
	var changed extent.List
	change := func(seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		changed = nil
		for range size / 100 / (64 * kib) {
			e := extent.Extent{Offset: rng.Int64N(size/(64*kib)) * 64 * kib, Length: 64 * kib}
			fill(d.b[e.Offset:e.End()], rng.Uint64())
			changed = changed.Union(extent.Of(e))
		}
	}
	a := inDirectory(b).open(b)
	n := uint64(0)
	last := write(b, a, newMeta(volume), d, whole(d), nil)
	bench := func(name string, prepare func(b *testing.B) *archive.Archive, base func() *archive.Base) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			var stored int64
			for b.Loop() {
				b.StopTimer()
				to := prepare(b)
				b.StartTimer()
				last = write(b, to, newMeta(volume), d, whole(d), base())
				stored += last.Stored
			}
			b.ReportMetric(float64(stored)/float64(b.N), "stored-B/op")
		})
	}
	none := func() *archive.Base { return nil }
	same := func(*testing.B) *archive.Archive { return a }
	bench("first", func(b *testing.B) *archive.Archive {
		b.Helper()
		return inDirectory(b).open(b)
	}, none)
	last = write(b, a, newMeta(volume), d, whole(d), nil)
	another := func(*testing.B) *archive.Archive {
		n++
		change(n)
		return a
	}
	bench("changed", another, func() *archive.Base { return &archive.Base{ID: last.ID, Changed: changed} })
	bench("changed-unknown", another, none)
	bench("unchanged", same, func() *archive.Base { return &archive.Base{ID: last.ID} })
	bench("unchanged-unknown", same, none)
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		to := &device{b: make([]byte, size)}
		for b.Loop() {
			if _, err := a.Read(b.Context(), last.ID, to, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("digest", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := a.Digest(b.Context(), d, whole(d)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		p := inDirectory(b)
		for b.Loop() {
			a := archive.New(p.options())
			if err := a.Open(b.Context()); err != nil {
				b.Fatal(err)
			}
			if err := a.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
