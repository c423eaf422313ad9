package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/pause"
)

// lockFile is locked by the daemon as long as it lives, and holds its pid.
const lockFile = "lock"

// errLocked says that another process has the lock.
var errLocked = errors.New("the data directory is in use")

// dirLock is the exclusive right to a data directory. The kernel releases it when
// the process ends, however it ends.
type dirLock struct{ f *os.File }

// lockDir also waits for a lock that no daemon holds: a child that a killed daemon was starting holds
// it until it executes its own program. Attempts bound the wait, not time, because a server that stood
// still has not run the child either.
const (
	lockAttempts = 500
	lockPause    = 10 * time.Millisecond
)

// lockDir takes the lock of a data directory, or answers errLocked.
func lockDir(ctx context.Context, dir string) (*dirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if attempt == lockAttempts || anotherRuns(dir) {
			_ = f.Close()
			return nil, errLocked
		}
		if err := pause.For(ctx, lockPause); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	if err := writeOver(f, strconv.Itoa(os.Getpid())); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &dirLock{f}, nil
}

// anotherRuns reports whether another process is the daemon of a data directory. The pid in the lock
// file may be this process's own, reused after a kill.
func anotherRuns(dir string) bool {
	holder, err := Find(dir)
	if err != nil {
		return false
	}
	defer holder.Close()
	return holder.pid != os.Getpid()
}

// writeOver overwrites the content of a file with a line. A file that is truncated first may lose its
// block on a full disk.
func writeOver(f *os.File, line string) error {
	if _, err := f.WriteAt([]byte(line+"\n"), 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(line) + 1))
}

func (l *dirLock) release() { _ = l.f.Close() }

// writeAddress writes a file with an address at which the daemon serves. On a full disk it overwrites
// the old address, which needs no room.
func writeAddress(path, addr string) error {
	err := durable.WriteChanged(path, []byte(addr+"\n"), 0o644)
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	f, failed := os.OpenFile(path, os.O_WRONLY, 0)
	if failed != nil {
		return err // there is no old address
	}
	return errors.Join(writeOver(f, addr), f.Close())
}

// exists reports whether there is something at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
