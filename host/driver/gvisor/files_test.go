package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver"
)

// TestWriteFiles writes into a root file system with links and files that lead outside.
func TestWriteFiles(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	dir := t.TempDir()
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "srv", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "srv", "old"), []byte("something longer"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	link(outside, "out")                  // absolute: starts at the Machine's root
	link("../../../../../../srv", "up")   // ends at the Machine's root
	link("/srv/deep", "inside")           // leads to another directory of the Machine
	link("/srv/new", "file")              // a link to a file that is not there yet
	link("/nowhere", "dangling")          // no directory
	link("loop", "loop")                  //
	link("/proc/self/root"+outside, "ma") // through the host's /proc, which is not there
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	for _, tt := range []struct{ path, at string }{ // at: empty: it cannot be written
		{"/new", "new"},
		{"/a/b/c/file", "a/b/c/file"},
		{"/srv/old", "srv/old"},
		{"/up/file", "srv/file"},
		{"/inside/file", "srv/deep/file"},
		{"/inside/more/file", "srv/deep/more/file"},
		{"/file", "srv/new"},
		{"/out/file", ""},
		{"/ma/file", ""},
		{"/dangling/file", ""},
		{"/loop/file", ""},
		{"/loop", ""},
		{"/fifo", ""},
		{"/fifo/file", ""},
		{"/srv", ""},
	} {
		err := writeFiles(root, []driver.File{{Path: tt.path, Content: []byte("content"), Mode: 0o4640}})
		if tt.at == "" {
			if err == nil || !strings.Contains(err.Error(), tt.path) {
				t.Errorf("%s: %v, want an error that names it", tt.path, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		file := filepath.Join(dir, tt.at)
		content, err := os.ReadFile(file)
		if err != nil || string(content) != "content" {
			t.Errorf("%s: %q, %v", tt.at, content, err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err != nil || st.Mode&0o7777 != 0o4640 || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("%s: mode %o of %d:%d, %v", tt.at, st.Mode, st.Uid, st.Gid, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("written outside of the root file system: %v, %v", left, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "a", "b")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("directory that was made: %v, %v", info, err)
	}
}

// TestOpenBesideRenames: the kernel refuses a path with ".." that it looks up during a rename, even one
// elsewhere.
func TestOpenBesideRenames(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	one, other := filepath.Join(elsewhere, "one"), filepath.Join(elsewhere, "other")
	if err := os.Mkdir(one, 0o755); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var renaming sync.WaitGroup
	defer renaming.Wait()
	defer close(done)
	renaming.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := errors.Join(unix.Rename(one, other), unix.Rename(other, one)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	up := strings.Repeat("a/../", 400)
	for range 2000 {
		fd, err := inRoot(root, up, unix.O_PATH)
		if err == nil {
			err = unix.Close(fd)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
