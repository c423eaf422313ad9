package diskspace

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Part is the disk usage of one directory, with everything below it.
type Part struct {
	Name   string
	Bytes  int64
	Inodes int64
}

// Parts returns the disk usage of the directories in a data directory, the largest first. Files that
// disappear meanwhile, or are on another disk, do not count.
func Parts(dir string) ([]Part, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var own unix.Stat_t
	if err := unix.Stat(dir, &own); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	var parts []Part
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		p := Part{Name: e.Name()}
		err := filepath.WalkDir(filepath.Join(dir, e.Name()), func(path string, d fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil {
				err = unix.Lstat(path, &st)
			}
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case st.Dev != own.Dev && d.IsDir():
				return fs.SkipDir
			}
			const block = 512
			p.Bytes += st.Blocks * block
			p.Inodes++
			return nil
		})
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return parts, nil
}
