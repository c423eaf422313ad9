package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// freezeBudget bounds how long a cut may block writers.
const freezeBudget = 100 * time.Millisecond

// freezeAttempts bounds the attempts to freeze within freezeBudget.
const freezeAttempts = 3

// errTooSlow means that the freeze exceeded freezeBudget.
var errTooSlow = fmt.Errorf("the file system could not be held still within %v", freezeBudget)

// errRestless means that the file system could not be frozen.
var errRestless = errors.New("the file system could not be held still")

// Frozen is the content of a device at one moment.
type Frozen struct {
	d    *Device
	view view
	size int64
	took time.Duration

	mu    sync.RWMutex // read-locked by reads
	ended bool
}

// Freeze makes a view of the volume as it is now, mounted or not. Writers wait for it, for at most a
// tenth of a second. If the file system cannot be frozen by then, or has errors, the view is like a
// volume after a loss of power, which ext4 survives. From now on changes are counted for mark, unless
// it is empty. If a view exists already, Freeze returns ErrFrozen.
func (d *Device) Freeze(ctx context.Context, mark string) (*Frozen, error) {
	unlock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if d.frozen != nil {
		return nil, fmt.Errorf("freeze volume %s: %w", d.image.id, ErrFrozen)
	}
	if d.filling.Load() != nil {
		return nil, fmt.Errorf("freeze volume %s: %w", d.image.id, ErrFilling)
	}
	f, err := d.freeze(ctx, mark)
	if err != nil {
		return nil, fmt.Errorf("freeze volume %s: %w", d.image.id, withLoss(d.handle, err))
	}
	d.frozen = f
	return f, nil
}

func (d *Device) freeze(ctx context.Context, mark string) (*Frozen, error) {
	f := &Frozen{d: d, size: d.image.size}
	mounted, err := ext4.IsMounted(d.dir())
	if err == nil && !mounted {
		err = d.endGrowth(ctx)
	}
	if err != nil {
		return nil, err
	}
	if mounted {
		for range freezeAttempts {
			f.view, err = d.handle.cut(ctx, mark, func(cut func() error) (err error) {
				f.took, err = d.v.hold(d, cut)
				return err
			})
			if errors.Is(err, errRestless) {
				d.v.o.Log.WarnContext(ctx, "taking a view of a volume without freezing its file system", "volume", d.image.id, "error", err)
				break
			}
			if !errors.Is(err, errTooSlow) {
				return f, err
			}
		}
	}
	f.took = 0
	f.view, err = d.handle.cut(ctx, mark, func(cut func() error) error { return cut() })
	return f, err
}

// hold runs cut while a mounted file system is frozen, and returns how long it was frozen. It returns
// errTooSlow if the file system was thawed before cut had ended.
func (v *Volumes) hold(d *Device, cut func() error) (took time.Duration, err error) {
	dir, err := os.Open(d.dir())
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	defer func() { err = errors.Join(err, unthrottle(d.Path())) }()
	if err := throttle(d.Path()); err != nil {
		return 0, err
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return 0, fmt.Errorf("%w: sync %s: %w", errRestless, dir.Name(), err)
	}
	guard, err := v.guard(dir.Name())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, guard.dismiss()) }()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return 0, fmt.Errorf("%w: sync %s: %w", errRestless, dir.Name(), err)
	}

	h := &freezing{dir: dir, begun: time.Now()}
	if err := ext4.Freeze(dir); err != nil {
		return 0, fmt.Errorf("%w: %w", errRestless, err)
	}
	timer := time.AfterFunc(freezeBudget-time.Since(h.begun), func() { h.end(true) })
	defer timer.Stop()
	var cutErr error
	if time.Since(h.begun) < freezeBudget {
		cutErr = cut()
	}
	h.end(time.Since(h.begun) > freezeBudget)
	if h.late && cutErr == nil {
		cutErr = errTooSlow
	}
	return h.took, errors.Join(cutErr, h.err)
}

// freezing is a file system that is frozen.
type freezing struct {
	dir   *os.File
	begun time.Time

	mu    sync.Mutex // guards the fields below
	ended bool
	late  bool // the timer or the guard ended it
	took  time.Duration
	err   error
}

// end thaws the file system, once.
func (h *freezing) end(late bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.ended = true
	frozen, err := ext4.Thaw(h.dir)
	h.err = err
	h.late = late || !frozen // the guard had thawed it already
	h.took = time.Since(h.begun)
}

// Size is the size of the device at that moment, in bytes.
func (f *Frozen) Size() int64 { return f.size }

// Took is how long writers waited; 0 if there were none.
func (f *Frozen) Took() time.Duration { return f.took }

// ReadAt reads plaintext. Unwritten parts are undefined.
func (f *Frozen) ReadAt(b []byte, offset int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.ended {
		return 0, os.ErrClosed
	}
	return f.view.ReadAt(b, offset)
}

// Data returns the parts that were ever written.
func (f *Frozen) Data(ctx context.Context) (extent.List, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.ended {
		return nil, os.ErrClosed
	}
	return f.view.data(ctx)
}

// Changed returns the parts that may have changed since the Freeze with that mark, or false if they
// are unknown.
func (f *Frozen) Changed(ctx context.Context, mark string) (extent.List, bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.ended {
		return nil, false, os.ErrClosed
	}
	return f.view.changed(ctx, mark)
}

// Close ends the view. It may be repeated.
func (f *Frozen) Close(ctx finish.Context) error {
	unlock, err := f.d.v.lock(ctx, f.d.image.id)
	if err != nil {
		return err
	}
	defer unlock()
	if f.d.v.device(f.d.image.id) != f.d || f.d.Err() != nil {
		return nil // the view ended with the device
	}
	return f.end(ctx)
}

// end is Close; the caller holds the lock.
func (f *Frozen) end(ctx finish.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil
	}
	f.ended = true
	f.d.frozen = nil
	if err := f.view.close(ctx); err != nil {
		return fmt.Errorf("end the view of volume %s: %w", f.d.image.id, err)
	}
	return nil
}
