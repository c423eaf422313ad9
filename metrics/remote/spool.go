package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/snappy"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
)

// A segment is a file: the magic, then records. A record is a header of three numbers (the length of
// its payload, a CRC-32C of everything after the sum, the number of its samples; little endian, 32
// bits each) and the payload, a WriteRequest in the snappy block format. A segment appears under its
// name with its first record. It ends at the first incomplete record.
const (
	magic        = "hgmetrc1"
	recordHeader = 12
	segmentName  = ".segment"
	unfinished   = ".new"
	maxSegment   = 1 << 20 // bytes after which a new segment begins
	maxRecord    = 8 << 20 // largest payload that is read, in bytes, compressed or not
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segment is a file of the spool.
type segment struct {
	number  uint64
	size    int64 // bytes
	samples int   // -1: from an earlier process, not counted
	last    time.Time
}

// position is the position of a record.
type position struct {
	segment uint64
	offset  int64
}

// spool is one tenant's samples on disk. Its queue's mu guards it.
type spool struct {
	w            *Writer
	dir          string
	segments     []segment    // oldest first
	segmentCount atomic.Int64 // len(segments)
	bytes        atomic.Int64 // of all segments
	sent         position     // of the next record, if its segment is the first
	next         uint64       // number of the next segment
	writable     bool         // records may be appended to the last segment
}

// tenantDir is the name of a tenant's directory, ORG.NUMBER.
func tenantDir(t metrics.Tenant) string {
	return string(t.Org) + "." + strconv.FormatUint(uint64(t.Number), 10)
}

func parseTenantDir(name string) (metrics.Tenant, bool) {
	org, number, _ := strings.Cut(name, ".")
	n, err := strconv.ParseUint(number, 10, 32)
	t := metrics.Tenant{Org: hangar.OrgID(org), Number: uint32(n)}
	return t, err == nil && validOrg(t.Org) && tenantDir(t) == name
}

// validOrg reports whether an id may name a directory.
func validOrg(id hangar.OrgID) bool {
	return id != "" && len(id) <= 64 && !strings.ContainsFunc(string(id), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

func newSpool(w *Writer, tenant metrics.Tenant) *spool {
	return &spool{w: w, dir: filepath.Join(w.o.Dir, tenantDir(tenant)), next: 1}
}

func (s *spool) path(number uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%020d", number)+segmentName)
}

// load finds existing segments. Nothing is appended to them.
func (s *spool) load() error {
	entries, err := os.ReadDir(s.dir) // by name, which is by number
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), segmentName)
		number, err := strconv.ParseUint(name, 10, 64)
		if !ok || err != nil {
			if strings.HasSuffix(e.Name(), unfinished) {
				_ = os.Remove(filepath.Join(s.dir, e.Name())) // left by a crash before its first record
			}
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		s.push(segment{number: number, size: info.Size(), samples: -1, last: info.ModTime()})
		s.next = number + 1
	}
	return nil
}

func (s *spool) push(g segment) {
	s.segments = append(s.segments, g)
	s.segmentCount.Store(int64(len(s.segments)))
	s.grow(g.size)
}

func (s *spool) grow(n int64) {
	s.bytes.Add(n)
	s.w.counts.spooled.Add(n)
}

// append appends a batch. On an error nothing is added.
func (s *spool) append(b batch) error {
	record := make([]byte, recordHeader, recordHeader+snappy.MaxEncodedLen(len(b.request)))
	payload := snappy.Encode(record[recordHeader:cap(record)], b.request)
	record = record[:recordHeader+len(payload)]
	binary.LittleEndian.PutUint32(record, uint32(len(payload)))
	binary.LittleEndian.PutUint32(record[8:], uint32(b.samples))
	binary.LittleEndian.PutUint32(record[4:], crc32.Checksum(record[8:], castagnoli))
	if s.w.o.Admit != nil {
		if err := s.w.o.Admit(int64(len(record))); err != nil {
			return err
		}
	}
	limit := min(maxSegment, s.w.limits.TenantSpoolBytes/8)
	if n := len(s.segments); s.writable && n > 0 && s.segments[n-1].size+int64(len(record)) <= limit {
		if err := s.extend(&s.segments[n-1], record); err != nil {
			return err
		}
		s.segments[n-1].samples += b.samples
	} else {
		if err := s.begin(record); err != nil {
			return err
		}
		s.push(segment{number: s.next, size: int64(len(magic) + len(record)), samples: b.samples, last: time.Now()})
		s.next++
		s.writable = true
	}
	for s.bytes.Load() > s.w.limits.TenantSpoolBytes {
		s.dropOldest(reasonSpoolFull)
	}
	return nil
}

// begin writes a segment with its first record.
func (s *spool) begin(record []byte) error {
	name := s.path(s.next)
	temporary := name + unfinished
	err := os.WriteFile(temporary, slices.Concat([]byte(magic), record), 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(s.dir, 0o700); err == nil {
			err = os.WriteFile(temporary, slices.Concat([]byte(magic), record), 0o600)
		}
	}
	if err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		_ = os.Remove(temporary) // the error of the write matters
	}
	return err
}

// extend appends a record to a segment. After a partial write, nothing more is appended to the
// segment, unless the part could be cut off.
func (s *spool) extend(g *segment, record []byte) error {
	f, err := os.OpenFile(s.path(g.number), os.O_WRONLY, 0)
	if err != nil {
		s.writable = false
		return err
	}
	if _, err = f.WriteAt(record, g.size); err != nil {
		s.writable = f.Truncate(g.size) == nil
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		s.writable = false
		return err
	}
	g.size += int64(len(record))
	g.last = time.Now()
	s.grow(int64(len(record)))
	return nil
}

// dropOldest drops the oldest segment and counts its unsent samples.
func (s *spool) dropOldest(reason string) {
	if len(s.segments) == 0 {
		return
	}
	g := s.segments[0]
	lost := 0
	records, err := s.records(g, s.begins(g))
	if err != nil {
		s.w.counts.complain(s.w.o.Log, err)
	}
	for _, r := range records {
		lost += r.samples
	}
	s.w.counts.drop(reason, lost)
	s.shift()
}

// begins is the position of the first unsent record of the first segment.
func (s *spool) begins(g segment) int64 {
	if s.sent.segment == g.number {
		return s.sent.offset
	}
	return int64(len(magic))
}

// shift removes the first segment.
func (s *spool) shift() {
	g := s.segments[0]
	if err := os.Remove(s.path(g.number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.w.counts.complain(s.w.o.Log, err)
	}
	s.grow(-g.size)
	if s.segments = s.segments[1:]; len(s.segments) == 0 {
		s.segments, s.writable = nil, false
		_ = os.Remove(s.dir) // fails if it has other files
	}
	s.segmentCount.Store(int64(len(s.segments)))
}

// record is a record of a segment.
type record struct {
	payload []byte
	samples int
	end     int64 // where the next record begins
}

// records reads the complete records of a segment from an offset on. It fails for an existing segment
// that cannot be read, for example for lack of a descriptor.
func (s *spool) records(g segment, from int64) (list []record, err error) {
	b, err := os.ReadFile(s.path(g.number))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if !strings.HasPrefix(string(b[:min(len(b), len(magic))]), magic) || from > int64(len(b)) {
		return nil, nil
	}
	for rest := b[from:]; len(rest) >= recordHeader; {
		end := recordHeader + int64(binary.LittleEndian.Uint32(rest))
		if end > maxRecord || end > int64(len(rest)) ||
			crc32.Checksum(rest[8:end], castagnoli) != binary.LittleEndian.Uint32(rest[4:]) {
			break
		}
		from += end
		list = append(list, record{payload: rest[recordHeader:end], samples: int(binary.LittleEndian.Uint32(rest[8:])), end: from})
		rest = rest[end:]
	}
	return list, nil
}

// read returns the oldest records as one batch, and the position of the next. It drops segments that
// are too old or damaged. An empty batch means that none are left. A segment that cannot be read now
// stays.
func (s *spool) read() (batch, position, error) {
	for len(s.segments) > 0 {
		g := s.segments[0]
		if time.Since(g.last) > s.w.limits.SpoolAge {
			s.dropOldest(reasonOld)
			continue
		}
		var b batch
		at := position{g.number, s.begins(g)}
		records, err := s.records(g, at.offset)
		if err != nil {
			return batch{}, position{}, err
		}
		for _, r := range records {
			n, err := snappy.DecodedLen(r.payload)
			if err != nil || n > maxRecord || b.samples > 0 && len(b.request)+n > maxRequest {
				break
			}
			decoded, err := snappy.Decode(nil, r.payload)
			if err != nil {
				break
			}
			b.request = append(b.request, decoded...)
			b.samples += r.samples
			at.offset = r.end
		}
		if b.samples > 0 {
			return b, at, nil
		}
		if s.begins(g) < g.size {
			s.w.counts.damaged.Inc()
		}
		s.shift()
	}
	return batch{}, position{}, nil
}

// advance records that everything before a position was sent.
func (s *spool) advance(at position) {
	if len(s.segments) == 0 || s.segments[0].number != at.segment {
		return // dropped meanwhile
	}
	s.sent = at
	if at.offset >= s.segments[0].size {
		s.shift()
	}
}
