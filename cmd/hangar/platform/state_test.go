package platform

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestFailedCopyLeavesNoFile: a copy that breaks off is removed, so that it can be tried again.
func TestFailedCopyLeavesNoFile(t *testing.T) {
	to := filepath.Join(t.TempDir(), "copy")
	if _, err := copyFile(to, t.TempDir()); err == nil { // a directory can be opened, but not read
		t.Error("no error")
	}
	if _, err := os.Lstat(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}
