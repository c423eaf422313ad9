// Package sqlite reads and writes the file formats of SQLite, and computes the checksums of pages.
//
// The formats are the database header, the write-ahead log, the shared index of that log, and the
// rollback journal: see https://www.sqlite.org/fileformat2.html and
// https://www.sqlite.org/walformat.html. No content of a file makes a function panic.
package sqlite

import (
	"encoding/binary"
	"errors"
	"hash/crc64"
	"io"
	"os"

	"github.com/superfly/ltx"
)

// HeaderSize is the number of bytes of the header at the start of page 1.
const HeaderSize = 100

// magic begins each database file.
const magic = "SQLite format 3\x00"

// Header has the fields of a database header that replication needs.
type Header struct {
	PageSize uint32 // bytes
	Pages    uint32 // size of the database in pages; 0 if the header does not have it
	WAL      bool   // the database is in WAL mode
}

// ErrNotDatabase is returned for a header that is not one of an SQLite database.
var ErrNotDatabase = errors.New("not an SQLite database")

// ParseHeader reads the header of a database from its first HeaderSize bytes.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize || string(b[:len(magic)]) != magic {
		return Header{}, ErrNotDatabase
	}
	size := uint32(binary.BigEndian.Uint16(b[16:]))
	if size == 1 {
		size = 65536
	}
	if !ltx.IsValidPageSize(size) {
		return Header{}, ErrNotDatabase
	}
	h := Header{PageSize: size, WAL: b[18] == 2 && b[19] == 2}
	// The size is valid only if the program that wrote it also wrote the change counter.
	if binary.BigEndian.Uint32(b[24:]) == binary.BigEndian.Uint32(b[92:]) {
		h.Pages = binary.BigEndian.Uint32(b[28:])
	}
	return h, nil
}

// IsDatabase reports whether a path is a regular file with the header of a database. A new database is still empty,
// and has no header.
func IsDatabase(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() < HeaderSize {
		return false, err // another kind of file may block when it is opened
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	var b [HeaderSize]byte
	if _, err := f.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	_, err = ParseHeader(b[:])
	return err == nil, nil
}

var isoTable = crc64.MakeTable(crc64.ISO)

// PageSum returns the checksum of one page: CRC-64/ISO over its number and its content, with the
// highest bit set. The checksum of LockPage is 0.
func PageSum(page uint32, data []byte) ltx.Checksum {
	if page == LockPage(uint32(len(data))) {
		return 0
	}
	var number [4]byte
	binary.BigEndian.PutUint32(number[:], page)
	sum := crc64.Update(0, isoTable, number[:])
	return ltx.ChecksumFlag | ltx.Checksum(crc64.Update(sum, isoTable, data))
}

// LockPage returns the number of the page at 1 GiB, which holds SQLite's lock bytes and never any
// content.
func LockPage(pageSize uint32) uint32 {
	if pageSize == 0 {
		return 0
	}
	return ltx.LockPgno(pageSize)
}

// FreePages returns the leaf pages of the freelist of a database file, whose content is meaningless.
func FreePages(r io.ReaderAt, pageSize, size uint32) (map[uint32]bool, error) {
	var head [HeaderSize]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, err
	}
	free := map[uint32]bool{}
	trunk := make([]byte, pageSize)
	seen := uint32(0)
	for page := binary.BigEndian.Uint32(head[32:]); page != 0 && page <= size && seen < size; seen++ {
		if _, err := r.ReadAt(trunk, int64(page-1)*int64(pageSize)); err != nil {
			return nil, err
		}
		n := min(binary.BigEndian.Uint32(trunk[4:]), pageSize/4-2)
		for i := range n {
			free[binary.BigEndian.Uint32(trunk[8+4*i:])] = true
		}
		page = binary.BigEndian.Uint32(trunk)
	}
	return free, nil
}

// Bytes that SQLite locks, in the database file and in the index of the WAL.
const (
	PendingByte  = 0x40000000
	ReservedByte = PendingByte + 1
	SharedFirst  = PendingByte + 2
	SharedSize   = 510

	WriteByte      = 120
	CheckpointByte = 121
	RecoverByte    = 122
	ReadByte       = 123 // of slot 0; the others follow
	ReadSlots      = 5
	MemberByte     = 128 // held shared by each connection that has the index open
)
