package engine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestUnpack(t *testing.T) {
	content := bytes.Repeat([]byte("program "), 10_000)
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := z.EncodeAll(content, nil)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "bin")
	var paths [4]string
	var wg sync.WaitGroup
	for i := range paths {
		wg.Go(func() {
			path, err := unpack(packed, dir)
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	wg.Wait()
	got, err := os.ReadFile(paths[0])
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("unpacked %d bytes, %v", len(got), err)
	}
	info, err := os.Stat(paths[0])
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files in %s, %v", len(entries), dir, err)
	}
	if _, err := unpack([]byte("not compressed"), dir); err == nil {
		t.Error("unpacked nonsense")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files after a failure", len(entries))
	}
}

func TestLocate(t *testing.T) {
	path, err := Locate(t.TempDir())
	if errors.Is(err, ErrNotFound) {
		return // not built by make, and a test has no program beside it
	}
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%s: %v", path, err)
	}
}
