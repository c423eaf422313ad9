package replica

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// aside counts the files with transactions that the node had and its primary lacked.
type aside struct {
	mu    sync.Mutex
	files int
	bytes int64
}

func (n *Node) asideDir() string { return filepath.Join(n.c.Data, "diverged") }

// kept counts files that were put aside.
func (n *Node) kept(db string, files int, size int64) {
	n.aside.mu.Lock()
	n.aside.files += files
	n.aside.bytes += size
	n.aside.mu.Unlock()
	n.c.Log.Warn("transactions that the primary lacks were put aside", "db", db, "files", files, "bytes", size,
		"dir", filepath.Join(n.asideDir(), db))
}

func (a *aside) now() (files int, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.files, a.bytes
}

// count counts the existing files.
func (a *aside) count(dir string) error { return a.remove(dir, time.Time{}) }

// remove removes files older than a time, and counts the rest.
func (a *aside) remove(dir string, before time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.files, a.bytes = 0, 0
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.ModTime().Before(before) {
			return root.Remove(path)
		}
		a.files++
		a.bytes += info.Size()
		return nil
	})
}
