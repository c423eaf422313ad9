package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Files in the directory of a volume.
const (
	imageFile   = "image"
	unfinished  = "image.tmp"   // an image under construction
	cowFile     = "overwritten" // blocks that were overwritten during a view
	changesFile = "changes"     // changes since earlier cuts; exists while the volume is closed
	formatFile  = "formatting"  // exists while mkfs runs
	growFile    = "growing"     // exists while resize2fs runs
)

// sizeUnit is the unit of volume sizes.
const sizeUnit = 1 << 20

// statBlock is the unit of Stat_t.Blocks.
const statBlock = 512

func (v *Volumes) dir(id hangar.VolumeID) string { return filepath.Join(v.o.Dir, string(id)) }

func (v *Volumes) imagePath(id hangar.VolumeID) string { return filepath.Join(v.dir(id), imageFile) }

func (s Spec) check() error {
	switch {
	case !s.ID.Valid():
		return fmt.Errorf("volume %q: not an id", s.ID)
	case s.Size < sizeUnit || s.Size%sizeUnit != 0:
		return fmt.Errorf("volume %s: a size of %d bytes is not a multiple of 1 MiB", s.ID, s.Size)
	case s.Key != nil && len(s.Key) != luks.KeySize:
		return fmt.Errorf("volume %s: a key has %d bytes, not %d", s.ID, luks.KeySize, len(s.Key))
	default:
		return nil
	}
}

func (s Spec) payload() int64 {
	if s.Key == nil {
		return 0
	}
	return luks.Payload
}

// Create makes an image, durable and without content, or returns fs.ErrExist. A crash leaves a
// complete image or none.
func (v *Volumes) Create(ctx context.Context, spec Spec) error {
	if err := spec.check(); err != nil {
		return err
	}
	unlock, err := v.lock(ctx, spec.ID)
	if err != nil {
		return err
	}
	defer unlock()
	dir := v.dir(spec.ID)
	if _, err := os.Lstat(filepath.Join(dir, imageFile)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("create volume %s: %w", spec.ID, errors.Join(err, fs.ErrExist))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := v.makeImage(ctx, dir, spec); err != nil {
		return fmt.Errorf("create volume %s: %w", spec.ID, errors.Join(err, durable.Remove(filepath.Join(dir, unfinished))))
	}
	return errors.Join(durable.SyncDir(dir), durable.SyncDir(v.o.Dir))
}

func (v *Volumes) makeImage(ctx context.Context, dir string, spec Spec) error {
	path := filepath.Join(dir, unfinished)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := errors.Join(diskspace.InPlace(f), f.Truncate(spec.payload()+spec.Size)); err != nil {
		return err
	}
	if err := v.take(image{path: path, whole: spec.Allocate}, spec.payload()+spec.Size); err != nil {
		return err
	}
	if spec.Key != nil {
		if err := luks.Format(ctx, path, spec.Key); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, filepath.Join(dir, imageFile), unix.RENAME_NOREPLACE)
}

// Verify returns ErrWrongKey, ErrForeign, ErrTruncated, ErrDamaged or fs.ErrNotExist if the image
// cannot be opened, and changes nothing. An image that is larger than it should be is valid: an
// Extend was interrupted.
func (v *Volumes) Verify(ctx context.Context, spec Spec) error {
	if err := errors.Join(spec.check(), ctx.Err()); err != nil {
		return err
	}
	_, err := v.inspect(spec)
	return err
}

// inspect returns the image of a volume that can be opened.
func (v *Volumes) inspect(spec Spec) (image, error) {
	im := image{id: spec.ID, path: v.imagePath(spec.ID), payload: spec.payload(), whole: spec.Allocate}
	f, err := os.OpenFile(im.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return im, fmt.Errorf("open volume %s: %w", spec.ID, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return im, err
	}
	if !fi.Mode().IsRegular() {
		return im, fmt.Errorf("volume %s: %w: it is no file", spec.ID, ErrForeign)
	}
	im.size = fi.Size() - im.payload
	begun, err := luks.Begun(f)
	if err != nil {
		return im, fmt.Errorf("open volume %s: %w", spec.ID, err)
	}
	switch {
	case begun && spec.Key == nil:
		return im, fmt.Errorf("volume %s: %w: it is encrypted", spec.ID, ErrForeign)
	case !begun && spec.Key != nil && im.size < 0:
		return im, fmt.Errorf("volume %s: %w: it has no LUKS header", spec.ID, ErrForeign)
	case im.size < spec.Size:
		return im, fmt.Errorf("volume %s: %w: it has room for %d bytes of %d", spec.ID, ErrTruncated, max(im.size, 0), spec.Size)
	}
	if spec.Key != nil {
		if im.cipher, err = luks.Unlock(f, spec.Key); err != nil {
			return im, fmt.Errorf("volume %s: %w", spec.ID, unlockError(err))
		}
	}
	if im.size%sizeUnit != 0 {
		return im, fmt.Errorf("volume %s: %w: it has room for %d bytes, not whole MiB", spec.ID, ErrForeign, im.size)
	}
	return im, nil
}

// unlockError translates an error of luks.Unlock to an error of this package.
func unlockError(err error) error {
	switch {
	case errors.Is(err, luks.ErrWrongKey):
		return ErrWrongKey
	case errors.Is(err, luks.ErrDamaged):
		return ErrDamaged
	case errors.Is(err, luks.ErrNoHeader):
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case errors.Is(err, luks.ErrFormat):
		return fmt.Errorf("%w: %w", ErrForeign, err)
	default:
		return err
	}
}

// Remove destroys the header with the key slots, so that the remains on disk cannot be read, and then
// removes the image and all other files of the volume. The volume must not be open. It may be
// repeated.
func (v *Volumes) Remove(ctx finish.Context, id hangar.VolumeID) error {
	if !id.Valid() {
		return fmt.Errorf("volume %q: not an id", id)
	}
	unlock, err := v.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if v.device(id) != nil {
		return fmt.Errorf("remove volume %s: it is open", id)
	}
	for _, name := range []string{imageFile, unfinished} {
		if err := destroyKey(filepath.Join(v.dir(id), name)); err != nil {
			return fmt.Errorf("remove volume %s: %w", id, err)
		}
	}
	if err := os.RemoveAll(v.dir(id)); err != nil {
		return err
	}
	return durable.SyncDir(v.o.Dir)
}

// destroyKey does not change a file that is not one of our images.
func destroyKey(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	begun, err := luks.Begun(f)
	if err != nil || !begun {
		return err
	}
	return luks.Destroy(f)
}

// Room is the space on the disk of the images.
type Room struct {
	Free, Total int64                     // bytes
	Images      map[hangar.VolumeID]int64 // bytes that the files of each volume take
}

// Room measures the disk.
func (v *Volumes) Room(ctx context.Context) (Room, error) {
	var st unix.Statfs_t
	if err := errors.Join(ctx.Err(), unix.Statfs(v.o.Dir, &st)); err != nil {
		return Room{}, fmt.Errorf("room for volumes: %w", err)
	}
	room := Room{Free: int64(st.Bavail) * st.Bsize, Total: int64(st.Blocks) * st.Bsize, Images: map[hangar.VolumeID]int64{}}
	dirs, err := os.ReadDir(v.o.Dir)
	if err != nil {
		return Room{}, err
	}
	for _, d := range dirs {
		id := hangar.VolumeID(d.Name())
		if !id.Valid() {
			continue
		}
		files, err := os.ReadDir(v.dir(id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Room{}, err
		}
		for _, f := range files {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(v.dir(id), f.Name()), &st); err == nil {
				room.Images[id] += st.Blocks * statBlock
			}
		}
	}
	return room, nil
}

const (
	blankTries = 10
	blankPause = 20 * time.Millisecond
)

// isBlank reports whether an image was never written to.
func (i image) isBlank(ctx context.Context) (bool, error) {
	f, err := os.Open(i.path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	// Cached pages of allocated but unwritten blocks count as data, so they are dropped from the
	// page cache first. One that something reads at that moment stays.
	for range blankTries {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return false, &fs.PathError{Op: "fadvise", Path: i.path, Err: err}
		}
		_, err = unix.Seek(int(f.Fd()), i.payload, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if err := pause.For(ctx, blankPause); err != nil {
			return false, err
		}
	}
	return false, nil
}

// take allocates the first bytes of the file, if the image is to be allocated completely and the file system can do
// that. It takes one block at most if the disk has no room for all of them, and is cheap to repeat.
func (v *Volumes) take(i image, bytes int64) error {
	if !i.whole {
		return nil
	}
	f, err := os.OpenFile(i.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	v.taking.Lock()
	defer v.taking.Unlock()
	err = diskspace.Extend(f, 1) // first, because it says whether anything can be allocated
	if err == nil {
		err = fits(f, bytes)
	}
	if err == nil {
		err = diskspace.Extend(f, bytes)
	}
	err = errors.Join(err, f.Close())
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// fits returns ENOSPC if the disk has no room to allocate the first bytes of a file. ext4, for example,
// finds that out only when it has allocated all that there was, and keeps it.
func fits(f *os.File, bytes int64) error {
	var file unix.Stat_t
	var disk unix.Statfs_t
	err := errors.Join(unix.Fstat(int(f.Fd()), &file), unix.Fstatfs(int(f.Fd()), &disk))
	if err == nil && bytes-file.Blocks*statBlock > int64(disk.Bavail)*disk.Bsize {
		err = unix.ENOSPC
	}
	if err != nil {
		return &fs.PathError{Op: "allocate", Path: f.Name(), Err: err}
	}
	return nil
}

// blank turns all written extents back into unwritten ones.
func (i image) blank() error {
	mode := uint32(unix.FALLOC_FL_PUNCH_HOLE)
	if i.whole {
		mode = unix.FALLOC_FL_ZERO_RANGE
	}
	f, err := os.OpenFile(i.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fallocate(int(f.Fd()), mode|unix.FALLOC_FL_KEEP_SIZE, i.payload, i.size)
}
