package platform

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// diskSize is the room of the disk of volumes, in bytes.
const diskSize = 1000 << 30

// disk keeps volumes. Each is a directory, and its block device is blank: Machines write files,
// which snapshots do not have.
type disk struct {
	dir string

	mu      sync.Mutex
	devices map[hangar.VolumeID]*device // guarded by mu
}

func newDisk(dir string) *disk {
	return &disk{dir: filepath.Join(dir, "disk"), devices: map[hangar.VolumeID]*device{}}
}

// device is a volume. It is never lost.
type device struct {
	disk *disk
	id   hangar.VolumeID

	size     int64 // guarded by disk.mu, as what follows
	fsSize   int64 // of the file system; 0: it has none
	attached bool
}

func (d *disk) find(id hangar.VolumeID) (*device, error) {
	if v := d.devices[id]; v != nil {
		return v, nil
	}
	return nil, fs.ErrNotExist
}

// Create implements volumes.Devices.
func (d *disk) Create(_ context.Context, spec volume.Spec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.devices[spec.ID] != nil {
		return fs.ErrExist
	}
	d.devices[spec.ID] = &device{disk: d, id: spec.ID, size: spec.Size}
	return nil
}

// Verify implements volumes.Devices.
func (d *disk) Verify(_ context.Context, spec volume.Spec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.find(spec.ID)
	return err
}

// Attach implements volumes.Devices.
func (d *disk) Attach(_ context.Context, spec volume.Spec) (volumes.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(spec.ID)
	if err != nil {
		return nil, err
	}
	v.attached = true
	return v, nil
}

// Release implements volumes.Devices.
func (d *disk) Release(_ finish.Context, id hangar.VolumeID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.devices[id]; v != nil {
		v.attached = false
	}
	return nil
}

// List implements volumes.Devices.
func (d *disk) List(context.Context) (ids []hangar.VolumeID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, v := range d.devices {
		if v.attached {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Remove implements volumes.Devices.
func (d *disk) Remove(_ finish.Context, id hangar.VolumeID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.devices, id)
	return os.RemoveAll(d.path(id))
}

// Room implements volumes.Devices.
func (d *disk) Room(context.Context) (volumes.DiskRoom, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	room := volumes.DiskRoom{Free: diskSize, Taken: map[hangar.VolumeID]int64{}}
	for id := range d.devices {
		room.Taken[id] = 0
	}
	return room, nil
}

func (d *disk) path(id hangar.VolumeID) string { return filepath.Join(d.dir, string(id)) }

// Path implements volumes.Device.
func (v *device) Path() string { return "/dev/pretended/" + string(v.id) }

// Lost implements volumes.Device.
func (v *device) Lost() <-chan struct{} { return nil }

// Err implements volumes.Device.
func (v *device) Err() error { return nil }

// Format implements volumes.Device.
func (v *device) Format(context.Context) error {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	if v.fsSize > 0 {
		return volume.ErrNotBlank
	}
	v.fsSize = v.size
	return nil
}

// Mount implements volumes.Device.
func (v *device) Mount(context.Context) (volumes.MountedVolume, error) {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	dir, grown := v.disk.path(v.id), v.fsSize < v.size
	v.fsSize = v.size
	return volumes.MountedVolume{Dir: dir, Grown: grown}, os.MkdirAll(dir, 0o700)
}

// MountClean implements volumes.Device.
func (v *device) MountClean(ctx context.Context) (volumes.MountedVolume, error) { return v.Mount(ctx) }

// Usage implements volumes.Device.
func (v *device) Usage(context.Context) (hangar.VolumeUsage, error) {
	const block, used = 4096, 10
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	if !v.attached {
		return hangar.VolumeUsage{}, nil
	}
	blocks := v.fsSize / block
	return hangar.VolumeUsage{FSType: hangar.FSExt4, Blocks: blocks, BlockSize: block, BlocksFree: blocks - used, BlocksAvail: blocks - 2*used}, nil
}

// Extend implements volumes.Device.
func (v *device) Extend(_ finish.Context, size int64) (online bool, err error) {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	v.size = size
	return false, nil
}

// Freeze implements volumes.Device.
func (v *device) Freeze(context.Context, string) (volumes.Frozen, error) {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	return &frozen{blank{v.size}}, nil
}

// Fill implements volumes.Device.
func (v *device) Fill(context.Context) (volumes.Target, error) {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	v.fsSize = v.size
	return &target{blank{v.size}}, nil
}

// Check implements volumes.Device.
func (v *device) Check(context.Context) error { return nil }

// Close implements volumes.Device.
func (v *device) Close(finish.Context) error {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	v.attached = false
	return nil
}

// blank is the content of a device.
type blank struct{ size int64 }

// ReadAt implements io.ReaderAt.
func (b blank) ReadAt(p []byte, at int64) (int, error) {
	n := min(int64(len(p)), max(b.size-at, 0))
	clear(p[:n])
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

type frozen struct{ blank }

// Size implements volumes.Frozen.
func (f *frozen) Size() int64 { return f.size }

// Data implements volumes.Frozen. There is some, so that there is something to keep.
func (f *frozen) Data(context.Context) (extent.List, error) {
	return extent.Of(extent.Extent{Length: min(f.size, 1<<20)}), nil
}

// Changed implements volumes.Frozen.
func (f *frozen) Changed(context.Context, string) (extent.List, bool, error) { return nil, false, nil }

// Took implements volumes.Frozen.
func (f *frozen) Took() time.Duration { return time.Millisecond }

// Close implements volumes.Frozen.
func (f *frozen) Close(finish.Context) error { return nil }

// target takes what is blank.
type target struct{ blank }

// WriteAt implements io.WriterAt.
func (t *target) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// Flush implements volumes.Target.
func (t *target) Flush() error { return nil }

// Close implements volumes.Target.
func (t *target) Close() error { return nil }
