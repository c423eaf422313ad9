package archive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/extent"
)

const (
	// segmentSize is the unit of storage, deduplication and verification, in bytes.
	segmentSize = 64 << 10
	// groupSegments is how many segments a table lists. A change costs a new table of its group.
	groupSegments = 1024
	groupSize     = groupSegments * segmentSize
	// runSize bounds one read or write of a volume, in bytes.
	runSize = 1 << 20
)

// sum is a SHA-256 sum.
type sum [sha256.Size]byte

// Source is the content of a device. ReadAt is called by several goroutines at once.
type Source interface {
	io.ReaderAt
	Size() int64 // bytes
}

// Digest returns the digest of a device, of which only data was ever written; the rest
// counts as zero and is not read. It is "sha256:" and the SHA-256, in hexadecimal, of
//
//	the line "hangar volume 1" with its newline,
//	the size in bytes, as 8 bytes with the most significant first,
//	for each 64 MiB of the content: the SHA-256 of
//	    for each 64 KiB of those: its SHA-256
//
// where the last 64 KiB, and the last 64 MiB, may be shorter.
func (a *Archive) Digest(ctx context.Context, src Source, data extent.List) (string, error) {
	c := cut(src.Size())
	src = blankSource{src, data}
	present := c.touched(data)
	sums := make([]sum, c.groups())
	err := c.each(ctx, func(ctx context.Context, g int, buf []byte) error {
		table := c.zeroTable(g)
		err := c.read(ctx, src, g, func(i int) bool { return present.has(g, i) }, buf, func(i int, segment []byte) error {
			table[i] = sha256.Sum256(segment)
			return nil
		})
		sums[g] = sumOf(table)
		return err
	})
	if err != nil {
		return "", err
	}
	return c.digest(sums), nil
}

// volume is the division of a volume into groups and segments.
type volume struct {
	size int64
	zero sum // of a segment of zeros
	last sum // of zeros, in the length of the last segment
}

func cut(size int64) volume {
	zeros := make([]byte, segmentSize)
	c := volume{size: size, zero: sha256.Sum256(zeros)}
	c.last = sha256.Sum256(zeros[:(size-1)%segmentSize+1])
	return c
}

func (c volume) groups() int { return int((c.size + groupSize - 1) / groupSize) }

// span returns the extent of group g.
func (c volume) span(g int) extent.Extent {
	from := int64(g) * groupSize
	return extent.Extent{Offset: from, Length: min(groupSize, c.size-from)}
}

// segments returns the number of segments of group g.
func (c volume) segments(g int) int {
	return int((c.span(g).Length + segmentSize - 1) / segmentSize)
}

// segment returns the extent of segment i of group g.
func (c volume) segment(g, i int) extent.Extent {
	from := int64(g)*groupSize + int64(i)*segmentSize
	return extent.Extent{Offset: from, Length: min(segmentSize, c.size-from)}
}

func (c volume) zeroSum(length int64) sum {
	if length == segmentSize {
		return c.zero
	}
	return c.last
}

func (c volume) zeroTable(g int) []sum {
	table := make([]sum, c.segments(g))
	for i := range table {
		table[i] = c.zeroSum(c.segment(g, i).Length)
	}
	return table
}

// marks is a bitmap of the segments of a volume.
type marks []uint64

// has reports whether segment i of group g is marked.
func (m marks) has(g, i int) bool {
	n := g*groupSegments + i
	return m[n/64]&(1<<(n%64)) != 0
}

// touched marks the segments that overlap a list.
func (c volume) touched(list extent.List) marks {
	m := make(marks, c.groups()*groupSegments/64)
	for _, e := range list {
		from, to := max(e.Offset, 0), min(e.End(), c.size)
		for n := from / segmentSize; n*segmentSize < to; n++ {
			m[n/64] |= 1 << (n % 64)
		}
	}
	return m
}

// both returns the intersection.
func (m marks) both(other marks) marks {
	b := make(marks, len(m))
	for i := range m {
		b[i] = m[i] & other[i]
	}
	return b
}

// bytes returns the total size of the marked segments.
func (c volume) bytes(m marks) (n int64) {
	for _, word := range m {
		n += int64(bits.OnesCount64(word)) * segmentSize
	}
	last := c.groups() - 1
	if i := c.segments(last) - 1; m.has(last, i) {
		n -= segmentSize - c.segment(last, i).Length
	}
	return n
}

// read calls take for each wanted segment of a group, in order. It uses the buffer, which has
// runSize bytes.
func (c volume) read(ctx context.Context, src io.ReaderAt, g int, wanted func(i int) bool, buf []byte, take func(i int, segment []byte) error) error {
	for i, n := 0, c.segments(g); i < n; {
		if !wanted(i) {
			i++
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		first := i
		for i < n && wanted(i) && i-first < runSize/segmentSize {
			i++
		}
		from := c.segment(g, first).Offset
		run := buf[:c.segment(g, i-1).End()-from]
		if n, err := src.ReadAt(run, from); n < len(run) {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read the volume at %d: %w", from+int64(n), err)
		}
		for j := first; j < i; j++ {
			e := c.segment(g, j)
			if err := take(j, run[e.Offset-from:e.End()-from]); err != nil {
				return err
			}
		}
	}
	return nil
}

// workers is how many groups are processed at once: more than most servers have cores, because some
// wait for the disk.
const workers = 4

// each calls do for every group, in parallel, with a buffer of runSize bytes.
func (c volume) each(ctx context.Context, do func(ctx context.Context, g int, buf []byte) error) error {
	buffers := sync.Pool{New: func() any { return new([runSize]byte) }}
	work, inner := errgroup.WithContext(ctx)
	work.SetLimit(workers)
	for g := range c.groups() {
		if inner.Err() != nil {
			break
		}
		work.Go(func() error {
			buf := buffers.Get().(*[runSize]byte)
			defer buffers.Put(buf)
			return do(inner, g, buf[:])
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// digest returns the digest of a volume with these group sums.
func (c volume) digest(groups []sum) string {
	h := sha256.New()
	h.Write([]byte("hangar volume 1\n"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(c.size)))
	for i := range groups {
		h.Write(groups[i][:])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// sumOf returns the sum of a group with these segment sums.
func sumOf(table []sum) sum { return sha256.Sum256(flat(table)) }

func flat(table []sum) []byte {
	b := make([]byte, 0, len(table)*sha256.Size)
	for i := range table {
		b = append(b, table[i][:]...)
	}
	return b
}

// table is the inverse of flat.
func table(b []byte) []sum {
	sums := make([]sum, len(b)/sha256.Size)
	for i := range sums {
		copy(sums[i][:], b[i*sha256.Size:])
	}
	return sums
}

// reportEvery is the minimum time between progress reports.
const reportEvery = 100 * time.Millisecond

// reporter reports progress.
type reporter struct {
	mu     sync.Mutex
	report func(hangar.Progress) // may be nil
	now    hangar.Progress
	last   time.Time
}

// newReporter reports the total immediately.
func newReporter(report func(hangar.Progress), total int64) *reporter {
	r := &reporter{report: report, now: hangar.Progress{Total: total}}
	r.add(0)
	return r
}

func (r *reporter) add(n int64) {
	if r.report == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Done = min(r.now.Done+n, r.now.Total)
	if time.Since(r.last) < reportEvery && r.now.Done < r.now.Total {
		return
	}
	r.last = time.Now()
	r.report(r.now)
}
