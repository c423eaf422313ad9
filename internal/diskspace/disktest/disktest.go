// Package disktest makes small file systems for tests that fill a disk.
package disktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The kinds of file systems.
const (
	Ext4  = "ext4"
	XFS   = "xfs"
	Btrfs = "btrfs"
)

// Kinds returns the kinds of file systems on which a data directory may be.
func Kinds() []string { return []string{Ext4, XFS, Btrfs} }

// Mount makes a file system in a sparse file of size bytes, and mounts it until the test ends. It
// skips the test where that is impossible.
func Mount(tb testing.TB, kind string, size int64) string {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root to mount a file system")
	}
	makeFS, err := exec.LookPath("mkfs." + kind)
	if err != nil {
		tb.Skipf("there is no mkfs.%s", kind)
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(known), "\t"+kind+"\n") {
		tb.Skipf("the kernel has no %s: %v", kind, err)
	}
	// Short, because sockets may be below it.
	base, err := os.MkdirTemp("", "hfs") //nolint:usetesting // a TempDir is named after the test and too long
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			tb.Error(err)
		}
	})
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "disk")
	err = errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(dir, 0o700))
	if err != nil {
		tb.Fatal(err)
	}
	args := map[string][]string{Ext4: {"-q", "-F", "-m", "0"}, XFS: {"-q", "-f"}, Btrfs: {"-q", "-f", "-M"}}[kind]
	run(tb, makeFS, append(args, image)...)
	run(tb, "mount", "-o", "loop", "-t", kind, image, dir)
	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func run(tb testing.TB, program string, args ...string) {
	tb.Helper()
	if out, err := exec.CommandContext(tb.Context(), program, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

// Fill writes to a new file in dir until the disk has no room for another byte, or leave bytes are
// free. It returns the file's name.
func Fill(tb testing.TB, dir string, leave int64) string {
	tb.Helper()
	f, err := os.CreateTemp(dir, "fill")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	if err := FillFile(f, leave); err != nil {
		tb.Fatal(err)
	}
	return f.Name()
}

// FillFile is Fill for an open file. It allocates blocks, which fills a disk as well as writing them,
// and faster.
func FillFile(f *os.File, leave int64) error {
	const largest, least = 64 << 20, 4 << 10
	at := int64(0)
	for size := int64(largest); size >= least; {
		var st unix.Statfs_t
		if err := errors.Join(f.Sync(), unix.Fstatfs(int(f.Fd()), &st)); err != nil && !errors.Is(err, unix.ENOSPC) {
			return err
		}
		if leave > 0 && int64(st.Bavail)*st.Bsize < leave+size {
			size /= 2
			continue
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, at, size); {
		case errors.Is(err, unix.ENOSPC):
			size /= 2 // smaller pieces may fit
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			at += size
		}
	}
	return nil
}
