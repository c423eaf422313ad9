package sqlite

import (
	"encoding/binary"
	"errors"
	"io"
)

// Sizes in the write-ahead log, in bytes.
const (
	WALHeaderSize   = 32
	FrameHeaderSize = 24
)

const (
	walMagic   = 0x377f0682 // the lowest bit says that checksums are big-endian
	walVersion = 3007000
)

// ErrBadWAL is returned for an invalid header of a WAL.
var ErrBadWAL = errors.New("invalid WAL header")

// WALSum is the running checksum of a WAL.
type WALSum [2]uint32

// Add continues the checksum with b, whose length is a multiple of 8.
func (s WALSum) Add(bigEndian bool, b []byte) WALSum {
	s0, s1 := s[0], s[1]
	if bigEndian {
		for ; len(b) >= 8; b = b[8:] {
			s0 += binary.BigEndian.Uint32(b) + s1
			s1 += binary.BigEndian.Uint32(b[4:]) + s0
		}
	} else {
		for ; len(b) >= 8; b = b[8:] {
			s0 += binary.LittleEndian.Uint32(b) + s1
			s1 += binary.LittleEndian.Uint32(b[4:]) + s0
		}
	}
	return WALSum{s0, s1}
}

// WALHeader is the header of a WAL.
type WALHeader struct {
	BigEndian  bool // byte order of the checksums
	PageSize   uint32
	Checkpoint uint32 // counts restarts of the log
	Salt       [2]uint32
	Sum        WALSum // of the header; the running checksum of the frames continues it
}

// ParseWALHeader reads a header and verifies its checksum.
func ParseWALHeader(b []byte) (WALHeader, error) {
	if len(b) < WALHeaderSize {
		return WALHeader{}, ErrBadWAL
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	h := WALHeader{
		BigEndian:  word(0)&1 == 1,
		PageSize:   word(2),
		Checkpoint: word(3),
		Salt:       [2]uint32{word(4), word(5)},
		Sum:        WALSum{word(6), word(7)},
	}
	size := h.PageSize
	if word(0)&^1 != walMagic || word(1) != walVersion || size < 512 || size > 65536 || size&(size-1) != 0 ||
		h.Sum != (WALSum{}).Add(h.BigEndian, b[:24]) {
		return WALHeader{}, ErrBadWAL
	}
	return h, nil
}

// Append appends the header to b, with its checksum. It sets h.Sum.
func (h *WALHeader) Append(b []byte) []byte {
	start := len(b)
	var order uint32
	if h.BigEndian {
		order = 1
	}
	for _, w := range []uint32{walMagic | order, walVersion, h.PageSize, h.Checkpoint, h.Salt[0], h.Salt[1]} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	h.Sum = WALSum{}.Add(h.BigEndian, b[start:])
	b = binary.BigEndian.AppendUint32(b, h.Sum[0])
	return binary.BigEndian.AppendUint32(b, h.Sum[1])
}

// FrameOffset returns the offset of frame n, counted from 1, in a WAL.
func FrameOffset(n, pageSize uint32) int64 {
	return WALHeaderSize + int64(n-1)*int64(FrameHeaderSize+pageSize)
}

// Frame is one page in a WAL.
type Frame struct {
	Page   uint32
	Commit uint32 // size of the database in pages if the frame ends a transaction, else 0
}

// AppendFrame appends a frame to b and continues the checksum sum, which it returns.
func AppendFrame(b []byte, h *WALHeader, sum WALSum, f Frame, data []byte) ([]byte, WALSum) {
	start := len(b)
	b = binary.BigEndian.AppendUint32(b, f.Page)
	b = binary.BigEndian.AppendUint32(b, f.Commit)
	sum = sum.Add(h.BigEndian, b[start:start+8]).Add(h.BigEndian, data)
	for _, w := range []uint32{h.Salt[0], h.Salt[1], sum[0], sum[1]} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return append(b, data...), sum
}

// WALScanner reads the valid frames of a WAL in order.
type WALScanner struct {
	Header WALHeader
	Next   uint32 // number of the next frame, from 1
	Sum    WALSum // after the frame before Next

	r     io.ReaderAt
	buf   []byte
	first uint32 // number of the first frame in buf
	n     uint32 // frames in buf
}

// scanBytes is roughly how much a scanner reads at once.
const scanBytes = 256 << 10

// NewWALScanner reads the header of a WAL, and returns a scanner at its first frame.
func NewWALScanner(r io.ReaderAt) (*WALScanner, error) {
	var b [WALHeaderSize]byte
	if n, err := r.ReadAt(b[:], 0); n < len(b) {
		if errors.Is(err, io.EOF) {
			err = ErrBadWAL
		}
		return nil, err
	}
	h, err := ParseWALHeader(b[:])
	if err != nil {
		return nil, err
	}
	return &WALScanner{Header: h, Next: 1, Sum: h.Sum, r: r}, nil
}

// Forget drops the frames that the scanner has read ahead, which a writer may have replaced.
func (s *WALScanner) Forget() { s.n = 0 }

// Frame reads the next frame up to number limit. Its data is valid until the next call. It returns
// io.EOF at limit and before a frame that is incomplete, from before the last restart, or damaged.
func (s *WALScanner) Frame(limit uint32) (Frame, []byte, error) {
	if s.Next > limit {
		return Frame{}, nil, io.EOF
	}
	size := FrameHeaderSize + s.Header.PageSize
	if s.n == 0 || s.Next < s.first || s.Next >= s.first+s.n {
		if err := s.fill(limit, size); err != nil {
			return Frame{}, nil, err
		}
	}
	b := s.buf[(s.Next-s.first)*size:][:size]
	f := Frame{Page: binary.BigEndian.Uint32(b), Commit: binary.BigEndian.Uint32(b[4:])}
	salt := [2]uint32{binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
	sum := s.Sum.Add(s.Header.BigEndian, b[:8]).Add(s.Header.BigEndian, b[FrameHeaderSize:])
	if f.Page == 0 || salt != s.Header.Salt || sum != (WALSum{binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:])}) {
		s.n = 0
		return Frame{}, nil, io.EOF
	}
	s.Next++
	s.Sum = sum
	return f, b[FrameHeaderSize:], nil
}

func (s *WALScanner) fill(limit, size uint32) error {
	want := min(max(1, scanBytes/size), limit-s.Next+1)
	if need := int(want * size); cap(s.buf) < need {
		s.buf = make([]byte, need)
	}
	n, err := s.r.ReadAt(s.buf[:want*size], FrameOffset(s.Next, s.Header.PageSize))
	s.first, s.n = s.Next, uint32(n)/size
	if s.n > 0 {
		return nil
	}
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return err
}
