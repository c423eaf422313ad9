package sqlite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// JournalHeaderSize is the number of bytes of the header of a rollback journal.
const JournalHeaderSize = 28

const journalMagic = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"

// JournalValid reports whether a rollback journal that begins with b could be rolled back: its
// header has neither been removed nor overwritten.
func JournalValid(b []byte) bool {
	return len(b) >= JournalHeaderSize && string(b[:len(journalMagic)]) == journalMagic
}

// File is what a rollback writes to.
type File interface {
	io.WriterAt
	Truncate(size int64) error
}

// Rollback restores a database to its state before the transaction of a journal. size is that of the journal
// in bytes. A journal without a valid header changes nothing.
func Rollback(db File, journal io.ReaderAt, size int64) error {
	var head [JournalHeaderSize]byte
	first := true
	for off := int64(0); off+JournalHeaderSize <= size; {
		if _, err := journal.ReadAt(head[:], off); err != nil {
			return fmt.Errorf("read journal header: %w", err)
		}
		if !JournalValid(head[:]) {
			return nil
		}
		count := binary.BigEndian.Uint32(head[8:])
		nonce := binary.BigEndian.Uint32(head[12:])
		pages := binary.BigEndian.Uint32(head[16:])
		sector := int64(binary.BigEndian.Uint32(head[20:]))
		pageSize := int64(binary.BigEndian.Uint32(head[24:]))
		if pageSize < 512 || pageSize > 65536 || pageSize&(pageSize-1) != 0 || sector < 32 || sector > 65536 || sector&(sector-1) != 0 {
			return nil
		}
		if first {
			if err := db.Truncate(int64(pages) * pageSize); err != nil {
				return err
			}
			first = false
		}
		record := pageSize + 8
		off += sector
		if count == 0xffffffff {
			count = uint32(max(0, size-off) / record)
		}
		done, err := playBack(db, journal, off, size, count, nonce, pageSize, pages)
		if err != nil || !done {
			return err
		}
		off += int64(count) * record
		if rest := off % sector; rest != 0 {
			off += sector - rest
		}
	}
	return nil
}

// playBack writes the pages of one section of a journal. It reports false at the first incomplete
// record, which ends the journal.
func playBack(db File, journal io.ReaderAt, off, size int64, count, nonce uint32, pageSize int64, pages uint32) (bool, error) {
	record := make([]byte, pageSize+8)
	for range count {
		if off+int64(len(record)) > size {
			return false, nil
		}
		if _, err := journal.ReadAt(record, off); err != nil {
			return false, fmt.Errorf("read journal: %w", err)
		}
		page := binary.BigEndian.Uint32(record)
		data := record[4 : 4+pageSize]
		sum := nonce
		for i := pageSize - 200; i > 0; i -= 200 {
			sum += uint32(data[i])
		}
		if sum != binary.BigEndian.Uint32(record[4+pageSize:]) || page == 0 {
			return false, nil
		}
		if page <= pages && page != LockPage(uint32(pageSize)) {
			if _, err := db.WriteAt(data, int64(page-1)*pageSize); err != nil {
				return false, err
			}
		}
		off += int64(len(record))
	}
	return true, nil
}

// SuperJournal returns the name of the super-journal, which commits a transaction of several databases,
// from the end of a journal, or "".
func SuperJournal(journal io.ReaderAt, size int64) (string, error) {
	const trailer = 16
	if size < trailer {
		return "", nil
	}
	var b [trailer]byte
	if _, err := journal.ReadAt(b[:], size-trailer); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	n := int64(binary.BigEndian.Uint32(b[:]))
	if string(b[8:]) != journalMagic || n == 0 || n > 4096 || n > size-trailer {
		return "", nil
	}
	name := make([]byte, n)
	if _, err := journal.ReadAt(name, size-trailer-n); err != nil {
		return "", err
	}
	var sum uint32
	for _, c := range name {
		sum += uint32(int32(int8(c)))
	}
	if sum != binary.BigEndian.Uint32(b[4:]) || bytes.IndexByte(name, 0) >= 0 {
		return "", nil
	}
	return string(name), nil
}
