// Package durable writes files and directories so that after a crash of the
// server there is the whole of them under their name, or nothing.
//
// Every function that publishes a name has returned only when the name and what
// it stands for are on disk. Functions may be called from many goroutines; two
// that publish the same name leave one of the two. The package does not clean up
// the temporary names that a crash leaves, which live in a directory of the
// caller's choice.
package durable

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteFile makes name hold data. A crash leaves the old content or the new one;
// tmp is a directory on the same file system.
func WriteFile(tmp, name string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(tmp, "write-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return Rename(f.Name(), name)
}

// Rename moves a file or directory whose content is already on disk.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir puts the names in a directory on disk.
func SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// MkdirAll makes a directory and those above it, and puts their names on disk.
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

// SyncTree puts everything beneath a directory on disk, with all else that its
// file system holds: far cheaper than one call per file.
func SyncTree(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
