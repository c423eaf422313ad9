package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/finish"
)

// unmountPatience limits the wait for the users of a volume to release it.
const unmountPatience = 5 * time.Second

// unmountPause is the interval between two attempts.
const unmountPause = 10 * time.Millisecond

// thaw ends the freeze of an earlier process.
func (v *Volumes) thaw(id hangar.VolumeID) error {
	return ifMounted(v.mountPoint(id), func(dir *os.File) error {
		_, err := ext4.Thaw(dir)
		return err
	})
}

// syncAll flushes the file system that is mounted on a directory.
func syncAll(dir string) error {
	return ifMounted(dir, func(dir *os.File) error {
		if err := unix.Syncfs(int(dir.Fd())); err != nil {
			return fmt.Errorf("sync %s: %w", dir.Name(), err)
		}
		return nil
	})
}

// ifMounted calls do with an open directory if something is mounted on it.
func ifMounted(dir string, do func(dir *os.File) error) error {
	mounted, err := ext4.IsMounted(dir)
	if err != nil || !mounted {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f)
}

// unmountAll detaches all mounts of a directory, even ones in use.
func unmountAll(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
}

// unmount unmounts a directory once it is no longer in use.
func unmount(ctx finish.Context, dir string) error {
	return eventually(ctx, func() (bool, error) {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			return false, fmt.Errorf("unmount %s: files are in use", dir)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return true, fmt.Errorf("unmount %s: %w", dir, err)
		}
		return true, nil
	})
}

// awaitUnused waits until no mount namespace has the device mounted: a sandbox that started meanwhile
// may have copied our mount.
func awaitUnused(ctx context.Context, device string) error {
	return eventually(ctx, func() (bool, error) {
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EBUSY) {
			return false, fmt.Errorf("%s is still in use", device)
		}
		if err != nil {
			return true, fmt.Errorf("open %s: %w", device, err)
		}
		return true, unix.Close(fd)
	})
}

// eventually repeats do until it is done, or until unmountPatience has passed.
func eventually(ctx context.Context, do func() (done bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, unmountPatience)
	defer cancel()
	ticker := time.NewTicker(unmountPause)
	defer ticker.Stop()
	for {
		done, err := do()
		if done {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}
