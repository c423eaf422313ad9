// Package volume makes file systems of image files: allocated or sparse, encrypted with LUKS, with ext4
// inside, mounted on this host, and copied while they are written to.
//
// An image has the format LUKS1, which the kernel, QEMU and cryptsetup all open; an image without a
// key is the bare content. Volumes makes and removes images; a Device is an image that is open as a
// block device, through one of several backends. Devices outlive this process: Attach takes over
// those of an earlier process, List lists unwanted ones and Release ends them. Options.Dir and
// Options.Run, which belong to one instance, identify everything.
//
// Data that was synced in the file system is on the disk below it. An image appears or grows
// completely or not at all, and is not changed before its header, its size and the key have been
// checked. A frozen file system is thawed when Freeze returns, after a short deadline, or when this
// process dies, whichever comes first.
//
// All methods may be called from many goroutines. Those of one volume wait for one another, except
// for reads of a Frozen.
//
// The package does not know Machines and keeps no record of volumes: the caller decides on access,
// and knows which volumes should exist.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Errors of images and devices.
var (
	ErrWrongKey     = errors.New("the key does not open the image")
	ErrForeign      = errors.New("the file is not an image of this volume")
	ErrTruncated    = errors.New("the image is truncated")
	ErrDamaged      = errors.New("the header of the image is damaged")
	ErrUnclean      = errors.New("the file system was not unmounted, or is damaged")
	ErrUnrepairable = errors.New("the file system cannot be repaired")
	ErrNotBlank     = errors.New("the device is not blank")
	ErrMounted      = errors.New("the volume is mounted")
	ErrFrozen       = errors.New("a frozen view of the volume is open already")
	ErrFilling      = errors.New("the volume is being filled")
	ErrLost         = errors.New("the block device went away")
	ErrUnsynced     = errors.New("not all written data is on the disk")

	errNotOpen = errors.New("not open")
)

// Options of Volumes.
type Options struct {
	Dir      string  // DIR/ID/image is the image of a volume
	Run      string  // sockets and mount points; gone after a restart of the host; at most 60 bytes long
	Instance string  // of the daemon, for names that are unique on the host
	Backend  Backend // "": the best that the host offers
	// Guard is the command of a program that calls Guard, without its last argument, the mount point.
	// It thaws a frozen file system if this process dies.
	Guard []string
	Log   *slog.Logger
}

// Spec describes a volume.
type Spec struct {
	ID   hangar.VolumeID
	Size int64  // bytes of content, a multiple of 1 MiB
	Key  []byte // 32 bytes; nil: not encrypted
	// Allocate takes all the space of the image from the disk at once, so that no write fails for lack
	// of space. Where the file system cannot do so, the image stays sparse.
	Allocate bool
}

// Volumes are the volumes of one instance. New makes one, Open makes it usable.
type Volumes struct {
	o       Options
	backend backends

	taking sync.Mutex // held while the room on the disk is measured and taken

	mu      sync.Mutex // guards what follows
	locks   map[hangar.VolumeID]*volumeLock
	devices map[hangar.VolumeID]*Device
}

// volumeLock is the lock of a volume that callers use.
type volumeLock struct {
	held  chan struct{} // full while it is held
	users int           // who hold it or wait for it; guarded by Volumes.mu
}

// New returns Volumes that Open makes usable.
func New(o Options) *Volumes {
	return &Volumes{o: o, locks: map[hangar.VolumeID]*volumeLock{}, devices: map[hangar.VolumeID]*Device{}}
}

// programs lists the required programs with their Debian packages.
func programs() map[string]string {
	all := map[string]string{luks.Program: "cryptsetup-bin"}
	for _, p := range ext4.Programs() {
		all[p] = "e2fsprogs"
	}
	return all
}

// Open makes the directories and chooses the backend. An error about a missing program names its
// package.
func (v *Volumes) Open(ctx context.Context) error {
	if err := require(programs()); err != nil {
		return fmt.Errorf("open volumes: %w", err)
	}
	for _, dir := range []*string{&v.o.Dir, &v.o.Run} {
		err := os.MkdirAll(*dir, 0o700)
		if err == nil {
			*dir, err = filepath.EvalSymlinks(*dir) // loop devices name files without symbolic links
		}
		if err != nil {
			return fmt.Errorf("open volumes: %w", err)
		}
	}
	b, err := v.choose(ctx)
	if err != nil {
		return fmt.Errorf("open volumes: %w", err)
	}
	v.backend = b
	return nil
}

// choose returns the backends that work on this host. The first is the one in the options, or the
// best; the others may still have volumes open.
func (v *Volumes) choose(ctx context.Context) (backends, error) {
	var working, others backends
	var errs []error
	for _, c := range []struct {
		name    Backend
		backend backend
	}{
		{BackendKernel, newKernelBackend(v)},
		{BackendDaemon, newDaemonBackend(v)},
	} {
		wanted := v.o.Backend == "" || v.o.Backend == c.name
		switch err := c.backend.check(ctx); {
		case err == nil && wanted:
			working = append(working, c.backend)
		case err == nil:
			others = append(others, c.backend)
		case wanted:
			errs = append(errs, fmt.Errorf("backend %s: %w", c.name, err))
		}
	}
	if len(working) > 0 {
		return append(working, others...), nil
	}
	if len(errs) == 0 {
		return nil, fmt.Errorf("backend %q is not known", v.o.Backend)
	}
	return nil, errors.Join(errs...)
}

// require reports which programs are not installed.
func require(programs map[string]string) error {
	var errs []error
	for _, program := range slices.Sorted(maps.Keys(programs)) {
		if _, err := exec.LookPath(program); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing: install the package %s", program, programs[program]))
		}
	}
	return errors.Join(errs...)
}

// Close disconnects from all devices, which stay as they are. It removes Options.Run if no volume is
// open.
func (v *Volumes) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for _, d := range v.devices {
		if !d.forced.Load() {
			errs = append(errs, d.endFilling(), d.handle.leave())
		}
	}
	clear(v.devices)
	_ = os.Remove(v.o.Run) // fails unless it is empty
	return errors.Join(errs...)
}

// lock waits for the lock of a volume.
func (v *Volumes) lock(ctx context.Context, id hangar.VolumeID) (unlock func(), err error) {
	v.mu.Lock()
	l := v.locks[id]
	if l == nil {
		l = &volumeLock{held: make(chan struct{}, 1)}
		v.locks[id] = l
	}
	l.users++
	v.mu.Unlock()
	leave := func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(v.locks, id)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("volume %s is busy: %w", id, ctx.Err())
	}
}

// finishPatience limits what must finish even if the caller's context ends: adopting, closing and
// releasing a device, and undoing.
const finishPatience = 2 * time.Minute

// device returns the open device of a volume, or nil.
func (v *Volumes) device(id hangar.VolumeID) *Device {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.devices[id]
}

// Attach opens a volume as a block device, or takes over the device of an earlier process, thawed and
// without a view. It returns the errors of Verify. Neither an error nor the end of ctx closes an open
// and mounted device.
func (v *Volumes) Attach(ctx context.Context, spec Spec) (*Device, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	unlock, err := v.lock(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if d := v.device(spec.ID); d != nil && !d.forced.Load() {
		return d, nil
	}
	im, err := v.inspect(spec)
	if err != nil {
		return nil, err
	}
	if err := v.take(im, im.payload+im.size); err != nil { // the image may be sparse
		v.o.Log.WarnContext(ctx, "the disk has no room to allocate a volume completely", "volume", spec.ID, "error", err)
	}
	h, err := v.adopt(ctx, im, spec.Key)
	if errors.Is(err, errNotOpen) {
		h, err = v.openFresh(ctx, im, spec.Key)
	}
	if err != nil {
		return nil, fmt.Errorf("attach volume %s: %w", spec.ID, err)
	}
	d := &Device{v: v, image: im, handle: h}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.devices[spec.ID] = d
	return d, nil
}

// adopt takes over the device of an earlier process. It returns errNotOpen if that is unusable and
// not mounted. The end of ctx does not interrupt it, and other errors change nothing, because a mount
// may serve a Machine and have its unsynced data.
func (v *Volumes) adopt(ctx context.Context, im image, key []byte) (handle, error) {
	adopting, cancel := finish.Within(ctx, finishPatience)
	defer cancel()
	thawErr := v.thaw(im.id) // first, because other steps may wait for a frozen file system
	h, err := v.backend.adopt(adopting, im, key)
	if err == nil {
		err = errors.Join(thawErr, unthrottle(h.path())) // a killed process may have left it throttled
		if err == nil {
			return h, nil
		}
		err = errors.Join(err, h.leave())
	}
	if errors.Is(err, errNotOpen) {
		return nil, err
	}
	switch mounted, lookErr := ext4.IsMounted(v.mountPoint(im.id)); {
	case lookErr != nil:
		return nil, errors.Join(err, lookErr)
	case mounted:
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %w", errNotOpen, err)
	}
}

// openFresh opens a volume that has no usable open device.
func (v *Volumes) openFresh(ctx context.Context, im image, key []byte) (handle, error) {
	if err := v.release(ctx, im.id); err != nil {
		return nil, err
	}
	h, err := v.backend.open(ctx, im, key)
	if err != nil {
		return nil, errors.Join(err, v.release(ctx, im.id))
	}
	if err := unthrottle(h.path()); err != nil {
		return nil, errors.Join(err, h.leave(), v.release(ctx, im.id))
	}
	return h, nil
}

// Release ends all that is open of a volume on the host: mounts, block devices, processes. Unsynced
// writes may be lost. It may be repeated.
func (v *Volumes) Release(ctx finish.Context, id hangar.VolumeID) error {
	if !id.Valid() {
		return fmt.Errorf("volume %q: not an id", id)
	}
	unlock, err := v.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.release(ctx, id); err != nil {
		return fmt.Errorf("release volume %s: %w", id, err)
	}
	return nil
}

// release is Release with the lock held. It has a time limit of its own, because the attempt to
// close the volume may have used up the caller's. Until it succeeds, the volume counts as open.
func (v *Volumes) release(ctx context.Context, id hangar.VolumeID) error {
	var left error
	if d := v.device(id); d != nil && !d.forced.Swap(true) {
		left = errors.Join(d.endFilling(), d.handle.leave())
	}
	end := func(ctx finish.Context) error { return v.backend.release(ctx, id) }
	err := errors.Join(v.thaw(id), unmountAll(v.mountPoint(id)), finish.Do(ctx, finishPatience, end), v.sweep(id))
	if err == nil {
		v.forget(id)
	}
	return errors.Join(left, err)
}

// forget records that a volume is closed.
func (v *Volumes) forget(id hangar.VolumeID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.devices, id)
}

// sweep removes the run directory of a closed volume, with temporary files of interrupted writes. It
// does not descend, because a subdirectory with content may be a mount.
func (v *Volumes) sweep(id hangar.VolumeID) error {
	dir := v.runDir(id)
	errs := []error{durable.Remove(v.mountPoint(id))}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	errs = append(errs, err)
	for _, e := range entries {
		if !e.IsDir() {
			errs = append(errs, durable.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(append(errs, durable.Remove(dir))...)
}

// List returns the volumes that have anything open on the host.
func (v *Volumes) List(ctx context.Context) ([]hangar.VolumeID, error) {
	ids, err := v.backend.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list open volumes: %w", err)
	}
	begun, err := ListRun(v.o.Run)
	if err != nil {
		return nil, err
	}
	ids = append(ids, begun...)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// ListRun returns the volumes with a directory in run, which is Options.Run: all that are mounted or have a storage
// daemon, and some that may have anything else open.
func ListRun(run string) (ids []hangar.VolumeID, err error) {
	dirs, err := os.ReadDir(run)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		if id := hangar.VolumeID(d.Name()); id.Valid() {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (v *Volumes) runDir(id hangar.VolumeID) string { return filepath.Join(v.o.Run, string(id)) }

func (v *Volumes) mountPoint(id hangar.VolumeID) string { return filepath.Join(v.runDir(id), "mnt") }
