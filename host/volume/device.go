package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Device is a volume that is open as a block device. It stays open until Close or Release, even
// if this process ends.
type Device struct {
	v      *Volumes
	handle handle

	// The fields below are changed with the volume's lock held.
	image  image
	frozen *Frozen // the open view, or nil
	// synced and unsynced are the result of the sync in close: unsynced is its error.
	synced   bool
	unsynced error

	filling atomic.Pointer[imageTarget] // the open target that writes into the image; or nil
	forced  atomic.Bool                 // a release has begun, even if it failed
}

// lock waits for the lock of the volume. It returns ErrLost if the device is gone.
func (d *Device) lock(ctx context.Context) (unlock func(), err error) {
	unlock, err = d.v.lock(ctx, d.image.id)
	if err != nil {
		return nil, err
	}
	if d.v.device(d.image.id) != d {
		unlock()
		return nil, fmt.Errorf("volume %s: %w: it was closed", d.image.id, ErrLost)
	}
	if err := d.Err(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// Path is the block device.
func (d *Device) Path() string { return d.handle.path() }

// Lost is closed when the block device fails by itself; Err returns the reason. Synced data is in the
// image. Afterwards only Close and Release work.
func (d *Device) Lost() <-chan struct{} { return d.handle.lost() }

// Err is nil until the device is lost, or released.
func (d *Device) Err() error {
	if d.forced.Load() {
		return fmt.Errorf("volume %s: %w: it was released", d.image.id, ErrLost)
	}
	if err := d.handle.err(); err != nil {
		return fmt.Errorf("volume %s: %w: %w", d.image.id, ErrLost, err)
	}
	return nil
}

// ending is how long a process may take to end after the device that it serves has failed.
const ending = 200 * time.Millisecond

// withLoss adds ErrLost to the error of an operation on a handle whose device is lost.
func withLoss(h handle, err error) error {
	timer := time.NewTimer(ending)
	defer timer.Stop()
	select {
	case <-h.lost():
	case <-timer.C:
	}
	if lost := h.err(); lost != nil {
		return fmt.Errorf("%w: %w\n%w", ErrLost, lost, err)
	}
	return err
}

func (d *Device) dir() string { return d.v.mountPoint(d.image.id) }

// unmounted is lock for operations that need a device without a mount.
func (d *Device) unmounted(ctx context.Context) (unlock func(), err error) {
	if unlock, err = d.lock(ctx); err != nil {
		return nil, err
	}
	mounted, err := ext4.IsMounted(d.dir())
	if err == nil && mounted {
		err = fmt.Errorf("volume %s: %w", d.image.id, ErrMounted)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// Format makes an ext4 file system. If anything was ever written, even by an earlier Format, it
// returns ErrNotBlank. An interrupted Format does not count.
func (d *Device) Format(ctx context.Context) error {
	unlock, err := d.unmounted(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	mark := filepath.Join(d.v.dir(d.image.id), formatFile)
	blank, err := d.image.isBlank(ctx)
	if err != nil {
		return err
	}
	if !blank {
		if _, err := os.Lstat(mark); err != nil {
			return fmt.Errorf("format volume %s: %w", d.image.id, ErrNotBlank)
		}
		if err := d.image.blank(); err != nil {
			return err
		}
	}
	if err := durable.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	if err := ext4.Make(ctx, d.Path()); err != nil {
		return fmt.Errorf("format volume %s: %w", d.image.id, err)
	}
	return unmark(mark)
}

// Mounted is the result of Mount.
type Mounted struct {
	Dir      string
	Replayed bool   // the file system was not unmounted; its journal was replayed
	Repaired bool   // e2fsck repaired it beyond the journal
	Grown    bool   // the file system is larger than it was
	Report   string // the output of e2fsck, for people
}

// Mount mounts the file system. It first repairs one that was not unmounted, and grows one that is
// smaller than the device. It returns ErrUnrepairable, with the reason, for one that must not be
// mounted. For a mounted file system it only returns the directory.
func (d *Device) Mount(ctx context.Context) (Mounted, error) { return d.mounted(ctx, true) }

// MountClean is Mount for a file system that needs no repair, except after an interrupted growth,
// which it repairs as Mount does. It returns ErrUnclean for another, which it leaves as it is.
func (d *Device) MountClean(ctx context.Context) (Mounted, error) { return d.mounted(ctx, false) }

func (d *Device) mounted(ctx context.Context, repair bool) (Mounted, error) {
	unlock, err := d.lock(ctx)
	if err != nil {
		return Mounted{}, err
	}
	defer unlock()
	m := Mounted{Dir: d.dir()}
	mounted, err := ext4.IsMounted(m.Dir)
	if err != nil || mounted {
		return m, err
	}
	if err := d.mount(ctx, &m, repair); err != nil {
		return Mounted{}, fmt.Errorf("mount volume %s: %w", d.image.id, withLoss(d.handle, err))
	}
	return m, nil
}

func (d *Device) mount(ctx context.Context, m *Mounted, repair bool) error {
	sb, err := d.superblock(ctx, m, repair)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return err
	}
	small := sb.Size()+sb.BlockSize <= d.image.size
	if err := ext4.Mount(d.Path(), m.Dir); err != nil {
		return err
	}
	if !small {
		return nil
	}
	err = ext4.GrowMounted(m.Dir, d.image.size)
	if !errors.Is(err, unix.EPERM) {
		m.Grown = err == nil
		if err != nil {
			err = errors.Join(err, d.unmount(ctx))
		}
		return err
	}
	// The kernel may refuse to grow a mounted file system; resize2fs can grow an unmounted one.
	if err := d.unmount(ctx); err != nil {
		return err
	}
	if err := d.growUnmounted(ctx); err != nil {
		return err
	}
	m.Grown = true
	return ext4.Mount(d.Path(), m.Dir)
}

// growPatience bounds the growth of a file system, which takes time in proportion to its metadata.
// An interrupted growth starts again.
const growPatience = 30 * time.Minute

// growUnmounted grows the file system to the size of the device. A marker file exists until it has
// finished, for endGrowth.
func (d *Device) growUnmounted(ctx context.Context) error {
	if _, _, err := ext4.Repair(ctx, d.Path(), true); err != nil {
		return repairError(err)
	}
	mark := filepath.Join(d.v.dir(d.image.id), growFile)
	if err := durable.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	err := finish.Do(ctx, growPatience, func(ctx finish.Context) error { return ext4.Grow(ctx, d.Path()) })
	if err != nil {
		return err
	}
	return unmark(mark)
}

// endGrowth repairs an unmounted file system after an interrupted growUnmounted. Growth does not
// change files, so every repair that e2fsck proposes is safe.
func (d *Device) endGrowth(ctx context.Context) error {
	mark := filepath.Join(d.v.dir(d.image.id), growFile)
	if _, err := os.Lstat(mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	report, err := ext4.RepairAll(ctx, d.Path())
	if err != nil {
		return repairError(err)
	}
	d.v.o.Log.WarnContext(ctx, "volume repaired after an interrupted growth of its file system", "volume", d.image.id, "report", report)
	return unmark(mark)
}

// unmark removes a marker file, durably.
func unmark(mark string) error {
	return errors.Join(durable.Remove(mark), durable.SyncDir(filepath.Dir(mark)))
}

// unmount undoes Mount.
func (d *Device) unmount(ctx context.Context) error {
	return finish.Do(ctx, finishPatience, func(ctx finish.Context) error { return unmount(ctx, d.dir()) })
}

// superblock returns the superblock of a file system that may be mounted, repaired if necessary.
func (d *Device) superblock(ctx context.Context, m *Mounted, repair bool) (ext4.Superblock, error) {
	if err := d.endGrowth(ctx); err != nil {
		return ext4.Superblock{}, err
	}
	sb, err := ext4.ReadSuperblock(d.Path())
	if err != nil && !errors.Is(err, ext4.ErrNone) {
		return sb, err
	}
	if err == nil && sb.Clean && !sb.Journal {
		return sb, nil
	}
	if !repair {
		return sb, ErrUnclean
	}
	found := err == nil
	m.Repaired, m.Report, err = ext4.Repair(ctx, d.Path(), false)
	if err != nil {
		return sb, repairError(err)
	}
	m.Replayed = found && sb.Journal
	if sb, err = ext4.ReadSuperblock(d.Path()); err == nil && sb.Journal {
		err = fmt.Errorf("%w: the journal is still to be replayed: %s", ErrUnrepairable, m.Report)
	}
	return sb, err
}

func repairError(err error) error {
	if !errors.Is(err, ext4.ErrUnrepairable) {
		return err
	}
	return fmt.Errorf("%w: %s", ErrUnrepairable, strings.TrimPrefix(err.Error(), ext4.ErrUnrepairable.Error()+": "))
}

// Usage returns the usage of the file system, or zero while it is not mounted.
func (d *Device) Usage(ctx context.Context) (hangar.VolumeUsage, error) {
	unlock, err := d.lock(ctx)
	if err != nil {
		return hangar.VolumeUsage{}, err
	}
	defer unlock()
	mounted, err := ext4.IsMounted(d.dir())
	if err != nil || !mounted {
		return hangar.VolumeUsage{}, err
	}
	return ext4.Usage(d.dir())
}

// Extend makes the image and the device size bytes large, durably. It also grows a mounted file
// system, if the kernel allows it; otherwise online is false and the next Mount grows it. It may be
// repeated.
func (d *Device) Extend(ctx finish.Context, size int64) (online bool, err error) {
	unlock, err := d.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if size%sizeUnit != 0 || size < d.image.size {
		return false, fmt.Errorf("extend volume %s from %d to %d bytes: not larger, or not whole MiB", d.image.id, d.image.size, size)
	}
	if d.frozen != nil {
		return false, fmt.Errorf("extend volume %s: %w", d.image.id, ErrFrozen)
	}
	if err := d.v.take(d.image, d.image.payload+size); err != nil {
		return false, fmt.Errorf("extend volume %s: %w", d.image.id, err)
	}
	if err := d.handle.grow(ctx, size); err != nil {
		return false, fmt.Errorf("extend volume %s: %w", d.image.id, withLoss(d.handle, err))
	}
	d.image.size = size
	mounted, err := ext4.IsMounted(d.dir())
	if err != nil || !mounted {
		return false, err
	}
	switch err := ext4.GrowMounted(d.dir(), size); {
	case errors.Is(err, unix.EPERM):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("extend volume %s: %w", d.image.id, withLoss(d.handle, err))
	}
	return true, nil
}

// Check checks the whole file system of a device that is not mounted, and changes nothing. It returns
// ErrUnrepairable with the fault.
func (d *Device) Check(ctx context.Context) error {
	unlock, err := d.unmounted(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := ext4.Check(ctx, d.Path()); err != nil {
		return fmt.Errorf("check volume %s: %w", d.image.id, repairError(err))
	}
	return nil
}

// Close unmounts the volume and ends the device and an open view. When it returns nil, everything is
// durable and nothing is left on the host. On ErrLost and ErrUnsynced the device has ended as well,
// but some writes may not be on disk. A device that is still in use stays open. Close may be
// repeated.
func (d *Device) Close(ctx finish.Context) error {
	unlock, err := d.v.lock(ctx, d.image.id)
	if err != nil {
		return err
	}
	defer unlock()
	if d.v.device(d.image.id) != d {
		return nil
	}
	lost := d.Err()
	if lost != nil {
		err = d.v.release(ctx, d.image.id)
	} else {
		err = d.close(ctx)
	}
	if err != nil {
		return fmt.Errorf("close volume %s: %w", d.image.id, err)
	}
	if d.synced {
		return d.unsynced
	}
	return lost
}

func (d *Device) close(ctx context.Context) error {
	if err := errors.Join(d.endFilling(), d.v.thaw(d.image.id)); err != nil {
		return err
	}
	if err := syncAll(d.dir()); err != nil {
		// A file system that has shut itself down rejects every write, and retrying does not help.
		d.v.o.Log.ErrorContext(ctx, "volume is closed with unwritten data, which is lost", "volume", d.image.id, "error", err)
		d.unsynced = fmt.Errorf("volume %s: %w: %w", d.image.id, ErrUnsynced, err)
	}
	d.synced = true
	// The earlier steps may have used up the time of ctx.
	return finish.Do(ctx, finishPatience, d.end)
}

// end ends a device after all its data is on disk.
func (d *Device) end(ctx finish.Context) error {
	if err := unmount(ctx, d.dir()); err != nil {
		return err
	}
	if d.frozen != nil {
		if err := d.frozen.end(ctx); err != nil {
			return err
		}
	}
	err := awaitUnused(ctx, d.Path())
	if err == nil {
		err = d.handle.close(ctx)
	}
	if err != nil {
		// All data is on disk and nothing here uses the device. A mount namespace that was created
		// meanwhile may keep a copy of the mount as long as it exists, which is no reason to keep the
		// volume open.
		d.v.o.Log.WarnContext(ctx, "volume ends by force", "volume", d.image.id, "error", err)
		return d.v.release(ctx, d.image.id)
	}
	d.v.forget(d.image.id)
	return d.v.sweep(d.image.id)
}
