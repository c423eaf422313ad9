package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume/luks"
)

// imageTarget writes into the image directly. It bypasses the block device and its encryption, which
// is several times as fast. The device is not used meanwhile, and changes are not counted.
type imageTarget struct {
	image   image
	file    *os.File
	device  *os.File // open exclusively, so that it cannot be mounted
	release func()   // called once
	buffers sync.Pool

	parts sync.Mutex // locked while part of a sector is replaced

	mu    sync.RWMutex // read-locked while the files are in use
	ended bool
}

func newImageTarget(im image, device string, release func()) (*imageTarget, error) {
	d, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(im.path, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &imageTarget{
		image: im, file: f, device: d, release: release,
		buffers: sync.Pool{New: func() any { return new([bufferSize]byte) }},
	}, nil
}

// ReadAt reads written parts. Unwritten parts are undefined.
func (t *imageTarget) ReadAt(b []byte, offset int64) (int, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.ended {
		return 0, os.ErrClosed
	}
	if offset < 0 || offset >= t.image.size {
		return outside(offset, len(b))
	}
	n := min(int64(len(b)), t.image.size-offset)
	from, to := offset/luks.SectorSize*luks.SectorSize, (offset+n+luks.SectorSize-1)/luks.SectorSize*luks.SectorSize
	whole := make([]byte, to-from)
	if err := t.readSectors(whole, from); err != nil {
		return 0, err
	}
	copy(b, whole[offset-from:])
	if n < int64(len(b)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (t *imageTarget) readSectors(b []byte, offset int64) error {
	if _, err := t.file.ReadAt(b, t.image.payload+offset); err != nil {
		return err
	}
	if t.image.encrypted() {
		t.image.cipher.Decrypt(b, uint64(offset)/luks.SectorSize)
	}
	return nil
}

// WriteAt writes as much as fits.
func (t *imageTarget) WriteAt(b []byte, offset int64) (written int, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.ended {
		return 0, os.ErrClosed
	}
	if offset < 0 {
		return outside(offset, len(b))
	}
	room := max(t.image.size-offset, 0)
	short := int64(len(b)) > room
	b = b[:min(int64(len(b)), room)]
	for len(b) > 0 && err == nil {
		n := len(b)
		switch rest := int(offset % luks.SectorSize); {
		case rest != 0 || n < luks.SectorSize:
			n = min(n, luks.SectorSize-rest)
			err = t.writePart(b[:n], offset, rest)
		default:
			n = min(n/luks.SectorSize*luks.SectorSize, bufferSize)
			err = t.writeSectors(b[:n], offset)
		}
		if err == nil {
			b, offset, written = b[n:], offset+int64(n), written+n
		}
	}
	if err == nil && short {
		err = fmt.Errorf("write past %d: %w", t.image.size, unix.ENOSPC)
	}
	return written, err
}

func (t *imageTarget) writeSectors(b []byte, offset int64) error {
	if t.image.encrypted() {
		buffer := t.buffers.Get().(*[bufferSize]byte)
		defer t.buffers.Put(buffer)
		b = buffer[:copy(buffer[:], b)]
		t.image.cipher.Encrypt(b, uint64(offset)/luks.SectorSize)
	}
	_, err := t.file.WriteAt(b, t.image.payload+offset)
	return err
}

// writePart replaces part of a sector.
func (t *imageTarget) writePart(b []byte, offset int64, at int) error {
	t.parts.Lock()
	defer t.parts.Unlock()
	var sector [luks.SectorSize]byte
	if err := t.readSectors(sector[:], offset-int64(at)); err != nil {
		return err
	}
	copy(sector[at:], b)
	return t.writeSectors(sector[:], offset-int64(at))
}

// Flush makes all writes durable.
func (t *imageTarget) Flush() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.ended {
		return os.ErrClosed
	}
	return t.file.Sync()
}

// Close ends the use of the image, durably. It may be repeated.
func (t *imageTarget) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	t.ended = true
	t.release()
	// The kernel's cache of the device is stale now.
	return errors.Join(t.file.Sync(), unix.IoctlSetInt(int(t.device.Fd()), unix.BLKFLSBUF, 0), t.file.Close(), t.device.Close())
}
