package volume_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestAllocated: the complete size of a volume is allocated, and stays allocated after files are
// removed, but a view only has written data.
func TestAllocated(t *testing.T) {
	kinds(t, 256*mib, func(t *testing.T, w *world, spec volume.Spec) {
		spec.Allocate = true
		d, dir := w.mounted(spec)
		taken := func(what string) {
			t.Helper()
			var st unix.Stat_t
			if err := unix.Stat(w.image(spec), &st); err != nil {
				t.Fatal(err)
			}
			if st.Blocks*512 < spec.Size {
				t.Errorf("%s: the image has %d of %d bytes", what, st.Blocks*512, spec.Size)
			}
		}
		shown := func() int64 {
			t.Helper()
			view := freeze(t, d, "")
			data, err := view.Data(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			endView(t, view)
			return data.Length()
		}
		taken("new")
		empty := shown()
		if empty > 32*mib {
			t.Errorf("%d bytes of an empty volume are shown as written", empty)
		}
		name := filepath.Join(dir, "file")
		if err := os.WriteFile(name, bytes.Repeat([]byte("8 bytes\n"), 4*mib), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := shown() - empty; n < 32*mib || n > 40*mib {
			t.Errorf("%d bytes more are shown for a file of %d", n, 32*mib)
		}
		taken("written")
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		taken("emptied")
		w.close(d)
	})
}

// TestFormatBesideAReader: a page of an allocated image that something reads is none that was written.
func TestFormatBesideAReader(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		spec.Allocate = true
		w.create(spec)
		d := w.attach(spec)
		f, err := os.Open(w.image(spec))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		pages, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if pages[len(pages)-1] != 0 { // keeps the page in memory
			t.Error("the image ends with something")
		}
		unmapped := make(chan error, 1)
		time.AfterFunc(50*time.Millisecond, func() { unmapped <- unix.Munmap(pages) })
		if err := d.Format(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-unmapped; err != nil {
			t.Error(err)
		}
		w.close(d)
	})
}

// TestTooLargeToAllocate: a volume for whose complete size the disk has no room takes none of it.
func TestTooLargeToAllocate(t *testing.T) {
	const disk = 512 * mib
	for _, kind := range disktest.Kinds() {
		t.Run(kind, func(t *testing.T) {
			dir := disktest.Mount(t, kind, disk)
			w := newWorld(t)
			w.options.Dir = dir
			w.reopen()
			spec := plain(2 * disk)
			w.create(spec)
			spec.Allocate = true
			d := w.attach(spec)
			if _, err := d.Extend(finishtest.Context(t), 3*disk); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("extended: %v", err)
			}
			var st unix.Stat_t
			if err := unix.Stat(w.image(spec), &st); err != nil {
				t.Fatal(err)
			}
			if st.Blocks*512 > mib {
				t.Errorf("the image took %d bytes", st.Blocks*512)
			}
			w.close(d)
		})
	}
}

// TestCannotAllocate: where the file system cannot allocate, a volume is sparse, and may be larger than the room on the
// disk.
func TestCannotAllocate(t *testing.T) {
	const disk = 512 * mib
	w := newWorld(t)
	w.options.Dir = disktest.Mount(t, "ext3", disk)
	w.reopen()
	spec := plain(2 * disk)
	spec.Allocate = true
	w.create(spec)
	d := w.attach(spec)
	if _, err := d.Extend(finishtest.Context(t), 3*disk); err != nil {
		t.Error(err)
	}
	w.close(d)
}
