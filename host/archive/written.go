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

// Unwritten parts of a volume and zeros on it are told apart: on an encrypted volume, unwritten
// parts read as noise. A snapshot has a list of what was written, so that its zeros are written,
// too, when it is restored.
const fileWritten = "written"

// blankSource is a source that reads as zeros wherever nothing was ever written.
type blankSource struct {
	Source

	data extent.List
}

// ReadAt reads what was written, and nothing else.
func (s blankSource) ReadAt(b []byte, at int64) (int, error) {
	where := extent.Extent{Offset: at, Length: int64(len(b))}
	from := at // up to which b is filled
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

// within returns what of a list lies in an extent.
func within(list extent.List, where extent.Extent) extent.List {
	from := sort.Search(len(list), func(i int) bool { return list[i].End() > where.Offset })
	to := sort.Search(len(list), func(i int) bool { return list[i].Offset >= where.End() })
	if from >= to {
		return nil
	}
	return list[from:to].Intersect(extent.List{where})
}

// maxWritten bounds the list of a snapshot, in bytes, so that it is one segment. A longer list
// loses detail: zeros in place of unwritten parts do no harm.
const maxWritten = 512 << 10

// putWritten stores a list of a volume of some size: for each extent how far it is from
// the end of the one before, and its length.
func putWritten(ctx context.Context, w repo.RepositoryWriter, list extent.List, size int64) (id object.ID, length int64, err error) {
	b := encodeWritten(list)
	for unit := int64(4096); len(b) > maxWritten; unit *= 2 {
		b = encodeWritten(list.Align(unit, size))
	}
	id, err = put(ctx, w, indexPrefix, b)
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
		return []byte{0, 0} // objects are not empty
	}
	return b
}

var errWritten = errors.New("the list of what was written is damaged")

// getWritten reads what putWritten has stored, of a volume of some size.
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

// writeWritten writes b, which belongs at an offset, wherever the volume was written to.
func (t *tree) writeWritten(dst io.WriterAt, b []byte, at int64) error {
	for _, e := range within(t.written, extent.Extent{Offset: at, Length: int64(len(b))}) {
		if _, err := dst.WriteAt(b[e.Offset-at:e.End()-at], e.Offset); err != nil {
			return err
		}
	}
	return nil
}
