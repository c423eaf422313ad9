// Package rootfs keeps the writable layers of Machines, each in a file system that is as large as the Machine may make it.
//
// A layer is an ext4 file system in a sparse file, mounted from a loop device. When a Machine
// fills it, the Machine gets ENOSPC, for bytes and for files alike, and never its server. What it
// has synced survives a kill and a loss of power, as the journal of ext4 and that of the file
// system below have it; what it frees returns to the server.
//
// No device and no mount outlives its use without a record of it: a device ends when the file
// system on it is unmounted, and a layer that no Machine has yet is mounted nowhere but in this
// process, and ends with it. A file is locked, across processes, for as long as it backs a
// device, so that it never becomes two devices.
//
// A few layers are made before they are needed, which takes their making off the start of a
// Machine. Options.Unbounded keeps layers in plain directories, for servers without loop
// devices.
//
// Methods may be called from many goroutines, for one Machine one at a time. The package
// starts a goroutine that makes layers, and one for each that is removed; Close ends them.
package rootfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ext4"
)

// DefaultSize is the size of a layer without a configured one, in bytes.
const DefaultSize = 8 << 30

var (
	// ErrDamaged says that a layer cannot be mounted, or that it is missing although it must exist.
	ErrDamaged = errors.New("the writable layer is damaged")
	// ErrLost says that some unsynced writes of a Machine did not reach the disk.
	ErrLost = errors.New("not all of the writable layer reached the disk")
)

// Options of Layers.
type Options struct {
	Dir  string // where the layers are; it is made for root alone
	Size int64  // in bytes, of a layer that Mount gets no size for; 0: DefaultSize
	// Unbounded keeps layers in directories, which are as large as the disk.
	Unbounded bool
	Log       *slog.Logger
}

// Layers are the writable layers of the Machines of a server.
type Layers struct {
	o      Options
	spares spares

	attaching sync.Mutex    // held while a loop device is made: concurrent calls would choose the same
	closing   chan struct{} // closed by Close
	work      sync.WaitGroup
}

// New returns Layers that Open makes usable.
func New(o Options) *Layers {
	o.Size = cmp.Or(o.Size, DefaultSize)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Layers{o: o, closing: make(chan struct{})}
}

// Open removes what an earlier process has left unfinished, and makes a first layer, which shows
// that the server can.
func (l *Layers) Open(ctx context.Context) error {
	if err := errors.Join(os.MkdirAll(l.o.Dir, 0o700), os.Chmod(l.o.Dir, 0o700)); err != nil { //nolint:gosec // a directory
		return err
	}
	if err := errors.Join(l.sweep(), l.removeMountPoints()); err != nil {
		return err
	}
	if l.o.Unbounded {
		return nil
	}
	if err := os.Mkdir(l.spareDir(), 0o700); err != nil {
		return err
	}
	s, err := l.make(ctx, l.o.Size)
	if err != nil {
		return fmt.Errorf("make a writable layer: %w", err)
	}
	l.spares.put(s)
	l.refillLater()
	return nil
}

// sweep removes layers that never belonged to a Machine, and discarded directories of Unbounded.
func (l *Layers) sweep() error {
	old, err := filepath.Glob(filepath.Join(l.o.Dir, "*"+discardedSuffix))
	if err != nil {
		return err
	}
	for _, path := range append(old, l.spareDir()) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// removeMountPoints removes mount points that remain after a power failure: where no layer is
// mounted there must be no place to write to. It removes no layer of the other kind, of an earlier
// process with or without Unbounded, and answers an error instead.
func (l *Layers) removeMountPoints() error {
	ids, err := l.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if l.o.Unbounded {
			switch _, err := os.Lstat(l.image(id)); {
			case err == nil:
				return fmt.Errorf("%s is a root file system of a server without --rootfs-unbounded; start without it, or remove what is no longer needed", l.image(id))
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
			continue
		}
		mounted, err := l.Mounted(id)
		if err == nil && !mounted {
			err = os.Remove(l.Path(id))
		}
		switch {
		case errors.Is(err, unix.ENOTEMPTY):
			return fmt.Errorf("%s is a root file system of a server with --rootfs-unbounded; start with it, or remove what is no longer needed", l.Path(id))
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

// Close ends this process's work on layers. Those of Machines stay mounted.
func (l *Layers) Close() error {
	select {
	case <-l.closing:
		return nil
	default:
		close(l.closing)
	}
	l.work.Wait()
	var errs []error
	for s := l.spares.take(); s != nil; s = l.spares.take() {
		errs = append(errs, s.discard())
	}
	return errors.Join(errs...)
}

// Path is where the layer of a Machine is while it is mounted.
func (l *Layers) Path(id hangar.MachineID) string { return filepath.Join(l.o.Dir, string(id)) }

// imageSuffix is the suffix of a layer's file.
const imageSuffix = ".img"

func (l *Layers) image(id hangar.MachineID) string { return l.Path(id) + imageSuffix }

// From is what a layer begins with when it is mounted.
type From int

// What a layer begins with.
const (
	Fresh    From = iota // nothing: it is a new one
	Kept                 // what it has; it is a new one if there is none
	Existing             // what it has; it must exist
)

// Mount mounts the layer of a Machine at Path. It is size bytes large, as Options say if size is 0. A
// kept layer may grow, and stays as it is if it is larger. A mounted layer is kept or replaced
// likewise. It answers ErrDamaged.
//
// The few files that the platform writes to the layer before the Machine runs find room even in a
// full one. Reserve takes that room away again.
func (l *Layers) Mount(ctx context.Context, id hangar.MachineID, size int64, from From) error {
	if err := l.mount(ctx, id, cmp.Or(size, l.o.Size), from); err != nil {
		return fmt.Errorf("mount the writable layer of machine %s: %w", id, err)
	}
	return nil
}

func (l *Layers) mount(ctx context.Context, id hangar.MachineID, size int64, from From) error {
	if l.o.Unbounded {
		return l.directory(id, from)
	}
	if from == Fresh {
		return l.mountFresh(ctx, id, size)
	}
	mounted, err := l.Mounted(id)
	if err != nil {
		return err
	}
	if mounted {
		return releaseReserve(l.Path(id))
	}
	switch found, err := exists(l.image(id), from); {
	case err != nil:
		return err
	case found:
		return l.mountKept(ctx, id, size)
	}
	return l.mountFresh(ctx, id, size)
}

// exists reports whether there is a layer, a file or a directory. It answers ErrDamaged if there has
// to be one.
func exists(path string, from From) (bool, error) {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return true, nil
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	case from == Existing:
		return false, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return false, nil
}

// mountFresh replaces the Machine's layer with a new one. A crash leaves either of them.
func (l *Layers) mountFresh(ctx context.Context, id hangar.MachineID, size int64) error {
	if err := l.unmount(id); err != nil {
		return err
	}
	s, err := l.spare(ctx, size)
	if err != nil {
		return err
	}
	// While it is open, the replaced file keeps its disk space, which is freed later.
	old, err := os.Open(l.image(id))
	if errors.Is(err, fs.ErrNotExist) {
		old, err = nil, nil
	}
	if err == nil {
		err = os.Rename(s.path, l.image(id))
	}
	if err != nil {
		return errors.Join(err, s.discard())
	}
	if old != nil {
		l.later(func() error { return old.Close() })
	}
	// An interrupted growth belongs to the previous layer.
	return errors.Join(os.RemoveAll(l.growing(id)), place(s.mount, l.Path(id)), s.mount.Close())
}

// Mounted reports whether the layer of a Machine is mounted. One without a bound never is.
func (l *Layers) Mounted(id hangar.MachineID) (bool, error) {
	if l.o.Unbounded {
		return false, nil
	}
	return ext4.IsMounted(l.Path(id))
}

// Sync puts a Machine's writes on the disk.
func (l *Layers) Sync(id hangar.MachineID) error {
	dir, err := os.Open(l.Path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("machine %s: %w: %w", id, ErrLost, err)
	}
	return nil
}

// Unmount ends the use of a layer, which is then on the disk. It may be repeated. With
// ErrLost it has ended nevertheless.
func (l *Layers) Unmount(id hangar.MachineID) error {
	if l.o.Unbounded {
		return nil
	}
	mounted, err := l.Mounted(id)
	if err != nil || !mounted {
		return err
	}
	lost := l.Sync(id) // unmounting syncs as well, but does not report errors
	return errors.Join(l.unmount(id), lost)
}

// unmount detaches a layer, which ends with its last user. Removing the mount point also unmounts
// it in other mount namespaces.
func (l *Layers) unmount(id hangar.MachineID) error {
	for {
		err := unix.Unmount(l.Path(id), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) {
			return os.RemoveAll(l.Path(id))
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", l.Path(id), err)
		}
	}
}

// Remove removes the layer of a Machine. It may be repeated.
func (l *Layers) Remove(id hangar.MachineID) error {
	if err := l.unmount(id); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(l.image(id)), os.RemoveAll(l.growing(id)), os.RemoveAll(l.Path(id)+discardedSuffix))
}

// List returns the Machines that have a layer, or a part of one.
func (l *Layers) List() ([]hangar.MachineID, error) {
	entries, err := os.ReadDir(l.o.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []hangar.MachineID
	seen := make(map[hangar.MachineID]bool)
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		if id := hangar.MachineID(name); id.Valid() && !seen[id] {
			seen[id] = true
			list = append(list, id)
		}
	}
	return list, nil
}

// Usage is the usage of a layer's file system.
type Usage struct {
	Bytes, BytesFree int64
	Files, FilesFree int64
}

// Usage returns the usage of a layer, which has to be mounted; for one without a bound, that of the
// server's file system.
func (l *Layers) Usage(id hangar.MachineID) (Usage, error) {
	if mounted, err := l.Mounted(id); err != nil || !mounted && !l.o.Unbounded {
		return Usage{}, errors.Join(err, fmt.Errorf("machine %s: its writable layer is not mounted", id))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(l.Path(id), &st); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: l.Path(id), Err: err}
	}
	return Usage{
		Bytes: int64(st.Blocks) * st.Bsize, BytesFree: int64(st.Bavail) * st.Bsize, Files: int64(st.Files), FilesFree: int64(st.Ffree),
	}, nil
}

// Allocated returns how many bytes of the disk all layers take. It does not read the layers.
func (l *Layers) Allocated() (int64, error) {
	var sum int64
	for _, pattern := range []string{filepath.Join(l.o.Dir, "*"+imageSuffix), filepath.Join(l.spareDir(), "*")} {
		images, err := filepath.Glob(pattern)
		if err != nil {
			return 0, err
		}
		for _, image := range images {
			var st unix.Stat_t
			switch err := unix.Lstat(image, &st); {
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			case err != nil:
				return 0, &fs.PathError{Op: "stat", Path: image, Err: err}
			default:
				const unit = 512 // bytes, of st_blocks, see stat(2)
				sum += st.Blocks * unit
			}
		}
	}
	return sum, nil
}

// restTime is how long deferrable work leaves the cores to a starting Machine.
const restTime = 200 * time.Millisecond

// later runs deferrable work.
func (l *Layers) later(do func() error) {
	l.work.Go(func() {
		timer := time.NewTimer(restTime)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.closing:
		}
		if err := do(); err != nil {
			l.o.Log.Warn("writable layers", "error", err)
		}
	})
}

// discardedSuffix is the suffix of a directory that is about to be removed.
const discardedSuffix = ".discarded"

// directory is mount for Unbounded.
func (l *Layers) directory(id hangar.MachineID, from From) error {
	dir := l.Path(id)
	found, err := exists(dir, from)
	if err != nil {
		return err
	}
	if found && from == Fresh {
		discarded := dir + discardedSuffix
		if err := os.RemoveAll(discarded); err != nil {
			return err
		}
		if err := os.Rename(dir, discarded); err != nil {
			return err
		}
		l.later(func() error { return os.RemoveAll(discarded) })
	}
	return os.MkdirAll(dir, 0o755) //nolint:gosec // like the root of a file system
}
