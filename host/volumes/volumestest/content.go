package volumestest

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

const blockSize = 4096

// Content is what is on a pretend image.
type Content struct {
	blocks map[int64][]byte          // by offset; unwritten ones are missing
	marks  map[string]map[int64]bool // the blocks that changed since
	Viewed bool
	Broken error // what a check of the file system finds
}

// Write changes what is on the image.
func (c *Content) Write(b []byte, at int64) {
	if c.blocks == nil {
		c.blocks = map[int64][]byte{}
	}
	for len(b) > 0 {
		block := at / blockSize * blockSize
		data := make([]byte, blockSize) // others see the one before
		copy(data, c.blocks[block])
		n := copy(data[at-block:], b)
		c.blocks[block] = data
		for _, changed := range c.marks {
			changed[block] = true
		}
		b, at = b[n:], at+int64(n)
	}
}

// Write changes what is on a volume, as its Machine does.
func (d *Disk) Write(id hangar.VolumeID, at int64, text string) {
	d.Set(id, func(im *Image) { im.Content.Write([]byte(text), at) })
}

// Read returns what is on a volume.
func (d *Disk) Read(id hangar.VolumeID, at int64, n int) string {
	im, ok := d.Get(id)
	if !ok {
		return "no image"
	}
	b := make([]byte, n)
	readBlocks(im.Content.blocks, b, at)
	return string(bytes.TrimRight(b, "\x00"))
}

func readBlocks(blocks map[int64][]byte, b []byte, at int64) {
	for len(b) > 0 {
		block := at / blockSize * blockSize
		data := blocks[block]
		if data == nil {
			data = make([]byte, blockSize)
		}
		n := copy(b, data[at-block:])
		b, at = b[n:], at+int64(n)
	}
}

func (d *device) Freeze(_ context.Context, mark string) (volumes.Frozen, error) {
	if err := d.enter("freeze"); err != nil {
		return nil, err
	}
	defer d.s.leave()
	c := &d.im.Content
	if c.Viewed {
		d.s.misuse("freeze %s twice", d.im.Spec.ID)
		return nil, devices.ErrFrozen
	}
	c.Viewed = true
	f := &frozen{d: d, size: d.im.Spec.Size, blocks: maps.Clone(c.blocks), marks: map[string][]int64{}}
	for m, changed := range c.marks {
		f.marks[m] = slices.Collect(maps.Keys(changed))
	}
	if mark != "" {
		if c.marks == nil {
			c.marks = map[string]map[int64]bool{}
		}
		c.marks[mark] = map[int64]bool{}
	}
	return f, nil
}

type frozen struct {
	d      *device
	size   int64
	blocks map[int64][]byte
	marks  map[string][]int64
}

func (f *frozen) ReadAt(b []byte, at int64) (int, error) {
	if f.d.s.dead.Load() {
		return 0, ErrDead
	}
	if f.d.lost() {
		return 0, devices.ErrLost
	}
	n := int(min(int64(len(b)), f.size-at))
	readBlocks(f.blocks, b[:n], at)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *frozen) Size() int64         { return f.size }
func (f *frozen) Took() time.Duration { return 3 * time.Millisecond }

func (f *frozen) Data(context.Context) (extent.List, error) {
	return blockList(slices.Collect(maps.Keys(f.blocks))), nil
}

func (f *frozen) Changed(_ context.Context, mark string) (extent.List, bool, error) {
	changed, known := f.marks[mark]
	return blockList(changed), known, nil
}

func blockList(blocks []int64) extent.List {
	var list []extent.Extent
	for _, at := range blocks {
		list = append(list, extent.Extent{Offset: at, Length: blockSize})
	}
	return extent.Of(list...)
}

func (f *frozen) Close(finish.Context) error {
	if err := f.d.s.enter("thaw", f.d.im.Spec.ID); err != nil {
		return err
	}
	defer f.d.s.leave()
	f.d.im.Content.Viewed = false
	return nil
}

func (d *device) Fill(context.Context) (volumes.Target, error) {
	if err := d.enter("fill"); err != nil {
		return nil, err
	}
	defer d.s.leave()
	if d.im.Mounted {
		return nil, devices.ErrMounted
	}
	return target{d}, nil
}

type target struct{ d *device }

func (t target) ReadAt(b []byte, at int64) (int, error) {
	if err := t.d.enter("fill read"); err != nil {
		return 0, err
	}
	defer t.d.s.leave()
	readBlocks(t.d.im.Content.blocks, b, at)
	return len(b), nil
}

func (t target) WriteAt(b []byte, at int64) (int, error) {
	if err := t.d.enter("fill write"); err != nil {
		return 0, err
	}
	defer t.d.s.leave()
	t.d.im.Content.Write(b, at)
	t.d.im.Formatted = true
	return len(b), nil
}

func (t target) Flush() error { return nil }
func (t target) Close() error { return nil }

func (d *device) Check(context.Context) error {
	if err := d.enter("check"); err != nil {
		return err
	}
	defer d.s.leave()
	return d.im.Content.Broken
}
