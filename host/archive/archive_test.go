package archive_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo/blob"
	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/racetest"
)

func fill(b []byte, seed uint64) {
	var key [32]byte
	key[0], key[1], key[2], key[3] = byte(seed), byte(seed>>8), byte(seed>>16), byte(seed>>24)
	rand.NewChaCha8(key).Read(b)
}

func randomDevice(size int, seed uint64) *device {
	d := &device{b: make([]byte, size)}
	fill(d.b, seed)
	return d
}

func write(tb testing.TB, a *archive.Archive, m archive.Meta, d *device, data extent.List, base *archive.Base) archive.Entry {
	tb.Helper()
	e, err := a.Write(tb.Context(), m, d, data, base, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func restore(tb testing.TB, a *archive.Archive, e archive.Entry) []byte {
	tb.Helper()
	to := &device{b: make([]byte, e.VolumeSize)}
	if _, err := a.Read(tb.Context(), e.ID, to, nil); err != nil {
		tb.Fatal(err)
	}
	return to.b
}

// TestRoundTrip writes and restores random volumes, with holes, changes, growth and any base. Only
// what is necessary is read and written, and the digest matches a plain calculation.
func TestRoundTrip(t *testing.T) {
	racetest.Skip(t)
	everywhere(t, func(t *testing.T, p place) {
		a := p.open(t)
		checks := 25
		if testing.Short() {
			checks = 10
		}
		if strings.HasPrefix(p.url, "s3") {
			checks /= 5 // the division into segments is the same
		}
		rapid.Check(t, func(rt *rapid.T) {
			if checks--; checks >= 0 {
				roundTrip(rt, a)
			}
		})
	})
}

func roundTrip(t *rapid.T, a *archive.Archive) {
	ctx := context.Background()
	volume := hangar.NewVolumeID()
	size := rapid.OneOf(
		rapid.IntRange(1, 3*mib), rapid.IntRange(1, 3*mib),
		rapid.Map(rapid.IntRange(1, 5), func(n int) int { return n * mib }),
		rapid.SampledFrom([]int{63 * mib, 64 * mib, 64*mib + 1, 66 * mib, 129 * mib}),
	).Draw(t, "size")
	d := &device{b: make([]byte, size)}
	var data extent.List
	var base *archive.Base
	for range rapid.IntRange(1, 4).Draw(t, "snapshots") {
		var changed extent.List
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			from := rapid.Int64Range(0, d.Size()-1).Draw(t, "from")
			e := extent.Extent{Offset: from, Length: min(rapid.Int64Range(1, 3*mib).Draw(t, "length"), d.Size()-from)}
			part := d.b[e.Offset:e.End()]
			switch rapid.SampledFrom([]string{"random", "same", "zero", "discard"}).Draw(t, "what") {
			case "random":
				fill(part, rapid.Uint64Range(0, 1000).Draw(t, "seed"))
				data = data.Union(extent.Of(e))
			case "same":
				copy(part, bytes.Repeat([]byte("all alike "), len(part)/10+1))
				data = data.Union(extent.Of(e))
			case "zero":
				clear(part)
				data = data.Union(extent.Of(e))
			case "discard": // whole segments only, as holes of a file are blocks
				e = extent.Extent{Offset: e.Offset / mib * mib, Length: mib}
				clear(d.b[e.Offset:min(e.End(), d.Size())])
				data = data.Intersect(extent.Of(extent.Extent{Length: e.Offset}, extent.Extent{Offset: e.End(), Length: d.Size()}))
			}
			changed = changed.Union(extent.Of(e))
		}
		if rapid.IntRange(0, 3).Draw(t, "grow") == 0 {
			d.b = append(d.b, make([]byte, rapid.IntRange(1, 2*mib).Draw(t, "by"))...)
		}
		if base != nil {
			base.Changed = changed
		}
		d.touched()
		m := newMeta(volume)
		e, err := a.Write(ctx, m, d, data, base, nil)
		if err != nil {
			t.Fatal(err)
		}
		read := d.touched()
		if outside := read.Length() - read.Intersect(data.Align(64*kib, d.Size())).Length(); outside != 0 {
			t.Fatalf("%d bytes were read where no data is", outside)
		}
		if e.Digest != plainDigest(d.b) {
			t.Fatalf("digest %s, want %s", e.Digest, plainDigest(d.b))
		}
		if digest, err := a.Digest(ctx, d, data); err != nil || digest != e.Digest {
			t.Fatalf("digest of the device %s, %v, want %s", digest, err, e.Digest)
		}
		if diff := cmp.Diff(archive.Entry{Meta: m, VolumeSize: d.Size(), Stored: e.Stored, Digest: e.Digest}, e); diff != "" {
			t.Fatalf("entry (-want +got):\n%s", diff)
		}
		if found, err := a.Entry(ctx, m.ID); err != nil || !cmp.Equal(found, e) {
			t.Fatalf("found %v, %v, want %v", found, err, e)
		}
		to := &device{b: make([]byte, d.Size())}
		if _, err := a.Read(ctx, m.ID, to, nil); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(to.b, d.b) {
			t.Fatal("the volume came back otherwise")
		}
		if written := to.touched(); written.Length() > data.Align(4*kib, d.Size()).Length() {
			t.Fatalf("%d bytes were written, and there are %d of data", written.Length(), data.Length())
		}
		base = rapid.SampledFrom([]*archive.Base{nil, {ID: m.ID}, {ID: m.ID}, {ID: hangar.NewSnapshotID()}}).Draw(t, "base")
		if base != nil && base.ID != m.ID {
			base.Changed = nil // it claims no changes, which is not believed
		}
	}
}

// TestChangesAreReadAlone: a snapshot with a base reads only what has changed.
func TestChangesAreReadAlone(t *testing.T) {
	racetest.Skip(t)
	a := inDirectory(t).open(t)
	d := randomDevice(150*mib+5, 1)
	volume := hangar.NewVolumeID()
	first := write(t, a, newMeta(volume), d, whole(d), nil)
	fill(d.b[70*mib:70*mib+10], 2)
	d.b = append(d.b, make([]byte, 3*mib)...)
	d.touched()
	changed := extent.Of(extent.Extent{Offset: 70 * mib, Length: 10})
	e := write(t, a, newMeta(volume), d, extent.Of(extent.Extent{Length: 150*mib + 5}), &archive.Base{ID: first.ID, Changed: changed})
	want := extent.Of(extent.Extent{Offset: 70 * mib, Length: 64 * kib}, extent.Extent{Offset: 150 * mib, Length: 5})
	if diff := cmp.Diff(want, d.touched()); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if e.Digest != plainDigest(d.b) {
		t.Error("the digest is wrong")
	}
	if !bytes.Equal(restore(t, a, e), d.b) {
		t.Error("the volume came back otherwise")
	}
}

// TestStoredOnce: equal content is stored once, across volumes.
func TestStoredOnce(t *testing.T) {
	racetest.Skip(t)
	everywhere(t, func(t *testing.T, p place) {
		a := p.open(t)
		d := randomDevice(40*mib, 1)
		first := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
		if first.Stored < 40*mib || first.Stored > 41*mib {
			t.Errorf("40 MiB of noise take %d bytes", first.Stored)
		}
		if again := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil); again.Stored != 0 {
			t.Errorf("the same takes %d bytes more", again.Stored)
		}
		fill(d.b[10*mib:10*mib+1], 3)
		changed := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
		if changed.Stored < 64*kib || changed.Stored > 200*kib {
			t.Errorf("a change takes %d bytes", changed.Stored)
		}
		sparse := &device{b: make([]byte, 300*mib)}
		if e := write(t, a, newMeta(hangar.NewVolumeID()), sparse, whole(sparse), nil); e.Stored > 100*kib {
			t.Errorf("300 MiB of zeros take %d bytes", e.Stored)
		}
		text := &device{b: bytes.Repeat([]byte("a line of some log, again and again\n"), 20*mib/36)}
		if e := write(t, a, newMeta(hangar.NewVolumeID()), text, whole(text), nil); e.Stored > mib {
			t.Errorf("20 MiB of text take %d bytes", e.Stored)
		}
		if size := p.size(t); size > 43*mib {
			t.Errorf("all takes %d bytes", size)
		}
	})
}

func TestEntriesAndRemove(t *testing.T) {
	racetest.Skip(t)
	everywhere(t, func(t *testing.T, p place) {
		a := p.open(t)
		ctx := t.Context()
		d := randomDevice(mib, 1)
		v1, v2 := hangar.NewVolumeID(), hangar.NewVolumeID()
		m := newMeta(v1)
		old := m
		old.ID, old.CreatedAt = hangar.NewSnapshotID(), m.CreatedAt.Add(-time.Hour)
		e1, e2, e3 := write(t, a, old, d, whole(d), nil), write(t, a, m, d, whole(d), nil), write(t, a, newMeta(v2), d, whole(d), nil)
		check := func(a *archive.Archive, volume hangar.VolumeID, want ...archive.Entry) {
			t.Helper()
			got, err := a.Entries(ctx, volume)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
		}
		check(a, v1, e2, e1)
		check(a, "", e3, e2, e1)
		if _, err := a.Write(ctx, m, d, whole(d), nil, nil); !errors.Is(err, archive.ErrExists) {
			t.Errorf("the same id again: %v", err)
		}
		if err := a.Remove(ctx, e2.ID, hangar.NewSnapshotID()); err != nil {
			t.Fatal(err)
		}
		check(a, v1, e1)
		if _, err := a.Entry(ctx, e2.ID); !errors.Is(err, archive.ErrNotFound) {
			t.Errorf("removed: %v", err)
		}
		if _, err := a.Read(ctx, e2.ID, d, nil); !errors.Is(err, archive.ErrNotFound) {
			t.Errorf("read of what was removed: %v", err)
		}
		if err := a.Remove(ctx, e2.ID); err != nil {
			t.Errorf("remove twice: %v", err)
		}
		if strings.HasPrefix(p.url, "s3") {
			check(p.open(t), v1, e1) // another daemon
		}
	})
}

func TestProgressAndCancel(t *testing.T) {
	a := inDirectory(t).open(t)
	d := randomDevice(30*mib, 1)
	var seen []hangar.Progress
	m := newMeta(hangar.NewVolumeID())
	e, err := a.Write(t.Context(), m, d, whole(d), nil, func(p hangar.Progress) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	if first, last := seen[0], seen[len(seen)-1]; first != (hangar.Progress{Total: d.Size()}) || last != (hangar.Progress{Done: d.Size(), Total: d.Size()}) {
		t.Errorf("progress from %v to %v", first, last)
	}
	seen = nil
	if _, err := a.Read(t.Context(), e.ID, &device{b: make([]byte, d.Size())}, func(p hangar.Progress) { seen = append(seen, p) }); err != nil {
		t.Fatal(err)
	}
	if last := seen[len(seen)-1]; last.Done != d.Size() {
		t.Errorf("progress to %v", last)
	}

	ctx, cancel := context.WithCancel(t.Context())
	m = newMeta(m.Volume)
	fill(d.b, 2)
	_, err = a.Write(ctx, m, d, whole(d), nil, func(p hangar.Progress) {
		cancel()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := a.Entry(t.Context(), m.ID); !errors.Is(err, archive.ErrNotFound) {
		t.Errorf("after it was cancelled: %v", err)
	}
}

// failing is a volume that fails after some reads.
type failing struct{ *device }

var errBroken = errors.New("the disk is broken")

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off > 20*mib {
		return 0, errBroken
	}
	return f.device.ReadAt(p, off)
}

// TestFailedWriteLeavesNothing: a failed snapshot leaves nothing in the store.
func TestFailedWriteLeavesNothing(t *testing.T) {
	p := inDirectory(t)
	a := p.open(t)
	d := randomDevice(60*mib, 1)
	m := newMeta(hangar.NewVolumeID())
	if _, err := a.Write(t.Context(), m, failing{d}, whole(d), nil, nil); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	if entries, err := a.Entries(t.Context(), ""); err != nil || len(entries) != 0 {
		t.Fatalf("there is %v, %v", entries, err)
	}
	e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
	if err := a.Remove(t.Context(), e.ID); err != nil {
		t.Fatal(err)
	}
	shrinks(t, p, a, 0)
}

// shrinks waits until the archive takes little more than want bytes.
func shrinks(t *testing.T, p place, a *archive.Archive, want int64) {
	t.Helper()
	for begun := time.Now(); ; <-time.After(500 * time.Millisecond) {
		if _, err := a.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		size := p.size(t)
		if size <= want+mib {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("the archive has %d bytes, and needs about %d", size, want)
		}
	}
}

func TestCollect(t *testing.T) {
	racetest.Skip(t)
	p := inDirectory(t)
	a := p.open(t)
	volume := hangar.NewVolumeID()
	d := randomDevice(64*mib, 1)
	first := write(t, a, newMeta(volume), d, whole(d), nil)
	fill(d.b[:32*mib], 2)
	second := write(t, a, newMeta(volume), d, whole(d), &archive.Base{ID: first.ID, Changed: extent.Of(extent.Extent{Length: 32 * mib})})
	if freed, err := a.Collect(t.Context()); freed > 100*kib || err != nil {
		t.Errorf("freed %d, %v where nothing is garbage", freed, err)
	}
	if err := a.Remove(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	before, freed := p.size(t), int64(0)
	// Contents that became garbage after the second in which a collection began are left to the
	// next one.
	for begun := time.Now(); p.size(t) > 85*mib && time.Since(begun) < time.Minute; <-time.After(500 * time.Millisecond) {
		n, err := a.Collect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		freed += n
	}
	if size := p.size(t); size > 85*mib || before-size < freed-mib || before-size > freed+mib {
		t.Errorf("freed %d of %d bytes, and there are %d", freed, before, size)
	}
	if !bytes.Equal(restore(t, a, second), d.b) {
		t.Error("the volume came back otherwise")
	}
	if err := a.Remove(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	shrinks(t, p, a, 0)
}

// TestWriteWaitsForCollectNoLongerThanItsCaller cancels the caller of a snapshot while Collect
// decides what is garbage.
func TestWriteWaitsForCollectNoLongerThanItsCaller(t *testing.T) {
	deciding, decided := make(chan struct{}), make(chan struct{})
	var collecting atomic.Bool
	opts := inDirectory(t).options()
	opts.Now = func() time.Time {
		if collecting.CompareAndSwap(true, false) { // it is deciding what is garbage
			close(deciding)
			<-decided
		}
		return time.Now()
	}
	a := open(t, opts)
	collecting.Store(true)
	collected := make(chan error, 1)
	go func() {
		_, err := a.Collect(t.Context())
		collected <- err
	}()
	<-deciding
	ctx, leave := context.WithCancel(t.Context())
	wrote := make(chan error, 1)
	go func() {
		d := &device{b: make([]byte, mib)}
		_, err := a.Write(ctx, newMeta(hangar.NewVolumeID()), d, whole(d), nil, nil)
		wrote <- err
	}()
	leave()
	if err := <-wrote; !errors.Is(err, context.Canceled) {
		t.Errorf("a snapshot whose caller has left: %v", err)
	}
	close(decided)
	if err := <-collected; err != nil {
		t.Error(err)
	}
}

// TestCollectBesideWrites writes, builds upon, reads and removes snapshots while garbage is
// collected continuously; none loses anything. Many snapshots share the same few contents, so what
// one needs is often another's garbage.
func TestCollectBesideWrites(t *testing.T) {
	p := inDirectory(t)
	a := p.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var collector sync.WaitGroup
	collector.Go(func() {
		for ctx.Err() == nil {
			if _, err := a.Collect(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			volume := hangar.NewVolumeID()
			rng := rand.New(rand.NewPCG(uint64(w), 0))
			d := &device{b: make([]byte, 3*mib)}
			var base *archive.Base
			var kept []archive.Entry
			for range 12 {
				at := rng.IntN(3) * mib
				fill(d.b[at:at+mib], rng.Uint64N(4))
				if base != nil {
					base.Changed = extent.Of(extent.Extent{Offset: int64(at), Length: mib})
				}
				e, err := a.Write(ctx, newMeta(volume), d, whole(d), base, nil)
				if err != nil {
					t.Error(err)
					return
				}
				kept = append(kept, e)
				if base = nil; rng.IntN(3) > 0 {
					base = &archive.Base{ID: e.ID}
				}
				if rng.IntN(2) == 0 {
					gone := rng.IntN(len(kept))
					if err := a.Remove(ctx, kept[gone].ID); err != nil {
						t.Error(err)
					}
					kept = slices.Delete(kept, gone, gone+1)
				}
				for _, e := range kept {
					to := &device{b: make([]byte, e.VolumeSize)}
					if _, err := a.Read(ctx, e.ID, to, nil); err != nil {
						t.Error(err)
					} else if plainDigest(to.b) != e.Digest {
						t.Error("a volume came back otherwise")
					}
				}
			}
		})
	}
	writers.Wait()
	cancel()
	collector.Wait()
}

func TestDamage(t *testing.T) {
	racetest.Skip(t)
	everywhere(t, func(t *testing.T, p place) {
		a := p.open(t)
		d := randomDevice(30*mib, 1)
		e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
		read := func() error {
			_, err := a.Read(t.Context(), e.ID, &device{b: make([]byte, d.Size())}, nil)
			return err
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"p", "q"} {
			for _, name := range p.files(t, kind) {
				sound, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				bad := slices.Clone(sound)
				for i := 200; i < len(bad); i += 50 {
					bad[i] ^= 1
				}
				put := func(b []byte) {
					if err := os.WriteFile(name, b, 0o600); err != nil { // preserves the S3 server's metadata of it
						t.Fatal(err)
					}
				}
				put(bad)
				isDamage(t, "changed "+kind, e.ID, read(), kind == "p")
				put(sound[:len(sound)/2])
				isDamage(t, "cut off "+kind, e.ID, read(), kind == "p")
				if err := os.Rename(name, name+".away"); err != nil {
					t.Fatal(err)
				}
				isDamage(t, "missing "+kind, e.ID, read(), kind == "p")
				if err := os.Rename(name+".away", name); err != nil {
					t.Fatal(err)
				}
				put(sound)
				if err := read(); err != nil {
					t.Fatalf("after it was repaired: %v", err)
				}
			}
		}
	})
}

// isDamage checks what an error says about the snapshot. Some files do not belong to it.
func isDamage(t *testing.T, what string, id hangar.SnapshotID, err error, must bool) {
	t.Helper()
	if err == nil && !must {
		return
	}
	if c, ok := errors.AsType[*archive.CorruptError](err); !ok || c.ID != id || !errors.Is(err, archive.ErrCorrupt) {
		t.Errorf("%s: %v", what, err)
	}
}

// brokenStore is a storage in which the contents of volumes cannot be read while an error is set.
type brokenStore struct {
	blob.Storage
	fault error
}

func (f *brokenStore) GetBlob(ctx context.Context, id blob.ID, offset, length int64, to blob.OutputBuffer) error {
	if f.fault != nil && strings.HasPrefix(string(id), "p") {
		return f.fault
	}
	return f.Storage.GetBlob(ctx, id, offset, length, to)
}

// A store that cannot be read now proves nothing about a snapshot. Only damage is ErrCorrupt, upon
// which a restore is given up.
func TestFaultsOfTheStoreAreNoDamage(t *testing.T) {
	a := inDirectory(t).open(t)
	store := new(brokenStore)
	a.Intercept(func(under blob.Storage) blob.Storage {
		store.Storage = under
		return store
	})
	d := randomDevice(mib, 1)
	e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
	read := func(fault error) error {
		store.fault = fault
		_, err := a.Read(t.Context(), e.ID, &device{b: make([]byte, d.Size())}, nil)
		return err
	}
	for _, errno := range []syscall.Errno{syscall.ESTALE, syscall.EMFILE, syscall.ENFILE, syscall.EIO, syscall.ENOMEM, syscall.EACCES} {
		err := read(&fs.PathError{Op: "open", Path: "p1", Err: errno})
		if !errors.Is(err, archive.ErrUnreachable) || errors.Is(err, archive.ErrCorrupt) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if lost := marks(t, a); len(lost) > 0 {
		t.Errorf("%v are marked as lost", lost)
	}
	isDamage(t, "missing", e.ID, read(blob.ErrBlobNotFound), true)
	if lost, want := marks(t, a), filesOf(t, a, segments); len(lost) != 1 || lost[0] != string(want[0]) {
		t.Errorf("%v are marked as lost, want %v", lost, want)
	}
	if err := read(nil); err != nil {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		a := archive.New(p.options())
		if err := a.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		d := randomDevice(mib, 1)
		e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
		if err := archive.New(p.options()).Open(t.Context()); strings.HasPrefix(p.url, "file") && !errors.Is(err, archive.ErrLocked) {
			t.Errorf("open twice: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		opts := p.options()
		opts.Password = func(context.Context) ([]byte, error) { return make([]byte, archive.PasswordSize), nil }
		if err := archive.New(opts).Open(t.Context()); !errors.Is(err, archive.ErrPassword) {
			t.Errorf("another password: %v", err)
		}
		if !bytes.Equal(restore(t, p.open(t), e), d.b) {
			t.Error("the volume came back otherwise")
		}
	})
}

func TestOpenForeign(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		dir := p.blobs
		if strings.HasPrefix(p.url, "s3") {
			dir += "/some/prefix"
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/photo.jpg", []byte("smile"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := archive.New(p.options()).Open(t.Context())
		if !errors.Is(err, archive.ErrForeign) || !strings.Contains(err.Error(), "photo.jpg") {
			t.Errorf("something else: %v", err)
		}
	})
}

func TestURL(t *testing.T) {
	for url, want := range map[string]string{
		"":                              `scheme ""`,
		"http://x":                      `scheme "http"`,
		"file://relative/dir":           "absolute path",
		"file:///":                      "absolute path",
		"file:///x?region=y":            "takes no parameters",
		"s3:///prefix":                  "bucket is missing",
		"s3://b/p?tls=maybe":            "parameter tls",
		"s3://b/p?endpont=x":            `"endpont"`,
		"s3://b/p?region=a&region=b":    `"region" is given twice`,
		"s3://b/p?endpoint=http://x":    "parameter endpoint",
		"s3://key:secret@b/p":           "environment",
		"s3://b/p#x":                    "#x",
		"s3://b/p?endpoint=127.0.0.1:1": "AWS_ACCESS_KEY_ID",
		"s3://b/p?endpoint=\x7f":        "control character",
	} {
		t.Run(url, func(t *testing.T) {
			for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY"} {
				t.Setenv(name, "")
			}
			err := archive.New(archive.Options{URL: url, Cache: t.TempDir(), Password: password}).Open(t.Context())
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret@") {
				t.Errorf("said %v, want %q", err, want)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	opts := archive.Options{URL: "s3://b/p?tls=off&endpoint=127.0.0.1:1", Cache: t.TempDir(), Password: password}
	if err := archive.New(opts).Open(t.Context()); !errors.Is(err, archive.ErrUnreachable) {
		t.Errorf("without a listener: %v", err)
	}
	p := inBucket(t)
	opts.URL = strings.Replace(p.url, "bucket", "nosuch", 1)
	if err := archive.New(opts).Open(t.Context()); err == nil || !strings.Contains(err.Error(), "bucket does not exist") {
		t.Errorf("no bucket: %v", err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	if err := archive.New(p.options()).Open(t.Context()); !errors.Is(err, archive.ErrUnreachable) {
		t.Errorf("wrong credentials: %v", err)
	}
}
