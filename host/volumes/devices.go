package volumes

import (
	"context"
	"io"
	"time"

	"github.com/hangar-platform/hangar"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Devices manages the images of volumes; LocalDevices returns the real ones. Errors are those of
// package volume.
type Devices interface {
	// Create makes the image of a new volume. It answers fs.ErrExist when there is one.
	Create(ctx context.Context, spec devices.Spec) error
	// Verify returns why an image could not be opened with the key of spec, or nil. It changes nothing.
	Verify(ctx context.Context, spec devices.Spec) error
	// Attach opens an image as a block device, or takes back what an earlier daemon opened.
	Attach(ctx context.Context, spec devices.Spec) (Device, error)
	// Release closes everything that is open of a volume on the host; unsynced writes may be lost.
	// It may be repeated.
	Release(ctx finish.Context, id hangar.VolumeID) error
	// List returns the volumes with anything open on the host.
	List(ctx context.Context) ([]hangar.VolumeID, error)
	// Remove removes an image that is not open. It may be repeated.
	Remove(ctx finish.Context, id hangar.VolumeID) error
	// Room measures the disk of the images.
	Room(ctx context.Context) (DiskRoom, error)
}

// DiskRoom has the sizes of the disk of the images, in bytes.
type DiskRoom struct {
	Free int64
	// Taken is the room that each image has allocated.
	Taken map[hangar.VolumeID]int64
}

// Device is an open volume.
type Device interface {
	// Path is the path of the block device.
	Path() string
	// Format makes a file system on a blank device; ErrNotBlank: it has content. The remains of an
	// interrupted Format do not count.
	Format(ctx context.Context) error
	// Mount repairs and grows the file system as necessary, and mounts it.
	Mount(ctx context.Context) (MountedVolume, error)
	// MountClean is Mount for a file system that needs no repair. It leaves another as it is:
	// ErrUnclean.
	MountClean(ctx context.Context) (MountedVolume, error)
	// Usage measures the file system; zero while it is not mounted.
	Usage(ctx context.Context) (hangar.VolumeUsage, error)
	// Extend makes it size bytes large. online: so is the file system, if it is mounted.
	Extend(ctx finish.Context, size int64) (online bool, err error)
	// Freeze begins a view of the device at one moment. From then on changes are counted for mark,
	// unless that is empty. A device has one view at a time.
	Freeze(ctx context.Context, mark string) (Frozen, error)
	// Fill gives access to the content of a device that is not mounted.
	Fill(ctx context.Context) (Target, error)
	// Check looks for damage of a file system that is not mounted, and changes nothing.
	Check(ctx context.Context) error
	// Lost is closed when the device has failed; Err says why.
	Lost() <-chan struct{}
	// Err is nil until Lost is closed.
	Err() error
	// Close unmounts and detaches the device. Without an error, everything is durable. After
	// ErrLost and ErrUnsynced the device is closed as well.
	Close(ctx finish.Context) error
}

// MountedVolume says where a file system is mounted, and what the mount did.
type MountedVolume struct {
	Dir      string
	Replayed bool   // it had not been unmounted: its journal was replayed
	Repaired bool   // other damage was repaired
	Grown    bool   // it is larger than it was
	Report   string // output of the repair
}

// Frozen is a volume as it was at one moment.
type Frozen interface {
	io.ReaderAt
	Size() int64 // bytes
	// Data returns the parts that were ever written.
	Data(ctx context.Context) (extent.List, error)
	// Changed returns the parts that were written since mark; false: they are not known.
	Changed(ctx context.Context, mark string) (extent.List, bool, error)
	// Took is how long writers waited.
	Took() time.Duration
	// Close ends the view. Changes are still counted for its mark.
	Close(ctx finish.Context) error
}

// Target writes the content of a volume that is being filled.
type Target interface {
	io.ReaderAt
	io.WriterAt
	// Flush returns once all writes are durable.
	Flush() error
	// Close ends the access. Only Flush says whether everything is durable.
	Close() error
}

// LocalDevices returns the volumes of this server as Devices.
func LocalDevices(v *devices.Volumes) Devices { return localDevices{v} }

type localDevices struct{ *devices.Volumes }

func (l localDevices) Attach(ctx context.Context, spec devices.Spec) (Device, error) {
	d, err := l.Volumes.Attach(ctx, spec)
	if err != nil {
		return nil, err
	}
	return localDevice{d}, nil
}

func (l localDevices) Room(ctx context.Context) (DiskRoom, error) {
	room, err := l.Volumes.Room(ctx)
	return DiskRoom{Free: room.Free, Taken: room.Images}, err
}

type localDevice struct{ *devices.Device }

func (d localDevice) Mount(ctx context.Context) (MountedVolume, error) {
	m, err := d.Device.Mount(ctx)
	return MountedVolume(m), err
}

func (d localDevice) MountClean(ctx context.Context) (MountedVolume, error) {
	m, err := d.Device.MountClean(ctx)
	return MountedVolume(m), err
}

func (d localDevice) Freeze(ctx context.Context, mark string) (Frozen, error) {
	f, err := d.Device.Freeze(ctx, mark)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d localDevice) Fill(ctx context.Context) (Target, error) {
	t, err := d.Device.Fill(ctx)
	if err != nil {
		return nil, err
	}
	return t, nil
}
