package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver"
)

// writeFiles writes the files of a Machine into its root file system.
func writeFiles(root int, files []driver.File) error {
	for i := range files {
		if err := writeFile(root, &files[i]); err != nil {
			return fmt.Errorf("write %s: %w", files[i].Path, err)
		}
	}
	return nil
}

// writeFile follows links as the guest would, so it never leaves the root file system.
func writeFile(root int, f *driver.File) error {
	if err := makeParents(root, path.Dir(f.Path)); err != nil {
		return err
	}
	// O_NONBLOCK, because the image may have a FIFO without a reader at this path.
	fd, err := inRoot(root, f.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), f.Path)
	defer out.Close()
	if info, err := out.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return errors.New("the path exists and is not a file")
	}
	if err := out.Truncate(0); err != nil {
		return err
	}
	if _, err := out.Write(f.Content); err != nil {
		return err
	}
	// The owner first, because chown clears the setuid and setgid bits.
	return errors.Join(unix.Fchown(fd, 0, 0), unix.Fchmod(fd, f.Mode))
}

// makeParents makes the directory name and its parents where they are missing.
func makeParents(root int, name string) error {
	name = strings.TrimLeft(name, "/")
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' {
			continue
		}
		dir := name[:i]
		if dir == "" {
			continue
		}
		if err := makeParent(root, dir); err != nil {
			return fmt.Errorf("make /%s: %w", dir, err)
		}
	}
	return nil
}

// makeParent makes the directory name, whose parent exists.
func makeParent(root int, name string) error {
	fd, err := inRoot(root, name, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		return unix.Close(fd)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent, err := inRoot(root, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }()
	base := path.Base(name)
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return err // even for a dangling link
	}
	return unix.Fchmodat(parent, base, 0o755, 0) // regardless of the umask
}
