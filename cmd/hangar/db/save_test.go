package db

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// unsynced is content after which its file cannot be synced.
type unsynced struct{ io.Reader }

func (unsynced) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, "half")
	return int64(n), errors.Join(err, w.(io.Closer).Close())
}

// TestFailedExportLeavesNoFile: neither if the content breaks off, nor if it cannot be synced.
func TestFailedExportLeavesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.db")
	for what, content := range map[string]io.Reader{
		"breaks off": iotest.ErrReader(io.ErrUnexpectedEOF), "is not synced": unsynced{strings.NewReader("")},
	} {
		if err := save(file, content); err == nil {
			t.Errorf("%s: no error", what)
		}
		if _, err := os.Lstat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file is left: %v", what, err)
		}
	}
}
