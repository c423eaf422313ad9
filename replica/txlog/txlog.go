// Package txlog keeps the transactions of one database in an append-only log on disk.
//
// The log is a chain: each record begins at the position, transaction ID and checksum, at which the
// previous one ended. It consists of segment files, each named after the first transaction that it may
// contain. A log begins at a base, the position before its first record. Appended records survive the end
// of the process, and after Sync also a loss of power. Open finds the longest complete prefix.
//
// A Log may be used by many goroutines; the caller orders appends. A reader gets ErrGone when its records
// were removed.
package txlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/durable"
)

// Limits of a log, in bytes.
const (
	SegmentBytes = 64 << 20
	MaxRecord    = 256 << 20 // the longest record; a longer one is corrupt
	indexEvery   = 64 << 10  // bytes of records between entries of the index in memory
)

const (
	segmentMagic  = "HGTXLOG1"
	segmentHeader = 40 // magic, transaction ID and checksum of the position before, epoch, CRC
	recordHeader  = 8  // length and CRC-32C of the record
	suffix        = ".seg"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrGone is returned for a transaction that the log does not have, no longer or not yet.
var ErrGone = errors.New("not in the log")

// Log is the log of one database.
type Log struct {
	dir string

	mu       sync.Mutex
	segments []*segment // never empty
	pos      ltx.Pos    // after the last record
	active   *os.File   // the file of the last segment; nil after a Reset that failed
	dirty    bool       // records were appended since the last Sync
	changed  chan struct{}
	last     Meta // of the last record
	history  History
}

// Meta is the header of the last record of a log.
type Meta struct {
	ltx.Header
	Valid bool // there is a record
}

type segment struct {
	path  string
	base  ltx.Pos // before its first record
	epoch uint64
	size  int64
	last  time.Time // when its last record was appended
	index []entry
	n     int // records
}

// entry is the position of a record.
type entry struct {
	txid   ltx.TXID
	offset int64
}

// Open opens or creates the log in a directory. It removes the first incomplete record, and all that
// follow it.
func Open(dir string) (*Log, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	l := &Log{dir: dir, changed: make(chan struct{})}
	broken := false
	for _, n := range names {
		if _, ok := parseName(n.Name()); !ok {
			continue
		}
		path := filepath.Join(dir, n.Name())
		if broken {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		ok, err := l.load(path)
		if err != nil {
			return nil, err
		}
		broken = !ok
	}
	if len(l.segments) == 0 {
		if err := l.begin(ltx.Pos{PostApplyChecksum: ltx.ChecksumFlag}, 0); err != nil {
			return nil, err
		}
		if err := l.loadHistory(); err != nil {
			return nil, errors.Join(err, l.active.Close())
		}
		return l, nil
	}
	if err := l.loadHistory(); err != nil {
		return nil, err
	}
	s := l.segments[len(l.segments)-1]
	if l.active, err = os.OpenFile(s.path, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if err := l.active.Truncate(s.size); err != nil {
		return nil, errors.Join(err, l.active.Close())
	}
	return l, nil
}

func parseName(name string) (uint64, bool) {
	hex, ok := strings.CutSuffix(name, suffix)
	if !ok || len(hex) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, err == nil
}

// load reads one segment. It reports false if the segment, or its end, is damaged: no segment may
// follow.
func (l *Log) load(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	s, err := readSegmentHeader(f, path)
	if errors.Is(err, io.EOF) || err == nil && len(l.segments) > 0 && s.base != l.pos {
		return false, os.Remove(path)
	}
	if err != nil {
		return false, err
	}
	s.last = info.ModTime()
	if len(l.segments) == 0 {
		l.pos = s.base
	}
	l.segments = append(l.segments, s)
	for {
		b, err := readRecord(f, s.size, info.Size())
		if errors.Is(err, io.EOF) {
			return s.size == info.Size(), nil
		}
		if err != nil {
			return false, err
		}
		t, err := DecodeMeta(b)
		if err != nil || !l.follows(t) {
			return false, nil // like a torn record, an invalid transaction ends the log
		}
		l.note(s, t, int64(len(b)))
	}
}

// follows reports whether a transaction continues the chain.
func (l *Log) follows(t *Tx) bool {
	return t.MinTXID == l.pos.TXID+1 && t.MaxTXID == t.MinTXID &&
		(t.IsSnapshot() || t.PreApplyChecksum == l.pos.PostApplyChecksum)
}

// note counts a record of n bytes at the end of a segment.
func (l *Log) note(s *segment, t *Tx, n int64) {
	if len(s.index) == 0 || s.size-s.index[len(s.index)-1].offset >= indexEvery {
		s.index = append(s.index, entry{t.MinTXID, s.size})
	}
	s.size += recordHeader + n
	s.n++
	l.pos = t.Pos()
	l.last = Meta{Header: t.Header, Valid: true}
}

// readSegmentHeader reads the header of a segment. It returns io.EOF if there is no complete one.
func readSegmentHeader(f io.ReaderAt, path string) (*segment, error) {
	var b [segmentHeader]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return nil, err
	}
	if string(b[:8]) != segmentMagic || crc32.Checksum(b[:32], castagnoli) != binary.BigEndian.Uint32(b[32:]) {
		return nil, io.EOF
	}
	return &segment{
		path:  path,
		base:  ltx.Pos{TXID: ltx.TXID(binary.BigEndian.Uint64(b[8:])), PostApplyChecksum: ltx.Checksum(binary.BigEndian.Uint64(b[16:]))},
		epoch: binary.BigEndian.Uint64(b[24:]),
		size:  segmentHeader,
	}, nil
}

// readRecord reads the record at an offset of a segment of this size. It returns io.EOF if there is
// no complete one.
func readRecord(f io.ReaderAt, off, size int64) ([]byte, error) {
	var head [recordHeader]byte
	if off+recordHeader > size {
		return nil, io.EOF
	}
	if _, err := f.ReadAt(head[:], off); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n == 0 || n > MaxRecord || off+recordHeader+n > size {
		return nil, io.EOF
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off+recordHeader); err != nil {
		return nil, err
	}
	if crc32.Checksum(b, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return nil, io.EOF
	}
	return b, nil
}

// begin adds an empty segment after a position.
func (l *Log) begin(base ltx.Pos, epoch uint64) error {
	if l.active != nil { // only the last segment is synced later
		if err := l.active.Sync(); err != nil {
			return err
		}
	}
	var b []byte
	b = append(b, segmentMagic...)
	b = binary.BigEndian.AppendUint64(b, uint64(base.TXID))
	b = binary.BigEndian.AppendUint64(b, uint64(base.PostApplyChecksum))
	b = binary.BigEndian.AppendUint64(b, epoch)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = append(b, make([]byte, segmentHeader-len(b))...)
	path := filepath.Join(l.dir, fmt.Sprintf("%016x%s", uint64(base.TXID)+1, suffix))
	if err := durable.WriteFile(path, b, 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if l.active != nil {
		_ = l.active.Close() // it is synced
	}
	l.active = f
	l.segments = append(l.segments, &segment{path: path, base: base, epoch: epoch, size: segmentHeader, last: time.Now()})
	l.pos = base
	return nil
}

// Append appends an encoded transaction at the time now. t has its header and checksum, and must follow the
// last transaction. With synced, everything that was appended is durable before readers of the log see the
// transaction. After an error the log is unchanged.
func (l *Log) Append(t *Tx, encoded []byte, epoch uint64, now time.Time, synced bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.follows(t) {
		return fmt.Errorf("transaction %s after %s: %w", t.MinTXID, l.pos, ErrGone)
	}
	if len(encoded) > MaxRecord {
		return fmt.Errorf("record of %d bytes is too long", len(encoded))
	}
	s := l.segments[len(l.segments)-1]
	if l.active == nil || s.epoch != epoch || s.n > 0 && s.size >= SegmentBytes {
		before := l.segments
		if s.n == 0 {
			l.segments = l.segments[:len(l.segments)-1] // the new one replaces its file
		}
		if err := l.begin(l.pos, epoch); err != nil {
			l.segments = before
			return err
		}
		s = l.segments[len(l.segments)-1]
	}
	if err := l.remember(epoch, t.MinTXID); err != nil {
		return err
	}
	b := make([]byte, recordHeader, recordHeader+len(encoded))
	binary.BigEndian.PutUint32(b, uint32(len(encoded)))
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(encoded, castagnoli))
	// Written at the recorded size, to overwrite the remains of a failed write.
	if _, err := l.active.WriteAt(append(b, encoded...), s.size); err != nil {
		return err
	}
	if synced {
		if err := l.active.Sync(); err != nil {
			return err
		}
	}
	l.note(s, t, int64(len(encoded)))
	s.last = now
	l.dirty = !synced
	l.signal()
	return nil
}

func (l *Log) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Sync makes all appended records durable.
func (l *Log) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dirty {
		return nil
	}
	if err := l.active.Sync(); err != nil {
		return err
	}
	l.dirty = false
	return nil
}

// Reset removes all records. The log continues after base, whose transaction was committed in epoch. After an
// error the log may be empty at its previous position.
func (l *Log) Reset(base ltx.Pos, epoch uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.segments
	l.segments = nil
	// Old segments are removed first: a crash in between leaves an empty log instead of a wrong
	// one.
	for _, s := range old {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.segments = old
			return err
		}
	}
	l.last, l.dirty = Meta{}, false
	if err := l.begin(base, epoch); err != nil {
		// The log is empty, and has no file until the next Append.
		l.segments = []*segment{{path: old[len(old)-1].path, base: l.pos, epoch: epoch, size: segmentHeader}}
		if l.active != nil {
			err = errors.Join(err, l.active.Close())
			l.active = nil
		}
		return err
	}
	if err := l.remember(epoch, base.TXID); err != nil {
		return err
	}
	l.signal()
	return nil
}

// Pos returns the position after the last record.
func (l *Log) Pos() ltx.Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pos
}

// Last returns the header of the last record.
func (l *Log) Last() Meta {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Base returns the position before the first record.
func (l *Log) Base() ltx.Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.segments[0].base
}

// Changed returns a channel that is closed with the next append or reset.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Trim removes segments whose last record is older than before. It keeps the last segment, and segments
// with records after keep, as long as the log has no more than limit bytes.
func (l *Log) Trim(before time.Time, keep ltx.TXID, limit int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := int64(0)
	for _, s := range l.segments {
		total += s.size
	}
	for len(l.segments) > 1 {
		s := l.segments[0]
		needed := l.segments[1].base.TXID > keep && total <= limit
		if s.last.After(before) || needed {
			return nil
		}
		if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		total -= s.size
		l.segments = l.segments[1:]
	}
	return nil
}

// Size returns the number of bytes of all segments.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := int64(0)
	for _, s := range l.segments {
		total += s.size
	}
	return total
}

// Close closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active == nil {
		return nil
	}
	return errors.Join(l.active.Sync(), l.active.Close())
}

// Remove closes the log and removes it from the disk.
func (l *Log) Remove() error {
	return errors.Join(l.Close(), os.RemoveAll(l.dir))
}

// find returns the segment that has, or will have, the transaction after an ID, and the offset at
// which to start looking.
func (l *Log) find(after ltx.TXID) (*segment, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after < l.segments[0].base.TXID || after > l.pos.TXID {
		return nil, 0, ErrGone
	}
	i, exact := slices.BinarySearchFunc(l.segments, after, func(s *segment, id ltx.TXID) int {
		switch {
		case s.base.TXID < id:
			return -1
		case s.base.TXID > id:
			return 1
		}
		return 0
	})
	if !exact {
		i--
	}
	// A segment may be empty; the next one then begins at the same position.
	s := l.segments[i]
	off := int64(segmentHeader)
	for _, e := range s.index {
		if e.txid > after+1 {
			break
		}
		off = e.offset
	}
	return s, off, nil
}

// Reader reads the records after a position.
type Reader struct {
	l   *Log
	pos ltx.TXID
	s   *segment
	f   *os.File
	off int64
}

// After returns a reader of the records after pos. It returns ErrGone if the log was never at pos, or no
// longer goes back to it. Other errors say that the log cannot be read at the moment.
func (l *Log) After(pos ltx.Pos) (*Reader, error) {
	s, _, err := l.find(pos.TXID)
	if err != nil {
		return nil, err
	}
	if pos == s.base {
		return &Reader{l: l, pos: pos.TXID, s: s, off: segmentHeader}, nil
	}
	if pos.TXID == s.base.TXID {
		return nil, ErrGone
	}
	// The record that ends at pos has the checksum of pos.
	r, err := l.AfterID(pos.TXID - 1)
	if err != nil {
		return nil, err
	}
	b, err := r.Next()
	if errors.Is(err, io.EOF) {
		err = ErrGone // the log was reset
	}
	if err != nil {
		return nil, errors.Join(r.Close(), err)
	}
	t, err := DecodeMeta(b)
	if err != nil || t.Pos() != pos {
		return nil, errors.Join(r.Close(), err, ErrGone)
	}
	return r, nil
}

// Next returns the next record, as the encoded transaction. It returns io.EOF at the end of the log, after
// which it may be called again, and ErrGone if the record was removed or is damaged.
func (r *Reader) Next() ([]byte, error) {
	for {
		if r.f == nil {
			if err := r.open(); err != nil {
				return nil, err
			}
		}
		r.l.mu.Lock()
		size, end := r.s.size, r.l.pos.TXID
		current := slices.Contains(r.l.segments, r.s)
		r.l.mu.Unlock()
		if !current {
			return nil, ErrGone
		}
		if r.pos >= end {
			return nil, io.EOF
		}
		if r.off >= size {
			_ = r.Close() // it was only read
			s, off, err := r.l.find(r.pos)
			if err != nil {
				return nil, err
			}
			r.s, r.off = s, off
			continue
		}
		b, err := readRecord(r.f, r.off, size)
		if errors.Is(err, io.EOF) {
			err = ErrGone // the file is damaged
		}
		if err != nil {
			return nil, fmt.Errorf("record after %s: %w", r.pos, err)
		}
		r.off += recordHeader + int64(len(b))
		t, _, _, err := decodeHeader(b)
		if err != nil {
			return nil, err
		}
		if t.MinTXID <= r.pos {
			continue
		}
		r.pos = t.MaxTXID
		return b, nil
	}
}

// Epoch returns the epoch of the record that Next has returned last.
func (r *Reader) Epoch() uint64 { return r.s.epoch }

func (r *Reader) open() error {
	f, err := os.Open(r.s.path)
	if errors.Is(err, os.ErrNotExist) {
		return ErrGone
	}
	r.f = f
	return err
}

// Close closes the reader.
func (r *Reader) Close() error {
	if r.f == nil {
		return nil
	}
	f := r.f
	r.f = nil
	return f.Close()
}

// AfterID is After for a transaction ID whose checksum is not known.
func (l *Log) AfterID(id ltx.TXID) (*Reader, error) {
	s, off, err := l.find(id)
	if err != nil {
		return nil, err
	}
	return &Reader{l: l, pos: id, s: s, off: off}, nil
}
