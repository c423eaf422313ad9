package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar/host/image/durable"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	tmp, name := filepath.Join(dir, "tmp"), filepath.Join(dir, "a", "b", "name")
	for _, d := range []string{tmp, filepath.Dir(name), filepath.Dir(name)} {
		if err := durable.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, content := range []string{"old", "new"} {
		if err := durable.WriteFile(tmp, name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(name)
		if raw, rerr := os.ReadFile(name); rerr != nil || err != nil || string(raw) != content || fi.Mode() != 0o640 {
			t.Errorf("content %q, mode %v, %v, %v", raw, fi.Mode(), rerr, err)
		}
	}
	if err := durable.WriteFile(tmp, filepath.Join(dir, "none", "name"), nil, 0o600); err == nil {
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
