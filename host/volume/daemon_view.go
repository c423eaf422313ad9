package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/host/volume/nbd"
	"github.com/hangar-platform/hangar/host/volume/storaged"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// daemonView reads the view that the storage daemon exports.
type daemonView struct {
	h       *daemonHandle
	image   *nbd.Client
	size    int64 // of the content, in bytes
	written extent.List
	changes changes
}

func (h *daemonHandle) cut(ctx context.Context, mark string, still func(func() error) error) (view, error) {
	v, err := h.show(ctx, mark, still)
	if err != nil {
		return nil, errors.Join(err, finish.Do(ctx, finishPatience, func(ctx finish.Context) error { return h.daemon.Drop(ctx, h.cow()) }))
	}
	h.view = v
	return v, nil
}

func (h *daemonHandle) show(ctx context.Context, mark string, still func(func() error) error) (*daemonView, error) {
	plan, err := h.daemon.Prepare(ctx, mark, h.cow())
	if err != nil {
		return nil, err
	}
	if err := still(func() error { return h.daemon.Cut(ctx, plan) }); err != nil {
		return nil, err
	}
	if err := h.daemon.Show(ctx, plan); err != nil {
		return nil, err
	}
	written, known, err := h.readImage(ctx)
	if err != nil {
		return nil, err
	}
	image, err := nbd.Dial(ctx, h.daemon.NBD(), storaged.ExportImage)
	if err != nil {
		return nil, err
	}
	return &daemonView{h: h, image: image, size: h.image.size, written: written, changes: known}, nil
}

// ReadAt reads whole sectors, because smaller units cannot be decrypted.
func (v *daemonView) ReadAt(b []byte, offset int64) (int, error) {
	if offset < 0 || offset >= v.size || len(b) == 0 {
		return outside(offset, len(b))
	}
	n := min(int64(len(b)), v.size-offset)
	const mask = luks.SectorSize - 1
	from, to := offset&^mask, (offset+n+mask)&^mask
	whole := b[:n]
	if from != offset || to != offset+n {
		whole = make([]byte, to-from)
	}
	if err := v.read(whole, from); err != nil {
		return 0, err
	}
	if from != offset || to != offset+n {
		copy(b, whole[offset-from:])
	}
	if n < int64(len(b)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// outside returns the result of a read that lies outside the device.
func outside(offset int64, n int) (int, error) {
	switch {
	case offset < 0:
		return 0, fmt.Errorf("read at %d: %w", offset, fs.ErrInvalid)
	case n == 0:
		return 0, nil
	default:
		return 0, io.EOF
	}
}

// read reads whole sectors.
func (v *daemonView) read(b []byte, offset int64) error {
	if _, err := v.image.ReadAt(b, offset+v.h.image.payload); err != nil {
		return err
	}
	if v.h.image.encrypted() {
		v.h.image.cipher.Decrypt(b, uint64(offset)/luks.SectorSize)
	}
	return nil
}

func (v *daemonView) data(context.Context) (extent.List, error) { return v.written, nil }

// inside converts extents of the image to extents of its content.
func (h *daemonHandle) inside(list extent.List) extent.List {
	moved := make([]extent.Extent, 0, len(list))
	for _, e := range list {
		from := max(e.Offset-h.image.payload, 0)
		to := min(e.End()-h.image.payload, h.image.size)
		moved = append(moved, extent.Extent{Offset: from, Length: to - from})
	}
	return extent.Of(moved...)
}

func (v *daemonView) changed(_ context.Context, mark string) (extent.List, bool, error) {
	list, known := v.changes.since(mark)
	return list, known, nil
}

func (v *daemonView) close(ctx finish.Context) error {
	v.h.view = nil
	return errors.Join(v.image.Close(), v.h.daemon.Drop(ctx, v.h.cow()))
}

// readImage returns the extents that were ever written, and the changes since each mark, at the time
// of the exported view. It reads the list once, because a later overwrite smaller than the daemon's
// copy unit makes more of the unit appear as written.
func (h *daemonHandle) readImage(ctx context.Context) (written extent.List, known changes, err error) {
	marks, bitmaps, err := h.daemon.Marks(ctx)
	if err != nil {
		return nil, nil, err
	}
	contexts := []string{nbd.Allocation}
	for _, name := range bitmaps {
		contexts = append(contexts, nbd.DirtyBitmap(name))
	}
	c, err := nbd.Dial(ctx, h.daemon.NBD(), storaged.ExportImage, contexts...)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	written, err = c.Status(ctx, nbd.Allocation, func(flags uint32) bool { return flags&nbd.FlagZero == 0 })
	if err != nil {
		return nil, nil, err
	}
	for i, mark := range marks {
		list, err := c.Status(ctx, contexts[i+1], func(flags uint32) bool { return flags&nbd.FlagDirty != 0 })
		if err != nil {
			return nil, nil, err
		}
		known = append(known, change{mark, h.inside(list)})
	}
	return h.inside(written), h.prior.followedBy(known), nil
}

// changesSoFar returns the changes since each mark on a device that is no longer in use.
func (h *daemonHandle) changesSoFar(ctx finish.Context) (changes, error) {
	counted, err := h.daemon.Counts(ctx)
	if err != nil || !counted {
		return nil, err
	}
	v, err := h.cut(ctx, "", func(cut func() error) error { return cut() })
	if err != nil {
		return nil, err
	}
	return v.(*daemonView).changes, v.close(ctx)
}
