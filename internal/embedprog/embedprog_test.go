package embedprog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

func pack(t *testing.T, content []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := z.EncodeAll(content, nil)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return packed
}

func TestLocateUnpacksOnce(t *testing.T) {
	content := bytes.Repeat([]byte("program "), 10_000)
	files := fstest.MapFS{"embedded/prog.zst": {Data: pack(t, content)}}
	dir := t.TempDir()
	var paths [4]string
	var wg sync.WaitGroup
	for i := range paths {
		wg.Go(func() {
			path, err := Locate(files, "prog", dir)
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
	entries, err := os.ReadDir(filepath.Join(dir, "bin"))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files in %s, %v", len(entries), dir, err)
	}
	// Another content gets a name of its own beside the first.
	files["embedded/prog.zst"] = &fstest.MapFile{Data: pack(t, []byte("newer"))}
	if path, err := Locate(files, "prog", dir); err != nil || path == paths[0] {
		t.Errorf("newer content is at %s, %v", path, err)
	}
}

func TestLocateLeavesNothingOfNonsense(t *testing.T) {
	dir := t.TempDir()
	files := fstest.MapFS{"embedded/prog.zst": {Data: []byte("not compressed")}}
	if _, err := Locate(files, "prog", dir); err == nil {
		t.Error("unpacked nonsense")
	}
	if entries, _ := os.ReadDir(filepath.Join(dir, "bin")); len(entries) != 0 {
		t.Errorf("%d files after a failure", len(entries))
	}
}

func TestLocateOfNothing(t *testing.T) {
	if path, err := Locate(fstest.MapFS{}, "no-such-program", t.TempDir()); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %q, %v", path, err)
	}
}
