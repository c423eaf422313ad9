package volume_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestExtend: a growing volume keeps its content; its file system grows immediately or at the next
// mount.
func TestExtend(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		ctx := t.Context()
		d, dir := w.mounted(spec)
		if err := os.WriteFile(filepath.Join(dir, "file"), bytes.Repeat([]byte("content"), mib), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Extend(finishtest.Context(t), 32*mib); err == nil {
			t.Error("made smaller")
		}
		if _, err := d.Extend(finishtest.Context(t), 64*mib+1); err == nil {
			t.Error("extended by a byte")
		}
		f := freeze(t, d, "mark")
		if _, err := d.Extend(finishtest.Context(t), 96*mib); !errors.Is(err, volume.ErrFrozen) {
			t.Errorf("extended under a view: %v", err)
		}
		endView(t, f)
		before, err := d.Usage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		online, err := d.Extend(finishtest.Context(t), 96*mib)
		if err != nil {
			t.Fatal(err)
		}
		after, err := d.Usage(ctx)
		if err != nil || online != (after.Blocks > before.Blocks) {
			t.Errorf("online %t: from %d to %d blocks, %v", online, before.Blocks, after.Blocks, err)
		}
		w.close(d)
		d = w.attach(spec) // with the size that it had
		m := w.mount(d)
		if m.Grown == online {
			t.Errorf("mounted: %+v", m)
		}
		if after, err = d.Usage(ctx); err != nil || after.Total() < 80*mib {
			t.Errorf("usage %+v, %v", after, err)
		}
		if b, err := os.ReadFile(filepath.Join(m.Dir, "file")); err != nil || !bytes.Equal(b, bytes.Repeat([]byte("content"), mib)) {
			t.Errorf("content after growing: %d bytes, %v", len(b), err)
		}
		f = freeze(t, d, "")
		if f.Size() != 96*mib {
			t.Errorf("size of a view: %d", f.Size())
		}
		if list, known, err := f.Changed(ctx, "mark"); err != nil || known != counts(d) || known && list.Length() == 0 {
			t.Errorf("changed: %v, %t, %v", list, known, err)
		}
		endView(t, f)
		w.close(d)
		spec.Size = 96 * mib
		d = w.attach(spec)
		if err := d.Check(ctx); err != nil {
			t.Error(err)
		}
		w.close(d)
	})
}

// TestClearedBlocks: cleared blocks read as zeros, or the clearing program gets an error.
func TestClearedBlocks(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		w.create(spec)
		d := w.attach(spec)
		device, err := os.OpenFile(d.Path(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer device.Close()
		for name, mode := range map[string]uint32{
			"hole": unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, "zeros": unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE,
		} {
			if _, err := device.WriteAt(bytes.Repeat([]byte{0xaa}, mib), mib); err != nil {
				t.Fatal(err)
			}
			if err := device.Sync(); err != nil {
				t.Fatal(err)
			}
			err := unix.Fallocate(int(device.Fd()), mode, mib, mib)
			b := make([]byte, mib)
			if _, err := device.ReadAt(b, mib); err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(b, []byte{0xaa}); err == nil && n > 0 {
				t.Errorf("%s: %d bytes are not cleared", name, n)
			}
		}
		_ = device.Close()
		w.close(d)
	})
}

// TestUnrepairable: a file system that e2fsck cannot repair is not mounted, and stays unchanged.
func TestUnrepairable(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		ctx := t.Context()
		d, dir := w.mounted(spec)
		if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
			t.Fatal(err)
		}
		w.close(d)
		d = w.attach(spec)
		target, err := d.Fill(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{1024, 4096} { // the superblock, and the group descriptors
			if _, err := target.WriteAt(bytes.Repeat([]byte{0x55}, 3072), at); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := target.WriteAt(bytes.Repeat([]byte{0x55}, 8*mib), 32<<10); err != nil { // the inodes
			t.Fatal(err)
		}
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		if err := d.Check(ctx); !errors.Is(err, volume.ErrUnrepairable) {
			t.Errorf("check: %v", err)
		}
		_, err = d.Mount(ctx)
		if !errors.Is(err, volume.ErrUnrepairable) {
			t.Errorf("mount: %v", err)
		}
		t.Log(err)
		if err := d.Format(ctx); !errors.Is(err, volume.ErrNotBlank) {
			t.Errorf("format: %v", err)
		}
		w.close(d)
	})
}

// TestRepaired: slight damage is repaired and reported.
func TestRepaired(t *testing.T) {
	w := newWorld(t)
	spec := encrypted(64 * mib)
	d, dir := w.mounted(spec)
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.close(d)
	d = w.attach(spec)
	// A file whose inode is lost, and a file system that is marked as faulty.
	for _, request := range []string{"clri file", "set_super_value state 2"} {
		if out, err := exec.CommandContext(t.Context(), "debugfs", "-w", "-R", request, d.Path()).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if m, err := d.MountClean(t.Context()); !errors.Is(err, volume.ErrUnclean) {
		t.Errorf("mounted as if it were clean: %+v, %v", m, err)
	}
	m := w.mount(d)
	if !m.Repaired || m.Replayed || m.Report == "" {
		t.Errorf("mounted: %+v", m)
	}
	w.close(d)
	d = w.attach(spec)
	if err := d.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if m, err := d.MountClean(t.Context()); err != nil || m.Dir == "" {
		t.Errorf("mounted: %+v, %v", m, err)
	}
	w.close(d)
}
