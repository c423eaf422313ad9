package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLimitMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	name := fmt.Sprintf("hangar-cgrouptest-%d", os.Getpid())
	for _, bytes := range []int64{256 << 20, 128 << 20} { // made, and then changed
		dir, err := LimitMemory(name, bytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = Remove(dir) })
		_, limit, err := Memory(name)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, limit))
		if err != nil || strings.TrimSpace(string(raw)) != fmt.Sprint(bytes) {
			t.Errorf("the limit is %q, %v, want %d", raw, err, bytes)
		}
	}
	dir, _, err := Memory(name)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it may be gone already
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the group is left: %v", err)
	}
}

func TestNamesOfGroups(t *testing.T) {
	for _, bad := range []string{"", ".", "..", ".hidden", "a/b", "/a"} {
		if dir, _, err := Memory(bad); err == nil {
			t.Errorf("%q is taken for %s", bad, dir)
		}
	}
}
