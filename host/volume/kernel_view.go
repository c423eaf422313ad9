package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume/dm"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/loopdev"
)

func (h *kernelHandle) cut(ctx context.Context, _ string, still func(func() error) error) (view, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, err := h.makeView(ctx, still)
	if err != nil {
		return nil, errors.Join(err, finish.Do(ctx, finishPatience, h.endView))
	}
	h.view = v
	return v, nil
}

func (h *kernelHandle) makeView(ctx context.Context, still func(func() error) error) (v *kernelView, err error) {
	size := h.image.payload + h.image.size
	origin, past, now := h.name+originSuffix, h.name+pastSuffix, h.name+viewSuffix
	copies, err := h.attachCopies(dm.CopyRoom(size))
	if err != nil {
		return nil, fmt.Errorf("file for copies: %w", err)
	}
	// The loop device ends with its last user. If it has none, Detach ends it now.
	defer func() { err = errors.Join(err, loopdev.Detach(copies)) }()
	table, err := h.kernel.mapper.Tabled(ctx, h.name)
	if err != nil {
		return nil, err
	}
	// An origin looks for its snapshots when it is created.
	if err := h.kernel.mapper.Create(ctx, past, dm.Snapshot(size, h.loop, copies), false); err != nil {
		return nil, err
	}
	if err := h.kernel.mapper.Create(ctx, origin, dm.Origin(size, h.loop), false); err != nil {
		return nil, err
	}
	if err := h.kernel.mapper.Create(ctx, now, table.Over(dm.Path(past)), true); err != nil {
		return nil, err
	}
	if err := h.kernel.mapper.Load(ctx, h.name, table.Over(dm.Path(origin))); err != nil {
		return nil, err
	}
	if err := syncDevice(h.path()); err != nil {
		return nil, err
	}
	before, err := allocated(h.image.path)
	if err != nil {
		return nil, err
	}
	if err := still(func() error { return h.kernel.mapper.Resume(h.name) }); err != nil {
		return nil, err
	}
	after, err := allocated(h.image.path)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(dm.Path(now))
	if err != nil {
		return nil, err
	}
	return &kernelView{handle: h, content: f, before: before, after: after, size: h.image.size}, nil
}

// syncDevice flushes the writes to a block device without a file system.
func syncDevice(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// attachCopies makes the file for copies and its loop device. The sparse file has room for the whole
// image.
func (h *kernelHandle) attachCopies(size int64) (string, error) {
	name := h.kernel.copies(h.image.id)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	err = errors.Join(f.Truncate(size), f.Close())
	if err != nil {
		return "", err
	}
	return attach(name, h.name+copiesSuffix)
}

// endView puts the device back on the image and removes the view, even a partial one.
func (h *kernelHandle) endView(ctx finish.Context) error {
	states, err := h.kernel.states(ctx, h.image.id)
	if err != nil {
		return err
	}
	if states[""].Waiting {
		if err := h.kernel.mapper.Clear(ctx, h.name); err != nil {
			return err
		}
	}
	if err := h.replace(ctx, h.loop, h.image.size); err != nil {
		return err
	}
	for _, suffix := range []string{viewSuffix, originSuffix, pastSuffix} {
		if _, ok := states[suffix]; !ok {
			continue
		}
		if err := h.kernel.mapper.Remove(ctx, h.name+suffix); err != nil {
			return err
		}
	}
	if err := h.kernel.detach(ctx, h.name+copiesSuffix); err != nil {
		return err
	}
	return durable.Remove(h.kernel.copies(h.image.id))
}

// kernelView is a volume at an earlier moment.
type kernelView struct {
	handle  *kernelHandle
	content *os.File
	// before and after are the image's allocated extents just before and after the cut.
	before, after extent.List
	size          int64
}

func (v *kernelView) ReadAt(p []byte, off int64) (int, error) { return v.content.ReadAt(p, off) }

func (v *kernelView) data(ctx context.Context) (extent.List, error) {
	// Nothing is discarded below a view, so the extents that were allocated at the cut are still
	// allocated. For blocks that were allocated around the cut, the old image decides: a hole in it
	// reads as zeros. Encrypted data is never zero, and plain zeros may count as a hole.
	list := v.after.Intersect(v.before)
	past, err := os.Open(dm.Path(v.handle.name + pastSuffix))
	if err != nil {
		return nil, err
	}
	defer past.Close()
	for _, e := range v.after.Subtract(v.before) {
		written, err := nonzero(ctx, past, e)
		if err != nil {
			return nil, err
		}
		list = list.Union(written)
	}
	payload := v.handle.image.payload
	inside := list.Intersect(extent.List{{Offset: payload, Length: v.size}})
	for i := range inside {
		inside[i].Offset -= payload
	}
	return inside, nil
}

// nonzero returns the blocks of an extent that are not all zeros.
func nonzero(ctx context.Context, r io.ReaderAt, e extent.Extent) (extent.List, error) {
	var found []extent.Extent
	buf := make([]byte, 256*blockSize)
	for at := e.Offset; at < e.End(); {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		n, err := r.ReadAt(buf[:min(int64(len(buf)), e.End()-at)], at)
		if err != nil && (n == 0 || !errors.Is(err, io.EOF)) {
			return nil, err
		}
		for i := 0; i < n; i += blockSize {
			if part := buf[i:min(i+blockSize, n)]; !zeros(part) {
				found = append(found, extent.Extent{Offset: at + int64(i), Length: int64(len(part))})
			}
		}
		at += int64(n)
	}
	return extent.Of(found...), nil
}

func zeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// changed is never known: device mapper records overwritten blocks only during a view.
func (v *kernelView) changed(context.Context, string) (extent.List, bool, error) {
	return nil, false, nil
}

func (v *kernelView) close(ctx finish.Context) error {
	v.handle.mu.Lock()
	defer v.handle.mu.Unlock()
	if v.handle.view != v { // the view ended with the device
		return nil
	}
	_ = v.content.Close() // read only
	if err := v.handle.endView(ctx); err != nil {
		return err
	}
	v.handle.view = nil
	return nil
}

// allocated returns the extents of a file that are not holes.
func allocated(name string) (extent.List, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []extent.Extent
	for at := int64(0); ; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return extent.Of(found...), nil
		}
		if err != nil {
			return nil, &os.PathError{Op: "seek", Path: name, Err: err}
		}
		if at, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE); err != nil {
			return nil, &os.PathError{Op: "seek", Path: name, Err: err}
		}
		found = append(found, extent.Extent{Offset: from, Length: at - from})
	}
}
