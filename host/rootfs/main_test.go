package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/loopdev"
	"github.com/hangar-platform/hangar/internal/mounttest"
)

// childEnv makes the test binary the process that TestKilled kills; see runChild.
const childEnv = "HANGAR_TEST_ROOTFS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(runChild(dir))
	}
	if os.Getuid() != 0 {
		fmt.Println("skipped: loop devices need root")
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const (
	mib = 1 << 20
	// patience is for what the kernel does in a moment, on a server that is busy.
	patience = time.Minute
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// from is what a mount begins with that may keep the layer.
func from(fresh bool) rootfs.From {
	if fresh {
		return rootfs.Fresh
	}
	return rootfs.Kept
}

// newDir returns a directory of which nothing may be left on the server after the test.
func newDir(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "layers")
	tb.Cleanup(func() {
		l := rootfs.New(rootfs.Options{Dir: dir})
		ids, err := l.List()
		must(tb, err)
		for _, id := range ids {
			must(tb, l.Remove(id))
		}
		nothingLeft(tb, dir)
	})
	return dir
}

func open(tb testing.TB, o rootfs.Options) *rootfs.Layers {
	tb.Helper()
	o.Log = slog.New(slog.NewTextHandler(tb.Output(), nil))
	l := rootfs.New(o)
	must(tb, l.Open(tb.Context()))
	tb.Cleanup(func() { must(tb, l.Close()) })
	return l
}

// nothingLeft fails unless the server has no device and no mount of a directory.
func nothingLeft(tb testing.TB, dir string) {
	tb.Helper()
	eventually(tb, func() error {
		if left := devices(tb, dir); len(left) > 0 {
			return fmt.Errorf("devices are left: %v", left)
		}
		return nil
	})
	mounts, err := mounttest.Mentioning(dir)
	must(tb, err)
	for _, m := range mounts {
		tb.Errorf("a mount is left: %+v", *m)
	}
}

// devices returns the loop devices of files in a directory.
func devices(tb testing.TB, dir string) []loopdev.Device {
	tb.Helper()
	all, err := loopdev.List(func(string) bool { return false })
	must(tb, err)
	var found []loopdev.Device
	for _, d := range all {
		if strings.HasPrefix(d.File, dir+"/") {
			found = append(found, d)
		}
	}
	return found
}

func eventually(tb testing.TB, check func() error) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// smallDisk mounts a file system of its own, as a server's that can be filled.
func smallDisk(tb testing.TB, size int64) string {
	tb.Helper()
	dir := tb.TempDir()
	f, err := os.CreateTemp(tb.TempDir(), "disk")
	must(tb, err)
	defer f.Close()
	must(tb, f.Truncate(size))
	must(tb, ext4.Make(tb.Context(), f.Name()))
	dev, err := loopdev.Open(f, loopdev.Config{Direct: true, AutoClear: true})
	must(tb, err)
	defer dev.Close()
	must(tb, ext4.Mount(dev.Name(), dir))
	tb.Cleanup(func() { must(tb, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fill writes to a file, with a sync of each part, until that fails.
func fill(path string, most int64) (written int64, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	part := []byte(strings.Repeat("hangar! ", mib/8))
	for written < most {
		n, err := f.Write(part)
		written += int64(n)
		if err := errors.Join(err, f.Sync()); err != nil {
			return written, err
		}
	}
	return written, nil
}

// fillFiles makes files until that fails.
func fillFiles(dir string) (n int, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, err
	}
	for {
		fd, err := unix.Open(filepath.Join(dir, fmt.Sprint(n)), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return n, err
		}
		if err := unix.Close(fd); err != nil {
			return n, err
		}
		n++
	}
}

// child is a process that runs runChild.
func child(tb testing.TB, dir string) *exec.Cmd {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	must(tb, err)
	cmd.Stderr = tb.Output()
	must(tb, cmd.Start())
	_, err = io.ReadFull(out, make([]byte, 1)) // it has started to work
	must(tb, err)
	return cmd
}

// runChild repeats every operation on layers.
func runChild(dir string) int {
	ctx := context.Background()
	l := rootfs.New(rootfs.Options{Dir: dir, Size: layerSize, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err := l.Open(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(".")
	for i := int64(0); ; i++ {
		for _, id := range machines {
			err := l.Mount(ctx, id, layerSize+(i%4)*16*mib, from(i%3 == 0))
			if err == nil {
				err = os.WriteFile(filepath.Join(l.Path(id), "data"), []byte("written"), 0o600)
			}
			if err == nil {
				err = l.Reserve(id)
			}
			if err == nil && i%2 == 0 {
				err = l.Unmount(id)
			}
			if err == nil && i%7 == 6 {
				err = l.Remove(id)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
	}
}
