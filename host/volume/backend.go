package volume

import (
	"context"
	"io"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Backend is a way of making a block device from an image. All backends read the same images.
type Backend string

// The backends. The zero value chooses BackendKernel where it works, else BackendDaemon.
const (
	BackendKernel Backend = "kernel" // dm-crypt and dm-snapshot of the kernel
	BackendDaemon Backend = "daemon" // a qemu-storage-daemon per volume, exported by FUSE to a loop device
)

// image is the file that contains a volume.
type image struct {
	id      hangar.VolumeID
	path    string
	size    int64        // of the content, in bytes
	payload int64        // offset of the content in the file; 0: not encrypted
	cipher  *luks.Cipher // of the content; nil: not encrypted
	whole   bool         // all its blocks are allocated; see Spec.Allocate
}

func (i image) encrypted() bool { return i.payload > 0 }

// backend makes block devices of images. Its objects on the host outlive this process; the image's
// path or runDir identifies them. Methods are called concurrently for several volumes, but not for
// one.
type backend interface {
	// check reports what the host lacks, with the Debian package that provides it.
	check(ctx context.Context) error
	// open makes a block device of an image that is not open and whose key has been verified. After
	// a failure, release cleans up.
	open(ctx context.Context, im image, key []byte) (handle, error)
	// adopt takes over what an earlier process opened, and ends an open view. It answers errNotOpen
	// only on proof that there is no working block device; release then removes the remains.
	adopt(ctx finish.Context, im image, key []byte) (handle, error)
	// release ends all use of a volume except mounts, in any state. Unflushed writes may be lost.
	// It may be repeated.
	release(ctx finish.Context, id hangar.VolumeID) error
	// list returns the volumes that have anything open.
	list(ctx context.Context) ([]hangar.VolumeID, error)
}

// handle is the block device of one volume. Only path, lost, err and the methods of a view may be
// called concurrently with other methods.
type handle interface {
	path() string
	// grow enlarges image and block device to size bytes; it may be repeated.
	grow(ctx finish.Context, size int64) error
	// cut makes a view of the device as it is while still runs the given function. still makes sure
	// that nothing is written to the device meanwhile, and that everything written before is on it.
	// The function does only what must happen in that time. Unless mark is empty, the device counts
	// changes for it from then on. There is at most one view at a time.
	cut(ctx context.Context, mark string, still func(func() error) error) (view, error)
	// direct reports whether writing to the image directly is allowed and faster, while the device is
	// not in use. It is allowed if the device counts no changes and has no view.
	direct(ctx context.Context) (bool, error)
	// lost is closed when the device fails by itself; err returns the reason.
	lost() <-chan struct{}
	err() error
	// leave stops watching the device, which stays open.
	leave() error
	// close ends the device, which is no longer in use, and its views. All writes are durable
	// afterwards.
	close(ctx finish.Context) error
}

// view is the plaintext content of a device at one moment.
type view interface {
	io.ReaderAt
	// data returns the extents that were ever written; the rest is undefined.
	data(ctx context.Context) (extent.List, error)
	// changed returns the extents that may differ from the cut with that mark, or false if they are
	// unknown.
	changed(ctx context.Context, mark string) (extent.List, bool, error)
	close(ctx finish.Context) error
}
