// Package durable writes files and directories so that a reader, also one after a crash of the
// server, finds under a name either the whole new content or the old one.
//
// Once a function other than Remove returns, the published name and content survive a power cut. Functions may be
// called from many goroutines: of two that publish the same name, one wins. The package does not
// lock, and does not remove the temporary files that a crash leaves.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unfinished is part of the name of each temporary file that a crash may leave, except for those of
// WriteFileVia.
const Unfinished = ".tmp-"

// WriteFile writes data to the file name, with this mode regardless of the umask.
func WriteFile(name string, data []byte, mode os.FileMode) error {
	return WriteTo(name, all(data), mode)
}

// WriteTo is WriteFile for content that a function writes.
func WriteTo(name string, content func(io.Writer) error, mode os.FileMode) error {
	return write(filepath.Dir(name), filepath.Base(name)+Unfinished+"*", name, content, mode)
}

// WriteFileVia is WriteFile with its temporary file in the directory tmp, which must be on the same
// file system.
func WriteFileVia(tmp, name string, data []byte, mode os.FileMode) error {
	return write(tmp, "write-*", name, all(data), mode)
}

func all(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

func write(tmp, pattern, name string, content func(io.Writer) error, mode os.FileMode) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", name, err)
		}
	}()
	f, err := os.CreateTemp(tmp, pattern) // mode 0600 until Chmod
	if err != nil {
		return err
	}
	if err = content(f); err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(filepath.Dir(name))
}

// CopyNew copies r to a new file with mode 0600, and returns its size in bytes. It returns an error that is
// fs.ErrExist if name exists. A failed copy leaves no file, but a crash may leave a part of it.
func CopyNew(name string, r io.Reader) (int64, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, errors.Join(err, os.Remove(name))
	}
	return n, SyncDir(filepath.Dir(name))
}

// WriteChanged is WriteFile for content that rarely changes: an unchanged file needs no room on the
// disk. A failure to read the old content is not an error.
func WriteChanged(name string, data []byte, mode os.FileMode) error {
	if !same(name, data, mode) {
		return WriteFile(name, data, mode)
	}
	// An interrupted write may have left its name in memory only.
	return SyncDir(filepath.Dir(name))
}

// same reports whether a file has this content and this mode.
func same(name string, data []byte, mode os.FileMode) bool {
	if info, err := os.Lstat(name); err != nil || info.Mode() != mode || info.Size() != int64(len(data)) {
		return false
	}
	old, err := os.ReadFile(name)
	return err == nil && bytes.Equal(old, data)
}

// Rename moves a file or directory whose content is already on disk.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// Remove removes a file or an empty directory, if there is one. Unless SyncDir follows, a power cut may bring it back.
func Remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// MkdirAll makes a directory and its parents, and syncs their names to disk.
func MkdirAll(name string, mode os.FileMode) error {
	if fi, err := os.Stat(name); err == nil && fi.IsDir() {
		return nil
	}
	parent := filepath.Dir(name)
	if parent != name {
		if err := MkdirAll(parent, mode); err != nil {
			return err
		}
	}
	if err := os.Mkdir(name, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// Allocate allocates the blocks of the first size bytes of a file, with a mode of fallocate(2), so that a
// later write there needs no room.
func Allocate(fd int, mode uint32, size int64) error {
	err := unix.Fallocate(fd, mode, 0, size)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(fd, mode, 0, size)
	}
	return err
}

// SyncDir syncs the names in a directory to disk, after files were created, renamed or removed in it.
func SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// SyncTree syncs everything below a directory to disk, with the rest of its file system. This is far
// cheaper than one call per file.
func SyncTree(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
