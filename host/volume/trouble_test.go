package volume_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
	"github.com/hangar-platform/hangar/internal/loopdev"
)

// TestStorageDaemonHangs: a hanging storage daemon blocks only its own volume.
func TestStorageDaemonHangs(t *testing.T) {
	w := newWorld(t)
	sick, well := encrypted(64*mib), encrypted(64*mib)
	d, _ := w.mounted(sick)
	if byKernel(d) {
		t.Skip("there is no storage daemon")
	}
	w.create(well)
	pid := daemonPID(t, w, sick)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(1100 * time.Millisecond) // until the kernel asks for the exported file's attributes again
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error, 1)
	go func() {
		image := filepath.Join(t.TempDir(), "image")
		err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 64*mib))
		if err == nil {
			err = ext4.MakeCompact(ctx, image) // a root file system
		}
		if err != nil {
			done <- err
			return
		}
		other, err := w.Attach(ctx, well)
		if err == nil {
			_, err = w.List(ctx)
		}
		if err == nil {
			err = other.Close(finishtest.Context(t))
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("another volume waits for it")
	}
	cancel()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.close(d)
}

// TestKilledWhileItIsExtended: the error is that the volume is lost, not that a connection was
// closed.
func TestKilledWhileItIsExtended(t *testing.T) {
	w := newWorld(t)
	spec := encrypted(64 * mib)
	d, _ := w.mounted(spec)
	if byKernel(d) {
		t.Skip("there is no storage daemon")
	}
	pid := daemonPID(t, w, spec)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	extended := make(chan error, 1)
	go func() {
		_, err := d.Extend(finishtest.Context(t), 128*mib)
		extended <- err
	}()
	<-time.After(100 * time.Millisecond) // until it waits for the daemon's answer
	killDaemon(t, w, spec)
	if err := <-extended; !errors.Is(err, volume.ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	w.closeLost(d)
}

// TestFreezeWithErrors: a file system that has shut itself down after an error can be copied as it
// is, and the volume can be closed.
func TestFreezeWithErrors(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		d, dir := w.mounted(spec)
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		const ioctlShutdown, withoutJournal = 0x8004587d, 2
		err = unix.IoctlSetPointerInt(int(f.Fd()), ioctlShutdown, withoutJournal)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		view := freeze(t, d, "")
		endView(t, view)
		// Everything was synced before: whether another sync fails depends on the kernel.
		if err := d.Close(finishtest.Context(t)); err != nil && !errors.Is(err, volume.ErrUnsynced) {
			t.Errorf("closed: %v", err)
		}
		w.mount(w.attach(spec))
	})
}

// TestLimitsEnd: a process that was killed during a freeze leaves no limits behind.
func TestLimitsEnd(t *testing.T) {
	w := newWorld(t)
	spec := encrypted(64 * mib)
	d, _ := w.mounted(spec)
	var st unix.Stat_t
	if err := unix.Stat(d.Path(), &st); err != nil {
		t.Fatal(err)
	}
	limit := fmt.Sprintf("/sys/class/bdi/%d:%d/strict_limit", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	if err := os.WriteFile(limit, []byte("1"), 0); err != nil {
		t.Skip("this kernel has no limits: ", err)
	}
	w.reopen()
	d = w.attach(spec)
	if is, err := os.ReadFile(limit); err != nil || string(is) != "0\n" {
		t.Errorf("the limit is %q, %v", is, err)
	}
	w.close(d)
}

// TestMountedWithoutLoopDevice: a mount stays, with the storage daemon below it, even if the process
// that takes over finds no loop device. Without a mount, the volume is opened afresh.
func TestMountedWithoutLoopDevice(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		w.create(spec)
		d := w.attach(spec)
		if byKernel(d) {
			t.Skip("there is no storage daemon")
		}
		pid := daemonPID(t, w, spec)
		dir := filepath.Join(w.options.Run, string(spec.ID), "mnt")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := loopdev.Detach(d.Path()); err != nil {
			t.Fatal(err)
		}
		w.reopen()
		if _, err := w.Attach(t.Context(), spec); err == nil {
			t.Error("taken over without a loop device")
		}
		if mounted, err := ext4.IsMounted(dir); err != nil || !mounted || daemonPID(t, w, spec) != pid {
			t.Fatalf("the mount is there: %v, %v", mounted, err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
		d = w.attach(spec)
		if daemonPID(t, w, spec) == pid {
			t.Error("the storage daemon is still the same")
		}
		w.close(d)
	})
}
