package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/flock"
	"github.com/hangar-platform/hangar/internal/loopdev"
)

// blockSize is the block size of the file system and of its device.
const blockSize = 4096

// label marks the devices of layers, for operators.
const label = "hangar layer"

// attach makes a device of a locked file. It ends when the returned file is closed and no file
// system on it is mounted.
func (l *Layers) attach(image *os.File) (*os.File, error) {
	l.attaching.Lock()
	defer l.attaching.Unlock()
	return loopdev.Open(image, loopdev.Config{Label: label, BlockSize: blockSize, Direct: true, AutoClear: true})
}

// place moves a detached mount to a directory.
func place(mount *os.File, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", dir, os.NewSyscallError("move_mount", err))
	}
	return nil
}

// mountKept mounts an existing layer.
func (l *Layers) mountKept(ctx context.Context, id hangar.MachineID, size int64) error {
	image, err := os.OpenFile(l.image(id), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	if err := lock(ctx, image); err != nil {
		return err
	}
	info, err := image.Stat()
	if err != nil {
		return err
	}
	if info.Size() < size {
		if err := image.Truncate(size); err != nil {
			return err
		}
	}
	dev, err := l.attach(image)
	if err != nil {
		return err
	}
	// Programs that repair and grow are killed with this process, and have the device open: the
	// file stays locked until the last of them has ended.
	defer dev.Close()
	if err := l.settle(ctx, id, dev.Name(), max(size, info.Size())); err != nil {
		return err
	}
	mount, err := ext4.MountDetached(dev.Name())
	if err != nil {
		return err
	}
	defer mount.Close()
	if err := releaseReserve(reachable(mount)); err != nil {
		return err
	}
	return place(mount, l.Path(id))
}

// growPatience bounds the growth of a file system, which takes time in proportion to its metadata.
// An interrupted growth starts again.
const growPatience = 30 * time.Minute

// settle makes a file system fit to be mounted: without known errors, and as large as its device.
// The kernel replays the journal.
func (l *Layers) settle(ctx context.Context, id hangar.MachineID, device string, size int64) error {
	if undone, err := ext4.Undo(ctx, device, l.growing(id)); err != nil {
		return repairError(err)
	} else if undone {
		l.o.Log.WarnContext(ctx, "writable layer was interrupted while its file system grew, which is undone", "machine", id)
	}
	sb, err := ext4.ReadSuperblock(device)
	if errors.Is(err, ext4.ErrNone) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	grows := sb.Size()+sb.BlockSize <= size
	if sb.Clean && !grows {
		return nil
	}
	if _, _, err := ext4.Repair(ctx, device, grows); err != nil {
		return repairError(err)
	}
	if !grows {
		return nil
	}
	return finish.Do(ctx, growPatience, func(ctx finish.Context) error { return ext4.GrowCompact(ctx, device, l.growing(id)) })
}

// growing is the undo file of a layer's growth. It exists while the file system grows.
func (l *Layers) growing(id hangar.MachineID) string { return l.Path(id) + ".growing" }

func repairError(err error) error {
	if !errors.Is(err, ext4.ErrUnrepairable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// lockPatience is how long another process may take to close the file.
const lockPatience = 10 * time.Second

// lock locks a file for as long as it is open, in this process or as a device.
func lock(ctx context.Context, image *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	return flock.Wait(ctx, image)
}

// reachable is a path to the root of a detached mount.
func reachable(mount *os.File) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(mount.Fd())))
}
