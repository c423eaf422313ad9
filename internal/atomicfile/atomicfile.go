// Package atomicfile replaces files so that a reader, also one after a crash,
// finds either the old content or the new, whole.
//
// When Write has returned, the new content survives a power cut. A crash in the
// middle may leave a file named like the target with ".tmp" and digits added.
//
// Concurrent writers of one path do not disturb one another: the last rename
// wins. The package does not lock and does not merge.
package atomicfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// Write makes data the content of the file at path, whose mode becomes perm,
// unaffected by the umask.
func Write(path string, data []byte, perm os.FileMode) (err error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	f, err := os.CreateTemp(dir, name+".tmp*") // mode 0600 until Chmod
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(perm); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// WriteChanged is Write for content that is there already most of the time: it needs no
// room on the disk then. An error to read the old content is no error.
func WriteChanged(path string, data []byte, perm os.FileMode) error {
	if !same(path, data, perm) {
		return Write(path, data, perm)
	}
	// A Write that a crash cut short may have left its name in memory only.
	return SyncDir(filepath.Dir(path))
}

// same reports whether a file has this content and this mode.
func same(path string, data []byte, perm os.FileMode) bool {
	if info, err := os.Lstat(path); err != nil || info.Mode() != perm || info.Size() != int64(len(data)) {
		return false
	}
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, data)
}

// SyncDir makes the names in a directory durable: files that were created,
// renamed or removed in it.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		_ = d.Close()
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return d.Close()
}
