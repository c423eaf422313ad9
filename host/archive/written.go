package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sort"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"

	"github.com/hangar-platform/hangar/internal/extent"
)

// fileWritten lists the extents that were ever written. On an encrypted volume, unwritten parts
// read as noise, so they differ from zeros: a restore writes the zeros of the list, and leaves the
// rest.
const fileWritten = "written"

// blankSource reads as zeros wherever nothing was written.
type blankSource struct {
	Source

	data extent.List
}

// ReadAt reads written parts only.
func (s blankSource) ReadAt(b []byte, at int64) (int, error) {
	where := extent.Extent{Offset: at, Length: int64(len(b))}
	from := at // b is filled up to here
	for _, e := range within(s.data, where) {
		clear(b[from-at : e.Offset-at])
		if n, err := s.Source.ReadAt(b[e.Offset-at:e.End()-at], e.Offset); n < int(e.Length) {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return int(e.Offset-at) + n, err
		}
		from = e.End()
	}
	clear(b[from-at:])
	return len(b), nil
}

// within returns the part of a list that lies in an extent.
func within(list extent.List, where extent.Extent) extent.List {
	from := sort.Search(len(list), func(i int) bool { return list[i].End() > where.Offset })
	to := sort.Search(len(list), func(i int) bool { return list[i].Offset >= where.End() })
	if from >= to {
		return nil
	}
	return list[from:to].Intersect(extent.List{where})
}

// maxWritten bounds the list of a snapshot, in bytes, so that it fits one segment. A longer list
// loses detail, which is harmless: a restore then writes zeros to unwritten parts.
const maxWritten = 512 << 10

// putWritten stores the list of a volume. For each extent it has the distance from the end of the
// previous one, and the length.
func (s *session) putWritten(ctx context.Context, list extent.List, size int64) (id object.ID, length int64, err error) {
	b := encodeWritten(list)
	for unit := int64(4096); len(b) > maxWritten; unit *= 2 {
		b = encodeWritten(list.Align(unit, size))
	}
	id, err = s.put(ctx, indexPrefix, b)
	return id, int64(len(b)), err
}

func encodeWritten(list extent.List) (b []byte) {
	end := int64(0)
	for _, e := range list {
		b = binary.AppendUvarint(b, uint64(e.Offset-end))
		b = binary.AppendUvarint(b, uint64(e.Length))
		end = e.End()
	}
	if len(b) == 0 {
		return []byte{0, 0} // objects cannot be empty
	}
	return b
}

var errWritten = errors.New("the list of what was written is damaged")

// getWritten reads the list that putWritten stored.
func getWritten(ctx context.Context, rep repo.DirectRepository, id object.ID, size int64) (extent.List, error) {
	b, err := get(ctx, rep, id)
	if err != nil {
		return nil, err
	}
	var list []extent.Extent
	for end := int64(0); len(b) > 0; {
		var numbers [2]int64
		for i := range numbers {
			v, n := binary.Uvarint(b)
			if n <= 0 || v > uint64(size) {
				return nil, errWritten
			}
			numbers[i], b = int64(v), b[n:]
		}
		e := extent.Extent{Offset: end + numbers[0], Length: numbers[1]}
		if end = e.End(); end > size {
			return nil, errWritten
		}
		list = append(list, e)
	}
	return extent.Of(slices.Clip(list)...), nil
}

// writeWritten writes b, which belongs at offset at, to the parts that were ever written.
func (t *tree) writeWritten(dst io.WriterAt, b []byte, at int64) error {
	for _, e := range within(t.written, extent.Extent{Offset: at, Length: int64(len(b))}) {
		if _, err := dst.WriteAt(b[e.Offset-at:e.End()-at], e.Offset); err != nil {
			return err
		}
	}
	return nil
}
