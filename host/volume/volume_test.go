package volume_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestLife: a volume keeps its content, from its creation to its removal.
func TestLife(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		ctx := t.Context()
		if err := w.Verify(ctx, spec); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("before it is made: %v", err)
		}
		w.create(spec)
		if err := w.Create(ctx, spec); !errors.Is(err, fs.ErrExist) {
			t.Errorf("made twice: %v", err)
		}
		if err := w.Verify(ctx, spec); err != nil {
			t.Fatal(err)
		}
		d := w.attach(spec)
		if u, err := d.Usage(ctx); err != nil || u != (hangar.VolumeUsage{}) {
			t.Errorf("usage of a blank volume: %+v, %v", u, err)
		}
		if err := d.Format(ctx); err != nil {
			t.Fatal(err)
		}
		if err := d.Format(ctx); !errors.Is(err, volume.ErrNotBlank) {
			t.Errorf("formatted twice: %v", err)
		}
		m := w.mount(d)
		if m != (volume.Mounted{Dir: m.Dir}) {
			t.Errorf("a new file system needed care: %+v", m)
		}
		u, err := d.Usage(ctx)
		if err != nil || u.FSType != hangar.FSExt4 || u.Total() < 32*mib {
			t.Errorf("usage: %+v, %v", u, err)
		}
		if err := d.Format(ctx); !errors.Is(err, volume.ErrMounted) {
			t.Errorf("formatted while mounted: %v", err)
		}
		file := filepath.Join(m.Dir, "hello")
		if err := os.WriteFile(file, []byte("world"), 0o600); err != nil {
			t.Fatal(err)
		}
		if ids, err := w.List(ctx); err != nil || len(ids) != 1 || ids[0] != spec.ID {
			t.Errorf("open: %v, %v", ids, err)
		}
		w.close(d)
		w.close(d)
		if ids, err := w.List(ctx); err != nil || len(ids) != 0 {
			t.Errorf("open after closing: %v, %v", ids, err)
		}
		openWithOthers(t, w, spec)

		d = w.attach(spec)
		if err := d.Check(ctx); err != nil {
			t.Error(err)
		}
		if m = w.mount(d); m != (volume.Mounted{Dir: m.Dir}) {
			t.Errorf("a clean file system needed care: %+v", m)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != "world" {
			t.Errorf("content %q, %v", b, err)
		}
		if err := w.Remove(finishtest.Context(t), spec.ID); err == nil {
			t.Error("removed while it was open")
		}
		w.close(d)
		room, err := w.Room(ctx)
		if err != nil || room.Free <= 0 || room.Total < room.Free || room.Images[spec.ID] <= 0 || room.Images[spec.ID] > 32*mib {
			t.Errorf("room: %+v, %v", room, err)
		}
		for range 2 {
			if err := w.Remove(finishtest.Context(t), spec.ID); err != nil {
				t.Fatal(err)
			}
		}
		if left, err := os.ReadDir(w.options.Dir); err != nil || len(left) != 0 {
			t.Errorf("left of a removed volume: %v, %v", left, err)
		}
	})
}

// openWithOthers opens an image with standard programs.
func openWithOthers(t *testing.T, w *world, spec volume.Spec) {
	t.Helper()
	image := w.image(spec)
	kind := "raw"
	if spec.Key != nil {
		kind = "luks"
		cmd := exec.CommandContext(t.Context(), "cryptsetup", "open", "--test-passphrase", "--key-file", "-", image)
		cmd.Stdin = bytes.NewReader([]byte(hex.EncodeToString(spec.Key)))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("cryptsetup: %v: %s", err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), "qemu-img", "info", "-f", kind, image).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("virtual size: 64 MiB")) {
		t.Errorf("qemu-img: %v: %s", err, out)
	}
}

// TestCloseLeavesWhatIsOpen: open volumes outlive their process; if none is open, nothing is left.
func TestCloseLeavesWhatIsOpen(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		w.create(spec)
		device := w.attach(spec).Path()
		again := func() {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := w.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		again()
		d := w.attach(spec)
		if d.Path() != device {
			t.Errorf("%s is %s now", device, d.Path())
		}
		w.close(d)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(w.options.Run); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("nothing is open, and %s: %v", w.options.Run, err)
		}
		if err := w.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestUnfinishedFiles: a partial file, left by a kill during a write beside the files of an open
// volume, prevents neither closing nor reopening it.
func TestUnfinishedFiles(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		w.create(spec)
		left := filepath.Join(w.options.Run, string(spec.ID), "changes.tmp123")
		leave := func() {
			t.Helper()
			err := os.MkdirAll(filepath.Dir(left), 0o700) // the kernel's backend has none yet
			if err := errors.Join(err, os.WriteFile(left, []byte("half"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		d := w.attach(spec)
		leave()
		w.close(d)
		w.attach(spec)
		leave()
		if err := w.Release(finishtest.Context(t), spec.ID); err != nil {
			t.Fatal(err)
		}
		w.close(w.attach(spec))
		if _, err := os.Stat(filepath.Dir(left)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its run directory is there: %v", err)
		}
	})
}
