package program_test

import (
	"errors"
	"os"
	"testing"

	"github.com/hangar-platform/hangar/host/guest/program"
	"github.com/hangar-platform/hangar/internal/embedprog"
)

func TestLocate(t *testing.T) {
	path, err := program.Locate(t.TempDir())
	if errors.Is(err, embedprog.ErrNotFound) {
		return // not built by make, and a test has no program beside it
	}
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%s: %v", path, err)
	}
}
