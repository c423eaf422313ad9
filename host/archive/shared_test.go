package archive_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// clock is ahead of the real one.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

// TestTwoDaemons: two daemons share a bucket. One removes what the other is about to build upon,
// and collects; the room of day-old garbage is freed within half a day.
func TestTwoDaemons(t *testing.T) {
	racetest.Skip(t)
	p := inBucket(t)
	var c clock
	opts := p.options()
	opts.Now = c.now
	a := open(t, opts)
	opts = p.options()
	opts.Now = c.now
	b := open(t, opts)

	volume := hangar.NewVolumeID()
	d := randomDevice(30*mib, 1)
	first := write(t, a, newMeta(volume), d, whole(d), nil)
	fill(d.b[:5*mib], 2)
	c.advance(25 * time.Hour)
	turn, other := a, b
	hourly := func() (freed int64) {
		t.Helper()
		c.advance(time.Hour)
		freed, err := turn.Collect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		turn, other = other, turn
		return freed
	}

	// b reads slowly. Meanwhile a removes the base, and everything that it had is gone when b is
	// done.
	slow := &waiting{device: d, begun: make(chan struct{}), proceed: make(chan struct{})}
	done := make(chan error)
	second := newMeta(volume)
	go func() {
		_, err := b.Write(t.Context(), second, slow, whole(d), &archive.Base{ID: first.ID, Changed: extent.Of(extent.Extent{Length: 5 * mib})}, nil)
		done <- err
	}()
	<-slow.begun
	if err := a.Remove(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	var freed int64
	hours := 0
	for ; freed < 29*mib && hours < 12; hours++ {
		freed += hourly()
	}
	if hours == 12 {
		t.Errorf("after %d hours %d bytes came back", hours, freed)
	}
	t.Logf("%d bytes came back after %d hours", freed, hours)
	close(slow.proceed)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for range 7 {
		hourly()
	}
	for name, daemon := range map[string]*archive.Archive{"a": a, "b": b} {
		to := &device{b: make([]byte, d.Size())}
		if _, err := daemon.Read(t.Context(), second.ID, to, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !bytes.Equal(to.b, d.b) {
			t.Errorf("%s: the volume came back otherwise", name)
		}
	}
}

// waiting is a volume whose first read takes long.
type waiting struct {
	*device
	once           sync.Once
	begun, proceed chan struct{}
}

func (w *waiting) ReadAt(p []byte, off int64) (int, error) {
	w.once.Do(func() {
		close(w.begun)
		<-w.proceed
	})
	return w.device.ReadAt(p, off)
}

// The clocks of daemons differ. One whose clock is behind keeps the lease that it renews, and one that
// died with a clock that is ahead does not keep it.
func TestLeaseOfAnotherClock(t *testing.T) {
	p := inBucket(t)
	var c clock
	opts := p.options()
	opts.Now = c.now
	a := open(t, opts)
	collect := func(wantHolder string) {
		t.Helper()
		if _, err := a.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if holder, err := a.LeaseHolder(t.Context()); err != nil || holder != wantHolder {
			t.Errorf("the lease is held by %q %v, want %q", holder, err, wantHolder)
		}
	}
	for renewal := range 4 {
		if err := a.PutLease(t.Context(), "behind", c.now().Add(-time.Hour).Add(time.Duration(renewal)*time.Second)); err != nil {
			t.Fatal(err)
		}
		collect("behind")
		c.advance(archive.LeaseTerm / 3)
	}
	if err := a.PutLease(t.Context(), "ahead", c.now().Add(24*365*time.Hour)); err != nil {
		t.Fatal(err)
	}
	collect("ahead")
	c.advance(archive.LeaseTerm - time.Minute)
	collect("ahead")
	c.advance(time.Minute)
	collect("")
}

// TestDaemonsBeginTogether: daemons that start at once with an empty store make one archive.
func TestDaemonsBeginTogether(t *testing.T) {
	p := inBucket(t)
	daemons := make([]*archive.Archive, 4)
	var opening sync.WaitGroup
	for i := range daemons {
		daemons[i] = archive.New(p.options())
		opening.Go(func() {
			if err := daemons[i].Open(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		return
	}
	d := randomDevice(mib, 1)
	e := write(t, daemons[0], newMeta(hangar.NewVolumeID()), d, whole(d), nil)
	for _, a := range daemons {
		if !bytes.Equal(restore(t, a, e), d.b) {
			t.Error("the volume came back otherwise")
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestKopiaRestores: the stock library finds and restores a snapshot, as `kopia restore` does.
func TestKopiaRestores(t *testing.T) {
	racetest.Skip(t)
	p := inDirectory(t)
	a := archive.New(p.options())
	if err := a.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := randomDevice(70*mib+3, 1)
	clear(d.b[20*mib : 30*mib])
	e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	ctx := t.Context()
	st, err := filesystem.New(ctx, &filesystem.Options{Path: p.blobs}, false)
	if err != nil {
		t.Fatal(err)
	}
	phrase, _ := password(ctx)
	settings := p.dir + "/kopia.config"
	if err := repo.Connect(ctx, settings, st, hex.EncodeToString(phrase), &repo.ConnectOptions{CachingOptions: content.CachingOptions{}}); err != nil {
		t.Fatal(err)
	}
	rep, err := repo.Open(ctx, settings, hex.EncodeToString(phrase), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rep.Close(ctx)
	found, err := snapshot.ListSnapshots(ctx, rep, snapshot.SourceInfo{Host: "hangar", UserName: "hangar", Path: "/" + string(e.Volume)})
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	root, err := snapshotfs.SnapshotRoot(rep, found[0])
	if err != nil {
		t.Fatal(err)
	}
	child, err := root.(fs.Directory).Child(ctx, "volume")
	if err != nil {
		t.Fatal(err)
	}
	r, err := child.(fs.File).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, d.b) {
		t.Error("the volume came back otherwise")
	}
	if _, err := st.GetMetadata(ctx, "nothing"); !errors.Is(err, blob.ErrBlobNotFound) {
		t.Error(err)
	}
}

// TestRemovedStaysRemoved writes and removes snapshots in several sessions at once. None that was
// removed is found again, and none is lost.
func TestRemovedStaysRemoved(t *testing.T) {
	a := inDirectory(t).open(t)
	var mu sync.Mutex
	want := map[hangar.SnapshotID]bool{}
	var writers sync.WaitGroup
	for w := range 6 {
		writers.Go(func() {
			volume := hangar.NewVolumeID()
			d := randomDevice(64*kib, uint64(w))
			for i := range 15 {
				e, err := a.Write(t.Context(), newMeta(volume), d, whole(d), nil, nil)
				if err == nil && i%4 > 0 {
					err = a.Remove(t.Context(), e.ID)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				want[e.ID] = i%4 == 0
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	found, err := a.Entries(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	is := map[hangar.SnapshotID]bool{}
	for _, e := range found {
		is[e.ID] = true
	}
	for id, want := range want {
		if is[id] != want {
			t.Errorf("snapshot %s is there: %t, want %t", id, is[id], want)
		}
	}
}

// TestRemovedAfterTheClockWasSetBack removes a snapshot at an earlier time than it was written.
func TestRemovedAfterTheClockWasSetBack(t *testing.T) {
	var c clock
	opts := inDirectory(t).options()
	opts.Now = c.now
	a := open(t, opts)
	c.advance(time.Hour)
	d := randomDevice(64*kib, 1)
	e := write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
	c.advance(-time.Hour)
	if err := a.Remove(t.Context(), e.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Entry(t.Context(), e.ID); !errors.Is(err, archive.ErrNotFound) {
		t.Errorf("a removed snapshot: %v", err)
	}
}

// TestMergesAtOnce removes a snapshot before one process begins a merge, or in the middle of it. Another
// process merges meanwhile, to which the earlier removal is not recent any more.
func TestMergesAtOnce(t *testing.T) {
	for name, earlier := range map[string]time.Duration{"in the middle": 0, "before": 61 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			p := inBucket(t)
			var c clock
			opts := p.options()
			opts.Now = c.now
			slow, other := p.open(t), open(t, opts)
			d := randomDevice(64*kib, 1)
			var last archive.Entry
			for range 3 {
				last = write(t, other, newMeta(hangar.NewVolumeID()), d, whole(d), nil)
			}
			remove := func() {
				if err := other.Remove(t.Context(), last.ID); err != nil {
					t.Fatal(err)
				}
			}
			if earlier > 0 {
				remove()
			}
			var once sync.Once
			merging, proceed := make(chan struct{}), make(chan struct{})
			slow.Intercept(func(s blob.Storage) blob.Storage {
				return &putting{s, func(id blob.ID) {
					if strings.HasPrefix(string(id), "q") {
						once.Do(func() {
							close(merging)
							<-proceed
						})
					}
				}}
			})
			merged := make(chan error)
			go func() { merged <- slow.Merge(t.Context()) }()
			<-merging
			if earlier == 0 {
				remove()
			}
			c.advance(earlier)
			if err := other.Merge(t.Context()); err != nil {
				t.Fatal(err)
			}
			close(proceed)
			if err := <-merged; err != nil {
				t.Fatal(err)
			}
			for _, a := range []*archive.Archive{slow, other} {
				if _, err := a.Entry(t.Context(), last.ID); !errors.Is(err, archive.ErrNotFound) {
					t.Errorf("a removed snapshot: %v", err)
				}
				if kept, err := a.Entries(t.Context(), ""); len(kept) != 2 || err != nil {
					t.Errorf("%d snapshots, %v, want 2", len(kept), err)
				}
			}
		})
	}
}

// putting calls a function before each blob is stored.
type putting struct {
	blob.Storage

	before func(blob.ID)
}

func (p *putting) PutBlob(ctx context.Context, id blob.ID, b blob.Bytes, opts blob.PutOptions) error {
	p.before(id)
	return p.Storage.PutBlob(ctx, id, b, opts)
}

// TestMerge counts the contents with manifests after merges, and looks for what was kept and removed.
func TestMerge(t *testing.T) {
	var c clock
	opts := inDirectory(t).options()
	opts.Now = c.now
	a := open(t, opts)
	d := randomDevice(64*kib, 1)
	var entries []archive.Entry
	for range 4 {
		entries = append(entries, write(t, a, newMeta(hangar.NewVolumeID()), d, whole(d), nil))
	}
	if err := a.Remove(t.Context(), entries[0].ID); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		later time.Duration
		want  int
	}{{0, 2}, {2 * time.Hour, 1}, {0, 1}} {
		c.advance(step.later)
		if err := a.Merge(t.Context()); err != nil {
			t.Fatal(err)
		}
		contents, err := a.Contents(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		contents = slices.DeleteFunc(contents, func(i content.Info) bool { return i.Deleted || i.ContentID.Prefix() != manifest.ContentPrefix })
		if len(contents) != step.want {
			t.Errorf("%d contents have manifests after %s, want %d", len(contents), step.later, step.want)
		}
		if found, err := a.Entries(t.Context(), ""); len(found) != 3 || err != nil {
			t.Errorf("%d snapshots, %v, want 3", len(found), err)
		}
	}
}

// TestClockSetBackDuringAWrite collects garbage while a session stores files that are older than its
// begin, because the clock was set back.
func TestClockSetBackDuringAWrite(t *testing.T) {
	p := inDirectory(t)
	var c clock
	opts := p.options()
	opts.Now = c.now
	a := open(t, opts)
	w := a.Begin(t)
	store := func(seed uint64) {
		t.Helper()
		if err := w.Store(t.Context(), randomDevice(30*mib, seed).b); err != nil {
			t.Fatal(err)
		}
	}
	store(1)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := p.files(t, "p")
	c.advance(-time.Hour)
	store(2)
	files := slices.DeleteFunc(p.files(t, "p"), func(file string) bool { return slices.Contains(before, file) })
	for _, file := range files {
		if err := os.Chtimes(file, c.now(), c.now()); err != nil {
			t.Fatal(err)
		}
	}
	if freed, err := a.Collect(t.Context()); freed != 0 || len(files) == 0 || err != nil {
		t.Errorf("freed %d bytes beside %d new files, %v", freed, len(files), err)
	}
}
