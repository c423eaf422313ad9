package durable_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/hangar-platform/hangar/internal/durable"
)

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, tt := range []struct {
		data string
		perm os.FileMode
	}{{"first", 0o600}, {"", 0o644}, {strings.Repeat("long", 1<<16), 0o666}} {
		if err := durable.WriteFile(path, []byte(tt.data), tt.perm); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != tt.data {
			t.Fatalf("%d bytes came back, %v; want %d", len(got), err, len(tt.data))
		}
		if info, _ := os.Stat(path); info.Mode() != tt.perm {
			t.Errorf("mode %v, want %v", info.Mode(), tt.perm)
		}
	}
}

// TestWriteChanged: the file is only replaced if its content or its mode differs.
func TestWriteChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var before os.FileInfo
	for _, tt := range []struct {
		data     string
		perm     os.FileMode
		replaces bool
	}{{"first", 0o600, true}, {"first", 0o600, false}, {"other", 0o600, true}, {"other", 0o644, true}, {"", 0o644, true}, {"", 0o644, false}} {
		if err := durable.WriteChanged(path, []byte(tt.data), tt.perm); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(got) != tt.data || info.Mode() != tt.perm {
			t.Fatalf("%q with mode %v, %v; want %q with %v", got, info.Mode(), err, tt.data, tt.perm)
		}
		if replaced := before == nil || !os.SameFile(before, info); replaced != tt.replaces {
			t.Errorf("%q with %v: replaced %v", tt.data, tt.perm, replaced)
		}
		before = info
	}
}

func TestWriteLeavesNothingOnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "taken", "child"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "taken"), []byte("x"), 0o600); err == nil {
		t.Error("replaced a directory")
	}
	if err := durable.WriteFile(filepath.Join(dir, "missing", "file"), []byte("x"), 0o600); err == nil {
		t.Error("wrote into a directory that does not exist")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// TestWriteFileVia makes directories, and leaves nothing in the one for temporary files.
func TestWriteFileVia(t *testing.T) {
	dir := t.TempDir()
	tmp, name := filepath.Join(dir, "tmp"), filepath.Join(dir, "a", "b", "name")
	for _, d := range []string{tmp, filepath.Dir(name), filepath.Dir(name)} {
		if err := durable.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, content := range []string{"old", "new"} {
		if err := durable.WriteFileVia(tmp, name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(name)
		if raw, rerr := os.ReadFile(name); rerr != nil || err != nil || string(raw) != content || fi.Mode() != 0o640 {
			t.Errorf("content %q, mode %v, %v, %v", raw, fi.Mode(), rerr, err)
		}
	}
	if err := durable.WriteFileVia(tmp, filepath.Join(dir, "none", "name"), nil, 0o600); err == nil {
		t.Error("wrote into a directory that is not there")
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := durable.SyncTree(dir); err != nil {
		t.Error(err)
	}
	if err := durable.MkdirAll(filepath.Join(name, "below"), 0o700); err == nil {
		t.Error("made a directory in a file")
	}
}

// TestReadersSeeWholeFiles writes two contents to one path while others read it.
func TestReadersSeeWholeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	contents := []string{strings.Repeat("a", 10_000), strings.Repeat("b", 20_000)}
	if err := durable.WriteFile(path, []byte(contents[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for _, c := range contents {
		writers.Go(func() {
			for range 50 {
				if err := durable.WriteFile(path, []byte(c), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				got, err := os.ReadFile(path)
				if err != nil || string(got) != contents[0] && string(got) != contents[1] {
					t.Errorf("read %d bytes, %v", len(got), err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
}

// unsynced is content after which its file cannot be synced.
type unsynced struct{ io.Reader }

func (unsynced) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, "half")
	return int64(n), errors.Join(err, w.(io.Closer).Close())
}

// TestCopyNew: a copy replaces no file, and leaves none if it breaks off or cannot be synced.
func TestCopyNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for what, content := range map[string]io.Reader{
		"breaks off": iotest.ErrReader(io.ErrUnexpectedEOF), "is not synced": unsynced{strings.NewReader("")},
	} {
		if _, err := durable.CopyNew(path, content); err == nil {
			t.Errorf("%s: no error", what)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file is left: %v", what, err)
		}
	}
	if n, err := durable.CopyNew(path, strings.NewReader("one")); n != 3 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if _, err := durable.CopyNew(path, strings.NewReader("other")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second copy: %v", err)
	}
	if got, err := os.ReadFile(path); string(got) != "one" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := durable.Remove(dir); err == nil {
		t.Error("a directory with a file was removed")
	}
	for range 2 { // the second time it is missing
		if err := errors.Join(durable.Remove(file), durable.Remove(dir)); err != nil {
			t.Error(err)
		}
	}
}
