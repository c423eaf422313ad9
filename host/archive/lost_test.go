package archive_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// someBytes implements blob.Bytes and blob.OutputBuffer.
type someBytes struct{ bytes.Buffer }

func (b *someBytes) Length() int { return b.Len() }

func (b *someBytes) Reader() io.ReadSeekCloser { return seekable{bytes.NewReader(b.Bytes())} }

type seekable struct{ *bytes.Reader }

func (seekable) Close() error { return nil }

// Contents by the prefix of their ids.
var (
	segments = []content.IDPrefix{""}
	indexes  = []content.IDPrefix{"x", "k"}
)

// filesOf returns the files with contents of some prefixes.
func filesOf(t *testing.T, a *archive.Archive, prefixes []content.IDPrefix) (files []blob.ID) {
	t.Helper()
	contents, err := a.Contents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range contents {
		if slices.Contains(prefixes, c.ContentID.Prefix()) && !slices.Contains(files, c.PackBlobID) {
			files = append(files, c.PackBlobID)
		}
	}
	return files
}

// harmAll harms the files with contents of some prefixes.
func harmAll(t *testing.T, a *archive.Archive, prefixes []content.IDPrefix, change func([]byte) []byte) {
	t.Helper()
	harm(t, a, filesOf(t, a, prefixes), change)
}

// harm changes files, or removes those of which change returns nil.
func harm(t *testing.T, a *archive.Archive, files []blob.ID, change func([]byte) []byte) {
	t.Helper()
	for _, id := range files {
		var b someBytes
		err := a.Storage().GetBlob(t.Context(), id, 0, -1, &b)
		if err != nil {
			t.Fatal(err)
		}
		if changed := change(b.Bytes()); changed == nil {
			err = a.Storage().DeleteBlob(t.Context(), id)
		} else {
			err = a.Storage().PutBlob(t.Context(), id, &someBytes{*bytes.NewBuffer(changed)}, blob.PutOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func missing([]byte) []byte { return nil }

func cutOff(b []byte) []byte { return b[:100] }

func changed(b []byte) []byte {
	for i := 200; i < len(b); i += 50 {
		b[i] ^= 1
	}
	return b
}

// marks returns the files that are marked as lost or damaged.
func marks(t *testing.T, a *archive.Archive) (files []string) {
	t.Helper()
	err := a.Storage().ListBlobs(t.Context(), "hangar.lost.", func(b blob.Metadata) error {
		files = append(files, strings.TrimPrefix(string(b.BlobID), "hangar.lost."))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestLostContentIsStoredAgain: a snapshot that shares content with one that was lost or damaged in
// the store can be restored. Then the earlier one can as well, if nothing else of it is lost.
func TestLostContentIsStoredAgain(t *testing.T) {
	racetest.Skip(t)
	for _, harmed := range []struct {
		what     string
		prefixes []content.IDPrefix
	}{{"segments", segments}, {"indexes", indexes}} {
		for _, how := range []struct {
			name   string
			change func([]byte) []byte
		}{{"missing", missing}, {"cut off", cutOff}, {"changed", changed}} {
			t.Run(harmed.what+" "+how.name, func(t *testing.T) {
				test := func(t *testing.T, p place) {
					finder := p.open(t)
					writer := finder
					if strings.HasPrefix(p.url, "s3") {
						writer = p.open(t)
					}
					d := randomDevice(mib, 1)
					volume := hangar.NewVolumeID()
					first := write(t, finder, newMeta(volume), d, whole(d), nil)
					harmAll(t, finder, harmed.prefixes, how.change)
					if how.name == "changed" { // which only a restore finds
						_, err := finder.Read(t.Context(), first.ID, &device{b: make([]byte, d.Size())}, nil)
						isDamage(t, "changed", first.ID, err, true)
					} else if _, err := finder.Collect(t.Context()); err != nil {
						t.Log(err)
					}
					if len(marks(t, finder)) == 0 {
						t.Error("nothing is marked")
					}
					for _, base := range []*archive.Base{{ID: first.ID}, nil} {
						second := write(t, writer, newMeta(volume), d, whole(d), base)
						if !bytes.Equal(restore(t, writer, second), d.b) {
							t.Error("the volume came back otherwise")
						}
					}
					if harmed.what == "segments" && !bytes.Equal(restore(t, finder, first), d.b) {
						t.Error("the earlier volume came back otherwise")
					}
					if err := finder.Remove(t.Context(), first.ID); err != nil {
						t.Fatal(err)
					}
					if _, err := finder.Collect(t.Context()); err != nil {
						t.Log(err) // garbage of this second stays until the next one, and cannot be copied
					}
					if harmed.what == "segments" {
						if left := marks(t, finder); len(left) > 0 {
							t.Errorf("%v are marked although nothing needs them", left)
						}
					}
				}
				if harmed.what == "segments" {
					everywhere(t, test)
				} else {
					test(t, inDirectory(t)) // what follows is the same
				}
			})
		}
	}
}

// TestDamagedIndexAmongOthers: one damaged index does not fail a snapshot that shares others of the
// same file.
func TestDamagedIndexAmongOthers(t *testing.T) {
	racetest.Skip(t)
	a := inDirectory(t).open(t)
	d := numbered{10 * 64 * mib}
	var data extent.List
	for at := int64(0); at < d.size; at += 64 * mib {
		data = data.Union(extent.Of(extent.Extent{Offset: at, Length: 64 * kib}))
	}
	if _, err := a.Write(t.Context(), newMeta(hangar.NewVolumeID()), d, data, nil, nil); err != nil {
		t.Fatal(err)
	}
	contents, err := a.Contents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var last content.Info // the index of a group that was written last, and is looked at after others
	for _, c := range contents {
		if c.ContentID.Prefix() == "x" && c.OriginalLength > 40000 && c.PackOffset > last.PackOffset {
			last = c
		}
	}
	harm(t, a, []blob.ID{last.PackBlobID}, func(b []byte) []byte {
		b[last.PackOffset] ^= 1
		return b
	})
	second, err := a.Write(t.Context(), newMeta(hangar.NewVolumeID()), d, data, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(t.Context(), second.ID, d, nil); err != nil {
		t.Error(err)
	}
}

// dying is a storage whose process is killed after some writes.
type dying struct {
	blob.Storage
	left *atomic.Int64
}

var errKilled = errors.New("killed")

func (d dying) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, opts blob.PutOptions) error {
	if d.left.Add(-1) < 0 {
		return errKilled
	}
	return d.Storage.PutBlob(ctx, id, data, opts)
}

// aging is a volume that takes so long to read that the library writes its index meanwhile.
type aging struct {
	*device
	clock *clock
}

func (a aging) ReadAt(p []byte, off int64) (int, error) {
	a.clock.advance(11 * time.Minute)
	return a.device.ReadAt(p, off)
}

// TestKillWhileLostContentIsStoredAgain: wherever a process is killed, the index never says that
// content is garbage which it does not have stored again.
// Otherwise Collect would look for it in vain, and fail, as long as the earlier snapshot exists.
func TestKillWhileLostContentIsStoredAgain(t *testing.T) {
	racetest.Skip(t)
	p := inBucket(t)
	var c clock
	watcher := p.open(t)
	d := randomDevice(4*64*kib, 1)
	volume := hangar.NewVolumeID()
	first := write(t, watcher, newMeta(volume), d, whole(d), nil)
	harmAll(t, watcher, segments, missing)
	if _, err := watcher.Collect(t.Context()); err != nil {
		t.Log(err)
	}
	for n := int64(0); ; n++ {
		opts := p.options()
		opts.Now = c.now
		a := archive.New(opts)
		if err := a.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		var left atomic.Int64
		left.Store(n)
		a.Intercept(func(under blob.Storage) blob.Storage { return dying{under, &left} })
		second, err := a.Write(t.Context(), newMeta(volume), aging{d, &c}, whole(d), nil, nil)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if _, err := watcher.Entries(t.Context(), ""); err != nil { // reads the index
			t.Fatal(err)
		}
		contents, err := watcher.Contents(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range contents {
			if c.Deleted && c.ContentID.Prefix() != "m" {
				t.Errorf("killed after %d writes: %s counts as garbage", n, c.ContentID)
			}
		}
		if second.ID != "" {
			for _, e := range []archive.Entry{first, second} {
				if !bytes.Equal(restore(t, watcher, e), d.b) {
					t.Error("the volume came back otherwise")
				}
			}
			return
		}
	}
}

// failingManifests is a storage whose index changes while the manifests of snapshots are read, so that
// they are read again, which fails.
type failingManifests struct {
	blob.Storage
	changes func()
	fault   error
	first   sync.Once
	left    atomic.Int64 // reads that succeed
}

func (f *failingManifests) GetBlob(ctx context.Context, id blob.ID, offset, length int64, to blob.OutputBuffer) error {
	if f.changes != nil && strings.HasPrefix(string(id), "q") {
		if f.left.Add(-1) < 0 {
			return f.fault
		}
		f.first.Do(f.changes)
	}
	return f.Storage.GetBlob(ctx, id, offset, length, to)
}

// TestCollectWithoutManifests: content is no garbage because the manifest of its snapshot cannot be read.
func TestCollectWithoutManifests(t *testing.T) {
	var c clock
	opts := inDirectory(t).options()
	opts.Now = c.now
	a := open(t, opts)
	store := &failingManifests{fault: syscall.EMFILE}
	a.Intercept(func(under blob.Storage) blob.Storage {
		store.Storage = under
		return store
	})
	d := randomDevice(mib, 1)
	e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
	c.advance(time.Hour)
	contents, err := a.Contents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range contents {
		if c.ContentID.Prefix() == "m" {
			store.left.Add(1)
		}
	}
	store.changes = func() {
		if err := a.Touch(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := a.Collect(t.Context()); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("garbage was collected: %v", err)
	}
	store.changes = nil
	if !bytes.Equal(restore(t, a, e), d.b) {
		t.Error("the volume came back otherwise")
	}
}

// silent is a storage whose files cannot be listed.
type silent struct {
	blob.Storage
	is *atomic.Bool
}

var errSilent = errors.New("listing is not allowed")

func (s silent) ListBlobs(ctx context.Context, prefix blob.ID, each func(blob.Metadata) error) error {
	if s.is.Load() {
		return errSilent
	}
	return s.Storage.ListBlobs(ctx, prefix, each)
}

// TestStoreThatCannotBeListed: an operation ends with an error, and the next one works when the store
// does again.
func TestStoreThatCannotBeListed(t *testing.T) {
	p := inBucket(t)
	a := p.open(t)
	a.SetPatience(time.Second)
	d := randomDevice(64*kib, 1)
	e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
	var is atomic.Bool
	a.Intercept(func(s blob.Storage) blob.Storage { return silent{s, &is} })
	is.Store(true)
	for name, operation := range map[string]func() error{
		"Entry":   func() error { _, err := a.Entry(t.Context(), e.ID); return err },
		"Entries": func() error { _, err := a.Entries(t.Context(), ""); return err },
		"Read":    func() error { _, err := a.Read(t.Context(), e.ID, d, nil); return err },
		"Write": func() error {
			_, err := a.Write(t.Context(), newMeta(e.Volume), d, whole(d), nil, nil)
			return err
		},
		"Remove":  func() error { return a.Remove(t.Context(), e.ID) },
		"Collect": func() error { _, err := a.Collect(t.Context()); return err },
	} {
		if err := operation(); !errors.Is(err, archive.ErrUnreachable) || !errors.Is(err, errSilent) {
			t.Errorf("%s: %v, want ErrUnreachable", name, err)
		}
	}
	is.Store(false)
	if found, err := a.Entry(t.Context(), e.ID); found != e || err != nil {
		t.Errorf("%+v, %v", found, err)
	}
}
