package sqlite_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/sqlite"
)

func TestPageSum(t *testing.T) {
	data := bytes.Repeat([]byte{7}, 4096)
	if got, want := sqlite.PageSum(3, data), ltx.ChecksumPage(3, data); got != want {
		t.Errorf("%s, the library has %s", got, want)
	}
	if got := sqlite.PageSum(sqlite.LockPage(4096), data); got != 0 {
		t.Errorf("the page of the lock bytes has %s", got)
	}
}

func TestHeader(t *testing.T) {
	b := make([]byte, sqlite.HeaderSize)
	copy(b, "SQLite format 3\x00")
	binary.BigEndian.PutUint16(b[16:], 1)
	b[18], b[19] = 2, 2
	binary.BigEndian.PutUint32(b[28:], 9)
	if h, err := sqlite.ParseHeader(b); err != nil || h != (sqlite.Header{PageSize: 65536, Pages: 9, WAL: true}) {
		t.Errorf("%+v %v", h, err)
	}
	b[92] = 1 // another program has changed the database and not the size
	if h, err := sqlite.ParseHeader(b); err != nil || h.Pages != 0 {
		t.Errorf("%+v %v", h, err)
	}
	for _, damage := range []func([]byte) []byte{
		func(b []byte) []byte { return b[:99] },
		func(b []byte) []byte { b[0] = 'X'; return b },
		func(b []byte) []byte { b[17] = 3; return b },
	} {
		if _, err := sqlite.ParseHeader(damage(bytes.Clone(b))); !errors.Is(err, sqlite.ErrNotDatabase) {
			t.Error(err)
		}
	}
}

// TestWAL reads back what it has written, with both byte orders, and stops at a damaged frame.
func TestWAL(t *testing.T) {
	for _, big := range []bool{false, true} {
		h := sqlite.WALHeader{BigEndian: big, PageSize: 512, Salt: [2]uint32{1, 2}}
		wal := h.Append(nil)
		sum := h.Sum
		for i := range uint32(5) {
			wal, sum = sqlite.AppendFrame(wal, &h, sum, sqlite.Frame{Page: i + 1, Commit: i / 4 * 5}, bytes.Repeat([]byte{byte(i)}, 512))
		}
		for damaged := uint32(1); damaged <= 6; damaged++ {
			b := bytes.Clone(wal)
			if damaged <= 5 {
				b[sqlite.FrameOffset(damaged, 512)+30] ^= 1
			}
			s, err := sqlite.NewWALScanner(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			for n := uint32(1); ; n++ {
				f, data, err := s.Frame(math.MaxUint32)
				if errors.Is(err, io.EOF) {
					if n != damaged {
						t.Errorf("ends at frame %d, damaged is %d", n, damaged)
					}
					break
				}
				if err != nil || f.Page != n || data[0] != byte(n-1) {
					t.Fatal(f, err)
				}
			}
		}
	}
}

// TestIndex enters frames as a writer does and finds them as a reader of SQLite would.
func TestIndex(t *testing.T) {
	x := sqlite.Index{Change: 3, PageSize: 65536, MaxFrame: 5, Pages: 6, Sum: sqlite.WALSum{1, 2}, Salt: [2]uint32{3, 4}}
	b := make([]byte, sqlite.IndexHeaderSize)
	copy(b[sqlite.IndexCopy(0):], x.Copy())
	if _, ok := sqlite.ParseIndex(b); ok {
		t.Error("one copy alone is valid")
	}
	copy(b[sqlite.IndexCopy(1):], x.Copy())
	if got, ok := sqlite.ParseIndex(b); !ok || got != x {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		frame         uint32
		block, places int64
		entry         uint32
	}{{1, 0, 136, 0}, {4062, 0, 136, 4061}, {4063, 32768, 32768, 0}, {8158, 32768, 32768, 4095}, {8159, 65536, 65536, 0}} {
		if p := sqlite.PlaceOf(c.frame); p.Block != c.block || p.PagesAt != c.places || p.Entry != c.entry {
			t.Errorf("frame %d: %+v", c.frame, p)
		}
	}
	place := sqlite.PlaceOf(1)
	raw := make([]byte, sqlite.IndexBlockSize)
	block := sqlite.NewIndexBlock(raw, place)
	rng := rand.New(rand.NewPCG(1, 1))
	pages := make([]uint32, place.Frames)
	for i := range pages {
		pages[i] = 1 + rng.Uint32N(3000)
		if !block.Set(uint32(i), pages[i]) {
			t.Fatal("full")
		}
	}
	block.Truncate(2000)
	if !block.Stale(1999) || block.Stale(2000) {
		t.Error("truncation")
	}
	for page := uint32(1); page <= 3000; page++ {
		want := uint32(0)
		for i, p := range pages[:2000] {
			if p == page {
				want = uint32(i + 1)
			}
		}
		got := uint32(0)
		for slot := page * 383 % 8192; ; slot = (slot + 1) % 8192 {
			n := uint32(binary.LittleEndian.Uint16(raw[16384+2*slot:]))
			if n == 0 {
				break
			}
			if pages[n-1] == page {
				got = max(got, n)
			}
		}
		// A hole left by the truncation may end the search early only for truncated entries.
		if got != want && got != 0 {
			t.Fatalf("page %d: frame %d, not %d", page, got, want)
		}
	}
}

type memory struct{ b []byte }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if need := int(off) + len(p); need > len(m.b) {
		m.b = append(m.b, make([]byte, need-len(m.b))...)
	}
	return copy(m.b[off:], p), nil
}

func (m *memory) Truncate(size int64) error {
	m.b = append(m.b, make([]byte, max(0, int(size)-len(m.b)))...)[:size]
	return nil
}

// journal makes a journal of one page with one content.
func journal(page uint32, data []byte, pages uint32) []byte {
	b := []byte("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")
	for _, w := range []uint32{1, 99, pages, 512, uint32(len(data))} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	b = append(b, make([]byte, 512-len(b))...)
	b = binary.BigEndian.AppendUint32(b, page)
	b = append(b, data...)
	sum := uint32(99)
	for i := len(data) - 200; i > 0; i -= 200 {
		sum += uint32(data[i])
	}
	return binary.BigEndian.AppendUint32(b, sum)
}

func TestRollback(t *testing.T) {
	old := bytes.Repeat([]byte{1}, 512)
	for _, c := range []struct {
		name string
		edit func([]byte) []byte
		want byte
		size int
	}{
		{"valid", func(b []byte) []byte { return b }, 1, 1024},
		{"invalidated", func(b []byte) []byte { clear(b[:28]); return b }, 2, 1536},
		{"torn", func(b []byte) []byte { return b[:len(b)-3] }, 2, 1024},
		{"damaged", func(b []byte) []byte { b[512+4+312] ^= 1; return b }, 2, 1024},
	} {
		db := &memory{bytes.Repeat([]byte{2}, 1536)}
		j := c.edit(journal(2, old, 2))
		if err := sqlite.Rollback(db, bytes.NewReader(j), int64(len(j))); err != nil {
			t.Fatal(c.name, err)
		}
		if db.b[512] != c.want || len(db.b) != c.size {
			t.Errorf("%s: page has %d, file %d bytes", c.name, db.b[512], len(db.b))
		}
	}
}

func FuzzRollback(f *testing.F) {
	f.Add(journal(2, bytes.Repeat([]byte{1}, 512), 2))
	f.Fuzz(func(t *testing.T, j []byte) {
		if len(j) >= 24 && binary.BigEndian.Uint32(j[16:]) > 1000 {
			t.Skip("a large file")
		}
		db := &memory{make([]byte, 1024)}
		if err := sqlite.Rollback(db, bytes.NewReader(j), int64(len(j))); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if _, err := sqlite.SuperJournal(bytes.NewReader(j), int64(len(j))); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzWAL(f *testing.F) {
	h := sqlite.WALHeader{PageSize: 512, Salt: [2]uint32{1, 2}}
	b := h.Append(nil)
	b, _ = sqlite.AppendFrame(b, &h, h.Sum, sqlite.Frame{Page: 1, Commit: 1}, make([]byte, 512))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := sqlite.NewWALScanner(bytes.NewReader(b))
		if err != nil {
			return
		}
		for range 100 {
			if _, _, err := s.Frame(math.MaxUint32); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				return
			}
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add(make([]byte, 136))
	f.Fuzz(func(t *testing.T, b []byte) {
		if x, ok := sqlite.ParseIndex(b); ok && !bytes.Equal(x.Copy()[:4], b[:4]) {
			t.Error("another version")
		}
		if h, err := sqlite.ParseHeader(b); err == nil && !ltx.IsValidPageSize(h.PageSize) {
			t.Error(h.PageSize)
		}
		if _, err := sqlite.FreePages(bytes.NewReader(b), 512, 10); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
}
