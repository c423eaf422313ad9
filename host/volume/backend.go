package volume

import (
	"context"
	"io"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Backend is a way of making a block device of an image. All read the same images.
type Backend string

// The backends. The zero value chooses BackendKernel where it works, else BackendDaemon.
const (
	BackendKernel Backend = "kernel" // dm-crypt and dm-snapshot of the kernel
	BackendDaemon Backend = "daemon" // a qemu-storage-daemon per volume, exported by FUSE to a loop device
)

// image is where the content of a volume lies.
type image struct {
	id      hangar.VolumeID
	path    string
	size    int64        // bytes inside, as large as the file has room for
	payload int64        // offset in the file at which the content begins; 0: it is not encrypted
	cipher  *luks.Cipher // of the content; nil: it is not encrypted
	whole   bool         // all of it is taken from the disk; see Spec.Allocate
}

func (i image) encrypted() bool { return i.payload > 0 }

// backend makes block devices of images. Its objects on the host outlive this process, and are
// known by the image's path or by runDir. Methods of one volume are not called at the same time,
// those of several are.
type backend interface {
	// check says what the host lacks, and which Debian package has it.
	check(ctx context.Context) error
	// open makes a block device of an image whose key has been tried, and of which nothing is
	// open. release cleans up after a failure.
	open(ctx context.Context, im image, key []byte) (handle, error)
	// adopt takes back what an earlier process opened, and ends a view that was open. It
	// answers errNotOpen only on proof that there is no block device that works; what there
	// is, is then for release.
	adopt(ctx finish.Context, im image, key []byte) (handle, error)
	// release ends all use of a volume, in any state, except mounts. Unflushed writes may be
	// lost. It may be repeated.
	release(ctx finish.Context, id hangar.VolumeID) error
	// list returns the volumes of which anything is open.
	list(ctx context.Context) ([]hangar.VolumeID, error)
}

// handle is the block device of one volume. Methods are not called at the same time,
// except path, lost and err, and those of a view beside all others.
type handle interface {
	path() string
	// grow makes image and block device size bytes large; it may be repeated.
	grow(ctx finish.Context, size int64) error
	// cut makes a view of the device as it is while still runs the function that it is given:
	// nothing is written to the device meanwhile, and everything written before is on it. Work
	// that can be done before or after has no place in there. From that moment on changes are
	// counted for mark, if it is not empty. There is at most one view at a time.
	cut(ctx context.Context, mark string, still func(func() error) error) (view, error)
	// bare reports whether the image may be written past the device while that is not in use:
	// nothing is counted or copied for a view, and it is worth it.
	bare(ctx context.Context) (bool, error)
	// lost is closed when the device went away by itself, with err saying why.
	lost() <-chan struct{}
	err() error
	// leave stops watching; the device stays as it is.
	leave() error
	// close ends the device, which is not in use any more, with its views. All that was written
	// is durable.
	close(ctx finish.Context) error
}

// view is what was on a device at one moment, as plaintext.
type view interface {
	io.ReaderAt
	// data returns what was ever written; the rest is undefined.
	data(ctx context.Context) (extent.List, error)
	// changed returns what may differ from the cut that had the mark, false if that is
	// not known.
	changed(ctx context.Context, mark string) (extent.List, bool, error)
	close(ctx finish.Context) error
}
