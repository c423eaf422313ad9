package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The ways in which a program has the kernel say that what it wrote is durable.
const (
	wayFsync     = "fsync"
	wayFdatasync = "fdatasync"
	waySync      = "O_SYNC"
	wayDsync     = "O_DSYNC"
	wayMsync     = "msync"
	waySyncfs    = "syncfs"
)

// durable writes a file of random bytes and answers an error unless the system reported, in one of
// the ways, that all of it is durable.
func durable(way, path string, size int) (err error) {
	flags := os.O_CREATE | os.O_RDWR
	switch way {
	case waySync:
		flags |= unix.O_SYNC
	case wayDsync:
		flags |= unix.O_DSYNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content := make([]byte, size)
	_, _ = rand.Read(content)
	if way == wayMsync {
		return mapped(f, content)
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	switch way {
	case wayFsync:
		return f.Sync()
	case wayFdatasync:
		return os.NewSyscallError(way, unix.Fdatasync(int(f.Fd())))
	case waySyncfs:
		return os.NewSyscallError(way, unix.Syncfs(int(f.Fd())))
	case waySync, wayDsync:
		return nil // the write has waited
	default:
		return fmt.Errorf("%q is no way to have a write durable", way)
	}
}

// mapped writes through a mapping.
func mapped(f *os.File, content []byte) (err error) {
	if err := f.Truncate(int64(len(content))); err != nil {
		return err
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, len(content), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(memory)) }()
	copy(memory, content)
	return os.NewSyscallError(wayMsync, unix.Msync(memory, unix.MS_SYNC))
}
