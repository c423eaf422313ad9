package volume_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// both are all backends.
var both = []volume.Backend{volume.BackendKernel, volume.BackendDaemon}

// needBoth skips a test unless the host supports every backend.
func needBoth(t *testing.T) {
	t.Helper()
	for _, b := range both {
		if err := volume.New(volume.Options{Dir: t.TempDir(), Run: t.TempDir(), Instance: instance(), Backend: b}).Open(t.Context()); err != nil {
			t.Skipf("volumes that one backend opens after the other are not tested: %v. `make vm` tests them in a machine whose kernel has device mapper", err)
		}
	}
}

// by returns the volumes of a world as opened by another process that prefers a backend.
func (w *world) by(b volume.Backend) *world {
	w.Helper()
	other := &world{T: w.T, options: w.options}
	other.options.Backend = b
	other.Volumes = volume.New(other.options)
	if err := other.Open(w.Context()); err != nil {
		w.Fatal(err)
	}
	return other
}

// TestBackendsTakeTurns: backends and cryptsetup open each other's images, and find all written
// data.
func TestBackendsTakeTurns(t *testing.T) {
	needBoth(t)
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		w.create(spec)
		for i, b := range []volume.Backend{volume.BackendKernel, volume.BackendDaemon, volume.BackendKernel} {
			w := w.by(b)
			d := w.attach(spec)
			if i == 0 {
				if err := d.Format(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Check(t.Context()); err != nil {
				t.Error(err)
			}
			dir := w.mount(d).Dir
			for j := range i {
				content, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(j)))
				if err != nil || !bytes.Equal(content, bytes.Repeat([]byte{byte(j)}, mib)) {
					t.Errorf("by %s, file %d: %v", b, j, err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), bytes.Repeat([]byte{byte(i)}, mib), 0o600); err != nil {
				t.Fatal(err)
			}
			w.close(d)
			withCryptsetup(t, w, spec, fmt.Sprint(i))
		}
	})
}

// withCryptsetup finds a file in an image without using this package.
func withCryptsetup(t *testing.T, w *world, spec volume.Spec, file string) {
	t.Helper()
	if spec.Key == nil {
		return
	}
	name := "hangar-test-" + instance()
	open := exec.CommandContext(t.Context(), luks.Program, "open", "--key-file", "-", w.image(spec), name)
	open.Stdin = bytes.NewReader(luks.Passphrase(spec.Key))
	if out, err := open.CombinedOutput(); err != nil {
		t.Fatalf("cryptsetup: %v: %s", err, out)
	}
	defer func() {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), luks.Program, "close", name).CombinedOutput(); err != nil {
			t.Errorf("cryptsetup: %v: %s", err, out)
		}
	}()
	dir := t.TempDir()
	if err := unix.Mount("/dev/mapper/"+name, dir, "ext4", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Size() != mib {
		t.Errorf("by cryptsetup: %v, %v", info, err)
	}
}

// TestBackendIsKept: a volume stays with the backend that has it open until it is closed, even if
// the next process prefers another.
func TestBackendIsKept(t *testing.T) {
	needBoth(t)
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		w.create(spec)
		for i, b := range both {
			first, second := w.by(b), w.by(both[1-i])
			d := first.attach(spec)
			path := d.Path()
			if i == 0 {
				if err := d.Format(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			first.mount(d)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			d = second.attach(spec)
			if d.Path() != path {
				t.Errorf("%s is %s of %s now", path, d.Path(), both[1-i])
			}
			second.close(d)
			if d = second.attach(spec); d.Path() == path && i == 0 {
				t.Errorf("%s is still of %s", path, b)
			}
			second.close(d)
			// The same without adopting it.
			first.attach(spec)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			second = w.by(both[1-i])
			if ids, err := second.List(t.Context()); err != nil || len(ids) != 1 {
				t.Errorf("open: %v, %v", ids, err)
			}
			if err := second.Release(finishtest.Context(t), spec.ID); err != nil {
				t.Error(err)
			}
			if ids, err := first.List(t.Context()); err != nil || len(ids) != 0 {
				t.Errorf("open: %v, %v", ids, err)
			}
		}
	})
}

// TestChangesAreForgotten: the kernel counts no changes, so counts from before it had the volume
// open cannot be relied on.
func TestChangesAreForgotten(t *testing.T) {
	needBoth(t)
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		daemon, kernel := w.by(volume.BackendDaemon), w.by(volume.BackendKernel)
		known := func(d *volume.Device) bool {
			f, err := d.Freeze(t.Context(), "mark")
			if err != nil {
				t.Fatal(err)
			}
			_, ok, err := f.Changed(t.Context(), "before")
			if err = errors.Join(err, f.Close(finishtest.Context(t))); err != nil {
				t.Fatal(err)
			}
			return ok
		}
		daemon.create(spec)
		d := daemon.attach(spec)
		if err := d.Format(t.Context()); err != nil {
			t.Fatal(err)
		}
		f, err := d.Freeze(t.Context(), "before")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(finishtest.Context(t)); err != nil {
			t.Fatal(err)
		}
		daemon.close(d)
		d = daemon.attach(spec)
		if !known(d) {
			t.Error("changes are not known although no other process had it open")
		}
		daemon.close(d)
		d = kernel.attach(spec)
		if known(d) {
			t.Error("the kernel counts changes")
		}
		kernel.close(d)
		d = daemon.attach(spec)
		if known(d) {
			t.Error("changes are known though the kernel had it open")
		}
		daemon.close(d)
	})
}

// TestExtendMounted: a mounted volume grows immediately if this process may do that.
func TestExtendMounted(t *testing.T) {
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		t.Fatal(err)
	}
	if caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		t.Skip("growing mounted file systems is not tested: root lacks CAP_SYS_RESOURCE. `make vm` tests it")
	}
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		d, dir := w.mounted(spec)
		for size := int64(96 * mib); size <= 160*mib; size += 32 * mib {
			if online, err := d.Extend(finishtest.Context(t), size); err != nil || !online {
				t.Fatalf("to %d: %v, %v", size, online, err)
			}
			if u, err := d.Usage(t.Context()); err != nil || u.Total() < size*8/10 {
				t.Errorf("of %d: %+v, %v", size, u, err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 120*mib), 0o600); err != nil {
			t.Fatal(err)
		}
		w.close(d)
		spec.Size = 160 * mib
		d = w.attach(spec)
		if err := d.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if m := w.mount(d); m != (volume.Mounted{Dir: m.Dir}) {
			t.Errorf("the file system needed care: %+v", m)
		}
		w.close(d)
	})
}
