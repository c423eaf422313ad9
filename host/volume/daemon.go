package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/host/volume/storaged"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/loopdev"
)

// daemonBackend opens each image with a QEMU storage daemon, whose exported file becomes a block
// device through a loop device. The directory of the daemon is runDir.
type daemonBackend struct{ v *Volumes }

// blockSize is the block size of loop devices, in bytes: that of ext4. A write smaller than a page
// would make the layers below read the page first.
const blockSize = 4096

func newDaemonBackend(v *Volumes) *daemonBackend { return &daemonBackend{v} }

func (b *daemonBackend) check(context.Context) error {
	if err := require(map[string]string{storaged.Program: "qemu-system-common"}); err != nil {
		return err
	}
	for _, dev := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(dev); err != nil {
			return fmt.Errorf("the kernel or the container lacks %s: %w", dev, err)
		}
	}
	label, dir := b.label("vol_0123456789abcdef"), b.v.runDir("vol_0123456789abcdef")
	if len(label) > loopdev.MaxLabel || len(dir) > storaged.MaxSocketDir {
		return fmt.Errorf("the name of instance %q or of directory %s is too long", b.v.o.Instance, b.v.o.Run)
	}
	return nil
}

// label is the label of a volume's loop device.
func (b *daemonBackend) label(id hangar.VolumeID) string { return b.labels() + string(id) }

func (b *daemonBackend) labels() string { return "hangar:" + b.v.o.Instance + ":" }

func (b *daemonBackend) spec(im image, key []byte) storaged.Spec {
	s := storaged.Spec{Dir: b.v.runDir(im.id), Image: im.path}
	if im.encrypted() {
		s.Secret = luks.Passphrase(key)
	}
	return s
}

// loops returns the loop devices of a volume.
func (b *daemonBackend) loops(id hangar.VolumeID) ([]loopdev.Device, error) {
	all, err := loopdev.List(isNameless)
	return slices.DeleteFunc(all, func(d loopdev.Device) bool { return b.ownerOf(d) != id }), err
}

// isNameless reports whether a loop device's file has lost its name, because its file system was
// unmounted.
func isNameless(file string) bool { return file == "/" }

// ownerOf returns the volume of a loop device, or "" for another program's. The label names the
// volume, or the file's name does on kernels that do not return the label.
func (b *daemonBackend) ownerOf(d loopdev.Device) hangar.VolumeID {
	if id, ok := strings.CutPrefix(d.Label, b.labels()); ok {
		return hangar.VolumeID(id)
	}
	if dir := filepath.Dir(d.File); filepath.Dir(dir) == b.v.o.Run {
		return hangar.VolumeID(filepath.Base(dir))
	}
	return ""
}

func (b *daemonBackend) open(ctx context.Context, im image, key []byte) (handle, error) {
	daemon, err := storaged.Start(ctx, b.spec(im, key))
	if errors.Is(err, storaged.ErrGone) {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	if err != nil {
		return nil, err
	}
	h := &daemonHandle{b: b, image: im, daemon: daemon}
	if err := h.begin(ctx); err != nil {
		return nil, errors.Join(withLoss(h, err), daemon.Leave())
	}
	return h, nil
}

// begin takes over the recorded changes and makes the block device.
func (h *daemonHandle) begin(ctx context.Context) error {
	if size, err := h.daemon.Size(); err != nil || size != h.image.size {
		return errors.Join(err, fmt.Errorf("the storage daemon offers %d bytes instead of %d", size, h.image.size))
	}
	prior, err := takeUp(h.b.v.dir(h.image.id), h.b.v.runDir(h.image.id))
	if err != nil {
		return err
	}
	if h.prior = prior; len(prior) > 0 {
		if err := h.daemon.Mark(ctx, ""); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(h.daemon.File(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	h.loop.Label = h.b.label(h.image.id)
	h.loop.Path, err = loopdev.Attach(f, loopdev.Config{Label: h.loop.Label, BlockSize: blockSize, Direct: true})
	return err
}

func (b *daemonBackend) adopt(ctx finish.Context, im image, key []byte) (handle, error) {
	daemon, err := storaged.Adopt(ctx, b.spec(im, key))
	if errors.Is(err, storaged.ErrNotRunning) {
		return nil, errNotOpen
	}
	if err != nil {
		return nil, err
	}
	h := &daemonHandle{b: b, image: im, daemon: daemon}
	err = h.resume(ctx)
	if err == nil {
		return h, nil
	}
	return nil, errors.Join(err, daemon.Leave())
}

// resume takes over the objects of an earlier process.
func (h *daemonHandle) resume(ctx finish.Context) error {
	found, err := h.b.loops(h.image.id)
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("there are %d loop devices", len(found))
	}
	size, err := h.daemon.Size()
	if err != nil {
		return err
	}
	h.loop = found[0]
	h.loop.Label = h.b.label(h.image.id) // in case the kernel does not return it
	if h.prior, err = readChanges(filepath.Join(h.b.v.runDir(h.image.id), changesFile)); err != nil {
		return err
	}
	if err := h.daemon.Drop(ctx, h.cow()); err != nil {
		return fmt.Errorf("end an earlier view: %w", err)
	}
	if size != h.image.size { // killed while growing
		return h.grow(ctx, h.image.size)
	}
	return h.refresh()
}

func (b *daemonBackend) release(ctx finish.Context, id hangar.VolumeID) error {
	found, err := b.loops(id)
	errs := []error{err}
	for _, l := range found {
		errs = append(errs, loopdev.Detach(l.Path))
	}
	errs = append(errs, storaged.Kill(b.v.runDir(id)))
	for _, l := range found {
		ctx, cancel := context.WithTimeout(ctx, unmountPatience)
		if err := loopdev.Await(ctx, l); err != nil { // it ends with its last user, and writes to no disk until then
			b.v.o.Log.WarnContext(ctx, "loop device lingers", "volume", id, "error", err)
		}
		cancel()
	}
	return errors.Join(append(errs, durable.Remove(filepath.Join(b.v.dir(id), cowFile)),
		durable.Remove(filepath.Join(b.v.runDir(id), changesFile)))...)
}

func (b *daemonBackend) list(context.Context) ([]hangar.VolumeID, error) {
	found := map[hangar.VolumeID]struct{}{}
	all, err := loopdev.List(isNameless)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if id := b.ownerOf(l); id != "" {
			found[id] = struct{}{}
		}
	}
	dirs, err := storaged.List(b.v.o.Run)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		found[hangar.VolumeID(filepath.Base(dir))] = struct{}{}
	}
	return slices.Collect(maps.Keys(found)), nil
}

// daemonHandle is a volume that a storage daemon has open.
type daemonHandle struct {
	b      *daemonBackend
	image  image
	daemon *storaged.Daemon
	loop   loopdev.Device
	prior  changes     // since marks from before the daemon started
	view   *daemonView // the open view, or nil
}

func (h *daemonHandle) path() string          { return h.loop.Path }
func (h *daemonHandle) lost() <-chan struct{} { return h.daemon.Gone() }

func (h *daemonHandle) leave() error {
	if h.view != nil {
		_ = h.view.image.Close() // the next process that adopts the device ends the view
	}
	return h.daemon.Leave()
}

func (h *daemonHandle) err() error {
	select {
	case <-h.daemon.Gone():
		return storaged.ErrGone
	default:
		return nil
	}
}

// direct is true while no changes are counted for an earlier snapshot. The storage daemon and direct
// writers share the page cache, and the daemon has no cache of its own.
func (h *daemonHandle) direct(ctx context.Context) (bool, error) {
	counted, err := h.daemon.Counts(ctx)
	return err == nil && !counted && len(h.prior) == 0 && h.view == nil, err
}

// cow is the file for blocks that are overwritten during a view.
func (h *daemonHandle) cow() string { return filepath.Join(h.b.v.dir(h.image.id), cowFile) }

// refresh updates the size of the block device to that of the daemon's file.
func (h *daemonHandle) refresh() error {
	// The kernel caches the file's size for a second, and loop devices before Linux 6.17 use the
	// cached size.
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, h.daemon.File(), unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE, &st); err != nil {
		return &os.PathError{Op: "statx", Path: h.daemon.File(), Err: err}
	}
	return loopdev.Refresh(h.loop.Path)
}

func (h *daemonHandle) grow(ctx finish.Context, size int64) error {
	if err := h.daemon.Resize(ctx, size); err != nil {
		return err
	}
	f, err := os.Open(h.image.path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := h.refresh(); err != nil {
		return err
	}
	h.image.size = size
	return nil
}

func (h *daemonHandle) close(ctx finish.Context) error {
	if err := flush(h.loop.Path); err != nil { // flushed first, so that all writes are counted
		return err
	}
	known, err := h.changesSoFar(ctx)
	if err != nil { // the next snapshot then reads everything
		h.b.v.o.Log.WarnContext(ctx, "the changes of a volume since earlier snapshots are lost", "volume", h.image.id, "error", err)
		known = nil
	}
	if err := loopdev.Detach(h.loop.Path); err != nil {
		return err
	}
	if err := loopdev.Await(ctx, h.loop); err != nil {
		return err
	}
	if err := h.daemon.Quit(ctx); err != nil {
		return err
	}
	return errors.Join(known.bounded(h.image.size).write(filepath.Join(h.b.v.dir(h.image.id), changesFile)),
		durable.Remove(h.cow()), durable.Remove(filepath.Join(h.b.v.runDir(h.image.id), changesFile)))
}

// flush writes all cached data of a block device to disk.
func flush(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
