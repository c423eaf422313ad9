package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/extent"
)

// spareLayers is how many layers are prepared ahead of time. More simultaneous starts wait for
// theirs.
const spareLayers = 4

// spare is a prepared layer that belongs to no Machine and is not mounted in the file system.
type spare struct {
	path  string // of its file
	mount *os.File
}

// discard removes an unused layer.
func (s *spare) discard() error { return errors.Join(s.mount.Close(), os.Remove(s.path)) }

// spares are the prepared layers. The zero value has none.
type spares struct {
	mu       sync.Mutex
	ready    []*spare  // guarded by mu
	refill   bool      // the goroutine that refills is running; guarded by mu
	used     time.Time // when a Machine last took one; guarded by mu
	template *template // guarded by making
	making   sync.Mutex
}

func (s *spares) put(made *spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, made)
}

// take returns a prepared layer, or nil.
func (s *spares) take() *spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.ready)
	if n == 0 {
		return nil
	}
	taken := s.ready[n-1]
	s.ready = s.ready[:n-1]
	return taken
}

// spare returns a new layer.
func (l *Layers) spare(ctx context.Context, size int64) (*spare, error) {
	if size == l.o.Size {
		defer l.refillLater()
		if s := l.spares.take(); s != nil {
			return s, nil
		}
	}
	return l.make(ctx, size)
}

// refillLater prepares layers until there are enough, once no Machine has taken one for a while.
func (l *Layers) refillLater() {
	l.spares.mu.Lock()
	defer l.spares.mu.Unlock()
	l.spares.used = time.Now()
	if l.spares.refill {
		return
	}
	l.spares.refill = true
	l.work.Go(l.refill)
}

func (l *Layers) refill() {
	// Not a caller's context: all callers use the result. Preparing one takes milliseconds.
	ctx := context.Background() //nolint:forbidigo // see above
	for {
		l.spares.mu.Lock()
		pause := time.Until(l.spares.used.Add(restTime))
		if pause <= 0 && len(l.spares.ready) >= spareLayers {
			l.spares.refill = false
			l.spares.mu.Unlock()
			return
		}
		l.spares.mu.Unlock()
		timer := time.NewTimer(max(pause, 0))
		select {
		case <-timer.C:
		case <-l.closing:
			timer.Stop()
			return
		}
		if pause > 0 {
			continue
		}
		s, err := l.make(ctx, l.o.Size)
		if err != nil {
			// The next Machine meets the same error, and reports it.
			l.o.Log.Warn("no writable layer waits for the next machine", "error", err)
			l.spares.mu.Lock()
			l.spares.refill = false
			l.spares.mu.Unlock()
			return
		}
		l.spares.put(s)
	}
}

func (l *Layers) spareDir() string { return filepath.Join(l.o.Dir, "spare") }

// make prepares a layer. Its file is on disk before a Machine gets it: a power failure then loses
// only what the Machine did not sync.
func (l *Layers) make(ctx context.Context, size int64) (_ *spare, err error) {
	image, err := os.CreateTemp(l.spareDir(), "*")
	if err != nil {
		return nil, err
	}
	defer image.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(image.Name()))
		}
	}()
	if err := l.format(ctx, image, size); err != nil {
		return nil, err
	}
	if err := lock(ctx, image); err != nil {
		return nil, err
	}
	dev, err := l.attach(image)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	mount, err := ext4.MountDetached(dev.Name())
	if err != nil {
		return nil, err
	}
	if err := makeReserve(reachable(mount)); err != nil {
		return nil, errors.Join(err, mount.Close())
	}
	return &spare{path: image.Name(), mount: mount}, nil
}

// format makes the file system in an empty file.
func (l *Layers) format(ctx context.Context, image *os.File, size int64) error {
	if err := image.Truncate(size); err != nil {
		return err
	}
	l.spares.making.Lock()
	defer l.spares.making.Unlock()
	if t := l.spares.template; size == l.o.Size && t != nil {
		if err := t.write(image); err != nil {
			return err
		}
		return image.Sync()
	}
	if err := ext4.MakeCompact(ctx, image.Name()); err != nil {
		return err
	}
	if size == l.o.Size {
		var err error
		if l.spares.template, err = readTemplate(image, size); err != nil {
			return err
		}
	}
	return image.Sync()
}

// template is the data that turns an empty file into a layer's file system.
type template struct {
	extents extent.List
	data    []byte // of all extents, in order
}

// maxTemplate is far more than mke2fs writes for a file system of any size, in bytes.
const maxTemplate = 64 << 20

func readTemplate(image *os.File, size int64) (*template, error) {
	t := &template{}
	var total int64
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(image.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, os.NewSyscallError("seek data", err)
		}
		if at, err = unix.Seek(int(image.Fd()), from, unix.SEEK_HOLE); err != nil {
			return nil, os.NewSyscallError("seek hole", err)
		}
		if total += at - from; total > maxTemplate {
			return nil, fmt.Errorf("%s: the file system has no sparse files", filepath.Dir(image.Name()))
		}
		t.extents = append(t.extents, extent.Extent{Offset: from, Length: at - from})
		part := make([]byte, at-from)
		if _, err := image.ReadAt(part, from); err != nil {
			return nil, err
		}
		t.data = append(t.data, part...)
	}
	return t, nil
}

func (t *template) write(to io.WriterAt) error {
	data := t.data
	for _, e := range t.extents {
		if _, err := to.WriteAt(data[:e.Length], e.Offset); err != nil {
			return err
		}
		data = data[e.Length:]
	}
	return nil
}
