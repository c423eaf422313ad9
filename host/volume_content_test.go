package host_test

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

const pretendBlock = 4096

// pretendContent is what is on a pretend image.
type pretendContent struct {
	blocks map[int64][]byte          // by offset; what was never written is not there
	marks  map[string]map[int64]bool // the blocks that changed since
	viewed bool
	broken error // what a check of the file system finds
}

func (c *pretendContent) write(b []byte, at int64) {
	if c.blocks == nil {
		c.blocks = map[int64][]byte{}
	}
	for len(b) > 0 {
		block := at / pretendBlock * pretendBlock
		data := make([]byte, pretendBlock) // others see the one before
		copy(data, c.blocks[block])
		n := copy(data[at-block:], b)
		c.blocks[block] = data
		for _, changed := range c.marks {
			changed[block] = true
		}
		b, at = b[n:], at+int64(n)
	}
}

// write changes what is on a volume, as its Machine does.
func (d *disk) write(id hangar.VolumeID, at int64, text string) {
	d.set(id, func(im *pretendImage) { im.content.write([]byte(text), at) })
}

// read returns what is on a volume.
func (d *disk) read(id hangar.VolumeID, at int64, n int) string {
	im, ok := d.get(id)
	if !ok {
		return "no image"
	}
	b := make([]byte, n)
	readBlocks(im.content.blocks, b, at)
	return string(bytes.TrimRight(b, "\x00"))
}

func readBlocks(blocks map[int64][]byte, b []byte, at int64) {
	for len(b) > 0 {
		block := at / pretendBlock * pretendBlock
		data := blocks[block]
		if data == nil {
			data = make([]byte, pretendBlock)
		}
		n := copy(b, data[at-block:])
		b, at = b[n:], at+int64(n)
	}
}

func (d *pretendDevice) Freeze(_ context.Context, mark string) (volumes.Frozen, error) {
	if err := d.enter("freeze"); err != nil {
		return nil, err
	}
	defer d.s.leave()
	c := &d.im.content
	if c.viewed {
		d.s.misuse("freeze %s twice", d.im.spec.ID)
		return nil, devices.ErrFrozen
	}
	c.viewed = true
	f := &pretendFrozen{d: d, size: d.im.spec.Size, blocks: maps.Clone(c.blocks), marks: map[string][]int64{}}
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

type pretendFrozen struct {
	d      *pretendDevice
	size   int64
	blocks map[int64][]byte
	marks  map[string][]int64
}

func (f *pretendFrozen) ReadAt(b []byte, at int64) (int, error) {
	if f.d.s.dead.Load() {
		return 0, errDead
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

func (f *pretendFrozen) Size() int64         { return f.size }
func (f *pretendFrozen) Took() time.Duration { return 3 * time.Millisecond }

func (f *pretendFrozen) Data(context.Context) (extent.List, error) {
	return blockList(slices.Collect(maps.Keys(f.blocks))), nil
}

func (f *pretendFrozen) Changed(_ context.Context, mark string) (extent.List, bool, error) {
	changed, known := f.marks[mark]
	return blockList(changed), known, nil
}

func blockList(blocks []int64) extent.List {
	var list []extent.Extent
	for _, at := range blocks {
		list = append(list, extent.Extent{Offset: at, Length: pretendBlock})
	}
	return extent.Of(list...)
}

func (f *pretendFrozen) Close(finish.Context) error {
	if err := f.d.s.enter("thaw", f.d.im.spec.ID); err != nil {
		return err
	}
	defer f.d.s.leave()
	f.d.im.content.viewed = false
	return nil
}

func (d *pretendDevice) Fill(context.Context) (volumes.Target, error) {
	if err := d.enter("fill"); err != nil {
		return nil, err
	}
	defer d.s.leave()
	if d.im.mounted {
		return nil, devices.ErrMounted
	}
	return pretendTarget{d}, nil
}

type pretendTarget struct{ d *pretendDevice }

func (t pretendTarget) ReadAt(b []byte, at int64) (int, error) {
	if err := t.d.enter("fill read"); err != nil {
		return 0, err
	}
	defer t.d.s.leave()
	readBlocks(t.d.im.content.blocks, b, at)
	return len(b), nil
}

func (t pretendTarget) WriteAt(b []byte, at int64) (int, error) {
	if err := t.d.enter("fill write"); err != nil {
		return 0, err
	}
	defer t.d.s.leave()
	t.d.im.content.write(b, at)
	t.d.im.formatted = true
	return len(b), nil
}

func (t pretendTarget) Flush() error { return nil }
func (t pretendTarget) Close() error { return nil }

func (d *pretendDevice) Check(context.Context) error {
	if err := d.enter("check"); err != nil {
		return err
	}
	defer d.s.leave()
	return d.im.content.broken
}
