package sqlite

import "encoding/binary"

// Layout of the index of a WAL (the -shm file), in bytes.
const (
	IndexHeaderSize = 136   // both copies of the header, and what checkpoints need
	IndexBlockSize  = 32768 // page numbers of some frames, and a hash table of them

	indexCopySize   = 48
	backfillOffset  = 96
	readMarkOffset  = 100
	attemptedOffset = 128

	blockFrames      = 4096
	firstBlockFrames = blockFrames - IndexHeaderSize/4
	hashSlots        = 2 * blockFrames
	hashOffset       = 4 * blockFrames
)

// ReadMarkUnused is the mark of a slot that no reader uses.
const ReadMarkUnused = 0xffffffff

// Index is the header of the index of a WAL. SQLite stores it in the byte order of the processor; this
// package supports only little-endian processors.
type Index struct {
	Change   uint32 // grows by 1 with each transaction
	PageSize uint32
	MaxFrame uint32 // number of the last committed frame, 0 if there is none
	Pages    uint32 // size of the database in pages
	Sum      WALSum // of the last frame
	Salt     [2]uint32

	BigEndian bool // byte order of the checksums of frames

	// The checksum of the header does not cover these.
	Backfilled uint32 // frames that are in the database file
	ReadMark   [ReadSlots]uint32
}

// ParseIndex reads the header of an index. ok is false if it is not initialized, or incomplete because a
// writer is writing it or died meanwhile.
func ParseIndex(b []byte) (x Index, ok bool) {
	if len(b) < IndexHeaderSize || string(b[:indexCopySize]) != string(b[indexCopySize:2*indexCopySize]) {
		return Index{}, false
	}
	word := func(off int) uint32 { return binary.LittleEndian.Uint32(b[off:]) }
	if word(0) != walVersion || b[12] != 1 || (WALSum{}).Add(false, b[:40]) != (WALSum{word(40), word(44)}) {
		return Index{}, false
	}
	size := uint32(binary.LittleEndian.Uint16(b[14:]))
	if size == 1 {
		size = 65536
	}
	x = Index{
		Change:     word(8),
		BigEndian:  b[13] == 1,
		PageSize:   size,
		MaxFrame:   word(16),
		Pages:      word(20),
		Sum:        WALSum{word(24), word(28)},
		Salt:       [2]uint32{binary.BigEndian.Uint32(b[32:]), binary.BigEndian.Uint32(b[36:])},
		Backfilled: word(backfillOffset),
	}
	for i := range x.ReadMark {
		x.ReadMark[i] = word(readMarkOffset + 4*i)
	}
	return x, true
}

// Copy returns the bytes of the header. A writer stores them twice, first at IndexCopy(1) and then at
// IndexCopy(0), so that a reader detects an incomplete header.
func (x *Index) Copy() []byte {
	b := make([]byte, indexCopySize)
	binary.LittleEndian.PutUint32(b, walVersion)
	binary.LittleEndian.PutUint32(b[8:], x.Change)
	b[12] = 1
	if x.BigEndian {
		b[13] = 1
	}
	size := uint16(x.PageSize)
	if x.PageSize == 65536 {
		size = 1
	}
	binary.LittleEndian.PutUint16(b[14:], size)
	for i, w := range []uint32{x.MaxFrame, x.Pages, x.Sum[0], x.Sum[1]} {
		binary.LittleEndian.PutUint32(b[16+4*i:], w)
	}
	binary.BigEndian.PutUint32(b[32:], x.Salt[0])
	binary.BigEndian.PutUint32(b[36:], x.Salt[1])
	sum := WALSum{}.Add(false, b[:40])
	binary.LittleEndian.PutUint32(b[40:], sum[0])
	binary.LittleEndian.PutUint32(b[44:], sum[1])
	return b
}

// IndexCopy returns the offset of a copy of the header, 0 or 1.
func IndexCopy(i int) int64 { return int64(i) * indexCopySize }

// Offsets of the fields that checkpoints and readers change.
const (
	BackfilledOffset = backfillOffset
	AttemptedOffset  = attemptedOffset
)

// ReadMarkOffset returns the offset of the mark of a slot.
func ReadMarkOffset(slot int) int64 { return readMarkOffset + 4*int64(slot) }

// IndexPlace is where the index has the page number of a frame.
type IndexPlace struct {
	Block   int64  // offset of the block in the file
	Entry   uint32 // of the frame in the block, from 0
	PagesAt int64  // offset of the page numbers of the block in the file
	Frames  uint32 // number of entries of the block
}

// PlaceOf returns where a frame, counted from 1, belongs in the index.
func PlaceOf(frame uint32) IndexPlace {
	if frame <= firstBlockFrames {
		return IndexPlace{Entry: frame - 1, PagesAt: IndexHeaderSize, Frames: firstBlockFrames}
	}
	n := frame - firstBlockFrames - 1
	block := int64(n/blockFrames+1) * IndexBlockSize
	return IndexPlace{Block: block, Entry: n % blockFrames, PagesAt: block, Frames: blockFrames}
}

// IndexBlock is one block of the index in memory.
type IndexBlock struct {
	b     []byte // the whole block
	place IndexPlace
}

// NewIndexBlock wraps the IndexBlockSize bytes of the block of a place.
func NewIndexBlock(b []byte, place IndexPlace) IndexBlock { return IndexBlock{b: b, place: place} }

// Truncate removes all entries but the first n. A writer that died may have left them.
func (k IndexBlock) Truncate(n uint32) {
	start := k.place.PagesAt - k.place.Block
	for slot := range hashSlots {
		at := hashOffset + 2*slot
		if uint32(binary.LittleEndian.Uint16(k.b[at:])) > n {
			binary.LittleEndian.PutUint16(k.b[at:], 0)
		}
	}
	clear(k.b[start+4*int64(n) : hashOffset])
}

// Stale reports whether an entry is already in use.
func (k IndexBlock) Stale(entry uint32) bool {
	start := k.place.PagesAt - k.place.Block
	return binary.LittleEndian.Uint32(k.b[start+4*int64(entry):]) != 0
}

// Set stores the page of an entry, counted from 0, in the list and the hash table. It reports false if
// the table is full, which never happens to a valid one.
func (k IndexBlock) Set(entry, page uint32) bool {
	start := k.place.PagesAt - k.place.Block
	slot := page * 383 % hashSlots
	for range hashSlots {
		at := hashOffset + 2*slot
		if binary.LittleEndian.Uint16(k.b[at:]) == 0 {
			binary.LittleEndian.PutUint32(k.b[start+4*int64(entry):], page)
			binary.LittleEndian.PutUint16(k.b[at:], uint16(entry+1))
			return true
		}
		slot = (slot + 1) % hashSlots
	}
	return false
}
